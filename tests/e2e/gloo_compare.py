"""One rank of a world that runs the same calls on pccl and on gloo and compares the results.

Started by torchrun (test_fixed.py) with no import of ours: the backend's name is all that it knows.
Prints one line for each difference and ends with status 1 if there is any.
"""

import itertools
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
EXACT = (dist.ReduceOp.MIN, dist.ReduceOp.MAX)
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
SIZES = [0, 1, 5, 1000, 100_003]


def tensor(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Full-mantissa values that depend on rank, size and salt."""
    g = torch.Generator().manual_seed(1000 * rank + size + 7 * salt)
    if dtype.is_floating_point:
        return (torch.rand(size, generator=g, dtype=torch.float64) + 0.5).to(dtype)
    return torch.randint(0, 3, (size,), generator=g).to(dtype)


@dataclass
class Case:
    """One call: who, on what."""

    group: dist.ProcessGroup
    dtype: torch.dtype
    size: int
    op: dist.ReduceOp = dist.ReduceOp.SUM

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def world(self) -> int:
        return dist.get_world_size(self.group)

    def mine(self, size: int | None = None, salt: int = 0) -> torch.Tensor:
        return tensor(self.rank, self.size if size is None else size, self.dtype, salt)

    def empty(self, count: int = 1) -> torch.Tensor:
        return torch.empty(self.size * count, dtype=self.dtype)

    def empties(self) -> list[torch.Tensor]:
        return [self.empty() for _ in range(self.world)]


def all_reduce(c: Case) -> list[torch.Tensor]:
    t = c.mine()
    dist.all_reduce(t, c.op, group=c.group)
    return [t]


def reduce(c: Case) -> list[torch.Tensor]:
    t = c.mine()
    dist.reduce(t, dst=c.world - 1, group=c.group)
    return [t] if c.rank == c.world - 1 else []


def broadcast(c: Case) -> list[torch.Tensor]:
    t = c.mine()
    dist.broadcast(t, src=1 % c.world, group=c.group)
    return [t]


def all_gather(c: Case) -> list[torch.Tensor]:
    out = c.empties()
    dist.all_gather(out, c.mine(), group=c.group)
    return out


def all_gather_into_tensor(c: Case) -> list[torch.Tensor]:
    out = c.empty(c.world)
    dist.all_gather_into_tensor(out, c.mine(), group=c.group)
    return [out]


def gather(c: Case) -> list[torch.Tensor]:
    out = c.empties() if c.rank == 0 else None
    dist.gather(c.mine(), out, dst=0, group=c.group)
    return out or []


def scatter(c: Case) -> list[torch.Tensor]:
    out = c.empty()
    parts = [c.mine(salt=r) for r in range(c.world)] if c.rank == 0 else None
    dist.scatter(out, parts, src=0, group=c.group)
    return [out]


def reduce_scatter(c: Case) -> list[torch.Tensor]:
    out = c.empty()
    dist.reduce_scatter(out, [c.mine(salt=r) for r in range(c.world)], group=c.group)
    return [out]


def reduce_scatter_tensor(c: Case) -> list[torch.Tensor]:
    out = c.empty()
    dist.reduce_scatter_tensor(out, c.mine(c.size * c.world), group=c.group)
    return [out]


def all_to_all_single(c: Case) -> list[torch.Tensor]:
    out = c.empty(c.world)
    dist.all_to_all_single(out, c.mine(c.size * c.world), group=c.group)
    return [out]


def uneven_all_to_all_single(c: Case) -> list[torch.Tensor]:
    parts = [c.size % 50 + (c.rank + r) % 3 for r in range(c.world)]
    out = torch.empty(sum(parts), dtype=c.dtype)
    dist.all_to_all_single(out, c.mine(sum(parts)), parts, parts, group=c.group)
    return [out]


MOVES = [broadcast, all_gather, all_gather_into_tensor, gather, scatter]
MOVES += [all_to_all_single, uneven_all_to_all_single]
SUMS = [reduce, reduce_scatter, reduce_scatter_tensor]


def compare(group: dist.ProcessGroup, gloo: dist.ProcessGroup) -> tuple[int, list[str]]:
    """Number of calls, and what differs."""
    count, problems = 0, []
    for dtype, size in itertools.product(DTYPES, SIZES):
        exact = not dtype.is_floating_point
        calls = [(all_reduce, op, exact or op in EXACT) for op in OPS + (BITS if exact else [])]
        calls += [(call, dist.ReduceOp.SUM, True) for call in MOVES]
        calls += [(call, dist.ReduceOp.SUM, exact) for call in SUMS]
        for call, op, strict in calls:
            ours, theirs = (call(Case(g, dtype, size, op)) for g in (group, gloo))
            count += 1
            if not all(same(a, b, strict) for a, b in zip(ours, theirs, strict=True)):
                problems.append(f"{call.__name__} {dtype} {size} {op}: {ours} instead of {theirs}")
    return count, problems


def same(a: torch.Tensor, b: torch.Tensor, strict: bool) -> bool:
    if strict:
        return torch.equal(a, b)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(a.dtype, 1e-5)
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)


def all_to_all_list(group: dist.ProcessGroup) -> list[str]:
    """Lists of unequal sizes, which gloo refuses, against what they must be."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sends = [torch.full((r + rank,), float(rank)) for r in range(world)]
    takes = [torch.empty(r + rank) for r in range(world)]
    dist.all_to_all(takes, sends, group=group)
    wrong = [
        r for r, t in enumerate(takes) if not torch.equal(t, torch.full((r + rank,), float(r)))
    ]
    return [f"all_to_all from {wrong}"] if wrong else []


def point_to_point(group: dist.ProcessGroup) -> list[str]:
    """send, recv, isend, irecv, batch_isend_irecv, any source."""
    rank, world = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    problems = []
    for size in (0, 3, 50_000, 3_000_000):
        out = torch.full((size,), -1.0)
        work = dist.isend(torch.full((size,), float(rank)), right, group=group)
        dist.recv(out, left, group=group)
        work.wait()
        if not torch.equal(out, torch.full((size,), float(left))):
            problems.append(f"isend/recv {size}")
    if world > 1:
        outs = [torch.empty(4), torch.empty(100_000)]
        ops = [
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), right, group),
            dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), left, group, tag=5),
            dist.P2POp(dist.irecv, outs[1], right, group, tag=5),
            dist.P2POp(dist.irecv, outs[0], left, group),
        ]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        if not (bool((outs[0] == left).all()) and bool((outs[1] == right).all())):
            problems.append("batch_isend_irecv")
        if rank == 0:
            seen = set()
            for _ in range(world - 1):
                t = torch.empty(2)
                source = dist.recv(t, group=group)
                seen.add(source)
                if t[0] != source:
                    problems.append("recv from any source")
            if seen != set(range(1, world)):
                problems.append(f"sources {seen}")
        else:
            dist.send(torch.full((2,), float(rank)), 0, group=group)
    return problems


