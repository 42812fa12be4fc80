"""The checker of the chaos test finds what is planted in records that are otherwise right."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from chaos import checker, reference, work
from chaos.checker import check, compute
from chaos.right import (
    MEMBERS,
    STEPS,
    among,
    contributors,
    lines,
    recorded,
    replicas,
    the_one,
)

from pccl_backend import _C


def test_data_may_go_round_in_another_order_than_that_of_ranks_if_members_say_so() -> None:
    ring = [1, 0, 2]  # two that cannot reach each other are no neighbours

    def who(step: int, index: int) -> tuple[int, ...]:
        return tuple(m for m in ring if m in contributors(step, index))

    records = recorded(who=who)
    assert any("in the order" in text for text in check(records).contradictions)
    for m in MEMBERS:
        for line in lines(records, m, "step"):
            line["ops"][0]["ways"] = [
                {"ring": order, "lines": [0, 0, 0, 0, False], "sites": []}
                for order in ([0, 1, 2], ring)
            ]
    assert check(records).contradictions == []


@pytest.mark.parametrize(
    ("lines", "count", "turns"),
    [
        ((0, 0, 0, 0, False, ()), 1, 2),
        ((80_000, 80_000, 0, 0, False, ()), 1, 1),
        ((80_000, 80_000, 0, 0, False, ()), 20_000, 1),
        ((80_000, 80_000, 0, 0, False, ()), 200_000, 2),
        ((9000, 3000, 0, 0, False, ()), 20_000, 2),
        ((9000, 3000, 0, 0, False, ()), 40_000, 6),
        ((80_000, 80_000, 10, 0, False, ()), 20_000, 2),
        ((80_000, 80_000, 1000, 0, False, ()), 200_000, 1),
        ((80_000, 40_000, 0, 0, False, (0, 0, 1, 1)), 20_000, 3),
        ((0, 0, 0, 0, True, ()), 1 << 20, 2),  # and the word of the last readers
    ],
)
def test_the_reference_goes_the_way_of_members_that_are_far_from_each_other(
    lines: reference.Lines, count: int, turns: int
) -> None:
    parts = [np.random.default_rng(rank).random(count) for rank in range(4)]
    far = reference.all_reduce(parts, "sum", lines)
    assert np.allclose(far, sum(parts))
    steps, scratch_bytes = reference.schedule("sum", 3, 4, count, 8, lines)
    arrives = {"recv", "recv_reduce", "borrow"}
    assert len({s["channel"] for s in steps if s["kind"] in arrives and s["to"]["bytes"]}) == turns
    assert scratch_bytes == (8 * count if turns == 1 else 0)


def test_members_may_know_their_round_trips() -> None:
    def summed(step: int, index: int, result: np.ndarray) -> np.ndarray:
        op = work.plan(step)[index]
        if (step, op.dtype, op.reduce) != (1, "float32", "sum"):
            return result
        return compute(
            step, index, op, contributors(step, index), {}, (80_000, 80_000, 0, 0, False, ())
        )

    records = recorded(summed)
    assert check(records).contradictions
    for m in MEMBERS:
        for line in lines(records, m, "step"):
            line["ops"][0]["ways"] = [
                {"ring": [0, 1, 2], "lines": [80_000, 80_000, 0, 0, False], "sites": []}
            ]
    assert check(records).contradictions == []


def test_members_may_stand_at_two_sites() -> None:
    far = (80_000, 53_333, 0, 400, False)

    def summed(step: int, index: int, result: np.ndarray) -> np.ndarray:
        op, who = work.plan(step)[index], contributors(step, index)
        if (step, op.dtype, op.reduce) != (1, "float32", "sum"):
            return result
        return compute(step, index, op, who, {}, (*far, tuple([0, 1, 1][m] for m in who)))

    records = recorded(summed)
    assert check(records).contradictions
    for m in MEMBERS:
        for line in lines(records, m, "step"):
            line["ops"][0]["ways"] = [{"ring": [0, 1, 2], "lines": [*far], "sites": [5, 7, 7]}]
    assert check(records).contradictions == []


def index_of(step: int, dtype: str, reduce: str, count_min: int = work.SLOTS + 1) -> int:
    for i, op in enumerate(work.plan(step)):
        if (op.dtype, op.reduce) == (dtype, reduce) and op.count >= count_min:
            return i
    raise AssertionError("every step has one")


def test_records_of_a_right_run_hold() -> None:
    verdict = check(recorded())
    assert verdict.contradictions == []
    assert verdict.steps == STEPS
    assert verdict.operations == sum(len(work.plan(step)) for step in range(STEPS))
    assert verdict.with_fewer == len(work.plan(2)) - 2
    assert verdict.final


@pytest.mark.parametrize("tier", range(6))
def test_one_wrong_bit_is_found_in_an_operation_of_any_size(tier: int) -> None:
    def flip(step: int, index: int, result: np.ndarray) -> np.ndarray:
        if (step, index) == (1, tier):
            result.view(np.uint8)[-1] ^= 1
        return result

    assert f"step 1, operation {tier}" in the_one(recorded(flip))


@pytest.mark.parametrize("reduce", ["sum", "avg"])
def test_a_contribution_that_is_counted_twice_is_found(reduce: str) -> None:
    at = index_of(1, "float32", reduce)

    def twice(step: int, index: int) -> tuple[int, ...]:
        return (0, 1, 1, 2) if (step, index) == (1, at) else contributors(step, index)

    text = the_one(recorded(who=twice))
    assert f"step 1, operation {at}" in text
    assert "counted twice" in text


def test_an_operation_that_went_into_the_state_twice_is_found() -> None:
    records = recorded()
    state = work.new_state(0)
    op = work.plan(0)[0]
    result = checker.compute(0, 0, op, tuple(MEMBERS), {})
    work.apply(state, op, result)
    work.apply(state, op, result)
    lines(records, 1, "boundary")[1]["digest"] = work.digest_of(state)
    text = the_one(records)
    assert "boundary 1: member 1" in text
    assert "2 different states" in text


def test_a_contribution_that_was_lost_is_found_and_named() -> None:
    at = index_of(1, "float32", "sum", work.DOUBLING)

    def keep_slots(step: int, index: int, result: np.ndarray) -> np.ndarray:
        if (step, index) == (1, at):
            without = checker.compute(1, at, work.plan(1)[at], (0, 1), {})
            result[work.SLOTS :] = without[work.SLOTS :]
        return result

    assert f"step 1, operation {at}" in the_one(recorded(keep_slots))


def test_the_bits_of_a_tiny_operation_tell_who_is_missing() -> None:
    at = next(i for i, op in enumerate(work.plan(1)) if not op.says_who)

    def fewer(step: int, index: int) -> tuple[int, ...]:
        return (0, 2) if (step, index) == (1, at) else contributors(step, index)

    assert "without member 1 they do: a lost contribution" in the_one(recorded(who=fewer))


def test_a_survivor_that_is_not_among_the_contributors_is_found() -> None:
    at = index_of(1, "float32", "avg")

    def fewer(step: int, index: int) -> tuple[int, ...]:
        return (0, 2) if (step, index) == (1, at) else contributors(step, index)

    text = the_one(recorded(who=fewer))
    assert f"step 1, operation {at}" in text
    assert "the members [1] have finished the step" in text


def test_who_was_lost_may_be_missing_in_a_tiny_operation_alone() -> None:
    at = next(i for i, op in enumerate(work.plan(2)) if not op.says_who)

    def fewer(step: int, index: int) -> tuple[int, ...]:
        if step == 2:
            return (0, 1) if index == at else (0, 1, 2)
        return contributors(step, index)

    verdict = check(recorded(who=fewer))
    assert verdict.contradictions == []
    assert verdict.with_fewer == 1


def test_another_order_of_the_contributors_is_found_and_named() -> None:
    at = index_of(1, "float32", "sum", work.DOUBLING)

    def other(step: int, index: int) -> tuple[int, ...]:
        return (2, 0, 1) if (step, index) == (1, at) else contributors(step, index)

    assert "in the order (2, 0, 1) they do" in the_one(recorded(who=other))


def test_members_with_different_bits_are_named() -> None:
    records = recorded()
    lines(records, 1, "step")[1]["ops"][3]["digest"] = "0" * 64
    text = the_one(records)
    assert "step 1, operation 3" in text
    assert "different bits" in text
    assert "member 1 0000" in text


def test_members_that_differ_about_who_contributed_are_named() -> None:
    records = recorded()
    at = index_of(1, "float32", "avg")
    del lines(records, 1, "step")[1]["ops"][at]["slots"]["0"]
    assert "differ about who contributed" in the_one(records)


def test_a_member_with_another_state_at_a_boundary_is_named() -> None:
    records = recorded()
    lines(records, 2, "boundary")[2]["digest"] = "0" * 64
    assert "boundary 2: member 2 holds the state 0000" in the_one(records)


def test_a_member_with_another_state_at_the_end_is_named() -> None:
    records = recorded()
    lines(records, 1, "final")[0]["digest"] = "0" * 64
    assert "member 1 ends with 0000" in the_one(records)


def test_a_step_that_is_lost_or_done_twice_is_found() -> None:
    records = recorded()
    records[1] = [line for line in records[1] if line["step"] != 1]
    assert "member 1: boundary 2 after step 0" in the_one(records)
    records = recorded()
    again = [line for line in records[1] if line["step"] == 1]
    at = records[1].index(again[-1]) + 1
    records[1][at:at] = again
    assert "a step was lost or done twice" in the_one(records)


def test_a_step_that_nobody_has_recorded_is_found() -> None:
    records = recorded()
    for member in MEMBERS:
        records[member] = [
            line for line in records[member] if line["what"] != "step" or line["step"] != 1
        ]
    assert any("step 1: lost" in text for text in check(records).contradictions)


def test_two_members_of_one_rank_and_two_sizes_are_found() -> None:
    records = recorded()
    lines(records, 1, "boundary")[1]["rank"] = 0
    assert "two members have one rank" in the_one(records)
    records = recorded()
    lines(records, 1, "boundary")[1]["size"] = 4
    assert "differ about the size" in the_one(records)


def test_contributors_that_a_boundary_names_are_held_against_the_results() -> None:
    records = recorded()
    for member in MEMBERS:
        for line in lines(records, member, "boundary")[1:]:
            everywhere = contributors(line["step"] - 1, 4)
            line["contributors"] = list(everywhere)
    assert check(records).contradictions == []
    lines(records, 0, "boundary")[3]["contributors"] = [0, 1, 2]
    assert "boundary 3: member 0 is told that ranks [0, 1, 2]" in the_one(records)


def test_records_of_replicas_hold_and_each_peer_group_is_compared() -> None:
    verdict = check(replicas())
    assert verdict.contradictions == []
    assert verdict.operations == 2 * sum(len(work.plan(step)) for step in range(STEPS))
    records = replicas()
    lines(records, 11, "step")[1]["ops"][3]["digest"] = "0" * 64
    text = the_one(records)
    assert text.startswith("peer group 1: step 1, operation 3")
    assert "different bits" in text


def test_wrong_bits_in_the_own_group_of_a_replica_are_found() -> None:
    records = replicas()
    lines(records, 10, "step")[2]["siblings"] = "0" * 64
    assert "replica-0, step 2: the operation of its own group gave member 0" in the_one(records)
    records = replicas()
    for m in (1, 11):
        lines(records, m, "step")[1]["siblings"] = among((1, 11), 0)
    assert "replica-1, step 1" in the_one(records)


def test_ranks_of_a_replica_that_differ_or_go_on_alone_are_found() -> None:
    records = replicas()
    for m in (10, 11, 12):
        for line in lines(records, m, "boundary")[2:]:
            line["engine_step"] += 1
    assert "replica-0, boundary 2: its ranks differ" in the_one(records)
    records = replicas()
    del records[10][4:]  # behind the boundary of step 1
    found = check(records).contradictions
    assert any("replica-0: one of its ranks went on without another" in text for text in found)


def test_contributions_have_full_mantissas_and_sums_depend_on_the_order() -> None:
    op = work.Op("float32", "sum", 1000)
    parts = [work.contribution(m, 7, 1, op)[work.SLOTS :] for m in range(3)]
    assert len(np.unique(parts[0])) == parts[0].size
    first, second = (parts[0] + parts[1]) + parts[2], parts[0] + (parts[1] + parts[2])
    assert np.mean(first != second) > 0.1


@pytest.mark.parametrize("quantise", work.QUANTISED)
def test_the_reference_rounds_as_members_do(quantise: str) -> None:
    op = work.Op("float32", "sum", 10_001, quantise=quantise)
    parts = [work.contribution(m, 7, 1, op) for m in range(3)]
    rounded = reference.ROUNDED[quantise]
    for values in (*parts, sum(parts), rounded(parts[0])):
        sent = _C.as_sent(torch.from_numpy(values), quantise)
        assert np.array_equal(rounded(values).view(np.uint32), sent.numpy().view(np.uint32))
    total = reference.all_reduce_quantised(parts, quantise)
    assert work.slots_of(total, op) == {0: 1.0, 1: 1.0, 2: 1.0}


def test_each_way_to_quantise_has_its_turn() -> None:
    seen = {op.quantise for step in range(3) for op in work.plan(step) if op.quantise}
    assert seen == set(work.QUANTISED) == set(reference.ROUNDED)


def test_a_step_has_operations_of_all_sizes_and_some_are_in_flight_together() -> None:
    chance = random.Random(1)
    for step in chance.sample(range(100_000), 50):
        ops = work.plan(step)
        counts = sorted(op.count for op in ops)
        assert counts[0] <= work.SLOTS
        assert counts[-1] > work.DOUBLING
        batches = work.batches(step)
        assert [i for issued, _ in batches for i in issued] == list(range(len(ops)))
        assert all(sorted(issued) == sorted(waited) for issued, waited in batches)
    assert any(len(issued) > 2 for issued, _ in work.batches(3))
