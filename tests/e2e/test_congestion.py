"""Which congestion control a link uses: by what its line shows, and by PCCL_BBR."""

from __future__ import annotations

import contextlib
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import fixed_group, hear, say
from hosts import Hosts


def has_bbr() -> bool:
    with contextlib.suppress(OSError), socket.socket() as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        return True
    return False


def says_its_control(rank: int, world: int, meet: str) -> None:
    import torch

    import pccl_backend as pccl

    dist = fixed_group(rank, world, meet)
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 18))
    say(bbr=[link["bbr"] for link in pccl.links()])
    hear()
    dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.parametrize(
    ("hosts_have", "rtt_ms", "variables", "expected"),
    [
        ("reno", 1, ({}, {}), (False, False)),
        ("bbr", 1, ({}, {}), (True, True)),  # links begin without it, and get it back
        ("reno", 40, ({}, {}), (True, True)),
        # Each sends as its own host wants.
        ("reno", 40, ({}, {"PCCL_BBR": "0"}), (True, False)),
        ("bbr", 40, ({}, {"PCCL_BBR": "0"}), (True, True)),
    ],
    ids=["short", "short, of BBR", "long", "long, not wanted by one", "long, of BBR, not wanted"],
)
def test_long_lines_use_bbr_and_short_ones_what_the_host_uses(
    tmp_path: Path,
    hosts_have: str,
    rtt_ms: int,
    variables: tuple[dict[str, str], ...],
    expected: tuple[bool, ...],
) -> None:
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    if not has_bbr():
        pytest.skip("this kernel has no BBR")
    from wan.wan import Wan

    meet = str(tmp_path / "meet")
    with ExitStack() as stack:
        wan = stack.enter_context(
            Wan(2, rate_mbit=100, rtt_ms=rtt_ms, congestion_control=hosts_have)
        )
        hosts = Hosts(stack, wan)
        peers = [
            hosts.peer(
                *(rank + 1, __file__, "says_its_control", rank, 2, meet),
                PCCL_INTERFACE=wan.address(rank + 1),
                **variables[rank],
            )
            for rank in range(2)
        ]
        said = [peer.next() for peer in peers]
        for peer in peers:
            peer.tell("go on")
            peer.finish()
    assert [line["bbr"] for line in said] == [[bbr] for bbr in expected]
