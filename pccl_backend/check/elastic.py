"""An elastic group under a master loses a member by SIGKILL, and goes on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from .rank import Rank, demand

COUNT = 16_000_000  # float32: 64 MB
JOIN_S = 40.0
STEPS = 3
GOES_ON_S = 20.0


def survives(at: Rank) -> None:
    """Steps, a loss in the middle of a reduction, and steps again; all hold the same bits."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join((at.folder / "url").read_text(), timeout_s=JOIN_S)
    group = pccl.group()
    state: dict[str, Any] = {"step": 0, "weight": torch.zeros(1000)}
    group.refresh(state)
    demand(group.size == 3, f"{group.size} members founded the run, expected 3")
    me = group.rank

    def step() -> None:
        gradient = torch.full((1000,), 1.0 + me)
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        state["weight"] += gradient
        state["step"] += 1
        group.refresh(state)

    for _ in range(STEPS):
        step()
    t = torch.full((COUNT,), float(2**me))  # each set of members has a mean of its own
    (at.folder / f"rank-of-{at.rank}").write_text(str(me))
    if at.rank == 2:  # half way: all others are in the call
        for other in range(2):
            at.hear(other, "called")
        dist.all_reduce(t, op=dist.ReduceOp.AVG, async_op=True)
        at.until(
            lambda: not group.in_flight() or group.in_flight()[0]["bytes_sent"] > 0,
            "no byte of an operation left",
        )
        (at.folder / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(t, op=dist.ReduceOp.AVG, async_op=True)
    at.tell("called")
    work.wait()
    done = time.monotonic()
    at.until((at.folder / "killed").exists, "the victim was not killed")
    seconds = done - float((at.folder / "killed").read_text())
    state["weight"] += t[:1000]
    for _ in range(STEPS):
        step()
    demand(group.size == 2, f"the group has {group.size} members after the loss, expected 2")
    demand(seconds < GOES_ON_S, f"the result after the loss took {seconds:.0f} s")
    ranks = [int((at.folder / f"rank-of-{of}").read_text()) for of in range(2)]
    left, got = sum(2.0**of for of in ranks) / 2, float(t[0])
    whole = abs(got - 7.0 / 3) < 1e-5
    demand(
        (whole or got == left) and bool((t == got).all()),
        f"the reduction that was interrupted gave {got}, expected {left} of the survivors",
    )
    weights = [torch.zeros(1000) for _ in range(2)]
    dist.all_gather(weights, state["weight"])
    demand(torch.equal(weights[0], weights[1]), "the members hold different bits")
    how = "was done already" if whole else f"done again in {seconds:.2f} s"
    at.note(
        f"one of 3 killed, its sum {how}",
        from_kill_to_result_s=round(seconds, 3),
        steps=state["step"],
        epoch=group.epoch,
    )
    dist.destroy_process_group()
