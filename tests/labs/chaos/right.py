"""Records of chaos runs in which all goes right; tests of the checker plant faults in them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from chaos import checker, reference, work
from chaos.verdict import Records

STEPS = 4  # of the planted runs
LOST = 2  # is in no operation of step 2 from its third on; members keep their numbering
MEMBERS = [0, 1, 2]


def contributors(step: int, index: int) -> tuple[int, ...]:
    if step > 2 or (step == 2 and index >= 2):
        return tuple(m for m in MEMBERS if m != LOST)
    return tuple(MEMBERS)


@functools.cache
def right(shift: int = 0) -> str:
    return made(lambda step, index, result: result, contributors, shift)


def recorded(
    change: Callable[[int, int, np.ndarray], np.ndarray] | None = None,
    who: Callable[[int, int], tuple[int, ...]] | None = None,
) -> Records:
    """Records of a run in which all goes right, but that `change` changes a result for all."""
    if change is None and who is None:
        text = right()
    else:
        text = made(change or (lambda step, index, result: result), who or contributors)
    return {int(m): lines for m, lines in json.loads(text).items()}


def made(
    change: Callable[[int, int, np.ndarray], np.ndarray],
    who: Callable[[int, int], tuple[int, ...]],
    shift: int = 0,
) -> str:
    """`shift` is added to the numbers of the members."""
    records: Records = {m: [] for m in MEMBERS}
    state = work.new_state(MEMBERS[0] + shift)
    for step in range(STEPS):
        members = [m for m in MEMBERS if step <= 2 or m != LOST]
        boundary(records, members, state)
        ops = []
        for i, op in enumerate(work.plan(step)):
            result = checker.compute(step, i, op, tuple(m + shift for m in who(step, i)), {})
            result = change(step, i, result)
            work.apply(state, op, result)
            slots = {str(slot): value for slot, value in work.slots_of(result, op).items()}
            ops.append({"digest": work.digest(result), "slots": slots})
        for m in contributors(step, 4):
            records[m].append({"what": "step", "step": step, "ops": ops})
        state["step"] += 1
    survivors = [m for m in MEMBERS if m != LOST]
    boundary(records, survivors, state)
    for m in survivors:
        final = {"what": "final", "step": state["step"], "digest": work.digest_of(state)}
        records[m].append(final)
    return json.dumps({m + shift: of for m, of in records.items()})


def boundary(records: Records, members: list[int], state: dict[str, Any]) -> None:
    for rank, m in enumerate(members):
        record = {"what": "boundary", "step": state["step"], "digest": work.digest_of(state)}
        record |= {"rank": rank, "size": len(members), "left": False, "admitted": False}
        records[m].append({**record, "stop": False})


def lines(records: Records, member: int, what: str) -> list[dict[str, Any]]:
    return [line for line in records[member] if line["what"] == what]


def the_one(records: Records) -> str:
    found = checker.check(records).contradictions
    assert found
    return found[0]


def replicas() -> Records:
    """Three replicas of two ranks; ranks 1 are members 10, 11 and 12, with their own peer group."""
    first = recorded()
    second: Records = {int(m): of for m, of in json.loads(right(10)).items()}
    for place, records in enumerate((first, second)):
        for m, of in records.items():
            start = {"what": "start", "replica": f"replica-{m % 10}", "place": place}
            of.insert(0, start)
            for line in of:
                if line["what"] == "boundary":
                    line["engine_step"] = line["step"]
                if line["what"] == "step":
                    line["siblings"] = among((m % 10, m % 10 + 10), line["step"])
    return {**first, **second}


def among(members: tuple[int, ...], step: int) -> str:
    op, index = work.AMONG_SIBLINGS, work.SIBLINGS_INDEX
    parts = [work.contribution(m, step, index, op) for m in members]
    return work.digest(reference.all_reduce(parts, op.reduce))
