"""All ranks of an operation in one process: schedules and kernels against torch in float64.

Segments are small and arrive in any order, and a send reads its memory some time after it may: a
dependency that is missing shows as a wrong result. tests/cpp/collectives does the same with tiny
segments for each algorithm alone; here every dtype and reduction passes through the selection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from pccl_backend import _core

SEGMENT_BYTES = 16384
SIZES = list(range(1, 10))

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}
REDUCTIONS = ["sum", "product", "min", "max", "band", "bor", "bxor", "avg"]
REDUCING = ["all_reduce", "reduce", "reduce_scatter"]
MOVING = ["broadcast", "all_gather", "gather", "scatter", "all_to_all", "barrier"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def combinations() -> list[tuple[str, str]]:
    return [(d, r) for d in DTYPES for r in REDUCTIONS if _core.reducible(d, r)]


# ------------------------------------------------------------------------------ the executor


@dataclass
class Rank:
    """One rank's memory as bytes, and how far each of its steps is."""

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    scratch: np.ndarray
    steps: list[dict[str, Any]]
    done: list[list[bool]] = field(default_factory=list)
    begun: list[list[bool]] = field(default_factory=list)
    arrived: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    waiting: list[list[int]] = field(default_factory=list)  # steps that wait for a step

    def view(self, where: dict[str, Any], segment: int) -> np.ndarray:
        space = {"input": self.inputs, "output": self.outputs}.get(where["space"])
        memory = self.scratch if space is None else space[where["index"]]
        begin = where["offset"] + segment * SEGMENT_BYTES
        end = where["offset"] + min(where["bytes"], (segment + 1) * SEGMENT_BYTES)
        return memory[begin:end]


def length(step: dict[str, Any]) -> int:
    return step["from" if step["kind"] == "send" else "to"]["bytes"]


