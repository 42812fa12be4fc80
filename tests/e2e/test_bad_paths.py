"""Paths between machines as they are met: packets of full size that vanish, IPv6 alone, boxes that
forget silent connections, a line that falls to one percent of its rate and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import fixed_group, hear, say
from hosts import Hosts

MASTER = 3  # its host; the members are on hosts 1 and 2
FLOATS = 4 << 20  # 16 MiB


def reduces(group: Any) -> None:
    """For each word so many all-reduces, or a broadcast by that rank; its time and the links."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    say(ready=True)
    while (word := hear()) != "end":
        began = time.monotonic()
        if isinstance(word, list):
            mine = torch.full((4 * FLOATS,), float(dist.get_rank(group)))
            dist.broadcast(mine, word[0], group=group)
            assert mine.unique().tolist() == word
        for _ in range(word if isinstance(word, int) else 0):
            mine = torch.full((FLOATS,), float(dist.get_rank(group) + 1))
            dist.all_reduce(mine, group=group)
            assert mine.unique().tolist() == [3.0]
        say(took_s=time.monotonic() - began, links=pccl.links())


def in_a_run(index: int, url: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    group = pccl.join(url, timeout_s=60.0)
    # The state of the run, which the second member fetches, is large too.
    pccl.group(group).refresh(pccl.SharedState(weights=torch.arange(FLOATS) * (1.0 - index)))
    reduces(group)
    pccl.group(group).leave()
    dist.destroy_process_group()


def in_a_fixed_group(index: int, meet: str) -> None:
    dist = fixed_group(index, 2, meet)
    reduces(dist.group.WORLD)
    dist.destroy_process_group()


def in_a_fixed_group_that_fails(index: int, meet: str) -> None:
    import pccl_backend as pccl

    dist = fixed_group(index, 2, meet)
    try:
        reduces(dist.group.WORLD)
    except (pccl.PeerLostError, pccl.OperationTimeoutError) as error:
        say(error=str(error))
    hear()
    dist.destroy_process_group()


class Members:
    """Two processes on two hosts, in a run whose master is on a third one, or in a fixed group."""

    def __init__(
        self,
        stack: ExitStack,
        wan: Any,
        meet: str,
        address: str = "",
        fixed: str = "in_a_fixed_group",
        **variables: str,
    ) -> None:
        on = Hosts(stack, wan)
        function, where = "in_a_run", ""
        if address:
            where = on.master(MASTER, 2, address)
        else:  # who meet in a file have not seen which of their addresses to name
            function, where = fixed, meet
            variables = {"PCCL_INTERFACE": "wan0", **variables}
        self.peers = [
            on.peer(index + 1, __file__, function, index, where, **variables) for index in range(2)
        ]
        for peer in self.peers:
            peer.next(ready=True)

    def reduce(self, word: Any = 1) -> list[dict[str, Any]]:
        """All-reduces, or [root]: a broadcast; what each member says of them."""
        for peer in self.peers:
            peer.tell(word)
        return [peer.next() for peer in self.peers]

    def end(self) -> str:
        """Ends the members; what they have logged."""
        for peer in self.peers:
            peer.tell("end")
        for peer in self.peers:
            peer.finish()
        return "".join(line for peer in self.peers for line in peer.errors)


def hosts(stack: ExitStack, **settings: float) -> Any:
    """Of two members and their master; `settings` of the paths between them."""
    from wan.wan import Wan

    return stack.enter_context(Wan(MASTER, **settings))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield stack


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "fixed"])
@pytest.mark.parametrize("ways", [[(1, 2), (2, 1)], [(1, 2)], [(2, 1)]], ids=str)
def test_packets_of_full_size_that_vanish_cost_a_moment_and_no_member(
    stack: ExitStack, tmp_path: Path, kind: str, ways: list[tuple[int, int]]
) -> None:
    wan = hosts(stack, rtt_ms=10)
    for way in ways:
        wan.set(*way, swallow_above=1280)
    if kind == "run":
        for host in (1, 2):  # the master is behind the same tunnel
            wan.set(host, MASTER, both=True, swallow_above=1280)
    members = Members(stack, wan, str(tmp_path / "meet"), wan.address(3) if kind == "run" else "")
    members.reduce(3)
    # Whichever side has dialled the link, more lanes are dialled by the one that sends.
    said = [*members.reduce([0]), *members.reduce([1]), *members.reduce(3)]
    assert [one["links"][0]["lanes_lost"] for one in said] == [0] * len(said)
    assert all(one["links"][0]["carrier"].startswith("TCP") for one in said)
    assert said[-1]["links"][0]["bytes_sent"] > 6 * FLOATS * 4
    cut = {pair: counters["cut"] for pair, counters in wan.stats()["pairs"].items()}
    assert sum(cut[way] for way in ways) > 0
    assert all(count == 0 or set(pair) == {1, 2} for pair, count in cut.items()), cut
    assert "swallows packets of full size, and carries small ones" in members.end()


