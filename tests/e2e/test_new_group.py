"""Groups made from an elastic group while members or the master die: nobody waits in vain."""

import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Peer, say
from elastic_members import (
    Member,
    Run,
    Start,
    answers,
    end,
    obey,
    one,
    tell,
    together,
    train_until,
)

AT_ONCE_S = 8.0  # a test's machine is busy; the time-out of new_group is half an hour


class Maker(Member):
    """A member that makes groups of the members' ranks."""

    def make(self, *, ranks: list[int], **options: Any) -> dict[str, object]:
        say(did="making")
        begun = time.monotonic()
        if "timeout" in options:
            options["timeout"] = timedelta(seconds=options["timeout"])
        try:
            group = dist.new_group(ranks, **options)
        except RuntimeError as error:
            return {
                "failed": type(error).__name__,
                "words": str(error),
                "seconds": time.monotonic() - begun,
            }
        total = torch.tensor([float(self.index)])
        dist.all_reduce(total, group=group)
        return {"failed": "", "total": total.item(), "seconds": time.monotonic() - begun}


def maker(index: int, url: str) -> None:
    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    obey(Maker(index))


def makers(run_peers: Run, start_master: Start, *arguments: str) -> list[Peer]:
    master = start_master("--min-peers", "3", *arguments)
    peers = run_peers(maker, 3, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    return peers


def begin_making(peers: list[Peer], ranks: list[int], **options: Any) -> None:
    tell(peers, "make", ranks=ranks, **options)
    for peer in peers:
        peer.next(did="making")


def goes_on(survivors: list[Peer]) -> None:
    """After the next boundary the survivors make a group, and it works."""
    train_until(survivors, 2)
    begin_making(survivors, [0, 1])
    assert one(answers(survivors, "make"), "total") == 1.0
    end(survivors)


def test_a_member_that_dies_before_or_while_a_group_is_made_ends_the_making_at_all(
    run_peers: Run, start_master: Start
) -> None:
    for before in (True, False):
        peers = makers(run_peers, start_master)
        survivors, victim = peers[:2], peers[2]
        rank = together([victim], "look")[0]["rank"]
        if before:
            victim.kill()
        begin_making(survivors, [0, 1, 2])
        if not before:
            victim.kill()
        for line in answers(survivors, "make"):
            assert line["failed"] == "PeerLostError", line
            assert f"rank {rank} " in line["words"], line
            assert line["seconds"] < AT_ONCE_S, line
        goes_on(survivors)


@pytest.mark.long
def test_a_group_of_another_backend_that_waits_for_a_lost_member_says_so_when_its_time_is_over(
    run_peers: Run, start_master: Start
) -> None:
    peers = makers(run_peers, start_master)
    survivors, victim = peers[:2], peers[2]
    rank = together([victim], "look")[0]["rank"]
    victim.kill()
    begin_making(survivors, [0, 1, 2], backend="gloo", timeout=8)
    for line in answers(survivors, "make"):
        assert line["failed"] == "DistStoreError", line
        assert f"rank {rank} was lost" in line["words"], line
        assert "make the group after the next boundary" in line["words"], line
    goes_on(survivors)


@pytest.mark.long
def test_a_member_that_is_stopped_while_a_group_is_made_ends_the_making_by_its_silence(
    run_peers: Run, start_master: Start
) -> None:
    peers = makers(run_peers, start_master, "--heartbeat", "0.2", "--evict-after", "1")
    survivors, sleeper = peers[:2], peers[2]
    sleeper.signal(signal.SIGSTOP)
    begin_making(survivors, [0, 1, 2])
    for line in answers(survivors, "make"):
        assert line["failed"] == "PeerLostError", line
        assert line["seconds"] < 60.0, line
    goes_on(survivors)
    sleeper.signal(signal.SIGCONT)
    sleeper.kill()


def test_a_group_is_made_while_the_master_is_away_and_after_it_has_come_back(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    state = ["--state", str(tmp_path / "register")]
    master = start_master("--min-peers", "3", *state)
    peers = run_peers(maker, 3, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    early, late = peers[:2], peers[2]
    for away in (True, False):
        begin_making(early, [0, 1, 2])
        master.kill()
        if not away:
            master = start_master("--min-peers", "3", *state, port=master.port)
        begin_making([late], [0, 1, 2])
        lines = answers(peers, "make")
        assert one(lines, "total") == 3.0, lines
        if away:
            master = start_master("--min-peers", "3", *state, port=master.port)
    assert one(together(peers, "issue", step=1, index=0), "error") == ""
    assert one(together(peers, "wait"), "result")
    end(peers)
