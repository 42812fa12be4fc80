"""Far members of a run choose how data go by the rates of their lines, once these are measured."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import pytest
from conftest import say
from hosts import Hosts, steps_of_member

SIZE = 4
MBIT = 10
FLOATS = 1 << 16  # 256 KiB: an exchange where nobody knows the rate, and here twice too slow


def reduces(index: int, url: str) -> None:
    """For each word a boundary and an all-reduce; its time, and the lines by which it went."""
    import torch
    import torch.distributed as dist

    from pccl_backend import _extension

    for pg in steps_of_member(url):
        mine = torch.full((FLOATS,), float(pg.rank() + 1))
        dist.barrier(pg)
        began = time.monotonic()
        dist.all_reduce(mine, group=pg)
        took_s = time.monotonic() - began
        assert mine.unique().tolist() == [10.0]
        say(took_s=took_s, lines=list(_extension.extension().group_view()["lines"]))


@pytest.mark.long
def test_the_next_boundary_after_all_is_measured_tells_the_rate_to_all() -> None:
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    from wan.wan import Wan

    with ExitStack() as stack:
        wan = stack.enter_context(Wan(SIZE + 1, rate_mbit=MBIT, rtt_ms=80))
        hosts = Hosts(stack, wan)
        url = hosts.master(SIZE + 1, SIZE)
        peers = [hosts.peer(i + 1, __file__, "reduces", i, url) for i in range(SIZE)]
        for peer in peers:
            peer.next(ready=True)

        calls: dict[bool, list[float]] = {False: [], True: []}
        until = time.monotonic() + 240
        while len(calls[True]) < 6:
            assert time.monotonic() < until, calls
            for peer in peers:
                peer.tell("go")
            said = [peer.next() for peer in peers]
            lines = said[0]["lines"]
            assert all(one["lines"] == lines for one in said), said
            assert lines[0] >= 70_000, lines
            known = lines[2] > 0
            assert known or not calls[True], "known once, they stay known"
            assert not known or MBIT // 4 <= lines[2] <= MBIT + 1, lines
            calls[known].append(max(one["took_s"] for one in said))
        for peer in peers:
            peer.tell("end")
        for peer in peers:
            peer.finish()
    # Before: nine bodies and half a round trip, about 0.65 s; then direct, about 0.4 s.
    assert statistics.median(calls[True]) < statistics.median(calls[False]), calls
    print({known: [round(s, 2) for s in took_s] for known, took_s in calls.items()})
