"""What a loss means to the operations in flight: the same to all survivors, bit for bit."""

import time
from pathlib import Path
from random import Random

import pytest
from conftest import say
from elastic_members import (
    Run,
    Start,
    answers,
    contribution,
    digest,
    end,
    found,
    mean,
    member,
    one,
    tell,
    together,
)


def test_a_member_killed_in_an_all_reduce_costs_the_others_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    victim, *survivors = peers[1], peers[0], peers[2]
    orphans = together([victim], "load")[0]["workers"]
    # The victim and one survivor are in it, and bytes have left the victim; the other is late.
    together([victim, survivors[0]], "issue", step=1, index=0)
    seen = together([victim], "sent")[0]
    assert seen["bytes_sent"] > 0
    assert not seen["complete"]
    before = together([survivors[0]], "look")[0]
    victim.kill()
    together([survivors[1]], "issue", step=1, index=0)
    results = together(survivors, "wait")
    # Its data-loader workers still live, with all they inherited, and held nobody up.
    assert all(Path(f"/proc/{pid}").exists() for pid in orphans)
    assert one(results, "result") == mean([0, 2], 1, 0)
    after = together(survivors, "look")
    assert one(after, "epoch") != before["epoch"]
    assert [line["size"] for line in after] == [3, 3]  # pinned until the boundary
    assert one(together(survivors, "hear_of", what="left"), "heard") == ["left"]
    boundaries = together(survivors, "refresh")
    assert one(boundaries, "size") == 2
    assert sorted(line["rank"] for line in boundaries) == [0, 1]
    one(boundaries, "w")
    assert one(together(survivors, "look"), "ranks") == [0, 1]
    assert one(together(survivors, "train"), "result") == mean([0, 2], 0, 0)
    end(survivors)


def test_a_kill_between_two_operations_costs_the_others_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    assert len({line["result"] for line in together(peers, "train")}) == 1
    peers[0].kill()
    survivors = peers[1:]
    assert one(together(survivors, "refresh"), "step") >= 2
    results = together(survivors, "train")
    assert one(results, "result") == mean([1, 2], 1, 0)
    end(survivors)


def test_an_all_gather_that_loses_a_member_fails_at_every_survivor_and_changes_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    victim, survivors = peers[2], peers[:2]
    together([victim, survivors[0]], "issue", step=1, index=0, kind="all_gather")
    together([victim], "sent")
    victim.kill()
    tell([survivors[1]], "issue", step=1, index=0, kind="all_gather")
    late = survivors[1].next(did="issue")
    assert late["error"] in ("", "PeerLostError"), late
    waiting = survivors if late["error"] == "" else survivors[:1]
    tell(waiting, "wait")
    answers(waiting, "wait", error="PeerLostError")
    assert all(line["untouched"] for line in together(survivors, "parts_untouched"))
    # The step has failed for all alike, until the boundary.
    for peer in survivors:
        tell([peer], "train")
    answers(survivors, "train", error="PeerLostError")
    assert one(together(survivors, "refresh"), "size") == 2
    assert one(together(survivors, "train"), "result") == mean([0, 1], 0, 0)
    end(survivors)


@pytest.mark.parametrize(
    ("on_loss", "kinds", "succeed"),
    [
        # Behind one that cannot be replayed, what could be fails too; before it, it is replayed.
        ("retry", ["all_reduce", "all_gather", "all_reduce", "barrier"], 1),
        ("retry", ["all_reduce", "barrier", "broadcast", "all_reduce"], 4),
        ("raise", ["all_reduce", "barrier", "broadcast", "all_reduce"], 0),
    ],
)
def test_a_loss_with_several_operations_in_flight_means_the_same_to_all_survivors(
    run_peers: Run, start_master: Start, on_loss: str, kinds: list[str], succeed: int
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(member, 3, master.url, env={"PCCL_ON_LOSS": on_loss})
    ranks = [line["rank"] for line in answers(peers, "join")]
    peers = [peers[ranks.index(rank)] for rank in range(3)]
    indices = [ranks.index(rank) for rank in range(3)]
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    together(peers, "refresh")
    victim, survivors = peers[1], [peers[0], peers[2]]
    together([victim, survivors[0]], "issue_all", step=1, kinds=kinds)
    together([victim], "sent")
    victim.kill()  # the other survivor has issued nothing yet
    together([survivors[1]], "issue_all", step=1, kinds=kinds)
    seen = one(together(survivors, "outcomes", step=1), "seen")
    assert seen[succeed:] == ["failed"] * (len(kinds) - succeed)
    pair = [indices[0], indices[2]]
    for index, kind in enumerate(kinds[:succeed]):
        if kind == "all_reduce":
            assert seen[index] == mean(pair, 1, index)
        if kind == "broadcast":
            assert seen[index] == digest(contribution(indices[2], 1, index))
    if on_loss == "raise":  # until the boundary, here one without a state
        together(survivors, "issue_all", step=2, kinds=["barrier", "all_reduce"])
        assert one(together(survivors, "outcomes", step=2), "seen") == ["failed"] * 2
        assert one(together(survivors, "resume"), "size") == 2
    else:
        assert one(together(survivors, "refresh"), "size") == 2
    assert one(together(survivors, "train"), "result") == mean(pair, 1, 0)
    end(survivors)


def test_all_members_but_one_may_go(run_peers: Run, start_master: Start) -> None:
    peers = found(run_peers, start_master, 2)
    peers[0].kill()
    assert together([peers[1]], "refresh")[0]["size"] == 1
    assert together([peers[1]], "train")[0]["result"] == mean([1], 0, 0)
    end([peers[1]])


LARGE = 6_000_000  # float32 elements: written around the caches, in parts of segments


def averages(index: int, url: str) -> None:
    """Averages and gathers large tensors, over and over; says the means."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    state = {"step": 0}
    mine = torch.empty(LARGE)
    for step in range(40):
        parts = [torch.empty(LARGE // 2) for _ in range(pccl.group().refresh(state).size)]
        mine.fill_(float(12 << index))
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        mean = int(mine[0])
        assert torch.all(mine == mean), step
        try:
            dist.all_gather(parts, torch.full((LARGE // 2,), float(step)))
            assert all(torch.all(part == step) for part in parts), step
        except pccl.PeerLostError:
            pass  # it needs all of its members
        state["step"] += 1
        say(step=step, mean=mean)
    dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_members_killed_within_large_operations_through_memory_leave_whole_results(
    run_peers: Run, start_master: Start, seed: int
) -> None:
    random = Random(seed)
    members = run_peers(averages, 4, start_master("--min-peers", "4").url)
    survivors, victims = members[:2], members[2:]
    for victim in victims:
        victim.next(step=2)
    for victim in victims:
        time.sleep(0.2 * random.random())  # anywhere within an operation
        victim.kill()
    means = [one([peer.next() for peer in survivors], "mean") for _ in range(40)]
    assert means[0] == 45  # of 12, 24, 48, 96
    assert means[-1] == 18
    assert set(means) <= {45, 44, 28, 18}
    for peer in survivors:
        peer.finish()
