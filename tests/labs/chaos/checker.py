"""Judges the records of a chaos run: is every bit what the recorded contributors give?

`check` walks over all steps with a state of its own, computed from contributions in the recorded
order of their contributors, and compares every recorded digest with it. It knows nothing of what
was done to the members; that every exit is explained is the driver's to say. Starts no process.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
from chaos import beside, reference, work
from chaos.verdict import Record, Records, Verdict

ORDERS_MAX = 120  # tried to say more about bits that are wrong


Way = tuple[tuple[int, ...], reference.Lines]  # members in the order of the ring, and lines


@dataclass
class Step:
    """All that members have recorded of one step."""

    boundaries: dict[int, Record] = field(default_factory=dict)
    results: dict[int, Record] = field(default_factory=dict)
    contributors: list[tuple[int, ...]] = field(default_factory=list)  # as found, of each operation

    ways: set[Way] = field(default_factory=set)  # in which data went

    def ranks(self) -> dict[int, int]:
        """Rank -> member, in the numbering of the step."""
        return {int(b["rank"]): m for m, b in self.boundaries.items() if not b["left"]}


def read(folder: Path) -> Records:
    """The records of a run; a line that was not finished when its member died is none."""
    found = {}
    for path in folder.glob("member-*.jsonl"):
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        member = int(path.stem.removeprefix("member-"))
        found[member] = [json.loads(line) for line in whole.splitlines()]
    return dict(sorted(found.items()))


def check(records: Records, say: Callable[[str], None] = lambda text: None) -> Verdict:
    """Compares everything; `say` gets a line of progress now and then.

    Where replicas have several ranks, each peer group is a run of its own, and what the ranks of a
    replica did together is compared too.
    """
    groups: dict[int, Records] = defaultdict(dict)
    for member, lines in records.items():
        groups[_start(lines).get("place", 0)][member] = lines
    if len(groups) < 2:
        return _check_group(records, say, alone=True)
    total = Verdict(members=len(records))
    for place, group in sorted(groups.items()):
        verdict = _check_group(group, say, alone=False)
        for text in verdict.contradictions:
            total.say(f"peer group {place}: {text}")
        total.steps = max(total.steps, verdict.steps)
        total.operations += verdict.operations
        total.with_fewer += verdict.with_fewer
        total.final += verdict.final
    _check_replicas(records, total)
    return total


def _check_group(records: Records, say: Callable[[str], None], *, alone: bool) -> Verdict:
    """One peer group. `alone`: of replicas of one rank each, which talk to each other in it."""
    verdict = Verdict(members=len(records))
    for member, lines in records.items():
        _check_sequence(member, lines, verdict)
    steps = _by_step(records)
    if not steps:
        verdict.say("nobody has passed a boundary")
        return verdict
    state = _founding(steps[min(steps)], min(steps), verdict)
    if state is None:
        return verdict
    found_before = len(verdict.contradictions)
    for number in range(min(steps), max(steps) + 1):
        here = steps.get(number)
        if here is None or not here.boundaries:
            verdict.say(f"step {number}: lost, nobody has recorded its boundary")
            break
        _check_boundary(number, here, steps.get(number - 1), state, verdict)
        if not here.results:
            if number < max(steps):
                verdict.say(f"step {number}: lost, nobody has recorded its results")
            break
        _check_results(number, here, state, verdict)
        if alone:
            beside.check(f"step {number}", number, here.results, here.ranks(), verdict)
        state["step"] = number + 1
        verdict.steps += 1
        if len(verdict.contradictions) > found_before:
            break  # what follows would only repeat it
        if number % 500 == 0:
            say(f"checked to step {number}")
    _check_ends(records, state, verdict)
    return verdict


# ------------------------------------------------------------------------------ one member


def _check_sequence(member: int, lines: list[Record], verdict: Verdict) -> None:
    """Boundary and step take turns, and no number comes twice or is missing."""
    last: Record | None = None
    for line in lines:
        if line["what"] not in ("boundary", "step"):
            continue
        if last is not None:
            wanted = last["step"] + (last["what"] == "step")
            turn = "step" if last["what"] == "boundary" else "boundary"
            if line["what"] != turn or line["step"] != wanted:
                verdict.say(
                    f"member {member}: {line['what']} {line['step']} after {last['what']} "
                    f"{last['step']}: a step was lost or done twice"
                )
        last = line


def _by_step(records: Records) -> dict[int, Step]:
    steps: dict[int, Step] = defaultdict(Step)
    for member, lines in records.items():
        for line in lines:
            if line["what"] == "boundary":
                steps[line["step"]].boundaries[member] = line
            elif line["what"] == "step":
                steps[line["step"]].results[member] = line
    # Members look at the way when an operation returns, which may be an epoch later: those of the
    # steps beside it count too.
    for number, here in steps.items():
        for near in (number - 1, number, number + 1):
            for line in steps[near].results.values() if near in steps else ():
                member_of = steps[near].ranks()
                for way in line["ops"][0].get("ways", ()) if line["ops"] else ():
                    ring = tuple(member_of[r] for r in way["ring"] if r in member_of)
                    in_ring = zip(way["ring"], way["sites"], strict=False)
                    sites = tuple(site for r, site in in_ring if r in member_of)
                    here.ways.add((ring, (*way["lines"], sites)))
    return dict(steps)


# ------------------------------------------------------------------------------ boundaries


def _founding(first: Step, number: int, verdict: Verdict) -> dict[str, Any] | None:
    """The state with which the run began: that of the lowest rank, since all differ."""
    ranks = first.ranks()
    if number != 0 or 0 not in ranks:
        verdict.say(f"step {number}: the run begins without a boundary of rank 0 at step 0")
        return None
    return work.new_state(ranks[0])


def _check_boundary(
    number: int, here: Step, before: Step | None, state: dict[str, Any], verdict: Verdict
) -> None:
    wanted = work.digest_of(state)
    for member, boundary in sorted(here.boundaries.items()):
        if boundary["digest"] != wanted:
            others = {b["digest"] for b in here.boundaries.values()}
            alike = "all members alike" if len(others) == 1 else f"{len(others)} different states"
            verdict.say(
                f"boundary {number}: member {member} holds the state {boundary['digest'][:16]}, "
                f"the reference is {wanted[:16]} ({alike})"
            )
        if before is not None and not boundary["left"] and not boundary["admitted"]:
            _check_named(number, member, boundary, before, verdict)
    going_on = {m: b for m, b in here.boundaries.items() if not b["left"]}
    if len(here.ranks()) != len(going_on):
        verdict.say(f"boundary {number}: two members have one rank: {_numbers(going_on)}")
    if len({b["size"] for b in going_on.values()}) > 1:
        verdict.say(f"boundary {number}: members differ about the size: {_numbers(going_on)}")


def _check_named(
    number: int, member: int, boundary: Record, before: Step, verdict: Verdict
) -> None:
    """`Boundary.contributors`: ranks that are in every reduction of the step that has ended."""
    named = boundary.get("contributors")
    if named is None or not before.contributors:
        return
    everywhere = set.intersection(*map(set, before.contributors))
    wanted = sorted(r for r, m in before.ranks().items() if m in everywhere)
    if sorted(named) != wanted:
        verdict.say(
            f"boundary {number}: member {member} is told that ranks {sorted(named)} have "
            f"contributed to step {number - 1}; they are {wanted}"
        )


def _numbers(boundaries: dict[int, Record]) -> str:
    return ", ".join(
        f"member {m} is rank {b['rank']} of {b['size']}" for m, b in sorted(boundaries.items())
    )


# ------------------------------------------------------------------------------ results


def _check_results(number: int, here: Step, state: dict[str, Any], verdict: Verdict) -> None:
    ops = work.plan(number)
    order = [member for _, member in sorted(here.ranks().items())]
    stops = {m: bool(b["stop"]) for m, b in here.boundaries.items()}
    found_before = len(verdict.contradictions)
    sets = [_contributors(number, i, here, verdict) for i in range(len(ops))]
    if len(verdict.contradictions) > found_before:
        return
    candidates = _possible(order, set(here.results))  # for those without room for slots
    for i, op in enumerate(ops):
        recorded = {m: r["ops"][i]["digest"] for m, r in here.results.items()}
        if len(set(recorded.values())) > 1:
            verdict.say(f"step {number}, operation {i} ({op}): different bits: {_short(recorded)}")
            return
        wanted = next(iter(recorded.values()))
        contributors = sets[i]
        tried = candidates if contributors is None else [contributors]
        ways = [way for members in tried for way in _ways(members, here.ways)]
        result = None
        for members, lines in ways:
            result = compute(number, i, op, members, stops, lines)
            if work.digest(result) == wanted:
                contributors = members
                break
        else:
            why = _explain(number, i, op, ways, order, stops, wanted)
            verdict.say(
                f"step {number}, operation {i} ({op}): the members {sorted(recorded)} hold "
                f"{wanted[:16]}, which is not what the contributors "
                f"{' or '.join(map(str, ways))} give; {why}"
            )
            return
        assert result is not None
        assert contributors is not None
        work.apply(state, op, result)
        here.contributors.append(contributors)
        verdict.operations += 1
        verdict.with_fewer += len(contributors) < len(order)


def _ways(members: tuple[int, ...], ways: set[Way]) -> list[Way]:
    """These contributors in the order of ranks, and as their data may have gone."""
    found: list[Way] = [(members, reference.NEAR)]
    for ring, (*lengths, sites) in sorted(ways):
        round_ = tuple(m for m in ring if m in members)
        of_these = tuple(site for m, site in zip(ring, sites, strict=False) if m in members)
        lines: reference.Lines = (*lengths, of_these)
        if len(round_) == len(members) and (round_, lines) not in found:
            found.append((round_, lines))
    return found


def _possible(order: list[int], finished: set[int]) -> list[tuple[int, ...]]:
    """Who may have contributed: all who have finished the step, and any of those who were lost."""
    lost = [m for m in order if m not in finished]
    found = []
    for count in range(len(lost) + 1):
        for gone in combinations(lost, count):
            found.append(tuple(m for m in order if m not in gone))
    return found


def compute(
    number: int,
    index: int,
    op: work.Op,
    members: tuple[int, ...],
    stops: dict[int, bool],
    lines: reference.Lines = reference.NEAR,
) -> np.ndarray:
    parts = [
        work.contribution(m, number, index, op, stop=stops.get(m, False) and op.dtype == "int64")
        for m in members
    ]
    if op.quantise and len(parts) > 1:
        return reference.all_reduce_quantised(parts, op.quantise, lines)
    return reference.all_reduce(parts, op.reduce, lines)


def _contributors(number: int, i: int, here: Step, verdict: Verdict) -> tuple[int, ...] | None:
    """Who is in an operation, in the order of ranks, as its own result says; None: no room."""
    op = work.plan(number)[i]
    if not op.says_who:
        return None
    told = {m: r["ops"][i]["slots"] for m, r in here.results.items()}
    slots = next(iter(told.values()))
    if any(other != slots for other in told.values()):
        verdict.say(
            f"step {number}, operation {i} ({op}): members differ about who contributed: {told}"
        )
        return None
    one = 1.0 if op.reduce == "sum" else float(np.float32(1) / np.float32(len(slots)))
    twice = [slot for slot, value in slots.items() if value != one]
    if twice:
        verdict.say(
            f"step {number}, operation {i} ({op}): the slots {twice} do not hold {one} but "
            f"{[slots[slot] for slot in twice]}: counted twice, or with another number of members"
        )
        return None
    found = []
    for _, member in sorted(here.ranks().items()):
        if str(member % work.SLOTS) in slots:
            found.append(member)
    if len(found) != len(slots):
        verdict.say(
            f"step {number}, operation {i} ({op}): slots {sorted(slots)} hold a contribution, the "
            f"members of the step are {sorted(here.ranks().values())}"
        )
        return None
    forgotten = sorted(set(here.results) - set(found))
    if forgotten:
        verdict.say(
            f"step {number}, operation {i} ({op}): the members {forgotten} have finished the step "
            f"and are not among the contributors {found}: a lost contribution"
        )
        return None
    return tuple(found)


def _explain(
    number: int,
    i: int,
    op: work.Op,
    ways: list[Way],
    order: list[int],
    stops: dict[int, bool],
    wanted: str,
) -> str:
    """Would another order, or one contributor more or less, give these bits?"""

    def gives(members: tuple[int, ...], lines: reference.Lines) -> bool:
        return work.digest(compute(number, i, op, members, stops, lines)) == wanted

    for tried, lines in ways:
        for other in list(permutations(tried))[:ORDERS_MAX]:
            if gives(other, lines):
                return f"in the order {other} they do"
        for member in order:
            fewer = tuple(m for m in tried if m != member)
            if member in tried and fewer and gives(fewer, lines):
                return f"without member {member} they do: a lost contribution"
            more = tuple(m for m in order if m in tried or m == member)
            if member not in tried and gives(more, lines):
                return f"with member {member} they do"
            twice = tuple(m for m in tried for _ in range(1 + (m == member)))
            if member in tried and gives(twice, lines):
                return f"with member {member} counted twice they do"
    return "no other order and no member more or less gives it"


def _short(digests: dict[int, str]) -> str:
    return ", ".join(f"member {m} {d[:16]}" for m, d in sorted(digests.items()))


# ------------------------------------------------------------------------------ replicas


def _start(lines: list[Record]) -> Record:
    return next((line for line in lines if line["what"] == "start"), {})


def _check_replicas(records: Records, verdict: Verdict) -> None:
    """The ranks of a replica pass the same boundaries, and none goes on without the others.

    They go all at once. So what they did with each other, in groups whose members never change,
    either has gone right at a rank that has finished the step, or that rank has not finished it.
    """
    replicas: dict[str, dict[int, int]] = defaultdict(dict)
    for member, lines in records.items():
        start = _start(lines)
        if start:
            replicas[start["replica"]][start["place"]] = member
    for name, places in replicas.items():
        members = tuple(member for _, member in sorted(places.items()))
        _check_replica(name, members, {m: records[m] for m in members}, verdict)


def _check_replica(name: str, members: tuple[int, ...], records: Records, verdict: Verdict) -> None:
    steps = _by_step(records)
    last = {m: max((n for n, s in steps.items() if m in s.boundaries), default=-1) for m in members}
    if max(last.values()) > min(last.values()) + 1:
        verdict.say(f"{name}: one of its ranks went on without another; last boundaries: {last}")
    for number, step in sorted(steps.items()):
        seen = {
            m: {key: b[key] for key in ("rank", "size", "left", "engine_step", "stop")}
            for m, b in step.boundaries.items()
        }
        if any(other != next(iter(seen.values())) for other in seen.values()):
            verdict.say(f"{name}, boundary {number}: its ranks differ: {seen}")
        ranks = dict(enumerate(members))
        beside.check(f"{name}, step {number}", number, step.results, ranks, verdict, fails=False)
        among = {m: r["siblings"] for m, r in step.results.items()}
        if not among:
            continue
        op, index = work.AMONG_SIBLINGS, work.SIBLINGS_INDEX
        parts = [work.contribution(m, number, index, op) for m in members]
        wanted = work.digest(reference.all_reduce(parts, op.reduce))
        if set(among.values()) != {wanted}:
            verdict.say(
                f"{name}, step {number}: the operation of its own group gave {_short(among)}, "
                f"the reference is {wanted[:16]}"
            )


# ------------------------------------------------------------------------------ ends


def _check_ends(records: Records, state: dict[str, Any], verdict: Verdict) -> None:
    finals = {
        member: line
        for member, lines in records.items()
        for line in lines
        if line["what"] == "final"
    }
    if verdict.contradictions or not finals:
        return
    wanted = work.digest_of(state)
    verdict.final = wanted
    for member, line in finals.items():
        if line["digest"] != wanted:
            verdict.say(
                f"member {member} ends with {line['digest'][:16]} at step {line['step']}, the "
                f"reference with {wanted[:16]} at step {state['step']}"
            )
