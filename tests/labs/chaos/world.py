"""The processes of a chaos run over an emulated WAN: masters on its first hosts, then members.

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

from carriers import CARRIERS
from chaos import work
from chaos.masters import ETCDS, LEASE_S, Masters, Server
from wan.wan import Wan

from pccl_backend._cli import PATIENCE_MARGIN_S
from pccl_backend.demo.growing_file import GrowingFile

ROOT = Path(__file__).resolve().parents[3]
EVICTED, NO_MASTER = 75, 76  # exit statuses of chaos.member, which is not imported: it loads torch
NOT_FORMED = 74
MARGIN_S = 10.0  # after a fault, in which what it has caused still shows


@dataclass
class Span:
    begin: float
    end: float = float("inf")

    def shows_until(self, outages: list[Span], patience_s: float) -> float:
        """When the last of what it has caused shows: shortly after its end, or where masters or
        etcds were away by then, shortly after one that was back has waited for all members.
        """
        until = self.end + MARGIN_S
        for outage in sorted(outages, key=lambda o: o.begin):
            back = outage.end + patience_s
            if outage.begin <= until and back >= self.begin:
                until = max(until, back + MARGIN_S)
        return until


@dataclass
class Options:
    hosts: int = 3  # of members
    per_host: int = 2
    replica_size: int = 1
    masters: int = 1
    heartbeat_s: float = 1.0
    evict_after_s: float = 5.0
    rtt_ms: float = 20.0
    rate_mbit: float = 1000.0
    user_timeout_s: float = 20.0  # so long a pair that is cut holds everybody up
    log_level: str = "info"
    carrier: str = "memory"  # within a host

    @property
    def other_hosts(self) -> int:
        """Of masters, and of the etcds that several masters share."""
        return self.masters + (ETCDS if self.masters > 1 else 0)


@dataclass
class Member:
    """A member's process as seen from outside."""

    number: int
    host: int
    process: subprocess.Popen[bytes]
    records: GrowingFile
    log_path: Path
    began: float
    replica: str = ""
    step: int = -1  # of its last boundary
    admitted: bool = False
    ended: bool = False
    last: str = "started"
    heard: float = 0.0
    killed: bool = False
    leaving: bool = False
    stopped: bool = False
    risks: list[Span] = field(default_factory=list)  # in which it may be evicted

    @property
    def alive(self) -> bool:
        return not self.ended

    def read(self) -> list[dict[str, Any]]:
        new = [json.loads(line) for line in self.records.new_lines()]
        for line in new:
            self.last, self.heard = line["what"], line["time"]
            if line["what"] == "boundary" and not line["left"]:
                self.step, self.admitted = line["step"], True
        return new


