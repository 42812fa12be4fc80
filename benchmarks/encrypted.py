"""What does the encryption of links cost, next to plain links in the same run?

Two ranks of a fixed group, over TCP, with PCCL_PLAINTEXT=all and =none in turn, block by block;
medians over the blocks, because machines are noisy and both get the same noise. Three tables:

  on one machine  microseconds of an all-reduce of 4 bytes, gigabits a second of 64 MiB messages one
                  way, and the CPU seconds that each end spends for a gigabyte of such messages
  engine threads  the gigabits a second each way on one machine, both ways at once, of one engine
                  thread at each end, and of two: a process has one, so these are two pairs of
                  processes that send and receive at the same time
  a line          the gigabits a second over an emulated line of 1 Gbit/s (tests/labs/wan: needs
                  root and /dev/net/tun; left out where they are missing), without loss

    python benchmarks/encrypted.py                      # the tables of docs/benchmarks.md
    python benchmarks/encrypted.py --tables line --rounds 3 --rtt-ms 0 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole

ROOT = Path(__file__).resolve().parents[1]
MESSAGE_BYTES = 64 << 20
KINDS = {"plain": "all", "encrypted": "none"}
ROWS = {
    "small_us": "all-reduce of 4 bytes, microseconds",
    "gbit_s": "messages of 64 MiB one way, Gbit/s",
    "sender_s": "CPU seconds of the sender for 1 GB",
    "receiver_s": "CPU seconds of the receiver for 1 GB",
}


TABLES = ("machine", "threads", "line")


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=whole(1), default=7, help="blocks of each kind (default 7)")
    p.add_argument("--messages", type=whole(1), default=16, help="of one block (default 16)")
    p.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    p.add_argument(
        "--rate-mbit", type=above_zero, default=1000.0, help="of the line (default 1000)"
    )
    p.add_argument(
        "--rtt-ms", type=number(), nargs="+", default=[0.0, 10.0, 20.0], help="of the line"
    )
    p.add_argument("--json", help="also write the figures to this file")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    return p.parse_args()


def cpu_s() -> float:
    """CPU seconds of all threads of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def block(rank: int, messages: int, both_ways: bool) -> dict[str, float]:
    """One block of this rank; both ranks call it together. The rate is that of each way."""
    import torch
    import torch.distributed as dist

    small = torch.ones(1)
    for _ in range(50):
        dist.all_reduce(small)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(500):
        dist.all_reduce(small)
    small_us = (time.perf_counter() - begin) / 500 * 1e6
    tensor = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    other = torch.zeros_like(tensor) if both_ways else tensor
    dist.barrier()
    begin, used = time.perf_counter(), cpu_s()
    for _ in range(messages):
        sends = dist.isend(tensor, 1 - rank) if both_ways or rank == 0 else None
        if both_ways or rank == 1:
            dist.recv(other, 1 - rank)
        if sends is not None:
            sends.wait()
    used = cpu_s() - used
    dist.barrier()
    took = time.perf_counter() - begin
    gigabytes = messages * MESSAGE_BYTES / 1e9
    return {"small_us": small_us, "gbit_s": 8 * gigabytes / took, "cpu_s": used / gigabytes}


def run_rank(given: argparse.Namespace) -> None:
    """Runs a rank: one block for each line on stdin, its figures on stdout."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(given.meet, 2)
    dist.init_process_group(
        "pccl", store=store, rank=given.rank, world_size=2, timeout=timedelta(seconds=120)
    )
    for ways in sys.stdin:
        figures = block(given.rank, given.messages, ways.strip() == "both ways")
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


class Pairs:
    """So many pairs of ranks whose links are of one kind, on this machine or at a line's ends."""

    def __init__(
        self, folder: str, kind: str, messages: int, pairs: int = 1, wan: Any = None
    ) -> None:
        """Starts them."""
        self.pairs = [
            [self.start(f"{folder}/{kind}-{pair}", kind, messages, rank, wan) for rank in range(2)]
            for pair in range(pairs)
        ]

    def start(
        self, meet: str, kind: str, messages: int, rank: int, wan: Any
    ) -> subprocess.Popen[str]:
        """A rank; over a line rank 0 is on its first host and rank 1 on its second."""
        command = [sys.executable, __file__, "--rank", str(rank), "--messages", str(messages)]
        command += ["--meet", meet]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PCCL_LOG_LEVEL": "error"}
        env |= {"PCCL_PLAINTEXT": KINDS[kind], "PCCL_SHARED_MEMORY": "0"}
        if wan:
            env["PCCL_INTERFACE"] = wan.address(rank + 1)
        return subprocess.Popen(
            wan.command(rank + 1, command) if wan else command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, ways: str) -> dict[str, float]:
        """Runs one block of all pairs at once; the rate is that of all together."""
        for rank in (rank for pair in self.pairs for rank in pair):
            assert rank.stdin is not None
            rank.stdin.write(f"{ways}\n")
            rank.stdin.flush()
        blocks = [
            [json.loads(rank.stdout.readline()) for rank in pair if rank.stdout]
            for pair in self.pairs
        ]
        return {
            "small_us": statistics.mean(sender["small_us"] for sender, _ in blocks),
            "gbit_s": sum(receiver["gbit_s"] for _, receiver in blocks),
            "sender_s": statistics.mean(sender["cpu_s"] for sender, _ in blocks),
            "receiver_s": statistics.mean(receiver["cpu_s"] for _, receiver in blocks),
        }

    def end(self) -> None:
        """Ends them in good order."""
        for rank in (rank for pair in self.pairs for rank in pair):
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in (rank for pair in self.pairs for rank in pair):
            rank.wait()


