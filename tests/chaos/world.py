"""The processes of a chaos run: a master on host 1, members on the other hosts of an emulated WAN.

Starts and ends them, follows the members' records, and writes down what was done to whom, so that
every exit can be explained. What is done, and when, is decided elsewhere (harm.py, run.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import work
from wan.wan import Wan

ROOT = Path(__file__).resolve().parents[2]
MASTER_HOST = 1
PORT = 48148
EVICTED, NO_MASTER = 75, 76  # exit statuses of chaos.member, which is not imported: it loads torch
MARGIN_S = 10.0  # after a fault, in which what it has caused still shows


@dataclass
class Span:
    begin: float
    end: float = float("inf")

    def holds(self, when: float) -> bool:
        """Also shortly after its end: what it has caused still shows."""
        return self.begin <= when <= self.end + MARGIN_S


@dataclass
class Options:
    hosts: int = 4
    per_host: int = 2
    heartbeat_s: float = 1.0
    evict_after_s: float = 5.0
    rtt_ms: float = 20.0
    rate_mbit: float = 1000.0
    user_timeout_s: float = 20.0  # so long a pair that is cut holds everybody up
    log_level: str = "info"


@dataclass
class Member:
    """A member's process as seen from outside."""

    number: int
    host: int
    process: subprocess.Popen[bytes]
    records_path: Path
    log_path: Path
    began: float
    step: int = -1  # of its last boundary
    admitted: bool = False
    ended: bool = False
    last: str = "started"
    heard: float = 0.0
    killed: bool = False
    leaving: bool = False
    stopped: bool = False
    risks: list[Span] = field(default_factory=list)  # in which it may be evicted
    _offset: int = 0

    @property
    def alive(self) -> bool:
        return not self.ended

    def read(self) -> list[dict[str, Any]]:
        if not self.records_path.exists():
            return []
        with self.records_path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        for line in new:
            self.last, self.heard = line["what"], line["time"]
            if line["what"] == "boundary" and not line["left"]:
                self.step, self.admitted = line["step"], True
        return new


class World:
    def __init__(self, folder: Path, options: Options, wan: Wan, founders: int) -> None:
        self.folder, self.options, self.wan = folder, options, wan
        self.members: list[Member] = []
        self.master: subprocess.Popen[bytes] | None = None
        self.wrong: list[str] = []  # exits that nothing explains
        self.counts: dict[str, int] = {}
        self.outages: list[Span] = []  # without a master that answers
        self.risks: dict[int, list[Span]] = {host: [] for host in wan.hosts}
        self.founders = founders
        self.began = time.time()
        self._masters = 0
        self._events = (folder / "events.jsonl").open("w", buffering=1)

    def note(self, what: str, **fields: Any) -> None:
        """One line of what was done."""
        self.counts[what] = self.counts.get(what, 0) + 1
        record = {"what": what, "time": time.time(), "at_s": round(time.time() - self.began, 3)}
        self._events.write(json.dumps({**record, **fields}) + "\n")

    # -------------------------------------------------------------------------- processes

    @property
    def live(self) -> list[Member]:
        return [m for m in self.members if m.alive]

    def on(self, hosts: set[int]) -> list[Member]:
        return [m for m in self.live if m.host in hosts]

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
            "PCCL_LOG_LEVEL": self.options.log_level,
            "PCCL_TCP_USER_TIMEOUT_S": str(self.options.user_timeout_s),
        }

    def _popen(self, host: int, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return self.wan.popen(
                host,
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment(),
                cwd=ROOT,
            )

    def start_master(self) -> None:
        o = self.options
        arguments = ["pccl_backend._cli", "--listen", f"{self.wan.address(MASTER_HOST)}:{PORT}"]
        arguments += ["--insecure", "--min-peers", str(self.founders), "--run", "chaos"]
        arguments += ["--heartbeat", str(o.heartbeat_s), "--evict-after", str(o.evict_after_s)]
        arguments += ["--state", str(self.folder / "register"), "--log-level", o.log_level]
        self.master = self._popen(MASTER_HOST, arguments, self.folder / "master.log")
        self._masters += 1
        self.note("master starts", pid=self.master.pid)

    def start_member(self, host: int) -> Member:
        taken = {m.number % work.SLOTS for m in self.live}
        number = self.members[-1].number + 1 if self.members else 0
        while number % work.SLOTS in taken:  # slots of those who live are not shared
            number += 1
        url = f"pccl://{self.wan.address(MASTER_HOST)}:{PORT}/chaos"
        log = self.folder / f"member-{number}.log"
        arguments = ["chaos.member", url, str(number), str(self.folder)]
        process = self._popen(host, arguments, log)
        records = self.folder / f"member-{number}.jsonl"
        member = Member(number, host, process, records, log, time.time(), heard=time.time())
        self.members.append(member)
        self.note("member starts", member=number, host=host, pid=process.pid)
        return member

    def signal(self, member: Member, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            member.process.send_signal(number)

    # -------------------------------------------------------------------------- what has come

    def look(self) -> None:
        """Reads new records, takes up members that have ended."""
        for member in self.live:
            status = member.process.poll()
            for line in member.read():
                if line["what"] in ("evicted", "failed", "no master", "left"):
                    self.note(line["what"], member=member.number, text=line.get("text", ""))
            if status is not None:
                member.read()
                member.ended = True
                self._judge(member, status)
        if self.master is not None and self.master.poll() is not None:
            self.wrong.append(f"the master ended by itself with status {self.master.poll()}")
            self.master = None

    def _judge(self, member: Member, status: int) -> None:
        """Is this end one that was asked for?"""
        now = time.time()
        name = f"member {member.number} (host {member.host})"
        self.note("member ends", member=member.number, status=status)
        if member.killed and status == -signal.SIGKILL:
            return
        if status == 0 and (member.last == "end"):
            return
        if status == EVICTED and self.at_risk(member, now):
            return
        if status == NO_MASTER and (self.at_risk(member, now) or self._no_master(member, now)):
            return
        why = "it was evicted, though nothing was done to it" if status == EVICTED else ""
        tail = member.log_path.read_text(errors="replace").strip().splitlines()[-3:]
        self.wrong.append(
            f"{name} ended with status {status} at {now - self.began:.1f} s after {member.last!r}, "
            f"which nothing explains{': ' + why if why else ''}; its log ends: {' | '.join(tail)}"
        )

    def at_risk(self, member: Member, when: float) -> bool:
        """Was something done shortly before `when` for which it may be evicted?"""
        return any(s.holds(when) for s in [*member.risks, *self.risks[member.host]])

    def _no_master(self, member: Member, when: float) -> bool:
        return any(s.begin <= when and member.began <= s.end + MARGIN_S for s in self.outages)

    # -------------------------------------------------------------------------- the end

    def where_they_hang(self, members: list[Member]) -> None:
        """Python's stacks into their logs."""
        for member in members:
            self.signal(member, signal.SIGCONT)
            self.signal(member, signal.SIGUSR1)

    def close(self) -> None:
        """Ends whatever still runs; what it has done is read before."""
        processes = [m.process for m in self.live] + ([self.master] if self.master else [])
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._events.close()