class World:
    def __init__(self, folder: Path, options: Options, wan: Wan, founders: int) -> None:
        self.folder, self.options, self.wan = folder, options, wan
        self.members: list[Member] = []
        self.member_hosts = [h for h in wan.hosts if h > options.other_hosts]
        self.wrong: list[str] = []  # exits that nothing explains
        self.counts: dict[str, int] = {}
        self.outages: list[Span] = []  # without a master that answers
        self.risks: dict[int, list[Span]] = {host: [] for host in wan.hosts}
        self.founders = founders
        self.began = time.time()
        self.masters = Masters(wan, self._popen, folder, self._master_options(), options.masters)
        self._replicas = 0
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

    def whole(self, members: list[Member]) -> list[Member]:
        """With all ranks of their replicas: what happens to one happens to all."""
        replicas = {m.replica for m in members}
        return [m for m in self.members if m.replica in replicas]

    def _environment(self, host: int) -> dict[str, str]:
        path = os.pathsep.join(
            [str(ROOT), str(ROOT / "tests" / "labs"), os.environ.get("PYTHONPATH", "")]
        )
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
            "PCCL_ADVERTISE": self.wan.address(host),  # the ranks of a replica meet in a file
            "PCCL_LOG_LEVEL": self.options.log_level,
            "PCCL_TCP_USER_TIMEOUT_S": str(self.options.user_timeout_s),
            **CARRIERS[self.options.carrier],
        }

    def _popen(self, host: int, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return self.wan.popen(
                host,
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment(host),
                cwd=ROOT,
            )

    def start_server(self, server: Server) -> None:
        self.masters.start(server)
        self.note(f"{server.name.split()[0]} starts", name=server.name)

    def _master_options(self) -> list[str]:
        o = self.options
        options = ["--insecure", "--min-peers", str(self.founders), "--run", "chaos"]
        options += ["--heartbeat", str(o.heartbeat_s), "--evict-after", str(o.evict_after_s)]
        return [*options, "--log-level", o.log_level]

    def start_replica(self, hosts: list[int]) -> list[Member]:
        """One rank on each of `hosts`, which may be the same one several times."""
        self._replicas += 1
        name = f"replica-{self._replicas}"
        return [self._start_member(host, name, rank, len(hosts)) for rank, host in enumerate(hosts)]

    def _start_member(self, host: int, replica: str, rank: int, size: int) -> Member:
        taken = {m.number % work.SLOTS for m in self.live}
        number = self.members[-1].number + 1 if self.members else 0
        while number % work.SLOTS in taken:  # slots of those who live are not shared
            number += 1
        log = self.folder / f"member-{number}.log"
        command = [sys.executable, "-m", "chaos.member", self.masters.url, str(number)]
        command.append(str(self.folder))
        if size > 1:
            command += ["--replica", f"{replica}:{rank}:{size}"]
        process = self._popen(host, command, log)
        records = GrowingFile(self.folder / f"member-{number}.jsonl")
        began = time.time()
        member = Member(number, host, process, records, log, began, replica, heard=began)
        self.members.append(member)
        where = {"member": number, "host": host, "replica": replica, "rank": rank}
        self.note("member starts", **where, pid=process.pid)
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
                if line["what"] in ("evicted", "failed", "no master", "not formed", "left"):
                    self.note(line["what"], member=member.number, text=line.get("text", ""))
            if status is not None:
                member.read()
                member.ended = True
                self._judge(member, status)
        self.wrong += self.masters.look()

    def _judge(self, member: Member, status: int) -> None:
        """Is this end one that was asked for?"""
        now = time.time()
        # When it was evicted, not when it had ended: on a busy machine torch needs 10 s for that.
        when = member.heard
        name = f"member {member.number} (host {member.host})"
        self.note("member ends", member=member.number, status=status)
        if member.killed and status == -signal.SIGKILL:
            return
        if status == 0 and (member.last == "end"):
            return
        if status in (EVICTED, NOT_FORMED) and self.at_risk(member, when):
            return
        if status == NO_MASTER and (self.at_risk(member, when) or self._no_master(member, when)):
            self.end_mates(member)
            return
        why = "it was evicted, though nothing was done to it" if status == EVICTED else ""
        tail = member.log_path.read_text(errors="replace").strip().splitlines()[-3:]
        self.wrong.append(
            f"{name} ended with status {status} at {now - self.began:.1f} s after {member.last!r}, "
            f"which nothing explains{': ' + why if why else ''}; its log ends: {' | '.join(tail)}"
        )

    def end_mates(self, member: Member) -> None:
        """As a launcher does: without this rank the others of its replica wait for ever."""
        for mate in self.whole([member]):
            if mate.alive:
                self.note("its replica is ended", member=mate.number)
                mate.killed = True
                self.signal(mate, signal.SIGKILL)

    def at_risk(self, member: Member, when: float) -> bool:
        """Was something done shortly before `when` for which it may be evicted?"""
        replica = self.whole([member])
        spans = [s for m in replica for s in [*m.risks, *self.risks[m.host]]]
        # A lease ends, then who takes over waits for all members (docs/how-to/several-masters.md).
        patience_s = self.options.evict_after_s + 2 * LEASE_S + PATIENCE_MARGIN_S
        return any(s.begin <= when <= s.shows_until(self.outages, patience_s) for s in spans)

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
        for process in [m.process for m in self.live]:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.masters.close()
        self._events.close()
