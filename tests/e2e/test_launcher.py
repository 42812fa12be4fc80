"""pccl-run with real workers: what dies is started again, what goes on goes on, nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import PATIENCE_S, ROOT, Peer, wait_until
from fake_cloud import Cloud

PROGRAM = str(Path(__file__).resolve().parent / "launched.py")
QUICK = ("--restart-delay", "0.05")
Launch = Callable[..., "Launcher"]


class Launcher(Peer):
    """A pccl-run; the lines of its workers are its own."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
        environment["TMPDIR"] = str(folder)  # a killed launcher leaves its own there
        self._folder = folder
        # Unbuffered, a worker writes a line and its end apart, and another one's comes in between.
        environment.pop("PYTHONUNBUFFERED", None)
        command = [sys.executable, "-m", "pccl_backend.launch", *arguments]
        super().__init__(command, environment, "pccl-run")

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def latest(self) -> dict[int, dict[str, Any]]:
        """Of each local rank, the last line that it has said."""
        return {line["local"]: line for line in list(self.lines)}

    def wait_for(self, workers: int, **wanted: Any) -> dict[int, dict[str, Any]]:
        """Until so many workers have said something, and their last lines have these values."""

        def found() -> Any:
            latest = self.latest()
            ok = all(line.get(k) == v for line in latest.values() for k, v in wanted.items())
            return latest if ok and len(latest) == workers else None

        return wait_until(found, what=f"{wanted} of {workers}")

    def ends(self, status: int) -> str:
        """Waits for its end, with that status and nothing left behind; returns its stderr."""
        before = self.children()
        self.finish(status=status)
        wait_for_ends(before)
        assert list(self._folder.glob("pccl-run-*")) == []
        return "".join(self.errors)


