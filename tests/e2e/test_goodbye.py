"""A process that has ended sends what others still need, over a line that has become slow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import fixed_group, hear, say
from hosts import Hosts

pytestmark = pytest.mark.long

BYTES = 3 << 20  # the sender's kernel takes them at once, and the line needs 18 s for them
SLOW_MBIT = 1.4


def exchanges(index: int, meet: str) -> None:
    """Rank 0 sends and ends; rank 1 receives."""
    import torch

    dist = fixed_group(index, 2, meet)
    for _ in range(3):  # the line is fast: the kernel's buffer grows
        dist.all_reduce(torch.ones(8 << 20))
    say(ready=True)
    hear()
    if index == 0:
        dist.send(torch.arange(BYTES, dtype=torch.uint8), 1)
    else:
        got = torch.zeros(BYTES, dtype=torch.uint8)
        dist.recv(got, 0)
        assert got.equal(torch.arange(BYTES, dtype=torch.uint8))
    say(done=True)
    dist.destroy_process_group()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[list[Any]]:
    """Two ranks on two hosts; the line between them has just become slow."""
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    from wan.wan import Wan

    with ExitStack() as stack:
        wan = stack.enter_context(Wan(2, rtt_ms=1, rate_mbit=400))
        on = Hosts(stack, wan)
        meet = str(tmp_path / "meet")
        peers = [
            on.peer(i + 1, __file__, "exchanges", i, meet, PCCL_INTERFACE="wan0") for i in range(2)
        ]
        for peer in peers:
            peer.next(ready=True)
        wan.set(rate_mbit=SLOW_MBIT)
        yield peers


def test_a_process_that_ends_stays_while_its_data_move(peers: list[Any]) -> None:
    sender, receiver = peers
    sender.tell(1)
    receiver.tell(1)
    sender.next(done=True)
    began = time.monotonic()
    receiver.next(done=True)
    took_s = time.monotonic() - began
    assert took_s > 6, "the test shows nothing"
    sender.finish()
    assert time.monotonic() - began > took_s, "the sender was gone before its data had arrived"
    receiver.finish()
    log = "".join(sender.errors)
    assert "this process ends, and has been sending what others still need for" in log
    assert "are lost" not in log


def test_ctrl_c_ends_a_process_that_waits_for_its_last_data(peers: list[Any]) -> None:
    sender, receiver = peers
    sender.tell(1)
    receiver.tell(1)
    sender.next(done=True)
    time.sleep(2)
    assert sender.process.poll() is None
    began = time.monotonic()
    sender.process.send_signal(signal.SIGINT)
    sender.process.wait(10)
    assert time.monotonic() - began < 3
    assert "KeyboardInterrupt" in "".join(sender.errors)
