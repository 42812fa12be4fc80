"""How long does an all-reduce take, next to gloo in the same processes?

For each world and kind of group, pccl and gloo run in turn, block by block, on the same tensors
(float32 sum, in place, on one machine); medians, and the median of the ratios of neighbouring
blocks, because machines are noisy and both get the same noise. gloo goes over TCP; pccl through
shared memory, as it does within one machine, and over TCP, as it does between machines. CPU: what a
rank uses for one call, with all its threads and in the kernel, the average of the ranks. Once:
reading and writing each byte of such a tensor once, by all ranks at once, which the bandwidth of
the memory limits as it does the calls.

    python benchmarks/all_reduce.py                     # the table of docs/benchmarks.md
    python benchmarks/all_reduce.py --worlds 2 --sizes 4,65536 --json out.json
    python benchmarks/all_reduce.py --behind-barrier    # one call at a time
    python benchmarks/all_reduce.py --sizes 268435456 --at-once 1,16   # 16 tensors of 16 MiB
    python benchmarks/all_reduce.py --busy 2            # beside two programs that compute
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, whole, wholes

SIZES = "4,65536,1048576,16777216,67108864,268435456"
OVER = {"memory": "1", "TCP": "0"}  # PCCL_SHARED_MEMORY
GROUPS = ("fixed", "elastic")
CALLS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
DEFAULTS = {
    "sizes": SIZES,
    "calls": "all_reduce",
    "groups": ",".join(GROUPS),
    "over": ",".join(OVER),
    "rounds": 7,
}


def arguments(about: str, defaults: Mapping[str, Any]) -> argparse.Namespace:
    """Of the command line; `defaults`: what another benchmark has in place of DEFAULTS."""
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--worlds", type=wholes(1), default="2,4", help="numbers of ranks (default 2,4)")
    p.add_argument("--sizes", type=wholes(4), help="bytes of a tensor (default %(default)s)")
    p.add_argument("--calls", help=f"some of {','.join(CALLS)} (default %(default)s)")
    p.add_argument("--behind-barrier", action="store_true", help="each call behind a barrier")
    p.add_argument(
        "--at-once", type=wholes(1), default="1", help="equal parts of a size, issued together"
    )
    p.add_argument(
        "--busy", type=whole(0), default=0, help="programs that compute beside (default 0)"
    )
    p.add_argument("--groups", help="kinds of groups (default %(default)s)")
    p.add_argument("--over", help="what pccl goes through (default %(default)s)")
    p.add_argument(
        "--rounds", type=whole(1), help="alternations for each size (default %(default)s)"
    )
    p.add_argument("--seconds", type=above_zero, default=0.3, help="of one block (default 0.3)")
    p.add_argument("--json", help="also write the figures to this file")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--world", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    p.add_argument("--master", default="", help=argparse.SUPPRESS)
    p.set_defaults(**{**DEFAULTS, **defaults})
    given = p.parse_args()
    for option, known in (("calls", CALLS), ("groups", GROUPS), ("over", tuple(OVER))):
        other = set(getattr(given, option).split(",")) - set(known)
        if other:
            p.error(f"--{option}: {','.join(sorted(other))} is none of {','.join(known)}")
    return given


def call_of(name: str, backend: Any, size: int, world: int) -> Callable[[], Any]:
    """Issues a call of a backend; `size`: bytes of the larger of its tensors, divided evenly.

    Without Python's functions of torch.distributed around it, which cost both backends the same.
    """
    import torch

    whole = torch.zeros(max(world, size // 4 // world * world))
    part = torch.zeros(whole.numel() // world)
    other = torch.zeros_like(whole)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: backend.allreduce([whole]),
        "all_gather": lambda: backend._allgather_base(whole, part),
        "reduce_scatter": lambda: backend._reduce_scatter_base(part, whole),
        "broadcast": lambda: backend.broadcast([whole]),
        "all_to_all": lambda: backend.alltoall_base(other, whole, [], []),
    }
    return calls[name]


def calls_of(name: str, backend: Any, size: int, world: int, parts: int) -> Callable[[], None]:
    """Issues `parts` calls on tensors of `size / parts` bytes, then waits for all of them."""
    calls = [call_of(name, backend, size // parts, world) for _ in range(parts)]

    def run() -> None:
        for work in [call() for call in calls]:
            work.wait()

    return run


def once_of(size: int) -> Callable[[], None]:
    """Reads and writes each byte of a tensor of `size` bytes once."""
    import torch

    whole = torch.zeros(max(1, size // 4))

    def run() -> None:
        whole.neg_()

    return run


def barrier_of(file: Path, rank: int, world: int) -> Callable[[], None]:
    """A barrier in memory: the ranks leave it within microseconds of each other.

    The barrier of a backend would add to the call behind it what its ranks leave it apart.
    """
    import numpy as np

    with file.open("ab") as f:
        f.truncate(8 * world)
    passed = np.memmap(file, np.int64, "r+", shape=(world,))
    limit_s = 300.0

    def barrier() -> None:
        passed[rank] += 1
        end = time.monotonic() + limit_s
        while passed.min() < passed[rank]:
            os.sched_yield()
            if time.monotonic() > end:
                raise SystemExit(f"a rank did not reach a barrier within {limit_s:.0f} s")

    return barrier


def worker(args: argparse.Namespace) -> None:
    """One rank: measures all calls and sizes; rank 0 prints one JSON line for each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(args.meet, args.world)
    if args.master:
        dist.init_process_group("pccl", init_method=f"pccl://{args.master}")
    else:
        dist.init_process_group("pccl", store=store, rank=args.rank, world_size=args.world)
    rank = dist.get_rank()
    pccl = dist.group.WORLD._get_backend(torch.device("cpu"))
    gloo = dist.ProcessGroupGloo(  # beside an elastic group a gloo group needs a store of its own
        dist.PrefixStore("gloo", store), rank, args.world, timedelta(seconds=300)
    )

    barrier = barrier_of(Path(f"{args.meet}-barrier"), rank, args.world)

    def block(call: Callable[[], None], count: int) -> tuple[float, float]:
        """Seconds, and CPU seconds of this process, of one call."""
        gloo.barrier().wait()
        began_cpu = time.process_time()
        began = time.perf_counter()
        waited = 0.0
        for _ in range(count):
            if args.behind_barrier:
                before = time.perf_counter()
                barrier()
                waited += time.perf_counter() - before
            call()
        took = (time.perf_counter() - began - waited) / count
        return took, (time.process_time() - began_cpu) / count

    for name, size, parts in itertools.product(
        args.calls.split(","), map(int, args.sizes.split(",")), map(int, args.at_once.split(","))
    ):
        calls = [calls_of(name, backend, size, args.world, parts) for backend in (pccl, gloo)]
        calls.append(once_of(size))
        counts = []
        for call in calls:
            once = max(block(call, 3)[0], block(call, 3)[0])
            agreed = torch.tensor([max(3.0, min(2000.0, args.seconds / once))])
            gloo.allreduce([agreed]).wait()
            counts.append(int(agreed.item() / args.world))
        rounds = [
            [block(*each) for each in zip(calls, counts, strict=True)] for _ in range(args.rounds)
        ]
        cpu = torch.tensor([[each[1] for each in round_] for round_ in rounds]).median(0).values
        gloo.allreduce([cpu]).wait()
        pccl_cpu, gloo_cpu, _ = (cpu / args.world).tolist()
        if rank == 0:
            row = {
                "call": name,
                "bytes": size // parts,
                "at_once": parts,
                "pccl_us": statistics.median(p for (p, _), _, _ in rounds) * 1e6,
                "gloo_us": statistics.median(g for _, (g, _), _ in rounds) * 1e6,
                "once_us": statistics.median(o for _, _, (o, _) in rounds) * 1e6,
                "ratio": statistics.median(g / p for (p, _), (g, _), _ in rounds),
                "pccl_once": statistics.median(p / o for (p, _), _, (o, _) in rounds),
                "pccl_cpu_us": pccl_cpu * 1e6,
                "gloo_cpu_us": gloo_cpu * 1e6,
            }
            print(json.dumps(row), flush=True)
    gloo.barrier().wait()
    dist.destroy_process_group()


