"""No call waits for ever: what ends the waits of real processes, and what the others see of it."""

import time

import pytest
import torch
import torch.distributed as dist
from conftest import Peer, hear, say
from elastic_members import (
    Member,
    Run,
    Start,
    answers,
    end,
    mean,
    obey,
    one,
    tell,
    together,
    train_until,
)
from interrupts import answer_signals, interrupt, interrupted, wait_inside

PROMPT_S = 10.0  # a machine of tests is busy


class Breakable(Member):
    """A member whose engine can be broken."""

    def break_engine(self) -> None:
        from pccl_backend import _extension

        _extension.extension().break_invariant("planted by a test")

    def issue_and_break(self, *, step: int) -> dict[str, object]:
        """Breaks it while an operation is in flight, and tries calls of every kind afterwards."""
        self.issue(step=step, index=0)
        future = self.work.get_future()
        received = dist.irecv(torch.empty(8), group=self.pg)
        assert received is not None
        self.break_engine()
        store = dist.distributed_c10d._get_default_store()
        return {
            "after": [
                name_of(call)
                for call in (
                    self.work.wait,
                    future.wait,
                    received.wait,
                    lambda: dist.all_reduce(self.tensor, group=self.pg),
                    lambda: store.get("never"),
                    self.refresh,
                    self.resume,
                    lambda: dist.new_group([dist.get_rank(self.pg)]),
                    self.group.in_flight,
                )
            ],
        }


def name_of(call: object) -> str:
    assert callable(call)
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"


def breakable(index: int, url: str) -> None:
    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    obey(Breakable(index))


def test_a_broken_invariant_ends_every_wait_of_its_process_and_the_others_go_on_at_once(
    run_peers: Run, start_master: Start
) -> None:
    # Silence counts after ten minutes: what the others see can only be the end of connections.
    master = start_master("--min-peers", "3", "--evict-after", "600")
    peers = run_peers(breakable, 3, master.url, env={"PCCL_SILENCE_TIMEOUT_S": "600"})
    answers(peers, "join")
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    victim, survivors = peers[1], [peers[0], peers[2]]
    before = one(together(survivors, "look"), "epoch")
    broken = together([victim], "issue_and_break", step=1)[0]
    for text in broken["after"]:
        assert text.startswith("EngineError"), broken
        assert "planted by a test" in text, broken
    together(survivors, "issue", step=1, index=0)
    results = together(survivors, "wait")
    assert one(results, "result") == mean([0, 2], 1, 0)
    assert one(together(survivors, "look"), "epoch") != before
    train_until(survivors, 2)  # the loss is numbered at this boundary or at the next
    assert "for a report of this bug" in victim.log()
    end([victim])
    end(survivors)


class Waiter(Member):
    """A member whose calls can be interrupted."""

    def wait_in(self, *, call: str) -> dict[str, object]:
        store = dist.distributed_c10d._get_default_store()
        tensor = torch.ones(8)
        calls = {
            "refresh": lambda: self.refresh(verify=True),
            "all_reduce": lambda: dist.all_reduce(tensor),
            "barrier": dist.barrier,
            "recv": lambda: dist.recv(tensor),
            "send": lambda: dist.send(torch.ones(1_000_000), 1 - dist.get_rank()),
            "store": lambda: store.get("never"),
            "new_group": dist.new_group,
        }
        interrupted(call, calls[call])
        return {}

    def same(self, *, call: str) -> dict[str, object]:
        """What the other one has to call, so that both are at one place again."""
        tensor = torch.ones(8)
        calls = {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "barrier": dist.barrier,
            "recv": lambda: dist.send(tensor, 1 - dist.get_rank()),
            "send": lambda: dist.recv(torch.ones(1_000_000), 1 - dist.get_rank()),
        }
        if call in calls:
            calls[call]()
        return {}


def waiter(index: int, url: str) -> None:
    import pccl_backend as pccl

    answer_signals()
    pccl.join(url, timeout_s=120.0)
    obey(Waiter(index))


@pytest.mark.long
def test_ctrl_c_ends_every_wait_of_an_elastic_group_and_the_run_goes_on(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(waiter, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    for call in ("all_reduce", "barrier", "recv", "send", "store", "new_group"):
        tell(peers[:1], "wait_in", call=call)
        wait_inside(peers[0], call)
        began = interrupt(peers[0])
        peers[0].next(interrupted=call)
        assert time.monotonic() - began < PROMPT_S, call
        answers(peers[:1], "wait_in")
        together(peers[1:], "same", call=call)  # the operation itself goes on
    tell(peers[:1], "wait_in", call="refresh")
    wait_inside(peers[0], "refresh")
    interrupt(peers[0])
    peers[0].next(interrupted="refresh")
    answers(peers[:1], "wait_in")
    one(together(peers, "refresh", verify=True), "w")  # the boundary goes on in the next call
    one(together(peers, "train"), "result")
    end(peers)


def joins_nobody(index: int, url: str) -> None:
    import pccl_backend as pccl

    answer_signals()
    interrupted("join", lambda: pccl.join(url, timeout_s=600.0))


def test_ctrl_c_ends_a_join_that_waits_for_the_founding(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    (peer,) = run_peers(joins_nobody, 1, master.url)
    wait_inside(peer, "join")
    began = interrupt(peer)
    peer.next(interrupted="join")
    assert time.monotonic() - began < PROMPT_S
    peer.finish()


def fixed_member(index: int, world: int, meet: str) -> None:
    from conftest import fixed_group

    group = fixed_group(index, world, meet)
    tensor = torch.ones(100_000)
    group.all_reduce(tensor)
    say(did="begin")
    hear()
    if index == 0:
        from pccl_backend import _extension

        works = [group.irecv(tensor, 1), group.irecv(tensor.clone())]
        _extension.extension().break_invariant("planted by a test")
        say(ends=[name_of(work.wait) for work in works])
    else:
        say(ends=[name_of(lambda: group.all_reduce(tensor))])
    group.destroy_process_group()
    say(did="end")


def test_a_broken_invariant_fails_a_fixed_group_at_once(run_peers: Run, tmp_path: object) -> None:
    meet = f"{tmp_path}/meet"
    peers: list[Peer] = run_peers(fixed_member, 3, 3, meet, env={"PCCL_SILENCE_TIMEOUT_S": "600"})
    for peer in peers:
        peer.next(did="begin")
    tell(peers, "go")
    for peer in peers:
        for text in peer.next()["ends"]:
            assert ("planted by a test" in text) == (peer is peers[0]), text
            assert "planted" in text or text.startswith("PeerLostError"), text
    for peer in peers:
        peer.finish()
