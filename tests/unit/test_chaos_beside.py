"""The checker of the chaos test finds faults of messages and of groups of some ranks."""

from __future__ import annotations

from typing import Any

import pytest
from chaos import beside, work
from chaos.checker import check
from chaos.right import LOST, MEMBERS, STEPS, lines, recorded, replicas, the_one
from chaos.verdict import Records, Verdict

AT = next(s for s in range(STEPS) if work.exchange(s).how == "isend" and s != 2)
SENT = work.exchange(AT).messages


def with_messages() -> Records:
    """Each member of step AT has sent to the next and received from the one before."""
    records = recorded()
    done = {"outcome": "done"}
    for rank, m in enumerate(MEMBERS):
        before, after = MEMBERS[rank - 1], MEMBERS[(rank + 1) % len(MEMBERS)]
        digests = [work.digest(work.message(before, AT, i)) for i in range(SENT)]
        (step,) = [line for line in lines(records, m, "step") if line["step"] == AT]
        step["messages"] = {
            "got": [
                {"from": before, "outcome": "done", "digest": d, "torn": False} for d in digests
            ],
            "sent": [{"to": after, **done} for _ in digests],
        }
    return records


def messages(records: Records, member: int) -> dict[str, list[dict[str, Any]]]:
    (step,) = [line for line in lines(records, member, "step") if line["step"] == AT]
    found: dict[str, list[dict[str, Any]]] = step["messages"]
    return found


def test_no_two_messages_of_a_member_are_alike() -> None:
    for step in range(6000):  # 1637 and 5257 had messages of exactly as many elements as slots
        count = work.exchange(step).count
        if count <= 2 * work.SLOTS:
            sent = [work.message(7, step, i) for i in range(work.exchange(step).messages)]
            assert len({work.digest(tensor) for tensor in sent}) == len(sent), step


def test_messages_that_all_arrived_hold() -> None:
    verdict = check(with_messages())
    assert verdict.contradictions == []
    assert verdict.messages == SENT * len(MEMBERS)
    assert verdict.messages_failed == 0


def test_a_message_of_another_step_is_found() -> None:
    records = with_messages()
    messages(records, 1)["got"][0]["digest"] = work.digest(work.message(0, AT + 1, 0))
    assert "bits that member 0 has not sent" in the_one(records)


def test_a_message_that_came_twice_is_found() -> None:
    records = with_messages()
    got = messages(records, 1)["got"]
    got.append(got[-1])
    assert f"got message {SENT - 1} of member 0 after {SENT - 1}" in the_one(records)


def test_a_send_that_succeeded_and_was_not_received_is_found() -> None:
    records = with_messages()
    got = messages(records, 1)["got"]
    got[0] = {**got[0], "outcome": "PeerLostError"}
    assert f"{SENT} sends of member 0 to 1 have succeeded" in the_one(records)
    messages(records, 0)["sent"][0]["outcome"] = "PeerLostError"
    verdict = check(records)
    assert verdict.contradictions == []
    assert verdict.messages_failed == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [({"torn": True}, "left a part"), ({"outcome": "MismatchError"}, "has failed with")],
)
def test_a_receive_that_fails_as_it_may_not_is_found(change: dict[str, Any], text: str) -> None:
    records = with_messages()
    got = messages(records, 1)["got"]
    got[0] = {**got[0], "outcome": "PeerLostError", **change}
    messages(records, 0)["sent"][0]["outcome"] = "PeerLostError"
    assert text in the_one(records)


# ------------------------------------------------------------------- groups of some ranks

GROUP = [0, 2]


def with_group(outcome: str = "done") -> Records:
    records = recorded()
    given = {m: work.contribution(m, 1, work.GROUP_INDEX, work.AMONG_SOME) for m in GROUP}
    total = given[0] + given[2]
    for m in GROUP:
        [step] = [line for line in lines(records, m, "step") if line["step"] == 1]
        digest = work.digest(total if outcome == "done" else given[m])
        step["group"] = {"ranks": GROUP, "outcome": outcome, "digest": digest}
    return records


