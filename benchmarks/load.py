"""Does a run go on under attack? Its steps, next to the same attackers at somebody else's door.

Members train on one machine: a step takes 200 ms, half of which each member sleeps. The other half
is arithmetic, as much as the cores of this machine do in 100 ms, and an all-reduce. Meanwhile,
from 100 addresses, strangers without a token open connections, say hello, and begin handshakes with
the master and with each member; and one member writes into the store of the run without end. They
do so in turn

  quiet    not at all
  beside   to a program that accepts and answers nothing, on the same machine
  attack   to pccl-master and to the ports of the members

so what the attackers themselves take from two cores is in `beside` too. The figure is steps under
attack to steps beside, of blocks that ran one after the other; the requirement is 0.95. With
`--require 0.95` the program ends with status 1 if the figure is less, or a member was lost.

    python benchmarks/load.py                                     # the table of docs/benchmarks.md
    python benchmarks/load.py --rounds 1 --block-s 5 --rate 0.25  # a short look
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole

ROOT = Path(__file__).resolve().parents[1]
STRANGERS = str(ROOT / "tests" / "strangers.py")
STEP_S = 0.2
ADDRESSES = 100
HALF_OPEN_S = 8.0  # after so long a stranger gives up a handshake; pccl does after 5 s
BOUNDARY_STEPS = 10
VALUE = b"x" * (16 << 10)
KINDS = ("quiet", "beside", "attack")
LIMIT_S = 120.0
PROCESSES = 2  # of strangers: each opens half of the connections


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--world", type=whole(1), default=8, help="members (default 8)")
    p.add_argument("--rounds", type=whole(1), default=5, help="blocks of each kind (default 5)")
    p.add_argument(
        "--block-s", type=above_zero, default=20.0, help="seconds of a block (default 20)"
    )
    p.add_argument("--connections", type=whole(0), default=10_000, help="silent ones of a block")
    p.add_argument("--rate", type=number(), default=1.0, help="factor for what follows (default 1)")
    p.add_argument("--hellos", type=number(), default=250.0, help="in a second, to the master")
    p.add_argument("--handshakes", type=number(), default=250.0, help="in a second, to the master")
    p.add_argument("--lanes", type=number(), default=250.0, help="in a second, to all members")
    p.add_argument("--store", type=number(), default=250.0, help="writes of 16 KiB in a second")
    p.add_argument("--json", help="also write the figures to this file")
    p.add_argument("--require", type=number(), default=0.0, help="status 1 below this ratio")
    p.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    p.add_argument("--url", help=argparse.SUPPRESS)
    return p.parse_args()


# ------------------------------------------------------------------------------ a member


def work(a: argparse.Namespace) -> None:
    """Trains until stdin ends; one line on stdout for each step. Stdin says where to write."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    pccl.join(a.url, timeout_s=LIMIT_S)
    group = pccl.group()
    writer = Writer(a.store * a.rate, dist.distributed_c10d._get_default_store())
    threading.Thread(target=writer.obey, daemon=True).start()
    cores = len(os.sched_getaffinity(0))
    cpu_s = min(1.0, cores / a.world) * STEP_S / 2
    state: dict[str, Any] = {"step": 0, "w": torch.ones(1 << 16)}
    gradient = torch.ones(1 << 18)
    numbers = torch.ones(256, 256) / 256
    while True:
        if state["step"] % BOUNDARY_STEPS == 0:
            group.refresh(state)
        began = time.thread_time()
        while time.thread_time() - began < cpu_s:
            numbers = numbers @ numbers
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        state["step"] += 1
        print(json.dumps({"t": time.monotonic(), "size": dist.get_world_size()}), flush=True)
        time.sleep(STEP_S / 2)


class Writer:
    """Writes values at a rate: to the store of the run, or to a port that only reads."""

    def __init__(self, rate: float, store: Any) -> None:
        """It begins when stdin says where."""
        self.rate, self.store = rate, store
        self.to: Callable[[int], None] | None = None

    def obey(self) -> None:
        """Reads words from stdin: "quiet", "store", or a port."""
        threading.Thread(target=self.write, daemon=True).start()
        for word in sys.stdin:
            if word.strip() == "quiet":
                self.to = None
            elif word.strip() == "store":
                self.to = lambda n: self.store.set(f"junk {n}", VALUE)
            else:
                import socket

                sink = socket.create_connection(("127.0.0.1", int(word)))
                self.to = lambda _, sink=sink: sink.sendall(VALUE)  # type: ignore[misc]
        os._exit(0)  # the driver has ended

    def write(self) -> None:
        """At the rate, or as fast as it goes where that is less."""
        if self.rate == 0:
            return
        number, due = 0, time.monotonic()
        while True:
            due = max(due + 1 / self.rate, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))
            write = self.to
            if write is not None:
                with contextlib.suppress(RuntimeError, ValueError):  # the store has no room
                    write(number)
                number += 1


