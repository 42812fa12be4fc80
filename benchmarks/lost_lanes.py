"""What does an all-reduce over a long line take while its connections are cut, or stuck?

Two ranks on emulated hosts (tests/labs/wan: needs root, /dev/net/tun, and a kernel whose `ss -K`
ends connections). Each call checks every element. The first two connections are spared: one of them
has the messages of the link.

  kind         none; cut: three connections a second end, at both ends; hole: all that one
               connection sends is swallowed, both ways, to the end
  lost         connections that the link has lost at rank 0, and gone on without
  call, most   seconds of a call at rank 0, from the second one on: median and the longest

    python benchmarks/lost_lanes.py
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole
from ranks import Ranks, run_ranks

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
CUTS_AT_ONCE = 3
CUT_EVERY_S = 1.0
KINDS = ["none", "cut", "hole"]
SPARED = 2  # connections, the oldest


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    p.add_argument("--rtt-ms", type=number(), default=80.0)
    p.add_argument("--loss-pct", type=number(0, 100), default=0.01)
    p.add_argument("--rate-mbit", type=above_zero, default=1000.0)
    p.add_argument("--no-bbr", action="store_true", help="with PCCL_BBR=0")
    p.add_argument("--mib", type=whole(1), default=64, help="of the tensor (default 64)")
    p.add_argument("--calls", type=whole(1), default=30)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    return p.parse_args()


def run_rank(given: argparse.Namespace) -> None:
    """Runs a rank: prints the seconds of each call, and the connections that were lost."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    dist.init_process_group(
        "pccl",
        store=dist.FileStore(given.meet, 2),
        rank=given.rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    base = torch.arange(given.mib << 18, dtype=torch.float32)
    seconds: list[float] = []
    for call in range(given.calls):
        tensor = base * (given.rank + 1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - begin)
        assert torch.equal(tensor, base * 3), f"call {call}"
    dist.barrier()
    print(json.dumps({"seconds": seconds, "lost": pccl.links()[0]["lanes_lost"]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def connections(wan: Any) -> set[tuple[int, int]]:
    """Ports here and there of the connections that host 1 has."""
    listing = wan.run(1, ["ss", "-Htn", "state", "established"], capture_output=True, text=True)
    pairs = [line.split()[2:4] for line in listing.stdout.splitlines()]
    return {(int(here.rsplit(":", 1)[1]), int(there.rsplit(":", 1)[1])) for here, there in pairs}


def disturb(kind: str, wan: Any, ranks: Ranks) -> None:
    """Until the ranks have ended."""
    choice = random.Random(1)
    spared: set[tuple[int, int]] = set()
    while kind != "none" and all(rank.poll() is None for rank in ranks):
        if len(spared) < SPARED:
            spared = connections(wan)
            time.sleep(0.05)
            continue
        time.sleep(CUT_EVERY_S)
        others = sorted(connections(wan) - spared)
        if len(others) < CUTS_AT_ONCE:
            continue
        if kind == "cut":
            for here, there in choice.sample(others, CUTS_AT_ONCE):
                ports = ["sport", "=", str(here), "dport", "=", str(there)]
                wan.run(1, ["ss", "-K", *ports], capture_output=True)
        else:
            here, there = choice.choice(others)
            listens = here in {port for port, _ in spared}  # that port is one end of each of them
            wan.set(cut_port=there if listens else here, both=True)
            return


def measure(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """What rank 0 says."""
    from wan.wan import Wan

    with Wan(
        2,
        rate_mbit=given.rate_mbit,
        rtt_ms=given.rtt_ms,
        loss_pct=given.loss_pct,
        congestion_control="reno",
    ) as wan:
        said = run_ranks(
            *(wan, 2, __file__, ["--mib", given.mib, "--calls", given.calls]),
            {"PCCL_BBR": "0"} if given.no_bbr else {},
            beside=lambda ranks: disturb(kind, wan, ranks),
        )
    result: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return result


def main() -> None:
    """Prints the table."""
    given = arguments()
    if given.rank is not None:
        run_rank(given)
        return
    print(
        f"All-reduce of {given.mib} MiB, 2 ranks, {given.rate_mbit:.0f} Mbit/s, "
        f"{given.rtt_ms:g} ms, {given.loss_pct:g} % lost{', no BBR' if given.no_bbr else ''}\n"
    )
    print("| kind | calls | lost | call, s | most, s |")
    print("|---|---|---|---|---|")
    for kind in given.kinds:
        said = measure(given, kind)
        warm = said["seconds"][1:]
        row = [kind, str(len(warm)), str(said["lost"])]
        row += [f"{statistics.median(warm):.2f}", f"{max(warm):.2f}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