@pytest.mark.parametrize(("outcome", "used", "failed"), [("done", 2, 0), ("PeerLostError", 0, 2)])
def test_a_group_of_some_ranks_that_was_used_or_failed_holds(
    outcome: str, used: int, failed: int
) -> None:
    verdict = check(with_group(outcome))
    assert verdict.contradictions == []
    assert (verdict.groups, verdict.groups_failed) == (used, failed)


def test_wrong_bits_of_a_group_of_some_ranks_are_found() -> None:
    records = with_group()
    [step] = [line for line in lines(records, 2, "step") if line["step"] == 1]
    step["group"]["digest"] = work.digest(work.contribution(0, 1, 60, work.AMONG_SOME))
    assert "another result than the sum" in the_one(records)


# ------------------------------------------------------------------- replicas of several ranks


def talking_replicas() -> Records:
    """In each replica both ranks have sent to each other, in step AT, and used a group, in 1."""
    records = replicas()
    for m in MEMBERS:
        siblings = m, m + 10
        given = [work.contribution(s, 1, work.GROUP_INDEX, work.AMONG_SOME) for s in siblings]
        together = {"ranks": [0, 1], "outcome": "done", "digest": work.digest(given[0] + given[1])}
        for rank, member in enumerate(siblings):
            for line in lines(records, member, "step"):
                if line["step"] == AT:
                    line["messages"] = exchanged(rank, siblings[1 - rank])
                if line["step"] == 1:
                    line["group"] = dict(together)
    return records


def exchanged(rank: int, sibling: int) -> dict[str, list[dict[str, Any]]]:
    """What a rank of a replica of two has got of the other one, and sent to it."""
    digests = [work.digest(work.message(sibling, AT, i)) for i in range(SENT)]
    got = [{"from": 1 - rank, "outcome": "done", "digest": d, "torn": False} for d in digests]
    return {"got": got, "sent": [{"to": 1 - rank, "outcome": "done"} for _ in digests]}


def test_what_the_ranks_of_replicas_did_with_each_other_holds() -> None:
    verdict = check(talking_replicas())
    assert verdict.contradictions == []
    finished = 2 * (len(MEMBERS) - (AT > LOST))
    assert verdict.messages == SENT * finished
    assert (verdict.groups, verdict.groups_failed) == (6, 0)


def test_a_message_of_another_replica_is_found() -> None:
    records = talking_replicas()
    messages(records, 11)["got"][0]["digest"] = work.digest(work.message(0, AT, 0))
    text = the_one(records)
    assert f"replica-1, step {AT}" in text
    assert "bits that member 1 has not sent" in text


@pytest.mark.parametrize("side", ["got", "sent"])
def test_a_message_that_fails_at_a_rank_whose_replica_goes_on_is_found(side: str) -> None:
    records = talking_replicas()
    messages(records, 11)[side][0]["outcome"] = "PeerLostError"
    assert "has failed with PeerLostError" in the_one(records)


def test_a_group_of_a_replica_that_fails_and_one_with_wrong_bits_are_found() -> None:
    records = talking_replicas()
    [step] = [line for line in lines(records, 10, "step") if line["step"] == 1]
    step["group"]["digest"] = work.digest(work.contribution(1, 1, 60, work.AMONG_SOME))
    assert "another result than the sum" in the_one(records)
    step["group"]["outcome"] = "PeerLostError"
    assert "it has failed with PeerLostError" in the_one(records)


def test_a_rank_whose_sibling_died_may_have_what_that_one_had_sent() -> None:
    verdict = Verdict()
    results = {1: {"messages": exchanged(0, 11)}}
    beside.check("replica-1", AT, results, {0: 1, 1: 11}, verdict, fails=False)
    assert verdict.contradictions == []
    assert verdict.messages == SENT
