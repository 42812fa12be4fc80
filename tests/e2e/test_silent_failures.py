"""Links that are there and of no use, and peers that can only dial out: who goes on, who has to go.

Each member listens on an address of its own and tells the others another one, where the test
forwards, swallows or slows down what passes; or where nobody listens.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import free_port, wait_until
from elastic_members import (
    COUNT,
    Run,
    Start,
    answers,
    contribution,
    end,
    member,
    one,
    tell,
    together,
)

STALL_S = "2.5"


class Forwarder:
    """Listens where a member says that it is, and carries what passes to where it listens."""

    def __init__(self, index: int, port: int) -> None:
        self.listens = (f"127.0.1.{index + 1}", port)
        self.target = (f"127.0.2.{index + 1}", port)
        self.swallows = threading.Event()  # what comes from the member, on connections of now
        self.swallows_new = False
        self.bytes_per_s = 0
        self._listener = socket.create_server(self.listens)
        self._sockets: list[socket.socket] = []
        self._generation = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def swallow(self, *, new_ones: bool) -> None:
        self.swallows_new = new_ones
        self.swallows.set()
        self._generation += 1

    def _accept(self) -> None:
        while True:
            try:
                outside, _ = self._listener.accept()
            except OSError:
                return  # close() was called
            self._sockets.append(outside)
            try:
                inside = socket.create_connection(self.target)
            except OSError:  # the member is gone: who dials it sees that
                outside.close()
                continue
            self._sockets.append(inside)
            born = self._generation
            for source, sink, is_answer in ((outside, inside, False), (inside, outside, True)):
                threading.Thread(
                    target=self._carry, args=(source, sink, is_answer, born), daemon=True
                ).start()

    def _carry(
        self, source: socket.socket, sink: socket.socket, is_answer: bool, born: int
    ) -> None:
        moved = 0
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                old = born < self._generation
                handshake = moved < 1000  # also where nothing passes connections are made
                if is_answer and self.swallows.is_set():
                    lost = old or (self.swallows_new and not handshake)
                    if lost:
                        continue
                moved += len(block)
                sink.sendall(block)
                if self.bytes_per_s > 0:
                    time.sleep(len(block) / self.bytes_per_s)
        for end_ in (source, sink):
            with contextlib.suppress(OSError):
                end_.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._accepting.join()
        for each in [self._listener, *self._sockets]:
            each.close()


def environment(index: int, port: int) -> dict[str, str]:
    """Where a member listens and where it says that it does."""
    return {
        "PCCL_INTERFACE": f"127.0.2.{index + 1}",
        "PCCL_ADVERTISE": f"127.0.1.{index + 1}",
        "PCCL_PORTS": f"{port}-{port}",
        "PCCL_SHARED_MEMORY": "0",  # a forwarder carries TCP
        "PCCL_STALL_TIMEOUT_S": STALL_S,
        "PCCL_LOG_LEVEL": "info",
    }


@pytest.fixture
def forward() -> Iterator[Callable[[int, int], Forwarder]]:
    made: list[Forwarder] = []

    def make(index: int, port: int) -> Forwarder:
        made.append(Forwarder(index, port))
        return made[-1]

    yield make
    for forwarder in made:
        forwarder.close()


def holds(pid: int, what: bytes) -> bool:
    """Does `what` lie anywhere in the memory of this process?"""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, rights = line.split()[:2]
            first, last = (int(end, 16) for end in where.split("-"))
            if not rights.startswith("rw") or line.rstrip().endswith("[vvar]"):
                continue
            with contextlib.suppress(OSError, ValueError):  # a page that is no memory, or is gone
                memory.seek(first)
                if what in memory.read(last - first):
                    return True
    return False


def run_of(
    run_peers: Run, start_master: Start, forward: Callable[[int, int], Forwarder], count: int
) -> tuple[list, list[Forwarder]]:
    """A run of members behind forwarders, past its first boundary."""
    port = free_port()
    forwarders = [forward(index, port) for index in range(count)]
    master = start_master("--min-peers", str(count))
    peers = []
    for index in range(count):
        peers += run_peers(member, 1, master.url, env=environment(index, port), first=index)
    answers(peers, "join")
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    one(together(peers, "refresh"), "w")
    return peers, forwarders


def test_a_member_that_can_only_dial_out_is_one_like_the_others(
    run_peers: Run, start_master: Start
) -> None:
    port = free_port()
    master = start_master("--min-peers", "3")
    hidden = run_peers(member, 1, master.url, env=environment(0, port))  # nobody listens there
    others = run_peers(member, 2, master.url, first=1)
    peers = [*hidden, *others]
    answers(peers, "join")
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    lines = together(peers, "refresh")
    one(lines, "w")
    assert one(lines, "size") == 3
    end(peers)


@pytest.mark.long
def test_two_that_can_only_dial_out_reach_each_other_over_a_third(
    run_peers: Run, start_master: Start
) -> None:
    port = free_port()
    master = start_master("--min-peers", "4")
    helpers = run_peers(member, 2, master.url)
    hidden = []
    for index in (2, 3):  # nobody can dial them
        own = {**environment(index, port), "PCCL_CONNECT_TIMEOUT_S": "2"}
        hidden += run_peers(member, 1, master.url, env=own, first=index)
    peers = [*helpers, *hidden]
    answers(peers, "join")
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    lines = together(peers, "refresh")
    assert one(lines, "size") == 4
    one(lines, "w")
    together(peers, "issue", step=10, index=0, kind="all_to_all")
    together(peers, "wait")
    lines = together(peers, "look")
    relayed = [line["counters"]["bytes_relayed"] for line in lines]
    assert relayed[2:] == [0, 0]
    assert sum(relayed) >= 2 * 4 * (COUNT // 4)  # a quarter of the tensor each way

    # One hidden member has said this to the other; who passed it on knows nothing of it.
    to = lines[3]["rank"] * (COUNT // 4)
    said = contribution(2, 10, 0)[to + 1000 : to + 1010].numpy().tobytes()
    assert [holds(peer.pid, said) for peer in peers] == [False, False, True, True]

    # Who passed their data on is killed: the other one does.
    (first,) = (peer for peer, count in zip(helpers, relayed, strict=False) if count > 0)
    rest = [peer for peer in peers if peer is not first]
    tell(rest, "issue", step=50, index=0)
    first.kill()
    one(together(rest, "wait"), "result")
    lines = together(rest, "refresh", verify=True)  # the step had a commit before the loss
    assert one(lines, "size") == 3
    one(lines, "w")
    assert "reach each other over rank" in "".join(master.errors)
    end(rest)


@pytest.mark.long
def test_two_that_can_only_dial_out_are_told_so_until_a_third_comes(
    run_peers: Run, start_master: Start
) -> None:
    port = free_port()
    master = start_master("--min-peers", "2")
    hidden = []
    for index in range(2):  # nobody can dial them
        own = {**environment(index, port), "PCCL_CONNECT_TIMEOUT_S": "2"}
        hidden += run_peers(member, 1, master.url, env=own, first=index)
    for peer in hidden:
        wait_until(lambda: "cannot reach each other" in peer.log())  # noqa: B023
        (line,) = [line for line in peer.errors if "cannot reach each other" in line]
        for part in ("the run is not founded", "PCCL_ADVERTISE", "a peer that both reach"):
            assert part in line
        for index in range(2):
            assert f"127.0.1.{index + 1}:{port}" in line
    time.sleep(6)  # three times what an attempt takes
    assert "".join(master.errors).count(" cannot reach peer ") == 1
    assert all(peer.lines == [] for peer in hidden)

    peers = [*hidden, *run_peers(member, 1, master.url, first=2)]
    answers(peers, "join")
    together(peers, "refresh")
    one(together(peers, "train"), "result")
    lines = together(peers, "refresh")
    assert one(lines, "size") == 3
    one(lines, "w")
    assert "reach each other over rank" in "".join(master.errors)
    end(peers)


def test_a_link_that_moves_no_data_is_made_anew_and_nobody_is_evicted(
    run_peers: Run, start_master: Start, forward: Callable[[int, int], Forwarder]
) -> None:
    peers, forwarders = run_of(run_peers, start_master, forward, 3)
    for forwarder in forwarders:
        forwarder.swallow(new_ones=False)
    one(together(peers, "train"), "result")
    lines = together(peers, "refresh")
    assert one(lines, "size") == 3
    one(lines, "w")
    assert "the link to it is made anew" in "".join(line for p in peers for line in p.errors)
    end(peers)


def test_a_pair_between_which_no_data_move_even_over_a_new_link_loses_one_of_the_two(
    run_peers: Run, start_master: Start, forward: Callable[[int, int], Forwarder]
) -> None:
    peers, forwarders = run_of(run_peers, start_master, forward, 2)
    for forwarder in forwarders:
        forwarder.swallow(new_ones=True)
    tell(peers, "train")
    seen = [peer.next(did="train") for peer in peers]
    assert sorted(line["error"] for line in seen) == ["", "EvictedError"]
    (evicted,) = [line for line in seen if line["error"]]
    assert "moved no data" in evicted["text"]
    survivor = peers[[line["error"] for line in seen].index("")]
    assert one(together([survivor], "refresh"), "size") == 1
    end([survivor])


@pytest.mark.long
def test_a_link_that_crawls_is_no_reason_to_evict(
    run_peers: Run, start_master: Start, forward: Callable[[int, int], Forwarder]
) -> None:
    peers, forwarders = run_of(run_peers, start_master, forward, 2)
    for forwarder in forwarders:
        forwarder.bytes_per_s = 350_000  # a segment takes longer than the stall time-out
    began = time.monotonic()
    one(together(peers, "train"), "result")
    assert time.monotonic() - began > 2 * float(STALL_S)
    for line in together(peers, "look"):
        assert line["size"] == 2
        assert line["counters"]["ops_replayed"] == 0
    end(peers)
