"""All members are lost: who is waited for, who says so, and what ends the wait.

Also: workers may be started before their master.
"""

from __future__ import annotations

import re
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Master, Peer, free_port, hear, say, wait_until

Run = Callable[..., list[Peer]]
Start = Callable[..., Master]

LONG_S = 600  # --refound-after: nobody waits for that long here


class Router:
    """Passes connections on to a port, under another address of this machine; may fail."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener: socket.socket | None = None
        self._ends: dict[socket.socket, socket.socket] = {}
        self._over = False
        self.port = free_port()
        self.work()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"pccl://127.0.0.1:{self.port}"

    def work(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.setblocking(False)
        self._listener = listener

    def fail(self) -> None:
        """Closes all connections, and refuses new ones."""
        listener, self._listener = self._listener, None
        assert listener is not None
        listener.close()
        for end in list(self._ends):
            self._drop(end)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        if self._listener is not None:
            self.fail()

    def _drop(self, end: socket.socket) -> None:
        other = self._ends.pop(end, None)
        if other is not None:
            self._ends.pop(other, None)
            other.close()
        end.close()

    def _pass_on(self) -> None:
        while not self._over:
            with selectors.DefaultSelector() as selector:
                try:
                    for end in [self._listener, *self._ends]:
                        if end is not None:
                            selector.register(end, selectors.EVENT_READ)
                    ready = [key.fileobj for key, _ in selector.select(0.05)]
                except (OSError, ValueError):  # closed meanwhile
                    continue
            for end in ready:
                assert isinstance(end, socket.socket)
                try:
                    self._move(end)
                except OSError:
                    self._drop(end)

    def _move(self, end: socket.socket) -> None:
        if end is self._listener:
            near, _ = end.accept()
            far = socket.create_connection(("127.0.0.1", self._to), source_address=("127.0.0.2", 0))
            self._ends[near], self._ends[far] = far, near
            return
        data = end.recv(1 << 16)
        if data:
            self._ends[end].sendall(data)
        else:
            self._drop(end)


@pytest.fixture
def routers() -> Iterator[Callable[[int], Router]]:
    made: list[Router] = []

    def make(to: int) -> Router:
        made.append(Router(to))
        return made[-1]

    yield make
    for router in made:
        router.close()


def trains(index: int, url: str) -> None:
    """A step for each word; prints what it begins with."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    group = pccl.group(pccl.join(url))
    state = {"step": 0, "w": torch.zeros(4)}
    boundary = group.refresh(state)
    say(began=state["step"], size=boundary.size)
    while hear() != "end":
        dist.all_reduce(torch.ones(4))
        state["step"] += 1
        boundary = group.refresh(state)
        say(step=state["step"], size=boundary.size)
    dist.destroy_process_group()


def steps_until(peer: Peer, number: int, size: int) -> None:
    """The steps from this one on of a member, one a second, until the group has so many."""
    for later in range(number, number + 60):
        peer.tell("go")
        if peer.next(step=later)["size"] == size:
            return
        time.sleep(1)
    raise AssertionError(f"the group has never had {size} members")


def step(peers: list[Peer], number: int) -> None:
    for peer in peers:
        peer.tell("go")
    for peer in peers:
        assert peer.next(step=number)["size"] == len(peers)


def begun(peers: list[Peer]) -> None:
    for peer in peers:
        assert peer.next()["size"] == len(peers)


def end(peers: list[Peer]) -> None:
    for peer in peers:
        peer.tell("end")
    for peer in peers:
        peer.finish()


@pytest.mark.long
@pytest.mark.parametrize("master_dies", [False, True])
def test_where_the_master_sees_all_members_end_nobody_waits(
    run_peers: Run, start_master: Start, tmp_path: Any, master_dies: bool
) -> None:
    register = ("--state", str(tmp_path / "register"), "--min-peers", "2")
    master = start_master(*register, "--refound-after", str(LONG_S))
    peers = run_peers(trains, 2, master.url)
    begun(peers)
    step(peers, 1)
    if master_dies:
        master.kill()
    for peer in peers:
        peer.kill()
    if master_dies:
        master = start_master(
            *register, "--refound-after", str(LONG_S), "--evict-after", str(LONG_S)
        )
    newcomers = run_peers(trains, 2, master.url, first=2)
    begun(newcomers)
    wait_until(lambda: "the processes of these have ended on this machine: rank 0" in master.log())
    step(newcomers, 1)
    end(newcomers)


