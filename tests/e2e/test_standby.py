"""Several masters of one run, over a real etcd cluster of three: take-over, an etcd that is away.

Also one master that has lost its register, and what the operator can say then.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Master, wait_until
from elastic_members import Run, Start, answers, end, mean, member, one, tell, together
from etcd_cluster import Etcd
from standby import role, says, train

Pair = Callable[..., tuple[Master, Master, str]]  # in charge, standing by, the URL of both


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    cluster = Etcd(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def pair(etcd: Etcd, start_master: Start) -> Pair:
    def make(min_peers: int = 2) -> tuple[Master, Master, str]:
        options = ("--state", etcd.state, "--lease", "2", "--evict-after", "4")
        options += ("--min-peers", str(min_peers))
        with ThreadPoolExecutor() as pool:  # both up at the first start: one of them is in charge
            masters = list(pool.map(lambda _: start_master(*options), range(2)))
        # On a busy machine the lease may change hands meanwhile.
        wait_until(
            lambda: sorted(map(role, masters)) == ["in charge", "stands by"],
            what="one of the two holds the lease, the other stands by",
        )
        a, b = sorted(masters, key=role)
        return a, b, f"pccl://127.0.0.1:{a.port},127.0.0.1:{b.port}"

    return make


@pytest.mark.long
def test_a_standby_takes_over_from_a_master_that_was_killed_with_an_etcd_and_a_member(
    etcd: Etcd, pair: Pair, run_peers: Run
) -> None:
    a, b, url = pair()
    peers = run_peers(member, 2, url)
    answers(peers, "join")
    together(peers, "refresh")
    train(peers)

    # The master, one etcd of three, and one of two members, in the middle of an operation.
    tell(peers[:1], "issue", step=9, index=0)
    answers(peers[:1], "issue")
    a.kill()
    etcd.processes[0].kill()
    peers[1].kill()
    tell(peers[:1], "wait")
    answers(peers[:1], "wait")  # replayed alone, under the other master
    says(b, "incarnation")
    lines = together(peers[:1], "refresh")
    assert one(lines, "size") == 1
    train(peers[:1])

    # And back: the first master comes again as the standby, the second is stopped in good order.
    again = Master(Path(a._port_file).parent, ["--state", etcd.state, "--lease", "2"], port=a.port)
    try:
        says(again, "standing by")
        b.signal(signal.SIGTERM)
        b.finish()
        train(peers[:1])
        says(again, "holds the lease")
        newcomer = run_peers(member, 1, url, first=7)
        answers(newcomer, "join")
        tell(newcomer, "refresh")
        while one(together(peers[:1], "refresh"), "size") != 2:
            together(peers[:1], "train")
        answers(newcomer, "refresh")
        train([peers[0], *newcomer])
        end([peers[0], *newcomer])
    finally:
        again.close()


@pytest.mark.long
def test_half_of_the_members_may_go_with_the_master(pair: Pair, run_peers: Run) -> None:
    a, b, url = pair(min_peers=4)
    peers = run_peers(member, 4, url)
    ranks = [line["rank"] for line in answers(peers, "join")]
    together(peers, "refresh")
    train(peers)
    # Two that are no half of the ring by themselves: each of them has lost both neighbours.
    left = [peers[ranks.index(0)], peers[ranks.index(2)]]
    tell(left, "issue", step=9, index=0)
    answers(left, "issue")
    a.kill()
    for peer in peers:
        if peer not in left:
            peer.kill()
    members = [peers.index(peer) for peer in left]
    assert one(together(left, "wait"), "result") == mean(members, 9, 0)
    says(b, "incarnation")
    assert one(together(left, "refresh"), "size") == 2
    train(left)
    end(left)


def test_a_master_that_was_stopped_and_wakes_later_starts_nothing(
    pair: Pair, run_peers: Run
) -> None:
    a, b, url = pair()
    peers = run_peers(member, 2, url)
    answers(peers, "join")
    together(peers, "refresh")
    a.signal(signal.SIGSTOP)
    train(peers)  # stands still until the others find it silent, then goes on under the standby
    says(b, "incarnation")
    epoch = one(together(peers, "look"), "epoch")
    a.signal(signal.SIGCONT)
    says(a, "stands by")
    train(peers)
    assert one(together(peers, "look"), "epoch") == epoch
    end(peers)


@pytest.mark.long
def test_a_run_goes_on_without_etcd_until_an_epoch_has_to_start_and_then_says_why_it_holds(
    etcd: Etcd, pair: Pair, run_peers: Run
) -> None:
    _, _, url = pair()
    peers = run_peers(member, 3, url, env={"PCCL_LOG_LEVEL": "info"})
    answers(peers, "join")
    together(peers, "refresh")
    train(peers)  # the boundary after the first step of a run votes, and writes the register
    etcd.signal(signal.SIGSTOP)
    began = time.monotonic()
    train(peers)  # commits need no register
    while time.monotonic() - began < 5:  # longer than the lease
        train(peers, 1)
    peers[2].kill()
    tell(peers[:2], "train")
    says(peers[0], "the master steps down: the register ")
    etcd.signal(signal.SIGCONT)
    one(answers(peers[:2], "train"), "result")
    assert one(together(peers[:2], "refresh"), "size") == 2
    end(peers[:2])


def test_a_supervisor_may_stop_the_master_again_before_the_members_are_back(
    tmp_path: Path, start_master: Start, run_peers: Run
) -> None:
    register = ("--state", str(tmp_path / "state"))
    master = start_master(*register)
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    train(peers)
    tell(peers, "train")
    for down_s in (3.0, 0.0):  # members dial less often the longer nobody answers
        master.signal(signal.SIGTERM)
        master.finish()
        time.sleep(down_s)
        master = start_master(*register, port=master.port)
        says(master, "goes on when they have come back")
    one(answers(peers, "train"), "result")
    train(peers)
    end(peers)


def test_a_run_whose_state_file_was_lost_goes_on_when_the_operator_says_adopt(
    tmp_path: Path, start_master: Start, run_peers: Run
) -> None:
    state = tmp_path / "state"
    a = start_master("--state", str(state))
    peers = run_peers(member, 2, a.url)
    answers(peers, "join")
    together(peers, "refresh")
    train(peers)
    a.kill()
    state.unlink()
    b = start_master("--state", str(state), port=a.port)
    says(b, "is not known to the register")
    says(b, "--adopt")
    tell(peers, "train")
    says(peers[0], "is not known to the register")
    b.signal(signal.SIGTERM)
    b.finish()
    state.write_bytes(state.read_bytes()[:-7])  # damaged as well
    c = start_master("--state", str(state), "--adopt", port=a.port)
    one(answers(peers, "train"), "result")
    says(c, "adopted epoch")
    assert Path(f"{state}.damaged").exists()
    train(peers)
    end(peers)


@pytest.mark.long
def test_a_newcomer_that_waits_while_a_lost_run_is_adopted_joins_it(
    tmp_path: Path, start_master: Start, run_peers: Run
) -> None:
    options = ("--state", str(tmp_path / "state"), "--evict-after", "3")
    a = start_master(*options)
    peers = run_peers(member, 2, a.url)
    answers(peers, "join")
    together(peers, "refresh")
    train(peers)
    a.kill()
    peers[1].kill()
    (tmp_path / "state").unlink()
    b = start_master(*options, "--adopt", port=a.port)
    says(b, "the run goes on when all members of that epoch are here, and after 8 s at most")
    (newcomer,) = run_peers(member, 1, b.url)
    says(b, "adopted epoch")
    answers([newcomer], "join")
    tell([newcomer], "refresh")
    while together(peers[:1], "refresh")[0]["size"] < 2:
        together(peers[:1], "train")
    answers([newcomer], "refresh")
    train([peers[0], newcomer])
    end([peers[0], newcomer])


def test_refound_gives_up_the_members_of_a_run_that_the_register_does_not_know(
    tmp_path: Path, start_master: Start, run_peers: Run
) -> None:
    a = start_master("--state", "none")
    peers = run_peers(member, 2, a.url)
    answers(peers, "join")
    together(peers, "refresh")
    a.kill()
    start_master("--refound", port=a.port)
    tell(peers, "train")
    for line in answers(peers, "train", error="EvictedError"):
        assert "--refound" in line["text"]
    tell(peers, "rejoin", url=a.url)
    answers(peers, "rejoin")
    together(peers, "refresh")
    train(peers)
    end(peers)
