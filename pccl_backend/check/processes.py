"""Runs a case: fresh processes, a limit for all of them, and a kill for those that stay.

Does not import torch: an installation whose torch cannot be imported is reported like any other
failure, and a process that hangs in a driver holds up no other process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .._config import OF_TOKENS
from ..launch import child as becomes
from .cases import Case, Result

POLL_S = 0.02
GRACE_SHARE = 1 / 6  # of the limit: for the others, when one failed; to end, when the work is done
KILL_S = 10.0
TAIL_BYTES = 4000
FAILURE_CHARACTERS = 600
MASTER_S = 30.0
# They would make the groups of the checks part of another job.
OF_OTHER_JOBS = (
    *("PCCL_MASTER", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *OF_TOKENS,
)


def environment_of(case: Case) -> dict[str, str]:
    """The caller's, without what belongs to another job, and what the case wants."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_OTHER_JOBS and not name.startswith("TORCHELASTIC_")
    }
    return {"OMP_NUM_THREADS": "1", **kept, "PCCL_OBJECTS": "1", **case.environment}


class Process:
    """One process of a case, in a session of its own, so that a kill takes its children too.

    The kernel ends it with this process, however that ends. Its status is taken by `kill` only:
    until then its number is nobody else's.
    """

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        """Starts it; its output goes to `log`."""
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", becomes.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )

    def status(self) -> int | None:
        """Exit status of the process, None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        pid = self._process.pid
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def kill(self) -> bool:
        """Ends it whatever it does; returns whether it has ended. A driver may keep it for good."""
        if self._process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()


def run(check: str, case: Case, folder: Path, *, limit_s: float, device: str) -> Result:
    """Runs a case in `folder`; returns when none of its processes runs any more."""
    folder.mkdir()
    began = time.monotonic()
    limit_s = max(limit_s, case.limit_s)
    result = Result(check, case)
    environment = environment_of(case)
    ranks: list[Process] = []
    master: Process | None = None
    try:
        if case.master:
            master = _start_master(folder, environment)
        for rank in range(case.ranks):
            command = [sys.executable, "-m", "pccl_backend.check.child", case.function]
            command += [str(rank), str(case.ranks), str(folder), str(limit_s), device]
            ranks.append(Process(command, folder / f"rank-{rank}.log", environment))
        _wait(ranks, case, folder, began + limit_s, GRACE_SHARE * limit_s)
        for rank, process in enumerate(ranks):
            _judge(result, rank, process, folder, limit_s)
        if master is not None and master.status() is not None:
            result.failures.append(f"the master has ended with status {master.status()}")
    except OSError as error:
        result.failures.append(str(error))
    finally:
        for process in [*ranks, *([] if master is None else [master])]:
            if not process.kill():
                result.failures.append("a process cannot be killed: it hangs in the kernel")
    result.seconds = time.monotonic() - began
    if result.failures:
        named = {f"rank {rank}": p for rank, p in enumerate(ranks)}
        named |= {} if master is None else {"the master": master}
        result.logs = [f"--- {name}\n{p.tail()}" for name, p in named.items() if p.tail()]
    return result


def _start_master(folder: Path, environment: dict[str, str]) -> Process:
    port = folder / "port"
    command = [sys.executable, "-m", "pccl_backend._cli", "--listen", "127.0.0.1:0"]
    command += ["--min-peers", "3", "--state", "none", "--port-file", str(port)]
    master = Process(command, folder / "master.log", environment)
    deadline = time.monotonic() + MASTER_S
    while not (port.exists() and port.read_text().strip()):
        if master.status() is not None or time.monotonic() > deadline:
            master.kill()
            raise OSError(f"the master opens no port: {master.tail()[-FAILURE_CHARACTERS:]}")
        time.sleep(POLL_S)
    (folder / "url").write_text(f"pccl://127.0.0.1:{port.read_text().strip()}")
    return master


def answer_of(folder: Path, rank: int) -> Path:
    """The file into which a rank writes its result."""
    return folder / f"rank-{rank}.json"


def _wait(ranks: list[Process], case: Case, folder: Path, deadline: float, grace_s: float) -> None:
    """Waits until all have ended, the time is over, or one has failed and the others had grace."""
    finished: dict[int, float] = {}
    while time.monotonic() < deadline:
        running = [rank for rank, process in enumerate(ranks) if process.status() is None]
        if not running:
            return
        for rank, process in enumerate(ranks):
            status = process.status()
            failed = status not in (None, 0) and rank != case.dies
            if rank not in finished and (failed or answer_of(folder, rank).exists()):
                finished[rank] = time.monotonic() + grace_s
            if failed and time.monotonic() > finished[rank]:
                return
        if any(time.monotonic() > finished.get(rank, deadline) for rank in running):
            return  # its work is done and it does not end
        time.sleep(POLL_S)


def _judge(result: Result, rank: int, process: Process, folder: Path, limit_s: float) -> None:
    """Judges the case by the exit status of a rank and by its answer."""
    status = process.status()
    path = answer_of(folder, rank)
    answer = json.loads(path.read_text()) if path.exists() else {}
    if rank == result.case.dies:
        if status != -signal.SIGKILL:
            result.failures.append(f"rank {rank} was to end by SIGKILL; its status is {status}")
        return
    result.unsafe += [reason for reason in answer.get("unsafe", []) if reason not in result.unsafe]
    result.notes = {**answer.get("notes", {}), **result.notes}
    result.brief = result.brief or answer.get("brief", "")
    error = answer.get("error", "")
    if error:
        result.failures.append(f"rank {rank}: {error}"[:FAILURE_CHARACTERS])
    elif not answer:
        end = f"has ended with status {status}" if status is not None else "was still at work"
        result.failures.append(f"rank {rank} {end}; the limit is {limit_s:.0f} s")
    elif status is None:
        grace_s = GRACE_SHARE * limit_s
        result.failures.append(f"rank {rank} was done and has not ended within {grace_s:.0f} s")
    elif status != 0:
        result.failures.append(f"rank {rank} was done and has ended with status {status}")
