"""Programs that gloo refuses: types, lists, overlaps. Each says itself what must come out."""

from typing import Any

import torch
import torch.distributed as dist
from common import Here, close, exact, train
from replicas import batches, perceptron
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SMALL = [torch.int16, torch.uint16]
RARE = [
    *SMALL,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.complex128,
]
SKIPPED = 2  # steps of ZeRO-1 with overlap in which DDP makes its buckets: they change nothing


def bits(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Any bytes at all, read as that type; NaNs too."""
    generator = torch.Generator().manual_seed(100 * rank + salt)
    size = count * dtype.itemsize
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).view(dtype)


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@exact
def rare_types_move(here: Here) -> Any:
    for dtype in RARE:
        for count in (1, 70_001):
            _move(here, dtype, count)


def _move(here: Here, dtype: torch.dtype, count: int) -> None:
    def of(rank: int, salt: int = 0) -> torch.Tensor:
        return bits(rank, count, dtype, salt)

    def empty(factor: int = 1) -> torch.Tensor:
        return torch.empty(count * factor * dtype.itemsize, dtype=torch.uint8).view(dtype)

    def empties() -> list[torch.Tensor]:
        return [empty() for _ in everyone]

    everyone, other = range(here.size), (here.rank + 1) % here.size
    t = of(here.rank)
    dist.broadcast(t, 1)
    check(t, of(1))
    gathered, joined = empties(), empty(here.size)
    dist.all_gather(gathered, of(here.rank))
    dist.all_gather_into_tensor(joined, of(here.rank))
    for rank in everyone:
        check(gathered[rank], of(rank))
        check(joined[rank * count : (rank + 1) * count], of(rank))
    swapped, single = empties(), empty(here.size)
    parts = [of(here.rank, salt=rank) for rank in everyone]
    dist.all_to_all(swapped, parts)
    whole = torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)
    dist.all_to_all_single(single, whole)
    for rank in everyone:
        check(swapped[rank], of(rank, salt=here.rank))
        check(single[rank * count : (rank + 1) * count], of(rank, salt=here.rank))
    received = empty()
    work = dist.isend(of(here.rank), other)
    dist.recv(received, other)
    work.wait()
    check(received, of(other))
    at_1 = empties() if here.rank == 1 else None
    dist.gather(of(here.rank), at_1, dst=1)
    for rank, tensor in enumerate(at_1 or []):
        check(tensor, of(rank))
    mine = empty()
    dist.scatter(mine, [of(0, salt=rank) for rank in everyone] if here.rank == 0 else None, src=0)
    check(mine, of(0, salt=here.rank))


@exact
def small_integers_reduce(here: Here) -> Any:
    """int16 and uint16, against the same in int64 cut to 16 bits."""
    calls = {
        dist.ReduceOp.SUM: lambda a, b: a + b,
        dist.ReduceOp.PRODUCT: lambda a, b: a * b,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    for dtype in SMALL:
        for count in (2, 1000, 100_002):
            mine, theirs = (bits(rank, count, dtype) for rank in (0, 1))
            for op, call in calls.items():
                expected = call(mine.long(), theirs.long()).to(dtype)
                t = bits(here.rank, count, dtype)
                dist.all_reduce(t, op)
                check(t, expected)
                t = bits(here.rank, count, dtype)
                dist.reduce(t, 0, op)
                check(t, expected if here.rank == 0 else theirs)
                half = torch.empty(count // 2, dtype=dtype)
                dist.reduce_scatter_tensor(half, bits(here.rank, count, dtype), op)
                check(half, expected.chunk(here.size)[here.rank])


@exact
def lists_of_unequal_sizes(here: Here) -> Any:
    """all_gather, all_to_all and reduce_scatter of another shape for each rank, some empty."""
    for unit in (1, 70_000):
        shapes = [(unit, 3), (0,)] if unit == 1 else [(unit,), (3, unit)]
        gathered = [torch.empty(shape) for shape in shapes]
        dist.all_gather(gathered, here.values(*shapes[here.rank]))
        for rank, shape in enumerate(shapes):
            assert torch.equal(gathered[rank], here.values(*shape, rank=rank))

        def part(source: int, target: int, unit: int = unit) -> torch.Tensor:
            return here.values((source + 2 * target) * unit, rank=source, salt=target)

        taken = [torch.empty_like(part(rank, here.rank)) for rank in range(here.size)]
        dist.all_to_all(taken, [part(here.rank, rank) for rank in range(here.size)])
        for rank, tensor in enumerate(taken):
            assert torch.equal(tensor, part(rank, here.rank))
        reduced = torch.empty(shapes[here.rank])
        dist.reduce_scatter(reduced, [here.values(*shape) for shape in shapes])
        expected = sum(here.values(*shapes[here.rank], rank=rank) for rank in range(here.size))
        assert torch.equal(reduced, torch.as_tensor(expected))


@close
def zero_1_inside_the_backward_pass(here: Here) -> Any:
    """The optimizer's step is behind the last bucket of gradients; torch refuses gloo here.

    hook_with_zero_step_interleaved is for CUDA only: it broadcasts from callbacks of the buckets,
    so that on the CPU ranks would issue operations in different orders.
    """
    expected = DistributedDataParallel(perceptron(here))
    train(expected, batches(here, 5)[SKIPPED:], torch.optim.SGD(expected.parameters(), lr=0.1))
    for shard_buckets in (False, True):
        model = DistributedDataParallel(perceptron(here), bucket_cap_mb=0.001)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook = hook_with_zero_step(allreduce_hook, model, optimizer, shard_buckets)
        model.register_comm_hook(None, hook)
        for batch in batches(here, 5):
            model(batch).square().mean().backward()
            model.zero_grad()
        for got, parameter in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(got, parameter)