def has_ended(process: psutil.Process) -> bool:
    """Orphans are zombies until the first process of the machine looks after them."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_ends(processes: list[psutil.Process]) -> None:
    wait_until(lambda: all(has_ended(process) for process in processes), what=str(processes))


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """`launch(*arguments, **variables)`: a launcher; it ends with the test, and all below it."""
    started: list[Launcher] = []

    def start(*arguments: str, **variables: str) -> Launcher:
        folder = tmp_path_factory.mktemp("launcher")
        started.append(Launcher(folder, *arguments, **variables))
        return started[-1]

    yield start
    for launcher in started:
        launcher.close()  # the kernel ends its workers


def python(code: str) -> tuple[str, ...]:
    """The arguments that make a worker of some lines of Python."""
    return ("--no-python", sys.executable, "-c", code)


ANY_MASTER = ("--master", "pccl://127.0.0.1:1")  # of workers that join nothing


# ------------------------------------------------------------------------------ elastic runs


def test_the_worker_that_is_killed_is_started_again_and_the_others_go_on(launch: Launch) -> None:
    launcher = launch("--standalone", "--nproc-per-node", "3", *QUICK, PROGRAM)
    first = launcher.wait_for(3, size=3, sum=3.0)
    os.kill(first[1]["pid"], signal.SIGKILL)
    wait_until(lambda: launcher.latest()[0].get("size") == 2, what=launcher.log())
    wait_until(lambda: launcher.latest()[1]["attempt"] == 1, what=launcher.log())
    again = launcher.wait_for(3, size=3, sum=3.0)
    assert again[1]["step"] > first[0]["step"]  # it has the state of the others
    for rank in (0, 2):
        assert (again[rank]["pid"], again[rank]["attempt"]) == (first[rank]["pid"], 0)
    assert not [p for p in launcher.children() if p.status() == psutil.STATUS_ZOMBIE]
    launcher.signal(signal.SIGTERM)
    said = launcher.ends(0)
    assert "worker 1 was ended by SIGKILL after" in said
    assert [line["left"] for line in launcher.latest().values()] == [True] * 3


def test_the_master_of_standalone_is_started_again_and_the_run_goes_on(launch: Launch) -> None:
    launcher = launch("--standalone", "--nproc-per-node", "2", *QUICK, PROGRAM)
    first = launcher.wait_for(2, size=2)
    (master,) = [p for p in launcher.children() if "pccl_backend._cli" in p.cmdline()]
    master.kill()
    wait_until(lambda: "connected to the master again" in launcher.log(), what=launcher.log())
    step = max(line["step"] for line in launcher.latest().values())
    wait_until(lambda: min(line["step"] for line in launcher.latest().values()) > step + 5)
    assert {line["pid"] for line in launcher.latest().values()} == {
        line["pid"] for line in first.values()
    }
    launcher.signal(signal.SIGTERM)
    assert "the master was ended by SIGKILL" in launcher.ends(0)


@pytest.mark.long
def test_workers_that_all_die_go_on_without_those_that_have_left(launch: Launch) -> None:
    launcher = launch("--standalone", "--nproc-per-node", "3", *QUICK, PROGRAM)
    first = launcher.wait_for(3, size=3)
    os.kill(first[0]["pid"], signal.SIGTERM)
    wait_until(lambda: launcher.latest()[0].get("left"), what=launcher.log())
    for rank in (1, 2):
        os.kill(first[rank]["pid"], signal.SIGKILL)

    def go_on() -> bool:
        latest = launcher.latest()
        return all((latest[r]["attempt"], latest[r].get("size")) == (1, 2) for r in (1, 2))

    wait_until(go_on, what=launcher.log())
    launcher.signal(signal.SIGTERM)
    assert "2 of 3 are left" in launcher.ends(0)


@pytest.mark.long
def test_a_replica_that_loses_a_rank_is_replaced_as_a_whole(
    launch: Launch, start_master: Callable[..., Any]
) -> None:
    master = start_master("--min-peers", "2")
    arguments = ("--master", master.url, "--replica", "--nproc-per-node", "2", *QUICK)
    west, east = (launch(*arguments, PROGRAM, "replica") for _ in range(2))
    before = [side.wait_for(2, size=2, sum=4.0) for side in (west, east)]
    os.kill(before[0][1]["pid"], signal.SIGKILL)
    wait_until(lambda: east.latest()[0].get("size") == 1, what=east.log())
    wait_until(lambda: {line["attempt"] for line in west.latest().values()} == {1}, what=west.log())
    east.wait_for(2, size=2, sum=4.0)
    after = west.wait_for(2, size=2, sum=4.0)
    assert not {line["pid"] for line in after.values()} & {x["pid"] for x in before[0].values()}
    assert {x["pid"] for x in east.latest().values()} == {x["pid"] for x in before[1].values()}
    assert "rank 1 of the replica was ended by SIGKILL; its other ranks are ended" in west.log()
    for side in (west, east):
        side.signal(signal.SIGTERM)
        side.ends(0)


def test_when_the_cloud_takes_the_machine_back_the_workers_leave(launch: Launch) -> None:
    cloud = Cloud()
    try:
        path = "GET /computeMetadata/v1/instance/preempted"
        cloud.answers[path] = (200, "FALSE")
        launcher = launch(
            *("--standalone", "--nproc-per-node", "2", "--spot", "gcp", PROGRAM),
            PCCL_RUN_METADATA=cloud.url,
        )
        launcher.wait_for(2, size=2)
        cloud.answers[path] = (200, "TRUE")
        said = launcher.ends(0)
    finally:
        cloud.close()
    assert "gcp takes this machine back (preempted); SIGTERM goes to the workers" in said
    assert [line["left"] for line in launcher.latest().values()] == [True] * 2


# ------------------------------------------------------------------------------ endings


def test_ten_quick_failures_end_the_launcher_and_show_why(launch: Launch) -> None:
    code = """
import os, sys
os.write(2, f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())  # in one piece
sys.exit(7)
"""
    delays = ("--restart-delay", "0.001", "--restart-delay-max", "0.01")
    said = launch(*ANY_MASTER, *delays, *python(code)).ends(7)
    # Lines of a worker that ended just before may still be on their way to the console.
    assert re.search(r"in a row: pccl-run gives up.*stderr:\n(attempt \d\n)*attempt 9\n", said)
    assert said.count("next start in") == 9


def test_who_gives_up_ends_the_others_in_good_order(launch: Launch) -> None:
    code = """