Figures = dict[str, list[dict[str, float]]]


def blocks(
    rounds: int, messages: int, pairs: int = 1, wan: Any = None, ways: str = "one way"
) -> Figures:
    """Blocks of both kinds in turn."""
    figures: Figures = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        groups = {kind: Pairs(folder, kind, messages, pairs, wan) for kind in KINDS}
        for i in range(rounds):
            for kind in KINDS if i % 2 == 0 else reversed(KINDS):
                figures[kind].append(groups[kind].measure(ways))
        for group in groups.values():
            group.end()
    return figures


@contextlib.contextmanager
def line(rate_mbit: float, rtt_ms: float) -> Iterator[Any]:
    """Two hosts and a line between them; None where none can be made."""
    sys.path.insert(0, str(ROOT / "tests" / "labs"))
    from wan.wan import Wan, WanError

    # The buffers of TCP hold more than is under way, so that the line is what limits.
    wan = Wan(2, rate_mbit=rate_mbit, rtt_ms=rtt_ms, tcp_buffer_mib=32)
    try:
        wan.up()
    except (WanError, OSError, subprocess.CalledProcessError) as error:
        print(f"left out: the line ({error})", file=sys.stderr)
        yield None
        return
    try:
        yield wan
    finally:
        wan.down()


def main() -> None:
    """Runs both kinds in turn and prints the tables."""
    given = arguments()
    if given.rank is not None:
        return run_rank(given)
    print(f"Two ranks, {given.rounds} blocks of each kind in turn.", end=" ")
    print(f"Load average before: {os.getloadavg()[0]:.1f}.", flush=True)
    all_figures: dict[str, Figures] = {}
    if "machine" in given.tables:
        figures = all_figures["machine"] = blocks(given.rounds, given.messages)
        print(f"\n{head('')}")
        for row, title in ROWS.items():
            print(f"| {title} | {compared(figures, row)} |", flush=True)
    if "threads" in given.tables:
        print("\nMessages of 64 MiB both ways at once on one machine, Gbit/s each way:")
        print(f"\n{head('engine threads')}")
        for pairs, title in ((1, "one at each end"), (2, "two, in two pairs of processes")):
            figures = all_figures[title] = blocks(
                given.rounds, given.messages, pairs, ways="both ways"
            )
            print(f"| {title} | {compared(figures, 'gbit_s')} |", flush=True)
    if "line" in given.tables:
        print(f"\nThe same over an emulated line of {given.rate_mbit:g} Mbit/s without loss:")
        print(f"\n{head('round trip')}")
        for rtt_ms in given.rtt_ms:
            with line(given.rate_mbit, rtt_ms) as wan:
                if wan is None:
                    break
                title = f"{rtt_ms:g} ms"
                figures = all_figures[title] = blocks(given.rounds, given.messages, 1, wan)
                print(f"| {title} | {compared(figures, 'gbit_s')} |", flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps(all_figures, indent=1))
    return None


def head(first: str) -> str:
    """The first two lines of a table."""
    return f"| {first} | plain | encrypted | encrypted / plain |\n| --- | --- | --- | --- |"


def compared(figures: Figures, row: str) -> str:
    """Medians, and the median of the ratios of blocks that ran one after the other."""
    plain, encrypted = ([block[row] for block in figures[kind]] for kind in KINDS)
    ratio = statistics.median(b / a for a, b in zip(plain, encrypted, strict=True))
    return f"{statistics.median(plain):.2f} | {statistics.median(encrypted):.2f} | {ratio:.3f}"


if __name__ == "__main__":
    main()
