"""Members at two sites, and one of them dies while a tensor crosses between the sites."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest
from conftest import say, wait_until
from hosts import Hosts, steps_of_member

SITES = ([1, 2], [3, 4])  # hosts
MASTER = 5
FLOATS = {"none": 8 << 20, "int8": 32 << 20}  # some 2 s on the line between two hosts


def reduces(index: int, url: str, kind: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl
    from pccl_backend import _extension

    for pg in steps_of_member(url):
        mine = torch.full(
            (FLOATS[kind],), float(1 << pg.rank())
        )  # int8 keeps constants as they are
        dist.barrier(pg)
        view = _extension.extension().group_view()
        say(begins=True, sites=view["sites"], rank=pg.rank())
        pccl.all_reduce(mine, group=pg, quantise=kind)
        say(sums=mine.unique().tolist())


def sites_told(hosts: Hosts, url: str) -> list[int | None]:
    """By rank, as the master says to anybody who asks."""
    members = wait_until(lambda: hosts.status(MASTER, url).get("members"))
    return [member["site"] for member in members]


@pytest.mark.long
@pytest.mark.parametrize("kind", FLOATS)
def test_a_member_that_dies_while_a_tensor_crosses_is_left_out(kind: str) -> None:
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    from wan.wan import Wan

    with ExitStack() as stack:
        wan = stack.enter_context(Wan(MASTER, rate_mbit=60, rtt_ms=80))
        for site in SITES:
            for one in site:
                for other in set(site) - {one}:
                    wan.set(one, other, rate_mbit=600, delay_ms=0.5)
        hosts = Hosts(stack, wan)
        url = hosts.master(MASTER, 4)
        peers = []
        for i in range(4):
            peers.append(hosts.peer(i + 1, __file__, "reduces", i, url, kind))
            hosts.wait_for(MASTER, url, i + 1)
        for peer in peers:
            peer.next(ready=True)
        for _ in range(2):  # all, in two levels
            for peer in peers:
                peer.tell("go")
            began = [peer.next(begins=True) for peer in peers]
            ranks = [one["rank"] for one in began]
            sites = began[0]["sites"]
            assert all(one["sites"] == sites for one in began), began
            assert len(set(sites)) == 2, began
            assert sites.count(0) == 2, began
            assert sites_told(hosts, url) in ([0, 0, 1, 1], [1, 1, 0, 0])
            for peer in peers:
                assert peer.next()["sums"] == [15.0]

        for peer in peers:
            peer.tell("go")
        for peer in peers:
            peer.next(begins=True)
        time.sleep(0.5)  # of two seconds and more
        peers[3].process.send_signal(signal.SIGKILL)
        expected = [float(15 - (1 << ranks[3]))]
        survivors = peers[:3]
        for peer in survivors:
            assert peer.next()["sums"] == expected
        for peer in survivors:
            peer.tell("go")
        began = [peer.next(begins=True) for peer in survivors]
        assert sorted(began[0]["sites"].count(site) for site in (0, 1)) == [1, 2], began
        assert sites_told(hosts, url) in ([0, 0, 1], [1, 1, 0])
        for peer in survivors:
            assert peer.next()["sums"] == [7.0]
        for peer in survivors:
            peer.tell("end")
        for peer in survivors:
            peer.finish()