import os, signal, sys, time
if os.environ["LOCAL_RANK"] == "1":
    sys.exit("no luck")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('{"local": 0}', flush=True)
time.sleep(600)
"""
    launcher = launch(
        *(*ANY_MASTER, *QUICK, "--max-failures", "4", "--nproc-per-node", "2"), *python(code)
    )
    launcher.next(local=0)
    said = launcher.ends(1)
    assert "worker 0 " not in said.partition("gives up")[0]
    assert said.endswith("no luck\n")


@pytest.mark.long
def test_a_program_that_fails_whenever_its_run_is_founded_is_given_up(launch: Launch) -> None:
    """All members are lost each time: the next ones wait at the door until the master refounds."""
    few = ("--max-failures", "3", "--nproc-per-node", "2")
    said = launch("--standalone", *few, *QUICK, PROGRAM, "fail").ends(1)
    assert "failure 3 in a row: pccl-run gives up" in said
    assert "this program is wrong\n" in said.partition("gives up")[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_handed_on_to_the_workers_and_only_to_them(
    launch: Launch, number: signal.Signals
) -> None:
    code = """
import json, os, signal, sys, time
def say(**line):  # also while the handler interrupts it: print would raise
    os.write(1, json.dumps(line).encode() + b"\\n")
def leave(number, frame):
    say(local=0, got=number)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, leave)
say(local=0)
time.sleep(600)
"""
    handled = ("--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1")
    launcher = launch(*ANY_MASTER, *handled, *python(code))
    launcher.next(local=0)
    launcher.signal(number)
    assert launcher.next()["got"] == number
    launcher.ends(0)


def test_signals_that_go_on_coming_do_not_change_the_status(launch: Launch) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('{"local": 0}', flush=True)
time.sleep(600)
"""
    launcher = launch(*ANY_MASTER, *python(code))
    launcher.next(local=0)
    while launcher.process.poll() is None:
        launcher.signal(signal.SIGTERM)
    launcher.ends(0)


def test_who_does_not_end_in_time_is_killed_and_so_is_said(launch: Launch) -> None:
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"local": 0}', flush=True)
time.sleep(600)
"""
    launcher = launch(*ANY_MASTER, "--shutdown-timeout", "0.2", *python(code))
    launcher.next(local=0)
    launcher.signal(signal.SIGTERM)
    assert "worker 0 has not ended in time: SIGKILL" in launcher.ends(137)


def test_workers_die_with_a_launcher_that_is_killed(launch: Launch) -> None:
    code = "import os, time; print('{\"pid\": %d}' % os.getpid(), flush=True); time.sleep(600)"
    launcher = launch(*ANY_MASTER, "--nproc-per-node", "2", *python(code))
    workers = [psutil.Process(launcher.next()["pid"]) for _ in range(2)]
    launcher.kill()
    wait_for_ends(workers)


def test_a_worker_whose_streams_cannot_be_copied_does_not_live_beside_the_next(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
from pccl_backend.launch import output
whole = output.Streams.copy
def copy(self, sources):
    output.Streams.copy = whole
    raise OSError("no descriptor is left")
output.Streams.copy = copy
""")
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    code = "import time; print('{\"local\": 0}', flush=True); time.sleep(600)"
    launcher = launch(*ANY_MASTER, "--restart-delay", "2", *python(code), PYTHONPATH=path)
    wait_until(lambda: "next start in 2 s" in "".join(launcher.errors))
    assert all(has_ended(child) for child in launcher.children())
    assert "no descriptor is left" in "".join(launcher.errors)
    launcher.next(local=0)
    launcher.signal(signal.SIGTERM)
    launcher.ends(143)


def test_what_a_killed_worker_has_started_ends_with_it(launch: Launch) -> None:
    code = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print('{"pid": %d, "child": %d}' % (os.getpid(), child.pid), flush=True)
