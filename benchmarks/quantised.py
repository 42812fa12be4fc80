"""What quantised all-reduces take from the sum, and from the time over a slow line.

error  The relative error of a sum, |result - exact| / |exact|, over 2^20 values of each rank,
       normal and heavy-tailed ones (Student's t of 2 degrees of freedom: the largest of them is
       hundreds of times the usual). The results are those of the operation, bit for bit, also
       where members stand at sites. Next to it: the same with one range for a whole tensor, as
       torch's per-tensor quantisation has it, and a model of a ring that quantises the partial
       sums of each part anew at every hop, with one range for a part, as the first PCCL does.
speed  An all-reduce of --mib MiB between emulated hosts (tests/labs/wan: needs root and
       /dev/net/tun), each with a line of its own; float32 and quantised calls in turn, in the
       same processes. Medians at rank 0. "machine busy" is the part of this machine's cores that
       were in use meanwhile: by the ranks, the emulation of the lines and the kernel. Near 100 %
       the machine is the limit, and no line.

  python benchmarks/quantised.py            # both
  python benchmarks/quantised.py error
  python benchmarks/quantised.py speed --world 4 --rtt-ms 20
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from option_types import above_zero, number, whole
from ranks import run_ranks

from pccl_backend._config import EXACT, QUANTISATIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
MILLION = 1 << 20


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("modes", nargs="*", default=["error", "speed"], metavar="error|speed")
    p.add_argument("--members", type=whole(1), nargs="+", default=[2, 4, 8, 16], help="of `error`")
    p.add_argument("--world", type=whole(2), nargs="+", default=[2, 4], help="ranks of `speed`")
    p.add_argument("--rtt-ms", type=number(), nargs="+", default=[0.0, 20.0])
    p.add_argument("--rate-mbit", type=above_zero, default=1000.0)
    p.add_argument(
        "--kinds", nargs="+", default=["int8", "int4", "bfloat16"], choices=QUANTISATIONS
    )
    p.add_argument("--mib", type=whole(1), default=64, help="of the tensor (default 64)")
    p.add_argument("--calls", type=whole(1), default=5, help="of each kind (default 5)")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meet", help=argparse.SUPPRESS)
    given = p.parse_args()
    if unknown := set(given.modes) - {"error", "speed"}:
        p.error(f"there is no mode {min(unknown)!r}")
    return given


def print_row(cells: list[str], *, head: bool = False) -> None:
    """Prints a row of a table, and a line below it if it is the head."""
    print("| " + " | ".join(cells) + " |", flush=True)
    if head:
        print("|---" * len(cells) + "|")


# ------------------------------------------------------------------------------------------- error


def print_errors(given: argparse.Namespace) -> None:
    """Prints a table for normal values and one for heavy-tailed ones."""
    import torch
    from torch import Tensor

    from pccl_backend import _extension

    torch.set_num_threads(os.cpu_count() or 1)
    as_sent = _extension.library().as_sent

    def in_one_range(values: Tensor) -> Tensor:
        """Quantised to 8 bits, with one range for all values."""
        low, high = values.min().item(), values.max().item()
        scale = (high - low) / 255
        zero = min(255, max(0, round(-low / scale)))
        return torch.fake_quantize_per_tensor_affine(values, scale, zero, 0, 255)

    def once(inputs: list[Tensor], sent: Callable[[Tensor], Tensor]) -> Tensor:
        total = sent(inputs[0])
        for values in inputs[1:]:
            total = total + sent(values)
        return sent(total)

    def at_sites(inputs: list[Tensor], sites: int) -> Tensor:
        """By int8: the sum of each site, and of more than two sites then that of all."""
        if len(inputs) <= sites:  # nobody stands beside another one: there are no sites
            return once(inputs, of("int8"))
        sums = []
        for site in range(sites):
            mates = inputs[site * len(inputs) // sites : (site + 1) * len(inputs) // sites]
            sums.append(once(mates, of("int8")) if len(mates) > 1 else of("int8")(mates[0]))
        total = sums[0]
        for values in sums[1:]:
            total = total + values
        return total if sites == 2 else of("int8")(total)

    def at_every_hop(inputs: list[Tensor]) -> Tensor:
        parts = []
        for index in range(len(inputs)):
            around = inputs[index:] + inputs[:index]
            total = around[0].tensor_split(len(inputs))[index]
            for values in around[1:]:
                total = in_one_range(total) + values.tensor_split(len(inputs))[index]
            parts.append(in_one_range(total))
        return torch.cat(parts)

    def of(kind: str) -> Callable[[Tensor], Tensor]:
        return lambda values: as_sent(values, kind)

    for heavy in (False, True):
        print(f"\nRelative error of the sum, {'heavy-tailed' if heavy else 'normal'} values\n")
        print_row(["quantised as", *(f"{n} members" for n in given.members)], head=True)
        rows: dict[str, Callable[[list[Tensor]], Tensor]] = {
            name: (lambda inputs, name=name: once(inputs, of(name))) for name in QUANTISATIONS
        }
        rows["int8, at two sites"] = lambda inputs: at_sites(inputs, 2)
        rows["int8, at four sites"] = lambda inputs: at_sites(inputs, 4)
        rows["8 bits, one range for a tensor"] = lambda inputs: once(inputs, in_one_range)
        rows["8 bits, at every hop of a ring"] = at_every_hop
        for row, reduced in rows.items():
            cells = []
            for members in given.members:
                random = torch.Generator().manual_seed(members)
                inputs = [torch.randn(MILLION, generator=random) for _ in range(members)]
                if heavy:
                    tails = [torch.rand(MILLION, generator=random) for _ in inputs]  # below 1
                    inputs = [v / t.log().neg().sqrt() for v, t in zip(inputs, tails, strict=True)]
                exact = torch.stack(inputs).double().sum(0)
                error = (reduced(inputs).double() - exact).norm() / exact.norm()
                cells.append(f"{100 * error.item():.2g} %")
            print_row([row, *cells])


# ------------------------------------------------------------------------------------------- speed


def core_seconds() -> tuple[float, float]:
    """The seconds that all cores of this machine have worked so far, and those of their idleness.

    Source: proc(5), /proc/stat.
    """
    ticks = Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    seconds = [int(tick) / os.sysconf("SC_CLK_TCK") for tick in ticks]
    idle = seconds[3] + seconds[4]  # with the time that waits for a disk
    return sum(seconds) - idle, idle


def run_rank(given: argparse.Namespace) -> None:
    """Runs a rank: prints the seconds of each kind's calls, and how busy the machine was."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    world = given.world[0]
    store = dist.FileStore(given.meet, world)
    timeout = timedelta(seconds=600)
    dist.init_process_group("pccl", store=store, rank=given.rank, world_size=world, timeout=timeout)
    values = torch.randn(given.mib << 18, generator=torch.Generator().manual_seed(given.rank))
    seconds: dict[str, list[float]] = {kind: [] for kind in (EXACT, *given.kinds)}
    busy = {kind: [0.0, 0.0] for kind in seconds}
    for call in range(given.calls + 1):
        for kind, times in seconds.items():
            tensor = values.clone()
            dist.barrier()
            before = core_seconds()
            begin = time.perf_counter()
            pccl.all_reduce(tensor, quantise=kind)
            took_s = time.perf_counter() - begin
            if call == 0:  # it makes the links ready
                continue
            times.append(took_s)
            for index, (now, then) in enumerate(zip(core_seconds(), before, strict=True)):
                busy[kind][index] += now - then
    shares = {kind: worked / max(worked + idle, 1e-9) for kind, (worked, idle) in busy.items()}
    print(json.dumps({"seconds": seconds, "busy": shares}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(given: argparse.Namespace, wan: Any, world: int) -> dict[str, dict[str, Any]]:
    """Of rank 0 by kind: the `seconds` of its calls, and how `busy` the machine was meanwhile."""
    options = ["--world", world, "--mib", given.mib, "--calls", given.calls]
    said = run_ranks(wan, world, __file__, [*options, "--kinds", *given.kinds], {})
    figures: dict[str, dict[str, Any]] = json.loads(said[0].splitlines()[-1])
    return figures


def lines(given: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """Ranks and round trip of each measurement."""
    for world in given.world:
        for rtt_ms in given.rtt_ms:
            yield world, rtt_ms


def print_speeds(given: argparse.Namespace) -> None:
    """Prints a row for each number of ranks, round trip and kind."""
    from wan.wan import Wan

    print(f"\nAll-reduce of {given.mib} MiB of float32, {given.rate_mbit:.0f} Mbit/s\n")
    columns = ["ranks", "RTT, ms", "sent as", "ms", "float32 / this", "machine busy"]
    print_row([*columns, "overruns", "late over 1 ms"], head=True)
    for world, rtt_ms in lines(given):
        line = {"up_mbit": given.rate_mbit, "down_mbit": given.rate_mbit}
        with Wan(world, rtt_ms=rtt_ms, **line) as wan:
            figures = measure(given, wan, world)
            stats = wan.stats()
        overruns = sum(host["overrun"] for host in stats["hosts"].values())
        late = stats["forwarder"]["late_over_1ms"] / max(1, stats["forwarder"]["deliveries"])
        exact = statistics.median(figures["seconds"][EXACT])
        for kind, times in figures["seconds"].items():
            median = statistics.median(times)
            cells = [str(world), f"{rtt_ms:g}", "float32" if kind == EXACT else kind]
            cells += [f"{1000 * median:.0f}", f"{exact / median:.2f}"]
            cells += [f"{figures['busy'][kind]:.0%}", str(overruns), f"{late:.1%}"]
            print_row(cells)


def main() -> None:
    """Prints the tables."""
    given = arguments()
    if given.rank is not None:
        run_rank(given)
        return
    if "error" in given.modes:
        print_errors(given)
    if "speed" in given.modes:
        print_speeds(given)


if __name__ == "__main__":
    main()