def test_deaths_that_nobody_sees_are_waited_for_and_both_sides_say_so(
    run_peers: Run, start_master: Start, routers: Callable[[int], Router], tmp_path: Any
) -> None:
    register = ("--state", str(tmp_path / "register"), "--min-peers", "2")
    master = start_master(*register, "--refound-after", str(LONG_S))
    peers = run_peers(trains, 2, routers(master.port).url)
    begun(peers)
    for peer in peers:
        peer.kill()
    newcomers = run_peers(trains, 2, master.url, first=2)

    def left(log: str) -> list[int]:
        return [int(s) for s in re.findall(r"may come back for (\d+) s \(--refound-after\)", log)]

    for process in (master, *newcomers):
        wait_until(lambda: left(process.log()))  # noqa: B023
        assert "stop this master with Ctrl-C (SIGINT), and start it again" in process.log()
        assert LONG_S - 60 < left(process.log())[-1] <= LONG_S
    wait_until(lambda: len(left(master.log())) > 1 and left(master.log())[-1] < LONG_S)
    wait_until(lambda: "waiting at the door" in newcomers[0].log())
    assert all(newcomer.lines == [] for newcomer in newcomers)

    port = master.port
    master.signal(signal.SIGINT)
    master.finish()
    start_master(*register, "--evict-after", str(LONG_S), port=port)
    begun(newcomers)
    step(newcomers, 1)
    end(newcomers)


@pytest.mark.long
def test_a_router_that_fails_at_the_master_is_no_death(
    run_peers: Run, start_master: Start, routers: Callable[[int], Router]
) -> None:
    master = start_master("--min-peers", "1", "--refound-after", str(LONG_S))
    router = routers(master.port)
    peers = run_peers(trains, 1, router.url)
    begun(peers)
    step(peers, 1)
    router.fail()
    newcomers = run_peers(trains, 1, master.url, first=1)
    wait_until(lambda: "may come back" in newcomers[0].log())
    time.sleep(3)  # the master has looked for the process meanwhile
    assert newcomers[0].lines == []
    router.work()
    steps_until(peers[0], 2, size=2)  # the newcomer is in when its links have been tried
    assert newcomers[0].next()["size"] == 2
    end([*peers, *newcomers])


def test_the_member_that_is_back_first_waits_for_the_others(
    run_peers: Run, start_master: Start, routers: Callable[[int], Router]
) -> None:
    master = start_master("--min-peers", "2", "--refound-after", str(LONG_S))
    ways = [routers(master.port) for _ in range(2)]
    peers = [peer for i, way in enumerate(ways) for peer in run_peers(trains, 1, way.url, first=i)]
    begun(peers)
    step(peers, 1)
    for way in ways:
        way.fail()
    wait_until(lambda: "no member of epoch" in master.log())
    ways[0].work()
    wait_until(lambda: re.search(r"had ended; epoch .* waits 15 s for: rank \d", master.log()))
    peers[0].tell("go")
    time.sleep(2)  # longer than a member alone is waited for
    assert len(peers[0].lines) == 2
    ways[1].work()
    peers[1].tell("go")
    for peer in peers:
        assert peer.next(step=2)["size"] == 2
    end(peers)


def test_workers_may_be_started_before_their_master(run_peers: Run, start_master: Start) -> None:
    port = free_port()
    peers = run_peers(trains, 2, f"pccl://127.0.0.1:{port}")
    for peer in peers:
        wait_until(lambda: " yet: " in peer.log())  # noqa: B023
        assert re.search(
            r"no master at .* yet: .*refused.*; trying for (5\d|60)\.\d s more", peer.log()
        )
    start_master("--min-peers", "2", port=port)
    begun(peers)
    end(peers)