def objects_and_groups(group: dist.ProcessGroup) -> list[str]:
    """Object collectives, barrier, asynchronous forms, new_group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    problems = []
    gathered: list = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank}, group=group)
    if [g["rank"] for g in gathered] != list(range(world)):
        problems.append("all_gather_object")
    box = [{"from": rank}]
    dist.broadcast_object_list(box, src=world - 1, group=group)
    if box != [{"from": world - 1}]:
        problems.append("broadcast_object_list")
    works, tensors = [], []
    for i in range(100):
        t = torch.full((i * 100 + 1,), float(rank))
        tensors.append(t)
        works.append(dist.all_reduce(t, group=group, async_op=True))
    for w in works:
        w.wait()
    total = float(sum(range(world)))
    if not all(bool((t == total).all()) for t in tensors):
        problems.append("asynchronous all_reduce")
    dist.barrier(group=group)
    evens = dist.new_group(list(range(0, world, 2)))
    if rank % 2 == 0:
        t = torch.ones(3)
        dist.all_reduce(t, group=evens)
        if t[0] != len(range(0, world, 2)):
            problems.append("new_group")
        dist.destroy_process_group(evens)
    return problems


def main() -> int:
    dist.init_process_group("pccl")
    assert dist.get_backend() == "pccl"
    ours = dist.group.WORLD
    count, problems = compare(ours, dist.new_group(backend="gloo"))
    problems += all_to_all_list(ours) + point_to_point(ours) + objects_and_groups(ours)
    for problem in problems[:50]:
        print(f"rank {os.environ['RANK']}: {problem}", flush=True)
    print(f"rank {os.environ['RANK']}: {count} calls compared", flush=True)
    dist.barrier()
    if "--destroy" in sys.argv:
        dist.destroy_process_group()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