class Executor:
    """Runs the schedules of all ranks in an order that `seed` decides."""

    def __init__(self, ranks: list[Rank], dtype: str, reduction: str, seed: int) -> None:
        self.ranks = ranks
        self.dtype = dtype
        self.reduction = reduction
        self.random = random.Random(seed)
        self.tasks: list[Callable[[], None]] = []
        self.receives = {}
        for r, rank in enumerate(ranks):
            rank.waiting = [[] for _ in rank.steps]
            for s, step in enumerate(rank.steps):
                for earlier in {*step["after"], step["follows"]} - {-1}:
                    rank.waiting[earlier].append(s)
                segments = max(1, -(-length(step) // SEGMENT_BYTES))
                rank.done.append([False] * segments)
                rank.begun.append([False] * segments)
                if step["kind"] in ("recv", "recv_reduce"):
                    self.receives[step["peer"], r, step["channel"]] = s

    def run(self) -> None:
        for r, rank in enumerate(self.ranks):
            for s in range(len(rank.steps)):
                self.look(r, s)
        while self.tasks:
            at = self.random.randrange(len(self.tasks))
            self.tasks[at], self.tasks[-1] = self.tasks[-1], self.tasks[at]
            self.tasks.pop()()
        for r, rank in enumerate(self.ranks):
            stuck = [s for s, done in enumerate(rank.done) if not all(done)]
            assert not stuck, f"rank {r}: steps {stuck} never had their turn"

    def look(self, r: int, s: int) -> None:
        """Queues what may be done now of step `s` of rank `r`."""
        rank = self.ranks[r]
        step = rank.steps[s]
        if not all(all(rank.done[earlier]) for earlier in step["after"]):
            return
        for i, begun in enumerate(rank.begun[s]):
            if begun or (step["follows"] >= 0 and not rank.done[step["follows"]][i]):
                continue
            if step["kind"] in ("recv", "recv_reduce") and (s, i) not in rank.arrived:
                continue
            rank.begun[s][i] = True
            self.tasks.append(lambda i=i: self.do(r, s, i))

    def do(self, r: int, s: int, segment: int) -> None:
        rank = self.ranks[r]
        step = rank.steps[s]
        if step["kind"] == "send":
            payload = rank.view(step["from"], segment).copy()
            at = self.receives[r, step["peer"], step["channel"]]
            self.tasks.append(lambda: self.arrive(step["peer"], at, segment, payload))
        elif step["kind"] == "copy":
            rank.view(step["to"], segment)[:] = rank.view(step["from"], segment).copy()
        elif step["kind"] == "recv":
            rank.view(step["to"], segment)[:] = rank.arrived[s, segment]
        else:
            own, to = rank.view(step["from"], segment), rank.view(step["to"], segment)
            other = rank.arrived[s, segment] if step["kind"] == "recv_reduce" else to
            first, second = (own, other) if step["received_second"] else (other, own)
            _core.reduce_into(to, first, second, self.dtype, self.reduction)
            if step["finish"]:
                _core.finish_average(to, self.dtype, len(self.ranks))
        rank.done[s][segment] = True
        for later in rank.waiting[s]:
            self.look(r, later)

    def arrive(self, r: int, s: int, segment: int, payload: np.ndarray) -> None:
        assert len(payload) == len(self.ranks[r].view(self.ranks[r].steps[s]["to"], segment))
        self.ranks[r].arrived[s, segment] = payload
        self.look(r, s)


# ------------------------------------------------------------------------------- operations


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def values(dtype: str, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kind = DTYPES[dtype]
    if kind is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if kind.is_floating_point:
        return (torch.rand(count, generator=generator, dtype=torch.float64) * 2 - 1).to(kind)
    low = 0 if kind is torch.uint8 else -9
    return torch.randint(low, 10, (count,), generator=generator).to(kind)


@dataclass
class Outcome:
    inputs: list[list[torch.Tensor]]  # as they were, by rank
    inputs_after: list[list[torch.Tensor]]
    outputs: list[list[torch.Tensor]]
    schedules: list[dict[str, Any]]


def counts_of(kind: str, size: int, rank: int, root: int, counts: list[int]) -> tuple[list, list]:
    """Elements of the inputs and outputs of one rank; `counts`: of rank i's part."""
    one, own, at_root = counts[0], counts[rank], rank == root
    return {
        "all_reduce": ([one], [one]),
        "reduce": ([one], [one] if at_root else []),
        "broadcast": ([one] if at_root else [], [one]),
        "all_gather": ([own], counts),
        "gather": ([own], counts if at_root else []),
        "scatter": (counts if at_root else [], [own]),
        "reduce_scatter": (counts, [own]),
        "all_to_all": (
            [counts[(rank * 2 + i) % size] for i in range(size)],
            [counts[(i * 2 + rank) % size] for i in range(size)],
        ),
        "barrier": ([], []),
    }[kind]


def same_memory(kind: str, rank: int, root: int) -> tuple[int, int] | None:
    """Which input and which output are one, where an operation runs in place."""
    if kind in ("all_reduce", "reduce", "broadcast"):
        return (0, 0) if kind == "all_reduce" or rank == root else None
    return {
        "all_gather": (0, rank),
        "gather": (0, rank) if rank == root else None,
        "scatter": (rank, 0) if rank == root else None,
        "reduce_scatter": (rank, 0),
    }.get(kind)


def run(
    kind: str,
    dtype: str,
    reduction: str,
    size: int,
    counts: list[int],
    *,
    root: int = 0,
    in_place: bool = False,
    seed: int = 0,
    make: Callable[[str, int, int], torch.Tensor] = values,
    trip_us: int = 0,
    mbit: int = 0,
) -> Outcome:
    width = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    ranks, inputs, outputs, schedules, originals = [], [], [], [], []
    for rank in range(size):
        ins, outs = counts_of(kind, size, rank, root, counts)
        given = [make(dtype, n, 1000 * seed + 50 * rank + i) for i, n in enumerate(ins)]
        taken = [torch.empty(n, dtype=DTYPES[dtype]) for n in outs]
        for tensor in taken:
            as_bytes(tensor)[:] = 0xCD
        originals.append([t.clone() for t in given])
        same = same_memory(kind, rank, root) if in_place else None
        if same:
            taken[same[1]].copy_(given[same[0]])
            given[same[0]] = taken[same[1]]
        schedule = _core.build_schedule(
            {
                "kind": kind,
                "reduce": reduction,
                "rank": rank,
                "size": size,
                "root": root,
                "element_bytes": width,
                "farthest_us": trip_us,
                "neighbour_us": trip_us,
                "mbit_per_s": mbit,
                "input_bytes": [n * width for n in ins],
                "output_bytes": [n * width for n in outs],
            }
        )
        scratch = np.full(schedule["scratch_bytes"], 0xCD, dtype=np.uint8)
        ranks.append(
            Rank(
                [as_bytes(t) for t in given],
                [as_bytes(t) for t in taken],
                scratch,
                schedule["steps"],
            )
        )
        inputs.append(given)
        outputs.append(taken)
        schedules.append(schedule)
    Executor(ranks, dtype, reduction, seed).run()
    if in_place:
        # What was one memory is an output now; the other inputs stay as they were.
        for rank in range(size):
            same = same_memory(kind, rank, root)
            if same:
                inputs[rank][same[0]] = originals[rank][same[0]]
    return Outcome(originals, inputs, outputs, schedules)


# --------------------------------------------------------------------------- what is expected


def reduced(parts: list[torch.Tensor], reduction: str) -> torch.Tensor:
    """In float64, or exactly in int64."""
    kind = parts[0].dtype
    if kind is torch.bool:
        everywhere = torch.stack(parts)
        if reduction in ("product", "min", "band"):
            return everywhere.all(0)
        return everywhere.sum(0) % 2 == 1 if reduction == "bxor" else everywhere.any(0)
    wide = [p.to(torch.float64 if kind.is_floating_point else torch.int64) for p in parts]
    total = wide[0].clone()
    for part in wide[1:]:
        total = {
            "sum": torch.add,
            "avg": torch.add,
            "product": torch.mul,
            "min": torch.minimum,
            "max": torch.maximum,
            "band": torch.bitwise_and,
            "bor": torch.bitwise_or,
            "bxor": torch.bitwise_xor,
        }[reduction](total, part)
    if reduction != "avg":
        return total
    if kind.is_floating_point:
        return total / len(parts)
    return torch.div(total.to(kind), len(parts), rounding_mode="trunc")  # sums wrap


def expect_equal(result: torch.Tensor, wanted: torch.Tensor, reduction: str, size: int) -> None:
    exact = not result.dtype.is_floating_point or reduction in ("min", "max", "none")
    if exact:
        assert torch.equal(result, wanted.to(result.dtype))
        return
    precision = torch.finfo(result.dtype).eps * size
    assert torch.allclose(result.double(), wanted, rtol=precision, atol=precision * size)


def expected(
    kind: str, o: Outcome, rank: int, index: int, root: int, reduction: str
) -> torch.Tensor:
    if kind in ("all_reduce", "reduce"):
        return reduced([given[0] for given in o.inputs], reduction)
    if kind == "reduce_scatter":
        return reduced([given[rank] for given in o.inputs], reduction)
    return {
        "broadcast": lambda: o.inputs[root][0],
        "all_gather": lambda: o.inputs[index][0],
        "gather": lambda: o.inputs[index][0],
        "scatter": lambda: o.inputs[root][rank],
        "all_to_all": lambda: o.inputs[index][rank],
    }[kind]()


def check(kind: str, o: Outcome, *, root: int = 0, reduction: str = "none") -> None:
    for rank, outputs in enumerate(o.outputs):
        for index, result in enumerate(outputs):
            wanted = expected(kind, o, rank, index, root, reduction)
            expect_equal(result, wanted, reduction, len(o.outputs))
        for before, after in zip(o.inputs[rank], o.inputs_after[rank], strict=True):
            assert torch.equal(before, after), "an input has changed"
    if kind == "all_reduce":
        for outputs in o.outputs[1:]:
            assert np.array_equal(as_bytes(outputs[0]), as_bytes(o.outputs[0][0]))


# -------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "reduction"), combinations())
def test_every_reduction_of_every_dtype_is_right(dtype: str, reduction: str, size: int) -> None:
    for kind in REDUCING:
        for seed, count in enumerate((1, 37)):
            root = size // 2 if kind == "reduce" else 0
            o = run(
                kind,
                dtype,
                reduction,
                size,
                [count] * size,
                root=root,
                in_place=seed == 1,
                seed=seed,
            )
            check(kind, o, root=root, reduction=reduction)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_large_reductions_are_right_in_and_out_of_place(dtype: str, size: int) -> None:
    width = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    reduction = "bxor" if dtype == "bool" else "sum"
    for kind in REDUCING:
        # Above the limits of recursive doubling, tree and direct exchange; not divisible.
        count = {"all_reduce": 270_007, "reduce": 530_011, "reduce_scatter": 140_003}[kind] // width
        for in_place in (False, True):
            o = run(kind, dtype, reduction, size, [count] * size, in_place=in_place, seed=size)
            check(kind, o, reduction=reduction)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "reduction"), combinations())
def test_every_reduction_is_right_over_long_lines(dtype: str, reduction: str, size: int) -> None:
    width = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    for kind in REDUCING:
        root = size // 2 if kind == "reduce" else 0
        for seed, count in enumerate((1, 37, 600_000 // width // size)):
            counts = [count] * size
            for in_place in (False, True):
                o = run(
                    kind,
                    dtype,
                    reduction,
                    size,
                    counts,
                    root=root,
                    in_place=in_place,
                    seed=seed,
                    trip_us=80_000,
                    mbit=(0, 10, 10_000)[seed],
                )
                check(kind, o, root=root, reduction=reduction)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MOVING)
def test_data_arrives_where_it_belongs(kind: str, size: int) -> None:
    for root in range(size if kind in ("broadcast", "gather", "scatter") else 1):
        for seed, count in enumerate((0, 1, 37, 5000)):
            for in_place in (False, True):
                for trip_us in (0, 80_000):
                    o = run(
                        kind,
                        "int64",
                        "none",
                        size,
                        [count] * size,
                        root=root,
                        in_place=in_place,
                        seed=seed,
                        trip_us=trip_us,
                    )
                    check(kind, o, root=root)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_is_moved_bit_by_bit(dtype: str) -> None:
    def any_bits(name: str, count: int, seed: int) -> torch.Tensor:
        if name == "bool":
            return values(name, count, seed)
        generator = np.random.default_rng(seed)
        width = torch.empty(0, dtype=DTYPES[name]).element_size()
        data = generator.integers(0, 256, count * width, dtype=np.uint8)  # NaN of all kinds too
        return torch.from_numpy(data).view(DTYPES[name])

    for kind in MOVING:
        o = run(kind, dtype, "none", 4, [77] * 4, root=1, make=any_bits)
        for rank, outputs in enumerate(o.outputs):
            for index, result in enumerate(outputs):
                wanted = expected(kind, o, rank, index, 1, "none")
                assert np.array_equal(as_bytes(result), as_bytes(wanted))


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_different_sizes_are_right(size: int) -> None:
    for scale in (1, 1000):
        counts = [c * scale for c in (7, 0, 1, 0, 2, 31, 9, 1, 4)][:size]
        for kind in ("all_gather", "gather", "scatter", "all_to_all"):
            check(kind, run(kind, "int64", "none", size, counts))
        check(
            "reduce_scatter",
            run("reduce_scatter", "int64", "sum", size, counts),
            reduction="sum",
        )


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9])
@pytest.mark.parametrize(("count", "trip_us"), [(64, 0), (20_000, 0), (64, 80_000), (99_999, 9000)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_special_floats_give_the_same_bits_at_all_ranks(
    dtype: str, count: int, trip_us: int, size: int
) -> None:
    def special(name: str, n: int, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        info = torch.finfo(DTYPES[name])
        table = [0.0, -0.0, 1.0, -1.0, info.max, info.min, info.tiny, torch.inf, -torch.inf]
        table += [torch.nan, -torch.nan]
        pool = torch.tensor(table, dtype=torch.float64).to(DTYPES[name])
        return pool[torch.randint(0, len(table), (n,), generator=generator)]

    for reduction in ("sum", "product", "min", "max", "avg"):
        counts = [count] * size
        o = run(
            "all_reduce", dtype, reduction, size, counts, make=special, seed=count, trip_us=trip_us
        )
        for outputs in o.outputs[1:]:
            assert np.array_equal(as_bytes(outputs[0]), as_bytes(o.outputs[0][0]))
        if reduction in ("min", "max"):
            wanted = reduced([given[0] for given in o.inputs], reduction).to(DTYPES[dtype])
            assert torch.equal(o.outputs[0][0].isnan(), wanted.isnan())
            assert torch.equal(o.outputs[0][0].nan_to_num(), wanted.nan_to_num())


def test_sends_and_receives_pair_up() -> None:
    for kind in REDUCING + MOVING:
        for size in SIZES:
            o = run(kind, "int32", "sum" if kind in REDUCING else "none", size, [23] * size)
            sends, receives = {}, {}
            for rank, schedule in enumerate(o.schedules):
                for s, step in enumerate(schedule["steps"]):
                    assert all(earlier < s for earlier in step["after"])
                    assert step["follows"] < s
                    if step["kind"] == "send":
                        key = (rank, step["peer"], step["channel"])
                        assert key not in sends
                        sends[key] = step["from"]["bytes"]
                    elif step["kind"] in ("recv", "recv_reduce"):
                        key = (step["peer"], rank, step["channel"])
                        assert key not in receives
                        receives[key] = step["to"]["bytes"]
            assert sends == receives


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "all_think"}, "all_think"),
        ({"reduce": "mean"}, "mean"),
        ({"rank": "first"}, "rank"),
        ({"rank": -1}, "rank"),
        ({"ranks": 3}, "ranks"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, Any], text: str) -> None:
    args = {"kind": "barrier", "rank": 0, "size": 2, **change}
    with pytest.raises(ValueError, match=text):
        _core.build_schedule(args)
