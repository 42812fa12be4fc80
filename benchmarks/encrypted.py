"""What does the encryption of links cost, next to plain links in the same run?

Two ranks on one machine, over TCP, with PCCL_PLAINTEXT=all and =none in turn, block by block;
medians over the blocks, because machines are noisy and both get the same noise. Three figures for
each: microseconds of an all-reduce of 4 bytes, gigabits a second of a 64 MiB message one way, and
the CPU seconds that each end spends for a gigabyte of such messages.

    python benchmarks/encrypted.py                      # the table of docs/benchmarks.md
    python benchmarks/encrypted.py --rounds 3 --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 64 << 20
KINDS = {"plain": "all", "encrypted": "none"}
ROWS = {
    "small_us": "all-reduce of 4 bytes, microseconds",
    "gbit_s": "messages of 64 MiB one way, Gbit/s",
    "sender_s": "CPU seconds of the sender for 1 GB",
    "receiver_s": "CPU seconds of the receiver for 1 GB",
}


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=7, help="blocks of each kind (default 7)")
    p.add_argument("--messages", type=int, default=16, help="of one block (default 16)")
    p.add_argument("--json", help="also write the figures to this file")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    return p.parse_args()


def cpu_s() -> float:
    """CPU seconds of all threads of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def block(rank: int, messages: int) -> dict[str, float]:
    """One block of this rank; both ranks call it together."""
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
    dist.barrier()
    begin, used = time.perf_counter(), cpu_s()
    for _ in range(messages):
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
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
    for _ in sys.stdin:
        print(json.dumps(block(given.rank, given.messages)), flush=True)
    dist.destroy_process_group()


def start(folder: str, kind: str, messages: int) -> list[subprocess.Popen[str]]:
    """Starts two ranks whose links are of this kind."""
    ranks = []
    for rank in range(2):
        command = [sys.executable, __file__, "--rank", str(rank), "--messages", str(messages)]
        ranks.append(
            subprocess.Popen(
                [*command, "--meet", str(Path(folder) / kind)],
                env={**os.environ, "PCCL_PLAINTEXT": KINDS[kind], "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    return ranks


def measure(ranks: list[subprocess.Popen[str]]) -> dict[str, float]:
    """Runs one block of two ranks."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    sender, receiver = (json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout)
    return {
        "small_us": sender["small_us"],
        "gbit_s": receiver["gbit_s"],
        "sender_s": sender["cpu_s"],
        "receiver_s": receiver["cpu_s"],
    }


def main() -> None:
    """Runs both kinds in turn and prints the table."""
    given = arguments()
    if given.rank is not None:
        return run_rank(given)
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    others = os.getloadavg()[0]
    print(f"Two ranks, {given.rounds} blocks of each kind in turn.", end=" ")
    print(f"Load average before: {others:.1f}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        groups = {kind: start(folder, kind, given.messages) for kind in KINDS}
        for _ in range(given.rounds):
            for kind, ranks in groups.items():
                figures[kind].append(measure(ranks))
        for ranks in groups.values():
            for rank in ranks:
                rank.communicate()
    report(figures, given.json)
    return None


def report(figures: dict[str, list[dict[str, Any]]], path: str | None) -> None:
    """Prints medians, and the median of the ratios of blocks that ran one after the other."""
    print("| | plain | encrypted | encrypted / plain |\n| --- | --- | --- | --- |")
    for row, title in ROWS.items():
        plain, encrypted = (
            statistics.median(block[row] for block in figures[kind]) for kind in KINDS
        )
        ratio = statistics.median(
            b[row] / a[row] for a, b in zip(figures["plain"], figures["encrypted"], strict=True)
        )
        print(f"| {title} | {plain:.2f} | {encrypted:.2f} | {ratio:.2f} |")
    if path:
        Path(path).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
