"""The bits that an all_reduce gives: the engine's schedule, run for all ranks in numpy.

Only the schedule comes from the engine; data and arithmetic are numpy's, so that this shares no
fault with the executor, the transport or the kernels. A range moves as a whole, ranks take turns.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pccl_backend import _core

# Microseconds of the longest round trip and of that of neighbours, Mbit/s, microseconds of that of
# neighbours of one site, whether all are on one machine, and the sites of the contributors.
Lines = tuple[int, int, int, int, bool, tuple[int, ...]]
NEAR: Lines = (0, 0, 0, 0, False, ())
BLOCK = 256  # values that int8 rounds together


@functools.lru_cache(maxsize=256)
def schedule(
    reduce: str, rank: int, size: int, count: int, width: int, lines: Lines
) -> tuple[list[dict[str, Any]], int]:
    """Its steps, and the bytes of scratch memory."""
    made = _core.build_schedule(
        {
            "kind": "all_reduce",
            "reduce": reduce,
            "rank": rank,
            "size": size,
            "root": 0,
            "element_bytes": width,
            "input_bytes": [count * width],
            "output_bytes": [count * width],
            "farthest_us": lines[0],
            "neighbour_us": lines[1],
            "mbit_per_s": lines[2],
            "near_us": lines[3],
            "local": lines[4],
            "sites": lines[5] if len(lines[5]) == size else (),
        }
    )
    return made["steps"], made["scratch_bytes"]


def all_reduce(parts: list[np.ndarray], reduce: str, lines: Lines = NEAR) -> np.ndarray:
    """The result for contributors in this order; `parts` are left as they are."""
    memory = [part.copy() for part in parts]  # in place: input and output are one
    size, count, width = len(parts), parts[0].size, parts[0].itemsize
    made = [schedule(reduce, rank, size, count, width, lines) for rank in range(size)]
    steps = [its for its, _ in made]
    scratch = [np.zeros(nbytes // width, parts[0].dtype) for _, nbytes in made]
    area: dict[tuple[int, int], np.ndarray] = {}  # of rank and index
    at = [0] * size
    mail: dict[tuple[int, int, int], np.ndarray] = {}

    def view(rank: int, where: dict[str, Any]) -> np.ndarray:
        if where["space"] == "area":
            fresh = np.zeros(where["bytes"] // width, parts[0].dtype)
            return area.setdefault((rank, where["index"]), fresh)
        begin = where["offset"] // width
        of = scratch if where["space"] == "scratch" else memory
        return of[rank][begin : begin + where["bytes"] // width]

    def divide_at_last(step: dict[str, Any], total: np.ndarray) -> None:
        if step["finish"] and reduce == "avg":
            total /= total.dtype.type(size)

    def do(rank: int, step: dict[str, Any]) -> bool:
        kind = step["kind"]
        if kind == "send":
            mail[rank, step["peer"], step["channel"]] = view(rank, step["from"]).copy()
            return True
        if kind == "copy":
            view(rank, step["to"])[:] = view(rank, step["from"]).copy()
            return True
        if kind == "borrow":  # it stays in the mail until it is added
            return (step["peer"], rank, step["channel"]) in mail
        to = view(rank, step["to"])
        if kind == "add_borrowed":
            total = view(rank, step["from"]).copy()
            for borrowed in (steps[rank][s] for s in step["borrowed"]):
                total = total + mail.pop((borrowed["peer"], rank, borrowed["channel"]))
            to[:] = total
            divide_at_last(step, to)
            return True
        if kind in ("recv", "recv_reduce"):
            key = (step["peer"], rank, step["channel"])
            if key not in mail:
                return False
            other = mail.pop(key)
        else:
            other = to.copy()
        if kind == "recv":
            to[:] = other
            return True
        own = view(rank, step["from"])
        first, second = (own, other) if step["received_second"] else (other, own)
        to[:] = first + second
        divide_at_last(step, to)
        return True

    moved = True
    while moved:
        moved = False
        for rank in range(size):
            while at[rank] < len(steps[rank]) and do(rank, steps[rank][at[rank]]):
                at[rank] += 1
                moved = True
    assert all(at[rank] == len(steps[rank]) for rank in range(size)), "a schedule that stands still"
    for other in memory[1:]:
        assert np.array_equal(memory[0].view(np.uint8), other.view(np.uint8))
    return memory[0]


def all_reduce_quantised(parts: list[np.ndarray], quantise: str, lines: Lines = NEAR) -> np.ndarray:
    """The sum: each contribution is rounded once, added as float32, and the sum once.

    At sites the sum of each site is rounded, and that of more than two sites once more; a
    rank that is alone at its site rounds its contribution alone. Chunks leave no trace in these
    bits: they are whole blocks.
    """
    rounded = ROUNDED[quantise]

    def added(values: list[np.ndarray]) -> np.ndarray:
        return functools.reduce(np.add, values)

    sent = [rounded(part) for part in parts]
    sites = lines[5]
    numbers = list(dict.fromkeys(sites))
    if len(sites) != len(parts) or not 1 < len(numbers) < len(parts):
        return rounded(added(sent))
    of_sites = [[p for p, s in zip(sent, sites, strict=True) if s == one] for one in numbers]
    sums = [rounded(added(its)) if len(its) > 1 else its[0] for its in of_sites]
    return added(sums) if len(sums) == 2 else rounded(added(sums))


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest ones, of two the even one."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def as_float16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def as_int8(values: np.ndarray) -> np.ndarray:
    """The nearest of 256 values at equal distances, from the smallest of a block to the largest."""
    block = np.arange(values.size) // BLOCK
    low = np.minimum.reduceat(values, range(0, values.size, BLOCK))
    width = np.maximum.reduceat(values, range(0, values.size, BLOCK)) - low
    per_unit = np.divide(np.float32(255), width, out=np.zeros_like(width), where=width > 0)
    codes = np.rint((values - low[block]) * per_unit[block])
    return low[block] + codes * (width / np.float32(255))[block]


ROUNDED = {"bfloat16": as_bfloat16, "float16": as_float16, "int8": as_int8}
