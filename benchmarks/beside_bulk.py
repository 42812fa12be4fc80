"""How long do small all-reduces take while a large one fills a long line, next to gloo?

Two ranks on emulated hosts (tests/labs/wan: needs root and /dev/net/tun). Small all-reduces one
after the other, first alone, then while an all-reduce of --mib runs in another group; the first
large one, in which connections find their rates, is not counted.

  calls           small ones that ended before the large one
  alone, beside   mean, ms: of two ranks the one that calls later waits for nothing, and the other
                  one for a whole round trip
  slowest         of those beside, ms
  more / RTT      what the line being full costs, in round trips
  large           median rate of the large all-reduces, Mbit/s; gloo's are of --gloo-mib, since it
                  is slow

    python benchmarks/beside_bulk.py
    python benchmarks/beside_bulk.py --backends pccl --loss-pct 0.01 --calls 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from long_links import BACKENDS
from option_types import above_zero, number, whole
from ranks import run_ranks

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
WORLD = 2


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rtt-ms", type=above_zero, nargs="+", default=[80.0])
    p.add_argument("--loss-pct", type=number(0, 100), nargs="+", default=[0.0, 0.01])
    p.add_argument("--rate-mbit", type=above_zero, default=1000.0)
    p.add_argument("--congestion", nargs="+", default=["reno"], help="of the hosts")
    p.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS))
    p.add_argument("--mib", type=whole(1), default=256, help="of the large tensor (default 256)")
    p.add_argument("--gloo-mib", type=whole(1), default=32, help="the same for gloo (default 32)")
    p.add_argument(
        "--sizes",
        type=whole(4),
        nargs="+",
        default=[4, 65536, 1 << 20, 8 << 20],
        help="small ones, bytes",
    )
    p.add_argument("--calls", type=whole(1), default=6, help="large ones for each size (default 6)")
    p.add_argument("--small", type=whole(1), default=12, help="small ones beside each (default 12)")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    return p.parse_args()


def run_rank(a: argparse.Namespace) -> None:
    """Runs a rank: prints the seconds of small calls alone, beside, and of the large ones."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        a.backends[0].split("-", maxsplit=1)[0],
        store=dist.FileStore(a.meet, WORLD),
        rank=a.rank,
        world_size=WORLD,
        timeout=timedelta(seconds=600),
    )
    bulk = dist.new_group()
    tensor = torch.zeros(a.mib << 18)
    small = torch.zeros(a.sizes[0] // 4)

    def small_ones(large: dist.Work | None = None) -> list[float]:
        """Of those that have ended before the large one."""
        seconds = []
        for _ in range(a.small):
            begin = time.perf_counter()
            dist.all_reduce(small)
            if large is None or not large.is_completed():
                seconds.append(time.perf_counter() - begin)
            time.sleep(0.02)
        return seconds

    small_ones()
    alone = small_ones()
    beside: list[float] = []
    large: list[float] = []
    for _ in range(1 + a.calls):
        dist.barrier()
        begin = time.perf_counter()
        work = dist.all_reduce(tensor, group=bulk, async_op=True)
        took = small_ones(work)
        work.wait()
        large.append(time.perf_counter() - begin)
        if len(large) > 1:
            beside += took
    dist.barrier()
    print(json.dumps([alone, beside, large[1:]]), flush=True)
    dist.destroy_process_group()


def measure(
    a: argparse.Namespace, wan: Any, backend: str, size: int, mib: int
) -> list[list[float]]:
    """What rank 0 prints."""
    options = ["--backends", backend, "--sizes", size, "--mib", mib]
    options += ["--calls", a.calls, "--small", a.small]
    said = run_ranks(wan, WORLD, __file__, options, BACKENDS[backend])
    figures: list[list[float]] = json.loads(said[0].splitlines()[-1])
    return figures


def main() -> None:
    """Prints the table."""
    a = arguments()
    if a.rank is not None:
        run_rank(a)
        return
    from wan.wan import Wan

    print(f"All-reduces of two ranks, a line of {a.rate_mbit:g} Mbit/s\n")
    columns = ["hosts", "RTT, ms", "loss, %", "backend", "large, MiB", "bytes", "alone", "beside"]
    columns += ["calls", "slowest", "more / RTT", "large", "overruns"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for congestion, rtt_ms, loss_pct, backend, size in itertools.product(
        a.congestion, a.rtt_ms, a.loss_pct, a.backends, a.sizes
    ):
        mib = a.gloo_mib if backend == "gloo" else a.mib
        with Wan(
            WORLD,
            rate_mbit=a.rate_mbit,
            rtt_ms=rtt_ms,
            loss_pct=loss_pct,
            congestion_control=congestion,
        ) as wan:
            alone, beside, large = measure(a, wan, backend, size, mib)
            overruns = sum(host["overrun"] for host in wan.stats()["hosts"].values())
        mean = 1e3 * statistics.mean(alone)
        row = [congestion, f"{rtt_ms:g}", f"{loss_pct:g}", backend, str(mib), str(size)]
        row += [f"{mean:.1f}"]
        if beside:
            more = 1e3 * statistics.mean(beside) - mean
            row += [f"{mean + more:.1f}", str(len(beside)), f"{1e3 * max(beside):.1f}"]
            row += [f"{more / rtt_ms:.2f}"]
        else:
            row += ["-", "0", "-", "-"]
        mbit = (mib << 20) * 8 / 1e6 / statistics.median(large)
        row += [f"{mbit:.0f}", str(overruns)]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