def start_master(world: int, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A pccl-master for one world; its address."""
    port_file = folder / f"port{world}"
    master = subprocess.Popen(
        [
            *(sys.executable, "-m", "pccl_backend._cli", "--listen", "127.0.0.1:0"),
            *("--min-peers", str(world), "--state", "none", "--port-file", str(port_file)),
        ],
        stdout=subprocess.DEVNULL,
    )
    end = time.monotonic() + 20
    while not (port_file.exists() and port_file.read_text().strip()):
        if master.poll() is not None or time.monotonic() > end:
            raise SystemExit("the master did not start")
        time.sleep(0.05)
    return master, f"127.0.0.1:{port_file.read_text().strip()}"


def measure(
    args: argparse.Namespace, world: int, kind: str, over: str, folder: Path
) -> list[dict[str, Any]]:
    """The rows of one world, kind of group and way."""
    folder = folder / over
    folder.mkdir(exist_ok=True)
    master, address = start_master(world, folder) if kind == "elastic" else (None, "")
    meet = folder / f"meet-{kind}-{world}"
    command = [sys.executable, __file__, "--world", str(world), "--meet", str(meet)]
    command += ["--sizes", args.sizes, "--rounds", str(args.rounds), "--master", address]
    command += ["--seconds", str(args.seconds), "--calls", args.calls, "--at-once", args.at_once]
    command += ["--behind-barrier"] if args.behind_barrier else []
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PCCL_LOG_LEVEL": "warning"}
    env["PCCL_SHARED_MEMORY"] = OVER[over]
    ranks = [
        subprocess.Popen([*command, "--rank", str(r)], stdout=subprocess.PIPE, env=env)
        for r in range(world)
    ]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    rows: list[dict[str, Any]] = []
    try:
        for rank in ranks:
            out, _ = rank.communicate(timeout=1200)
            if rank.returncode != 0:
                raise SystemExit(f"a rank ended with status {rank.returncode}")
            rows += [json.loads(line) for line in out.splitlines()]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    if master:
        master.terminate()
        master.wait(timeout=20)
    for row in rows:
        row.update(world=world, group=kind, over=over)
    return rows


def size_text(size: int) -> str:
    """A number of bytes for people."""
    if size >= 1 << 20:
        return f"{size >> 20} MiB"
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def size_of(row: dict[str, Any]) -> str:
    """Of the tensors that are in flight at once."""
    text = size_text(row["bytes"])
    return text if row["at_once"] == 1 else f"{row['at_once']} x {text}"


def main(about: str, **defaults: Any) -> None:
    """Measures and prints the table."""
    args = arguments(about, defaults)
    if args.rank is not None:
        worker(args)
        return
    rows: list[dict[str, Any]] = []
    columns = "call | group | ranks | pccl goes over | size | pccl, us | gloo, us | gloo / pccl"
    columns += " | pccl, CPU us | gloo, CPU us | once, us | pccl / once"
    print(f"| {columns} |\n|{' --- |' * len(columns.split('|'))}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, world, over in itertools.product(
            args.groups.split(","), args.worlds.split(","), args.over.split(",")
        ):
            for row in measure(args, int(world), kind, over, Path(folder)):
                rows.append(row)
                print(
                    f"| {row['call']} | {kind} | {world} | {over} | {size_of(row)} "
                    f"| {row['pccl_us']:.0f} | {row['gloo_us']:.0f} | {row['ratio']:.1f} "
                    f"| {row['pccl_cpu_us']:.0f} | {row['gloo_cpu_us']:.0f} "
                    f"| {row['once_us']:.0f} | {row['pccl_once']:.1f} |",
                    flush=True,
                )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(__doc__)
