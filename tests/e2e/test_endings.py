"""How a program ends is what the master's log says: in good order, or by which error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import hear, say, wait_until

FRESH = True  # an interpreter's own end is looked at

ENDINGS = {
    "error": "lost: its program was ended by ArithmeticError: it diverged",
    "interrupt": "lost: its program was ended by KeyboardInterrupt",
    "exit": "left",
}


def ends(index: int, url: str, ending: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url)
    group = pccl.group()
    state = {"step": 0, "w": torch.ones(4)}
    group.refresh(state)
    dist.all_reduce(torch.ones(4))
    say(rank=group.rank)
    hear()
    if index > 0:
        group.refresh(state)
    elif ending == "error":
        raise ArithmeticError("it diverged")
    elif ending == "interrupt":
        raise KeyboardInterrupt


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_log_says_how_a_program_has_ended(
    run_peers: Callable[..., list[Any]], start_master: Callable[..., Any], ending: str
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(ends, 2, master.url, ending)
    ranks = [peer.next()["rank"] for peer in peers]
    peers[0].tell("end")
    peers[0].finish(status={"error": 1, "interrupt": None, "exit": 0}[ending])
    gone = f"rank {ranks[0]} ("

    def lines() -> list[str]:
        return [line for line in master.log().splitlines() if "1 member: " + gone in line]

    wait_until(lines)
    (line,) = lines()
    assert line.endswith(ENDINGS[ending])
    peers[1].tell("end")
    peers[1].finish()
