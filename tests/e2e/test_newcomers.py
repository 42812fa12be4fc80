"""Newcomers whose links do not come up cost the members no boundary; sound ones come in at once."""

import time

import pytest
from conftest import Master, wait_until
from elastic_members import Run, Start, answers, end, member, one, status, tell, together
from half_newcomers import half_newcomer

SECONDS_TRIED = 10  # kTrialS of csrc/membership/trials.cpp


def doings(master: Master) -> list[str]:
    return [peer["doing"] for peer in status(master)["door"]]


@pytest.mark.long
def test_a_newcomer_that_answers_no_peer_stops_nobody_and_a_sound_one_comes_in(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    members = run_peers(member, 3, master.url)
    answers(members, "join")
    together(members, "refresh")

    def step() -> list[dict[str, object]]:
        together(members, "train")
        return together(members, "refresh")

    assert one(step(), "voted"), "after the first step of the run"
    epoch = one(together(members, "look"), "epoch")
    with half_newcomer(master.port) as half:
        wait_until(lambda: half.dialled >= 3, what="the members dial it")
        held = time.monotonic()
        longest = 0.0
        while not half.heard("do not reach each other"):  # the hold text names members and reasons
            assert time.monotonic() - held < 3 * SECONDS_TRIED, master.log()
            begun = time.monotonic()
            assert not one(step(), "voted")
            longest = max(longest, time.monotonic() - begun)
        assert longest < SECONDS_TRIED  # it waits for nothing of the trial
        assert one(together(members, "look"), "epoch") == epoch
        wait_until(lambda: "do not reach each other" in "".join(master.errors), what="its line")
        named = sum(half.heard(f"rank {rank} (") for rank in range(3))
        assert named == 2, "it hears of the first two members that did not reach it"

        # While it still stands there a sound newcomer comes in, at the second boundary at the
        # latest: whether a boundary votes is decided in its step.
        (newcomer,) = run_peers(member, 1, master.url, first=3)
        answers([newcomer], "join")
        tell([newcomer], "refresh")
        wait_until(lambda: "door" in doings(master), what="its links are up")
        boundaries = 0
        while not one(step(), "voted"):
            boundaries += 1
            assert boundaries < 2, master.log()
        assert answers([newcomer], "refresh")[0]["admitted"]
        everybody = [*members, newcomer]
        assert one(together(everybody, "look"), "size") == 4
    one(together(everybody, "train"), "result")
    end(everybody)


@pytest.mark.long
def test_a_newcomer_that_lies_about_its_links_is_not_believed(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    members = run_peers(member, 2, master.url)
    answers(members, "join")
    together(members, "refresh")
    together(members, "train")
    assert one(together(members, "refresh"), "voted"), "after the first step of the run"
    ids = [int(peer["replica"], 16) for peer in status(master)["members"]]
    with half_newcomer(master.port) as half:
        half.say("tried", links=[{"peer": peer, "reason": ""} for peer in ids])
        wait_until(lambda: half.heard("do not reach each other"), what="the members' words count")
        together(members, "train")
        assert not one(together(members, "refresh"), "voted")
    end(members)
