"""How long does an all-reduce between distant hosts take, by the algorithm that its steps ask for?

Or an all-gather or a reduce-scatter of one tensor (--call).

Ranks on emulated hosts (tests/labs/wan: needs root and /dev/net/tun), each pair with a line of its
own, and a master one millisecond away. An all-reduce takes as many halves of a round trip as it has
steps one after the other, and the time of its bytes. Members of a run and ranks of a fixed group
know their round trips, and choose by them (docs/architecture/costs.md):

  pccl        an elastic group, by round trips, sites, measured rates and bytes
  by size     by bytes alone, as within one site (pccl-master --ring rank)
  fixed       a group that is not elastic, and has no master: no call waits for a commit
  gloo        as fixed, by gloo

Means, at rank 0, of calls without a barrier between them; the first call is left out. A rank that
calls late waits less, and waits longer in its next call: single times alternate, and only the mean
counts. Connections find their rates in the first few calls. `sent`: MB that rank 0 has sent to
each other rank in all calls of the size, by the first of --kinds.

    python benchmarks/few_steps.py
    python benchmarks/few_steps.py --world 3 --rtt-ms 20 --sizes 65536 --calls 5 --kinds pccl
    python benchmarks/few_steps.py --sites 2 --world 4 --rate-mbit 100 --sizes 65536,16777216
    python benchmarks/few_steps.py --sites 2 --world 8 --common --quantise int8 --sizes 16777216
    python benchmarks/few_steps.py --per-host 2 --world 4 --rtt-ms 0.2 --sizes 1048576,67108864

--sites K: consecutive ranks share a site. Two ranks of one site are 1 ms apart, with a line ten
times as fast. Each pair of hosts has a line of its own, also between sites; with --common two sites
have one line, in each direction, which all their ranks share.
--per-host M: so many consecutive ranks share a host, and its line to all other hosts.
--quantise KIND: what all kinds but gloo send codes of (docs/how-to/quantise.md).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole, wholes
from ranks import run_ranks

from pccl_backend._config import EXACT, QUANTISATIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
PORT = 48149
KINDS = ["pccl", "by size", "fixed", "gloo"]
CALLS = ["all_reduce", "all_gather", "reduce_scatter"]
FIXED = {"fixed": "pccl", "gloo": "gloo"}  # kind -> backend


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--world", type=whole(2), nargs="+", default=[2, 3, 4])
    p.add_argument("--rtt-ms", type=number(), nargs="+", default=[80.0])
    p.add_argument("--rate-mbit", type=above_zero, default=1000.0)
    p.add_argument(
        "--sites",
        type=whole(0),
        default=0,
        help="their number (default: each rank is far from all others)",
    )
    p.add_argument("--common", action="store_true", help="one line between two sites")
    p.add_argument("--per-host", type=whole(1), default=1, help="ranks (default 1)")
    p.add_argument("--quantise", default=EXACT, choices=(EXACT, *QUANTISATIONS), help="of pccl")
    p.add_argument("--call", choices=CALLS, default="all_reduce")
    p.add_argument(
        "--sizes",
        type=wholes(4),
        default="4,65536,1048576,4194304",
        help="of the tensor, bytes (of all parts)",
    )
    p.add_argument("--calls", type=whole(1), default=30, help="of each size, after the first one")
    p.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.per_host > 1 and (given.sites or any(n % given.per_host for n in given.world)):
        p.error("--per-host divides --world, and goes without --sites")
    return given


def run_rank(a: argparse.Namespace) -> None:
    """Runs a rank; rank 0 prints, for each size, seconds of each call and bytes sent to others."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    backend = FIXED.get(a.kinds[0])
    if backend is None:
        pg = pccl.join(a.meet, timeout_s=600.0)
        pccl.group(pg).refresh(pccl.SharedState(step=0))
    else:
        limit = timedelta(seconds=600)
        store = dist.FileStore(a.meet, a.world[0])
        dist.init_process_group(
            backend, store=store, rank=a.rank, world_size=a.world[0], timeout=limit
        )
        pg = dist.group.WORLD
    links: Any = list if backend == "gloo" else pccl.links
    found = {}
    for size in json.loads(f"[{a.sizes}]"):
        tensor = torch.ones(size // 4)
        part = torch.ones(size // 4 // a.world[0])
        before = [link["bytes_sent"] for link in links()]
        seconds = []
        dist.barrier(pg)
        for _ in range(a.calls + 1):
            began = time.perf_counter()
            if a.call == "all_reduce":
                dist.all_reduce(tensor, group=pg)
            elif a.call == "all_gather":
                dist.all_gather_into_tensor(tensor, part, group=pg)
            else:
                dist.reduce_scatter_tensor(part, tensor, group=pg)
            seconds.append(time.perf_counter() - began)
            sums = part if a.call == "reduce_scatter" else tensor
            assert sums[-1].item() == (1 if a.call == "all_gather" else a.world[0])
            tensor.fill_(1)
            part.fill_(1)
        sent = [link["bytes_sent"] - was for link, was in zip(links(), before, strict=True)]
        dist.barrier(pg)  # nobody leaves before all have looked
        found[size] = {"seconds": seconds, "sent": sent}
    if dist.get_rank(pg) == 0:
        print(json.dumps(found), flush=True)
    if backend is None:
        pccl.group(pg).leave()
    dist.destroy_process_group()


def measure(a: argparse.Namespace, world: int, rtt_ms: float, kind: str) -> dict[str, Any]:
    """What rank 0 has printed."""
    from wan.wan import Wan

    master = world // a.per_host + 1
    rate = {"rate_mbit": a.rate_mbit}
    if a.per_host > 1:
        rate = {"up_mbit": a.rate_mbit, "down_mbit": a.rate_mbit}
    with Wan(master, rtt_ms=rtt_ms, **rate) as wan:
        for host in range(1, master):
            wan.set(master, host, delay_ms=min(0.5, rtt_ms / 2))
            wan.set(host, master, delay_ms=min(0.5, rtt_ms / 2))
            site = (host - 1) * a.sites // world
            for other in range(1, master) if a.sites else ():
                there = (other - 1) * a.sites // world
                if there != site and a.common:
                    wan.set(host, other, line=1 + site * a.sites + there, rate_mbit=a.rate_mbit)
                if other != host and there == site:
                    wan.set(host, other, delay_ms=0.5, rate_mbit=10 * a.rate_mbit)
        settings = {"PCCL_QUANTISE": a.quantise}
        options = ["--world", world, "--kinds", kind, "--sizes", a.sizes, "--calls", a.calls]
        options += ["--call", a.call]
        run = functools.partial(run_ranks, wan, world, __file__, options, settings)
        if kind in FIXED:
            said = run(per_host=a.per_host)
        else:
            address = f"{wan.address(master)}:{PORT}"
            command = [sys.executable, "-m", "pccl_backend._cli", "--insecure", "--state", "none"]
            command += ["--listen", address, "--min-peers", str(world)]
            command += ["--ring", "rank"] if kind == "by size" else []
            env = {"PCCL_LOG_LEVEL": "error", **os.environ}
            process = subprocess.Popen(
                wan.command(master, command), env=env, stdout=subprocess.DEVNULL
            )
            try:
                said = run(per_host=a.per_host, meet=f"pccl://{address}")
            finally:
                process.kill()
                process.wait()
    printed = [line for text in said for line in text.splitlines() if line.startswith("{")]
    assert len(printed) == 1, said
    found: dict[str, Any] = json.loads(printed[0])
    return found


def main() -> None:
    """Prints the table."""
    a = arguments()
    if a.rank is not None:
        run_rank(a)
        return
    where = f" between {a.sites} sites" if a.sites else ""
    print(f"{a.call}, lines of {a.rate_mbit:g} Mbit/s{where}, times in ms\n")
    first, *others = a.kinds
    columns = ["ranks", "RTT, ms", "bytes", first, "sent, MB"]
    columns += [text for kind in others for text in (kind, f"{kind} / {first}")]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for world in a.world:
        for rtt_ms in a.rtt_ms:
            found = {kind: measure(a, world, rtt_ms, kind) for kind in a.kinds}
            for size, own in found[first].items():
                own_s = statistics.mean(own["seconds"][1:])
                row = [str(world), f"{rtt_ms:g}", size, f"{1000 * own_s:.1f}"]
                row.append(" ".join(f"{sent / 1e6:.2f}" for sent in own["sent"]))
                for kind in others:
                    other_s = statistics.mean(found[kind][size]["seconds"][1:])
                    row += [f"{1000 * other_s:.1f}", f"{other_s / own_s:.2f}"]
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
