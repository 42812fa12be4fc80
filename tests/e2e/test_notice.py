"""A machine that is reclaimed gets notice: its peer leaves, and nobody loses anything."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, Peer, failure, hear, say, wait_until
from elastic_members import (
    Run,
    Start,
    answers,
    end,
    found,
    mean,
    member,  # noqa: F401  found() runs it in the peers
    one,
    tell,
    together,
)

SCRIPT = Path(__file__).resolve().parent / "noticed.py"


class Launcher:
    """A torchrun with one worker, and what that one writes."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        self.file = folder / name
        rendezvous = ("--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
        command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--rdzv-id", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PCCL_MASTER": url}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.peer = Peer([*command, str(SCRIPT), str(self.file)], environment, name)

    def lines(self) -> list[dict[str, Any]]:
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def last(self) -> dict[str, Any]:
        return (self.lines() or [{}])[-1]

    def wait_for(self, what: str, **wanted: Any) -> dict[str, Any]:
        def found() -> Any:
            last = self.last()
            return last if all(last.get(k) == v for k, v in wanted.items()) else None

        return wait_until(found, what=f"{self.peer.name}: {what}\n{self.last()}\n{self.peer.log()}")

    def reclaim(self) -> None:
        """What a spot machine does: notice, and nothing afterwards that would be needed."""
        self.peer.signal(signal.SIGTERM)
        self.wait_for("the end", ended=True)
        self.peer.finish(status=None)  # torchrun itself says that it was ended


@pytest.mark.long
def test_torchrun_gets_notice_and_the_others_lose_and_replay_nothing(
    start_master: Start, tmp_path: Path
) -> None:
    master = start_master("--min-peers", "3")
    launchers = [Launcher(name, tmp_path, master.url) for name in ("a", "b", "c")]
    try:
        for launcher in launchers:
            launcher.wait_for("a run of three", size=3)
        by_rank = sorted(launchers, key=lambda launcher: launcher.last()["rank"])
        for size, leaver in ((2, by_rank[1]), (1, by_rank[0])):  # the second one has rank 0
            leaver.reclaim()
            assert leaver.lines()[-2]["left"]
            for launcher in by_rank:
                if launcher is not leaver and "ended" not in launcher.last():
                    launcher.wait_for("a run without it", size=size)
        by_rank[2].reclaim()
        for launcher in launchers:
            lines = launcher.lines()[:-1]
            assert [line["disturbed"] for line in lines] == [0] * len(lines)
        # Each step was summed over the members of its boundary, by all of them alike.
        sums: dict[int, set[float]] = {}
        for launcher in launchers:
            for line in launcher.lines()[:-1]:
                sums.setdefault(line["step"], set()).add(line["sum"])
        assert all(len(values) == 1 for values in sums.values())
        wait_until(lambda: "no member is left" in master.log(), what="the end of the run")
    finally:
        for launcher in launchers:
            launcher.peer.close()


def gets_no_boundary(index: int, url: str, in_backward: bool) -> None:
    import pccl_backend as pccl

    pccl.leave_on(signal.SIGTERM, grace_s=1.0)
    pccl.join(url, timeout_s=60.0)
    group = pccl.group()
    group.refresh()
    tensor = torch.full((1000,), 1.0 + index)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = model(torch.ones(2, 4)).sum()
    group.refresh()
    say(ready=True, pid=os.getpid())

    def call() -> None:
        loss.backward() if in_backward else dist.all_reduce(tensor)

    if index == 0:
        say(text=failure(call), kept=tensor[0].item())  # the other calls it later
    else:
        hear()
        call()
        boundary = group.refresh()
        say(sum=tensor[0].item(), size=boundary.size)
    dist.destroy_process_group()


