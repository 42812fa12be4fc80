"""How programs end, and runs: what the master's log says, and what late comers hear."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import hear, say, wait_until

FRESH = True  # an interpreter's own end is looked at

ENDINGS = {
    "error": "lost: its program was ended by ArithmeticError: it diverged",
    "interrupt": "lost: its program was ended by KeyboardInterrupt",
    "exit": "left",
}


def ends(index: int, url: str, ending: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url)
    group = pccl.group()
    state = {"step": 0, "w": torch.ones(4)}
    group.refresh(state)
    dist.all_reduce(torch.ones(4))
    say(rank=group.rank)
    hear()
    if index > 0:
        group.refresh(state)
    elif ending == "error":
        raise ArithmeticError("it diverged")
    elif ending == "interrupt":
        raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_log_says_how_a_program_has_ended(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any], ending: str
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(ends, 2, master.url, ending)
    ranks = [peer.next()["rank"] for peer in peers]
    peers[0].tell("end")
    peers[0].finish(status={"error": 1, "interrupt": None, "exit": 0}[ending])
    gone = f"rank {ranks[0]} ("

    def lines() -> list[str]:
        return [line for line in master.log().splitlines() if "1 member: " + gone in line]

    wait_until(lines)
    (line,) = lines()
    assert line.endswith(ENDINGS[ending])
    peers[1].tell("end")
    peers[1].finish()


# ------------------------------------------------------------------------------ a run is finished


def trains(index: int, url: str, steps: int) -> None:
    """Steps until the end, which it says; prints what hinders it."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    try:
        group = pccl.group(pccl.join(url, timeout_s=60.0))
        state = {"step": 0, "w": torch.zeros(4)}
        boundary = group.refresh(state)
        say(began=state["step"], size=boundary.size)
        while not boundary.left and state["step"] < steps:
            if hear() == "leave":
                group.leave(at_once=False)
            dist.all_reduce(torch.ones(4))
            state["step"] += 1
            boundary = group.refresh(state)
            say(step=state["step"])
        if not boundary.left:
            hear()
            boundary = group.finish(timeout_s=30.0)
            with pytest.raises(pccl.GroupClosedError, match="is finished, after step"):
                dist.all_reduce(torch.ones(4))
        say(ended=boundary.finished, left=boundary.left, rank=boundary.rank, size=boundary.size)
        dist.destroy_process_group()
    except pccl.PcclError as error:
        say(error=type(error).__name__, text=str(error))


def _status(master: Any, *arguments: str) -> str:
    command = [sys.executable, "-m", "pccl_backend._cli", "--status", master.url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.long
def test_who_comes_to_a_finished_run_is_told_when_it_ended(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any], tmp_path: Path
) -> None:
    register = ("--state", str(tmp_path / "register"), "--min-peers", "2")
    master = start_master(*register)
    peers = run_peers(trains, 2, master.url, 2)
    for step in (1, 2):
        for peer in peers:
            peer.tell("go")
        for peer in peers:
            peer.next(step=step)
    (door,) = run_peers(trains, 1, master.url, 2, first=2)  # members admit nobody any more
    wait_until(lambda: "waiting at the door" in door.log() or "connected" in master.log())
    for peer in peers:
        peer.tell("end")
    ends = [peer.finish()[-1] for peer in peers]
    assert [end["ended"] for end in ends] == [True, True]
    assert sorted(end["rank"] for end in ends) == [0, 1]
    assert "the run is finished, after step 2, on 20" in master.log()
    (late,) = run_peers(trains, 1, master.url, 2, first=3)
    for peer in (door, late):
        last = peer.finish()[-1]
        assert last["error"] == "RunEndedError"
        assert 'the run "default" is finished, after step 2, on 20' in last["text"]
        assert "--again" in last["text"]
    seen = json.loads(_status(master, "--json"))
    assert (seen["state"], seen["step"]) == ("finished", 2)
    assert "is finished, after step 2, on 20" in seen["waits_for"]
    assert _status(master).startswith('run "default": finished\n  the run is finished, after')
    master.close()
    again = start_master(*register)
    (later,) = run_peers(trains, 1, again.url, 2, first=4)
    assert later.finish()[-1]["error"] == "RunEndedError"
    again.close()
    end = re.search(r"on (20.* UTC);", last["text"])
    assert end
    with_flag = (*register, "--again", end[1])
    opened = start_master(*with_flag)
    anew = run_peers(trains, 2, opened.url, 1, first=5)
    assert [peer.next()["began"] for peer in anew] == [0, 0]
    for peer in anew:
        peer.tell("go")
        peer.tell("end")
    assert all(peer.finish()[-1]["ended"] for peer in anew)
    opened.close()
    restarted = start_master(*with_flag)  # as a unit file does in which the flag was left
    (latest,) = run_peers(trains, 1, restarted.url, 2, first=7)
    assert latest.finish()[-1]["error"] == "RunEndedError"


def finishes_among_others(index: int, url: str) -> None:
    import torch

    import pccl_backend as pccl

    group = pccl.group(pccl.join(url, timeout_s=60.0))
    state = {"step": 0, "w": torch.zeros(4)}
    group.refresh(state)
    if index > 0:
        boundary = group.refresh(state, verify=True)
        say(size=boundary.size, finished=boundary.finished)
        return
    with pytest.raises(pccl.MismatchError, match="other members called refresh"):
        group.finish(timeout_s=30.0)
    say(size=group.refresh(state).size)  # the same boundary


def test_finish_of_some_is_a_mismatch_and_the_run_goes_on(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any]
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(finishes_among_others, 2, master.url)
    assert [peer.finish()[-1]["size"] for peer in peers] == [2, 2]
    assert "is finished" not in master.log()


@pytest.mark.long
def test_that_all_leave_is_a_pause(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any]
) -> None:
    master = start_master("--min-peers", "2")
    for first in (0, 2):
        peers = run_peers(trains, 2, master.url, 9, first=first)
        for peer in peers:
            assert peer.next()["began"] == 0
            peer.tell("leave")
        ends = [peer.finish()[-1] for peer in peers]
        assert [(end["ended"], end["left"]) for end in ends] == [(False, True)] * 2
    assert "is finished" not in master.log()
