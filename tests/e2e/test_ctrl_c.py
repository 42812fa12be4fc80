"""Ctrl-C in `refresh`, at any moment: the next call goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import say


def is_interrupted(_: int, url: str) -> None:
    import random
    import signal
    import time

    import torch

    import pccl_backend as pccl

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pccl.join(url)
    group = pccl.group()
    state = {"step": 0, "w": torch.ones(100)}
    group.refresh(state)
    signal.signal(signal.SIGALRM, interrupt)
    moments = random.Random(1)
    interrupts = 0
    end = time.monotonic() + 10
    while time.monotonic() < end:
        state["step"] += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 6e-3))
            group.refresh(state, verify=True)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
            group.refresh(state, verify=True)
    say(interrupts=interrupts)


@pytest.mark.long
def test_no_moment_of_ctrl_c_loses_what_the_engine_has_said(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any]
) -> None:
    (peer,) = run_peers(is_interrupted, 1, start_master("--min-peers", "1").url)
    assert peer.next()["interrupts"] > 100
    peer.finish()