# ------------------------------------------------------------------------------ the driver


class Program:
    """A process, and what it has said so far."""

    def __init__(
        self, command: list[str], env: dict[str, str] | None = None, log: Any = None
    ) -> None:
        """Starts a program of Python."""
        self.lines: list[Any] = []
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            cwd=ROOT,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Keeps the lines that are JSON."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.lines.append(json.loads(line))

    def say(self, word: str) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self) -> list[Any]:
        """Ends its stdin and waits; returns what it has said."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(LIMIT_S)
        self.reader.join()
        return self.lines

    def kill(self) -> None:
        """At once."""
        self.process.kill()
        self.process.wait()

    def uses(self) -> dict[str, float]:
        """CPU seconds so far, resident MiB and descriptors now."""
        folder = Path(f"/proc/{self.process.pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        resident = (folder / "statm").read_text().split()[1]
        return {
            "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
            "mib": int(resident) * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "descriptors": len(list((folder / "fd").iterdir())),
        }


def wait(condition: Callable[[], Any], what: str) -> Any:
    """Returns what `condition` gives once it is true; ends the benchmark if it never is."""
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.05)
    return value


def listening_port(pid: int) -> int:
    """The one port on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    (port,) = {int(r[1].rsplit(":", 1)[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}
    return port


class Bench:
    """A master with a token, its members, and a program that only accepts."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        """Starts them and waits for the first steps."""
        self.a = a
        self.programs: list[Program] = []
        tokens, port_file = folder / "tokens", folder / "port"
        self.pccl = ["-m", "pccl_backend._cli", "--token-file", str(tokens)]
        self.run_once([*self.pccl, "--new-token", "a"])
        self.log = (folder / "log").open("w+")
        self.master = self.start(
            [
                *(*self.pccl, "--listen", "127.0.0.1:0", "--port-file", str(port_file)),
                *("--min-peers", str(a.world), "--state", "none"),
            ]
        )
        wait(lambda: port_file.exists() and port_file.read_text().strip(), "the master")
        self.port = int(port_file.read_text())
        self.url = f"pccl://127.0.0.1:{self.port}"
        env = {"PCCL_TOKEN_FILE": str(tokens), "PCCL_INTERFACE": "lo", "PCCL_SHARED_MEMORY": "0"}
        self.members = [
            self.start([__file__, *sys.argv[1:], "--worker", str(i), "--url", self.url], env)
            for i in range(a.world)
        ]
        self.listener = self.start([STRANGERS, "listen", str(a.world + 2)])
        self.accepting: list[int] = wait(lambda: self.listener.lines, "the listener")[0]
        wait(lambda: all(member.lines for member in self.members), "the first steps")
        self.lanes = self.ports_and_ids()

    def start(self, command: list[str], env: dict[str, str] | None = None) -> Program:
        """A program that ends with the benchmark."""
        self.programs.append(Program(command, env, self.log))
        return self.programs[-1]

    def run_once(self, command: list[str]) -> str:
        """The output of a command."""
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    def ports_and_ids(self) -> list[tuple[int, int]]:
        """Of each member: a stranger may have seen both."""
        status = json.loads(self.run_once([*self.pccl, "--status", self.url, "--json"]))
        return [(listening_port(m["process"]), int(m["id"], 16)) for m in status["members"]]

    def attackers(self, kind: str) -> list[Program]:
        """Starts the strangers of a block."""
        a, at_once = self.a, {"hold_s": HALF_OPEN_S, "token": "a"}
        master, lanes = self.port, self.lanes
        if kind == "beside":
            master = self.accepting[0]
            lanes = [(port, 1) for port in self.accepting[1:-1]]
        silent = a.connections / a.block_s / (1 + a.world)
        attacks: list[dict[str, Any]] = [
            {"kind": "silent", "port": port, "rate": silent, "hold_s": LIMIT_S}
            for port in [master, *(port for port, _ in lanes)]
        ]
        attacks += [
            {"kind": "hello", "port": master, "rate": a.hellos * a.rate, **at_once},
            {"kind": "channel", "port": master, "rate": a.handshakes * a.rate, **at_once},
        ]
        for port, peer in lanes:
            rate = a.lanes * a.rate / len(lanes)
            attacks.append({"kind": "lane", "port": port, "acceptor": peer, "rate": rate} | at_once)
        for attack in attacks:
            attack["rate"] /= PROCESSES
        attacks = [attack for attack in attacks if attack["rate"] > 0]
        spec = json.dumps({"addresses": ADDRESSES, "attacks": attacks})
        return [self.start([STRANGERS, "flood", spec]) for _ in range(PROCESSES)]

    def block(self, kind: str) -> dict[str, float]:
        """Runs one block; steps in a second, and what master and members used."""
        strangers = [] if kind == "quiet" else self.attackers(kind)
        others = [*strangers, self.listener]
        sink = str(self.accepting[-1])
        self.members[0].say({"quiet": "quiet", "beside": sink, "attack": "store"}[kind])
        time.sleep(1.0)  # until the flood has begun
        before, began = self.uses(), time.monotonic()
        others_s = sum(other.uses()["cpu_s"] for other in others)
        most: dict[str, float] = {}
        while time.monotonic() < began + self.a.block_s:
            time.sleep(0.5)
            for name, value in self.uses().items():
                most[name] = max(most.get(name, 0.0), value)
        ended = time.monotonic()
        others_s = sum(other.uses()["cpu_s"] for other in others) - others_s
        self.members[0].say("quiet")
        reports = [report for stranger in strangers for report in stranger.end()[0]]
        steps = [
            sum(began <= line["t"] < ended for line in member.lines) for member in self.members
        ]
        after = self.uses()
        figures = {
            "steps_s": statistics.mean(steps) / (ended - began),
            "size": float(min(member.lines[-1]["size"] for member in self.members)),
            "connections_s": sum(r["dialled"] / r["seconds"] for r in reports),
            "refused": float(sum(r["refused"] for r in reports)),
            "others cpu": others_s / (ended - began),
        }
        for who in ("master", "member"):
            used = after[f"{who} cpu_s"] - before[f"{who} cpu_s"]
            figures[f"{who} cpu"] = used / (ended - began)
            figures[f"{who} MiB"] = most[f"{who} mib"]
            figures[f"{who} descriptors"] = most[f"{who} descriptors"]
        return figures

    def uses(self) -> dict[str, float]:
        """Of the master; of all members the CPU, of one member the most of the rest."""
        out = {f"master {name}": value for name, value in self.master.uses().items()}
        members = [member.uses() for member in self.members]
        for name in members[0]:
            values = [uses[name] for uses in members]
            out[f"member {name}"] = sum(values) if name == "cpu_s" else max(values)
        return out

    def close(self) -> None:
        """Ends all processes."""
        for program in self.programs:
            program.kill()


def main() -> None:
    """Runs the blocks in turn and prints the table."""
    a = arguments()
    if a.worker is not None:
        work(a)
        return
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    print(
        f"{a.world} members, {a.rounds} blocks of {a.block_s:.0f} s of each kind in turn.", end=" "
    )
    print(f"Load average before: {os.getloadavg()[0]:.1f}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(a, Path(folder))
        try:
            for i in range(a.rounds):
                for kind in KINDS if i % 2 == 0 else tuple(reversed(KINDS)):
                    figures[kind].append(bench.block(kind))
                    print(f"{i + 1}, {kind}: {figures[kind][-1]}", file=sys.stderr, flush=True)
        finally:
            bench.close()
    ratio = report(figures)
    if a.json:
        Path(a.json).write_text(json.dumps(figures, indent=1) + "\n")
    members = min(block["size"] for blocks in figures.values() for block in blocks)
    if a.require and (ratio < a.require or members < a.world):
        raise SystemExit(f"{ratio:.3f} with {members:.0f} members, {a.require} is required")


ROWS = {
    "steps_s": ("steps in a second", ".2f"),
    "size": ("members at the end (fewest)", ".0f"),
    "connections_s": ("connections of strangers in a second", ".0f"),
    "master cpu": ("CPU of the master, cores", ".3f"),
    "member cpu": ("CPU of all members, cores", ".3f"),
    "others cpu": ("CPU of the strangers and of the program beside, cores", ".3f"),
    "master MiB": ("memory of the master, MiB (most)", ".0f"),
    "member MiB": ("memory of the largest member, MiB (most)", ".0f"),
    "master descriptors": ("descriptors of the master (most)", ".0f"),
    "member descriptors": ("descriptors of a member (most)", ".0f"),
}


def report(figures: dict[str, list[dict[str, float]]]) -> float:
    """Prints medians (worst cases where a row says so); returns the median ratio of neighbours."""
    print("| | quiet | beside | attack |\n| --- | --- | --- | --- |")
    for row, (title, form) in ROWS.items():
        of = min if "fewest" in title else max if "most" in title else statistics.median
        values = (format(of([block[row] for block in figures[kind]]), form) for kind in KINDS)
        print(f"| {title} | {' | '.join(values)} |")
    ratios = [
        attack["steps_s"] / beside["steps_s"]
        for attack, beside in zip(figures["attack"], figures["beside"], strict=True)
    ]
    print(
        f"\nSteps under attack to steps beside: {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})."
    )
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