@pytest.mark.long
@pytest.mark.parametrize("rtt_ms", [1, 20])
def test_a_path_that_begins_to_swallow_large_packets_is_named_by_the_error_of_a_fixed_group(
    stack: ExitStack, tmp_path: Path, rtt_ms: float
) -> None:
    wan = hosts(stack, rtt_ms=rtt_ms)
    limits = {"PCCL_TCP_USER_TIMEOUT_S": "20", "PCCL_SILENCE_TIMEOUT_S": "20"}
    members = Members(
        stack, wan, str(tmp_path / "meet"), fixed="in_a_fixed_group_that_fails", **limits
    )
    members.reduce(3)
    wan.set(1, 2, both=True, swallow_above=1280)
    errors = [said["error"] for said in members.reduce(1)]
    log = members.end()
    seen = "nothing of the large data that this process sends has arrived there"
    for rank, error in enumerate(errors):  # whoever sees it first tells the other one
        assert f"rank {1 - rank} (" in error, error
        assert wan.address(1) in error or wan.address(2) in error, error
    assert all(seen in error and "set the MTU" in error for error in errors), errors
    assert f": for 10.0 s {seen}" in log, log


@pytest.mark.long
def test_a_link_that_carries_far_less_than_before_is_named(
    stack: ExitStack, tmp_path: Path
) -> None:
    wan = hosts(stack, rtt_ms=20, rate_mbit=400)
    members = Members(stack, wan, str(tmp_path / "meet"))
    members.reduce(20)
    for peer in members.peers:
        peer.tell(3)
    wan.set(rate_mbit=2)
    time.sleep(50)
    wan.set(rate_mbit=400)
    for peer in members.peers:
        peer.next()
    log = members.end()
    said = [line for line in log.splitlines() if " WARNING " in line and "the link carries" in line]
    assert len(said) == 2, log
    assert all("before it carried" in line and wan.address(1)[:-1] in line for line in said), said


@pytest.mark.parametrize("kind", ["run", "fixed"])
def test_hosts_without_ipv4_form_a_group(stack: ExitStack, tmp_path: Path, kind: str) -> None:
    wan = hosts(stack, rtt_ms=2)
    for host in range(1, MASTER + 1):
        wan.run(host, ["ip", "-4", "addr", "flush", "dev", "wan0"], check=True)
        wan.run(host, ["ip", "-4", "addr", "flush", "dev", "lo"], check=True)
    address = f"[{wan.address6(MASTER)}]" if kind == "run" else ""
    members = Members(stack, wan, str(tmp_path / "meet"), address)
    for said in members.reduce(2):
        assert said["links"][0]["bytes_sent"] > 2 * FLOATS * 4
    members.end()


@pytest.mark.long
def test_a_box_that_forgets_silent_connections_finds_none(stack: ExitStack, tmp_path: Path) -> None:
    # Keepalives go after a third of PCCL_TCP_USER_TIMEOUT_S, 30 s; boxes forget after a minute.
    wan = hosts(stack, rtt_ms=20, forget_s=15)
    members = Members(stack, wan, str(tmp_path / "meet"), wan.address(MASTER))
    members.reduce(3)
    time.sleep(40)
    for said in members.reduce(3):
        assert said["took_s"] < 20
        assert said["links"][0]["lanes_lost"] == 0
    cut = {pair: counters["cut"] for pair, counters in wan.stats()["pairs"].items()}
    assert sum(cut.values()) == 0, cut
    members.end()


@pytest.mark.long
def test_a_line_that_falls_to_one_percent_and_comes_back(stack: ExitStack, tmp_path: Path) -> None:
    wan = hosts(stack, rtt_ms=20, rate_mbit=400)
    members = Members(stack, wan, str(tmp_path / "meet"), wan.address(MASTER))
    members.reduce(10)
    before = max(said["took_s"] for said in members.reduce(10))
    for peer in members.peers:
        peer.tell(5)
    time.sleep(before / 10)
    wan.set(rate_mbit=4)
    time.sleep(8)
    wan.set(rate_mbit=400)
    during = [peer.next() for peer in members.peers]
    assert all(said["took_s"] > 7 for said in during)
    members.reduce(10)
    after = max(said["took_s"] for said in members.reduce(10))
    assert after < 5 * before, (before, after)
    log = members.end()
    assert "lost" not in log, log
