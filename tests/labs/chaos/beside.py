"""Judges what ranks did beside the collectives of a step: messages, and groups of some ranks.

Replicas of one rank do it in the elastic group, where the end of an epoch fails what is pending.
The ranks of a larger replica do it in the replica's own group, and no call of theirs may fail at a
rank that has finished the step: if one of them is lost, all of them go.
"""

from __future__ import annotations

from collections import defaultdict

from chaos import work
from chaos.verdict import Record, Verdict

MAY_FAIL = ("PeerLostError", "OperationTimeoutError")


def check(
    where: str,
    step: int,
    results: dict[int, Record],
    member_of: dict[int, int],
    verdict: Verdict,
    *,
    fails: bool = True,
) -> None:
    """`results`: records of the members that have finished the step. `member_of`: of each rank.

    `fails`: a call may have failed, as MAY_FAIL says.
    """
    may_fail = MAY_FAIL if fails else ()
    _check_messages(where, step, results, member_of, verdict, may_fail)
    _check_groups(where, step, results, member_of, verdict, may_fail)


def _check_messages(
    where: str,
    step: int,
    results: dict[int, Record],
    member_of: dict[int, int],
    verdict: Verdict,
    may_fail: tuple[str, ...],
) -> None:
    """Each receive that succeeded has a message of its source, in the order in which they were sent
    and each once; one that failed left its tensor alone; a send that succeeded was received."""
    plan = work.exchange(step)
    got: dict[tuple[int, int], int] = defaultdict(int)  # from, to: members
    for member, record in sorted(results.items()):
        newest: dict[int, int] = {}
        for line in record.get("messages", {}).get("got", ()):
            about = f"{where}, {plan}: member {member}"
            if line["outcome"] != "done":
                verdict.messages_failed += 1
                if line["outcome"] not in may_fail:
                    verdict.say(f"{about}: a receive has failed with {line['outcome']}")
                if line["torn"]:
                    verdict.say(f"{about}: a receive has failed and left a part of a message")
                continue
            verdict.messages += 1
            source = member_of.get(line["from"])
            if source is None:
                verdict.say(f"{about} got a message of rank {line['from']}, which nobody has")
                continue
            right = [work.digest(work.message(source, step, i)) for i in range(plan.messages)]
            if line["digest"] not in right:
                verdict.say(f"{about} got bits that member {source} has not sent")
                continue
            index = right.index(line["digest"])
            if index <= newest.get(source, -1):
                verdict.say(
                    f"{about} got message {index} of member {source} after {newest[source]}"
                )
            newest[source] = index
            got[source, member] += 1
    for member, record in sorted(results.items()):
        done: dict[int, int] = defaultdict(int)
        for line in record.get("messages", {}).get("sent", ()):
            done[member_of.get(line["to"], -1)] += line["outcome"] == "done"
            if line["outcome"] not in ("done", *may_fail):
                verdict.say(
                    f"{where}, {plan}: member {member}: a send has failed with {line['outcome']}"
                )
        for to, count in done.items():
            if to in results and got[member, to] < count:
                verdict.say(
                    f"{where}, {plan}: {count} sends of member {member} to {to} have "
                    f"succeeded, and {got[member, to]} were received"
                )


def _check_groups(
    where: str,
    step: int,
    results: dict[int, Record],
    member_of: dict[int, int],
    verdict: Verdict,
    may_fail: tuple[str, ...],
) -> None:
    """An outcome is the sum of what all ranks of the group gave.

    In a group whose members never change nothing is restored where an operation fails.
    """
    op = work.AMONG_SOME
    for member, record in sorted(results.items()):
        met = record.get("group")
        if not met:
            continue
        given = [
            work.contribution(member_of[rank], step, work.GROUP_INDEX, op)
            for rank in met["ranks"]
            if rank in member_of
        ]
        about = f"{where}: member {member} in a group of the ranks {met['ranks']}"
        if met["outcome"] == "done":
            verdict.groups += 1
            if len(given) < len(met["ranks"]):
                verdict.say(f"{about} has an outcome, and a rank of it was at no boundary")
            elif met["digest"] != work.digest(sum(given[1:], start=given[0])):
                verdict.say(f"{about} has another result than the sum of its members")
        else:
            verdict.groups_failed += 1
            if met["outcome"] not in may_fail:
                verdict.say(f"{about}: it has failed with {met['outcome']}")