time.sleep(600)
"""
    launcher = launch(*ANY_MASTER, *QUICK, *python(code))
    line = launcher.next()
    child = psutil.Process(line["child"])
    os.kill(line["pid"], signal.SIGKILL)
    wait_for_ends([child])
    assert launcher.next()["pid"] != line["pid"]
    launcher.signal(signal.SIGTERM)
    launcher.ends(143)


def test_when_a_worker_notes_that_the_run_has_ended_none_is_started_again(launch: Launch) -> None:
    code = """
import os, pathlib, sys, time
if os.environ["LOCAL_RANK"] == "1":
    sys.exit(1)
time.sleep(0.5)
pathlib.Path(os.environ["PCCL_RUN_NOTE"]).touch()
sys.exit(1)
"""
    launcher = launch(
        *(*ANY_MASTER, "--restart-delay", "500", "--restart-delay-max", "500"),
        *("--nproc-per-node", "2", *python(code)),
    )
    said = launcher.ends(0)
    assert "worker 1 is not started again: the run has ended" in said
    assert "worker 0 ended with status 1: its run is finished" in said


@pytest.mark.long
def test_a_worker_that_comes_back_after_the_end_of_the_run_ends_the_launcher_in_good_order(
    launch: Launch,
) -> None:
    delay = ("--restart-delay", "5")
    said = launch("--standalone", "--nproc-per-node", "2", *delay, PROGRAM, "finish").ends(0)
    assert "RunEndedError" in said
    assert "worker 1 ended with status 1: its run is finished" in said


def test_a_worker_that_fails_after_the_end_of_the_run_gives_the_status(launch: Launch) -> None:
    said = launch("--standalone", "--nproc-per-node", "2", PROGRAM, "late").ends(3)
    assert "worker 0 ended with status 3 after `finish`" in said
    assert "next start in" not in said


def test_a_console_that_takes_nothing_holds_up_no_signal() -> None:
    code = "import sys\nwhile True: sys.stderr.write('x' * 999 + '\\n')"
    command = [sys.executable, "-m", "pccl_backend.launch", *ANY_MASTER, *python(code)]
    launcher = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    assert launcher.stderr is not None
    try:

        def is_stuck() -> bool:
            states = [Path(f"/proc/{p.pid}/wchan") for p in workers()]
            return bool(states) and all("pipe" in s.read_text() for s in states)

        def workers() -> list[psutil.Process]:
            return psutil.Process(launcher.pid).children(recursive=True)

        with contextlib.suppress(OSError, psutil.Error):
            wait_until(lambda: is_stuck())
        launcher.terminate()
        assert launcher.wait(PATIENCE_S) == 143
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stderr.close()


# ------------------------------------------------------------------------------ streams


def test_streams_go_into_files_and_to_the_console(launch: Launch, tmp_path: Path) -> None:
    code = """
import os, sys
rank, attempt = os.environ["LOCAL_RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("out", rank, flush=True)
print("err", rank, file=sys.stderr)
sys.exit(0 if attempt == "1" else 3)
"""
    launcher = launch(
        *(*ANY_MASTER, *QUICK, "--nproc-per-node", "2", "--log-dir", str(tmp_path)),
        *("--tee", "0:3", "--redirects", "1:3", *python(code)),
    )
    said = launcher.ends(0)
    (folder,) = tmp_path.iterdir()
    assert f"logs are in {folder}" in said
    for attempt in (0, 1):
        for rank in (0, 1):
            for stream in ("out", "err"):
                file = folder / f"attempt_{attempt}" / str(rank) / f"std{stream}.log"
                assert file.read_text() == f"{stream} {rank}\n"
    console = "".join(launcher.errors)
    assert console.count("[0]: out 0\n") == console.count("[0]: err 0\n") == 2
    assert "out 1" not in console
    assert "err 1" not in console


def test_the_last_lines_of_a_worker_whose_stderr_is_a_file_are_shown(
    launch: Launch, tmp_path: Path
) -> None:
    launcher = launch(
        *(*ANY_MASTER, "--max-failures", "1", "-r", "3", "--log-dir", str(tmp_path)),
        *python("import sys; sys.exit('this is why')"),
    )
    assert launcher.ends(1).endswith("this is why\n")