@pytest.mark.parametrize("in_backward", [False, True])  # True: the main thread waits in C++
def test_who_comes_to_no_boundary_in_time_goes_at_once_and_says_why(
    run_peers: Run, start_master: Start, in_backward: bool
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(gets_no_boundary, 2, master.url, in_backward)
    for peer in peers:
        peer.next(ready=True)
    peers[0].signal(signal.SIGTERM)
    peers[0].signal(signal.SIGTERM)  # torchrun's own, after one for the whole group of processes
    line = peers[0].next()
    assert line["text"].startswith("GroupClosedError")
    assert line["kept"] == 1.0
    peers[0].finish()
    assert "no boundary within 1 s of SIGTERM" in peers[0].log()
    assert peers[0].log().count("leaves the run at its next boundary") == 1
    peers[1].tell("go on")
    assert peers[1].next() == {"sum": 2.0, "size": 1}  # its own
    peers[1].finish()


def waits_without_a_group(index: int) -> None:
    import pccl_backend as pccl

    pccl.leave_on(signal.SIGTERM)
    say(ready=True)
    hear()


def test_without_a_group_the_signal_does_what_it_did_before(run_peers: Run) -> None:
    (peer,) = run_peers(waits_without_a_group, 1)
    peer.next(ready=True)
    peer.signal(signal.SIGTERM)
    peer.finish(status=-signal.SIGTERM)


def ends_after_it_has_left(index: int, url: str) -> None:
    import pccl_backend as pccl

    pccl.leave_on(signal.SIGTERM)
    group = pccl.group(pccl.join(url, timeout_s=60.0))
    group.refresh()
    say(ready=True)
    while not (boundary := group.refresh(verify=True)).left:
        pass
    say(left=boundary.left)
    hear()  # ends in good order, which may take a while
    dist.destroy_process_group()


def test_a_second_signal_does_not_end_who_has_left_and_is_ending(
    run_peers: Run, start_master: Start
) -> None:
    (peer,) = run_peers(ends_after_it_has_left, 1, start_master("--min-peers", "1").url)
    peer.next(ready=True)
    peer.signal(signal.SIGTERM)
    peer.next(left=True)
    peer.signal(signal.SIGTERM)  # whoever ends a group of processes reaches each of them
    peer.tell("go on")
    peer.finish()


def test_who_leaves_where_nobody_has_issued_anything_is_gone_without_a_boundary(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    first = next(p for p in peers if together([p], "look")[0]["rank"] == 0)
    rest = [p for p in peers if p is not first]
    indices = [peers.index(p) for p in rest]
    together([first], "leave", at_once=True)
    together([first], "gone")
    for line in together(rest, "hear_of", what="left"):
        assert "evicted" not in line["heard"]
    together([first], "issue", step=0, index=0)
    tell([first], "wait")
    (refused,) = answers([first], "wait", "GroupClosedError")
    assert "this replica has left the run" in refused["text"]
    assert "refresh() says so" in refused["text"]
    assert together([first], "refresh")[0]["left"]
    tell([first], "refresh")
    answers([first], "refresh", "GroupClosedError")  # it has been told
    end([first])
    # The others keep their numbering until the next boundary, which votes.
    assert sorted(line["rank"] for line in together(rest, "look")) == [1, 2]
    assert one(together(rest, "look"), "size") == 3
    assert one(together(rest, "train"), "result") == mean(indices, 0, 0)
    lines = together(rest, "refresh")
    assert one(lines, "voted")
    assert sorted(line["rank"] for line in lines) == [0, 1]
    assert one(lines, "contributors") == [1, 2]
    one(lines, "w")
    # Somebody has issued an operation: the boundary decides.
    stays, leaves = rest
    together([stays], "issue", step=7, index=0)
    together([leaves], "leave", at_once=True)
    together([leaves], "issue", step=7, index=0)
    assert one(together(rest, "wait"), "result") == mean(indices, 7, 0)
    assert [line["left"] for line in together(rest, "refresh")] == [False, True]
    end([leaves])
    (counters,) = (line["counters"] for line in together([stays], "look"))
    assert counters["ops_replayed"] == counters["ops_failed"] == 0
    end([stays])
