"""How much of a long and lossy line does an all-reduce fill, next to gloo in the same run?

Ranks on emulated hosts (tests/labs/wan: needs root and /dev/net/tun), each with a line of its own.
The rate is that of a whole call: bytes of the tensor by seconds, in Mbit/s. With two ranks an
all-reduce sends so many bytes each way, with n ranks 2 (n - 1) / n times as many: so the column
`of the line` counts. For each line the first call, cold, and the median of the calls after it, one
at a time behind a barrier.

  hosts           their congestion control; pccl takes BBR over long lines where it may, as
                  pccl-no-bbr (PCCL_BBR=0) it takes that of the hosts
  formula         what one connection of Reno gets by Mathis et al. 1997: MSS / RTT * 1.22 / sqrt of
                  the loss
  overruns, late  of the emulator: packets that it had no room for, and that it sent too late

    python benchmarks/long_links.py                     # the whole grid, hours
    python benchmarks/long_links.py --rtt-ms 80 --loss-pct 0.01 --calls 3 --congestion reno
    python benchmarks/long_links.py --rtt-ms 80 --loss-pct 0 --rate-mbit 4 10 40 --congestion reno
    python benchmarks/long_links.py --rtt-ms 80 --loss-pct 0.01 --congestion reno --at-once 1 16
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole
from ranks import run_ranks

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
SEGMENT_BYTES = 1448  # of payload in a packet of 1,500 bytes
BACKENDS = {"pccl": {}, "pccl-no-bbr": {"PCCL_BBR": "0"}, "gloo": {}}  # and their environment


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rtt-ms", type=number(), nargs="+", default=[0.0, 20.0, 80.0, 200.0])
    p.add_argument("--loss-pct", type=number(0, 100), nargs="+", default=[0.0, 0.001, 0.01, 0.1])
    p.add_argument("--rate-mbit", type=above_zero, nargs="+", default=[1000.0])
    p.add_argument("--congestion", nargs="+", default=["reno", "bbr"], help="of the hosts")
    p.add_argument("--backends", nargs="+", default=["pccl"], choices=list(BACKENDS))
    p.add_argument("--world", type=whole(2), default=2)
    p.add_argument("--mib", type=whole(1), default=256, help="of the tensor (default 256)")
    p.add_argument(
        "--at-once", type=whole(1), nargs="+", default=[1], help="equal parts of the tensor"
    )
    p.add_argument(
        "--carry-s", type=above_zero, default=4, help="or, of slower lines, what they carry"
    )
    p.add_argument("--calls", type=whole(0), default=10, help="after the first one (default 10)")
    p.add_argument("--limit-s", type=above_zero, default=20, help="no call begins after so long")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    return p.parse_args()


def run_rank(given: argparse.Namespace) -> None:
    """Runs a rank: prints the seconds of each call."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(given.meet, given.world)
    dist.init_process_group(
        given.backends[0].split("-", maxsplit=1)[0],
        store=store,
        rank=given.rank,
        world_size=given.world,
        timeout=timedelta(seconds=600),
    )
    tensor = torch.arange(given.mib << 18, dtype=torch.float32)
    parts = tensor.chunk(given.at_once[0])
    seconds: list[float] = []
    goes_on = torch.ones(1)
    begun = time.perf_counter()
    while goes_on.item() > 0:
        dist.barrier()
        begin = time.perf_counter()
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        for work in works:
            work.wait()
        seconds.append(time.perf_counter() - begin)
        if len(seconds) == 1:
            expected = torch.arange(tensor.numel(), dtype=torch.float32) * given.world
            assert torch.equal(tensor, expected)
            tensor.zero_()
        late = time.perf_counter() - begun > given.limit_s
        goes_on.fill_(given.rank == 0 and len(seconds) <= given.calls and not late)
        dist.broadcast(goes_on, 0)
    print(json.dumps(seconds), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(
    given: argparse.Namespace, wan: Any, backend: str, mib: int, at_once: int
) -> list[float]:
    """The seconds of each call at rank 0."""
    options = ["--backends", backend, "--world", given.world, "--mib", mib]
    options += ["--calls", given.calls, "--at-once", at_once, "--limit-s", given.limit_s]
    said = run_ranks(wan, given.world, __file__, options, BACKENDS[backend])
    return [float(s) for s in json.loads(said[0].splitlines()[-1])]


def of_formula(rtt_ms: float, loss_pct: float) -> str:
    """The rate of one connection of Reno, in Mbit/s."""
    if rtt_ms == 0 or loss_pct == 0:
        return "-"
    rate = SEGMENT_BYTES * 8 / (rtt_ms / 1e3) * 1.22 / math.sqrt(loss_pct / 100)
    return f"{rate / 1e6:.1f}"


def main() -> None:
    """Prints the table."""
    given = arguments()
    if given.rank is not None:
        run_rank(given)
        return
    from wan.wan import Wan

    sent = 2 * (given.world - 1) / given.world  # times the tensor, by each rank
    print(f"All-reduce, {given.world} ranks\n")
    columns = ["line, Mbit/s", "MiB", "hosts", "RTT, ms", "loss, %", "formula", "backend"]
    columns += ["calls", "first", "median", "of the line", "overruns", "late over 1 ms"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for rate, congestion, rtt_ms, loss_pct, backend, at_once in itertools.product(
        *(given.rate_mbit, given.congestion, given.rtt_ms, given.loss_pct, given.backends),
        given.at_once,
    ):
        mib = min(given.mib, math.ceil(rate * 1e6 / 8 * given.carry_s / 2**20))
        mbit = (mib << 20) * 8 / 1e6
        with Wan(
            given.world,
            rate_mbit=rate,
            rtt_ms=rtt_ms,
            loss_pct=loss_pct,
            congestion_control=congestion,
        ) as wan:
            seconds = measure(given, wan, backend, mib, at_once)
            stats = wan.stats()
        median = mbit / statistics.median(seconds[1:] or seconds)
        overruns = sum(host["overrun"] for host in stats["hosts"].values())
        late = stats["forwarder"]["late_over_1ms"] / max(1, stats["forwarder"]["deliveries"])
        size = f"{mib}" if at_once == 1 else f"{at_once} x {mib / at_once:g}"
        row = [f"{rate:g}", size, congestion, f"{rtt_ms:g}", f"{loss_pct:g}"]
        row += [of_formula(rtt_ms, loss_pct), backend]
        row += [str(len(seconds)), f"{mbit / seconds[0]:.3g}", f"{median:.3g}"]
        row += [f"{100 * median * sent / rate:.0f} %", str(overruns), f"{late:.1%}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
