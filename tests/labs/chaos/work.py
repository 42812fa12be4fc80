"""What a member of the chaos test computes: operations of a step, contributions, the state.

Members and the checker both use it, so that a result can be computed again from its contributors
alone. Everything is a function of (member, step, index). Loads without torch.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SLOTS = 64  # elements at the head of an operation: a one at the slot of each contributor
STOP = SLOTS  # element of the int64 operation that counts who has been asked to end
DOUBLING = 8192  # float32 elements up to which recursive doubling runs; others above
LARGEST = 700_000
QUANTISED = ("bfloat16", "float16", "int8")  # by turns
TIERS = ((1, SLOTS), (SLOTS + 1, DOUBLING), (DOUBLING + 1, 200_000), (DOUBLING + 1, LARGEST))


EXCHANGES = ("isend", "batch", "any", "one by one")
MESSAGES_INDEX = 32  # of the first message of a step
GROUP_INDEX = 61  # of the operation in a group of some ranks
SIBLINGS_INDEX = 62  # of the operation among the ranks of a replica; 63 is the state's


@dataclass(frozen=True)
class Op:
    """One all_reduce; `count` elements."""

    dtype: str
    reduce: str
    count: int
    quantise: str | None = None

    @property
    def says_who(self) -> bool:
        """Is there room for the slots, and for bits that only this operation has?"""
        return self.count > SLOTS


AMONG_SIBLINGS = Op("float32", "sum", 50_000)
AMONG_SOME = Op("int64", "sum", 20_000)  # in whatever order: integers
GROUP_ONE_IN = 3  # steps


def plan(step: int) -> list[Op]:
    """The operations of a step, in the order in which they are issued."""
    chance = random.Random(step)

    def size(tier: tuple[int, int]) -> int:
        low, high = math.log(tier[0]), math.log(tier[1])
        return round(math.exp(chance.uniform(low, high)))

    tiny, small, large, largest = (size(tier) for tier in TIERS)
    ops = [
        Op("float32", "sum", tiny),
        Op("int64", "sum", STOP + chance.randint(1, 300)),
        Op("float32", "avg", small),
        Op("float32", "avg", large),
        Op("float32", "sum", largest),
        Op("float32", "sum", size(TIERS[2]), quantise=QUANTISED[step % len(QUANTISED)]),
    ]
    chance.shuffle(ops)
    return ops


def batches(step: int) -> list[tuple[list[int], list[int]]]:
    """Which operations are in flight together: indices as issued, and as waited for."""
    chance = random.Random(-1 - step)
    left = list(range(len(plan(step))))
    found = []
    while left:
        together = chance.randint(1, len(left))
        issued, left = left[:together], left[together:]
        found.append((issued, chance.sample(issued, len(issued))))
    return found


@dataclass(frozen=True)
class Exchange:
    """Messages between the ranks of a step: each to the next one, or all to rank 0 ("any")."""

    how: str
    messages: int  # of each sender
    count: int  # float32 elements of each


def exchange(step: int) -> Exchange:
    chance = random.Random(-1_000_000_000 - step)
    how = chance.choice(EXCHANGES)
    count = round(math.exp(chance.uniform(math.log(16), math.log(100_000))))
    return Exchange(how, 1 if how == "one by one" else chance.randint(1, 3), count)


def group_of(step: int, size: int) -> list[int]:
    """The ranks of the group that is made in this step; empty: none."""
    chance = random.Random(-2_000_000_000 - step)
    if size < 2 or chance.randrange(GROUP_ONE_IN) > 0:
        return []
    return sorted(chance.sample(range(size), chance.randint(2, size)))


def message(member: int, step: int, index: int) -> np.ndarray:
    op = Op("float32", "sum", exchange(step).count)
    return contribution(member, step, MESSAGES_INDEX + index, op)


def contribution(member: int, step: int, index: int, op: Op, *, stop: bool = False) -> np.ndarray:
    """Full mantissas and eight exponents: sums depend on who is in them, and on the order."""
    bits = np.random.Philox(key=[member, step * 64 + index])
    values: np.ndarray
    if op.dtype == "int64":
        values = np.random.Generator(bits).integers(-(2**62), 2**62, op.count, dtype=np.int64)
        values[STOP] = int(stop)
    else:
        raw = np.random.Generator(bits).integers(0, 2**32, op.count, dtype=np.uint32)
        exponent = 120 + ((raw >> np.uint32(23)) & np.uint32(7))
        values = ((raw & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))).view(np.float32)
    if op.says_who:
        values[:SLOTS] = 0
        values[member % SLOTS] = 1
    return values


def slots_of(result: np.ndarray, op: Op) -> dict[int, float]:
    """Slot -> what it holds, of those that are not zero. Sums of ones are exact; int8 is near."""
    if not op.says_who:
        return {}
    head = np.rint(result[:SLOTS]) if op.quantise == "int8" else result[:SLOTS]
    return {int(slot): float(head[slot]) for slot in np.flatnonzero(head)}


def new_state(member: int) -> dict[str, Any]:
    """As a member starts: each with another content, so that what it receives is seen."""
    fill = contribution(member, 0, 63, Op("float32", "sum", LARGEST))
    whole = np.zeros(1024, dtype=np.int64)
    return {"step": 0, "chain": f"{member}", "ending": False, "w": fill, "n": whole}


def apply(state: dict[str, Any], op: Op, result: np.ndarray) -> None:
    """Takes a result into the state. The chain forgets nothing: all later ones depend on it."""
    if op.dtype == "int64":
        state["n"][: op.count] += result
        state["ending"] = state["ending"] or bool(result[STOP] > 0)
    else:
        part = state["w"][: op.count]
        part *= np.float32(0.5)
        part += result
    state["chain"] = chained(state["chain"], digest(result))


def chained(chain: str, link: str) -> str:
    return hashlib.sha256(f"{chain} {link}".encode()).hexdigest()


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def digest_of(state: Mapping[str, Any]) -> str:
    """Of the whole state, with its plain values."""
    plain = f"{state['step']} {state['chain']} {state['ending']}"
    total = hashlib.sha256(plain.encode())
    for name in ("w", "n"):
        total.update(np.ascontiguousarray(state[name]).data)
    return total.hexdigest()
