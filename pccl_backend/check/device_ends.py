"""Ends of an operation that are no result: a loss, a time-out, abort, destroy, exit, a capture."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from .device_group import expect, full, holding, start
from .rank import CheckFailedError, Rank, demand

COUNT = 1_000_000
FREE_S = 5.0
TIMEOUT_S = 5.0
DESTROY_S = 10.0
CAPTURE_S = 0.5


def _held(at: Rank, dist: Any, t: Any) -> Any:
    """Rank 0 is behind the wait() of an operation that rank 1 does not call."""
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    demand(not work.is_completed(), "wait() returned behind the operation: nothing was held")
    at.tell("held")
    return work


def _freed(at: Rank, what: str, limit_s: float = FREE_S) -> None:
    import torch

    began = time.monotonic()
    stream = torch.accelerator.current_stream()
    at.until(stream.query, f"the stream was not free after {what}", limit_s=limit_s)
    at.note(f"free {time.monotonic() - began:.2f} s after {what}")


def _raises(call: Callable[[], Any], what: str) -> str:
    """The error's name; fails if there is none."""
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__
    raise CheckFailedError(f"{what} did not raise")


def _begin(at: Rank, **options: Any) -> tuple[Any, Any]:
    device, dist = start(at, **options)
    t = full(device, COUNT, 1.0 + at.rank)
    dist.all_reduce(t)
    expect(t, 3.0, "the first all_reduce")
    return dist, t


def killed(at: Rank) -> None:
    """Rank 1 is killed: the stream is free, the tensor as it was, and the next call raises."""
    dist, t = _begin(at)
    if at.rank == 1:
        at.hear(0, "held")
        os.kill(os.getpid(), signal.SIGKILL)
    if holding():
        _held(at, dist, t)
        _freed(at, "the kill")
        name = _raises(lambda: dist.all_reduce(t), "the call after the loss")
    else:
        work = dist.all_reduce(t, async_op=True)
        at.tell("held")
        name = _raises(work.wait, "wait() of the operation whose peer was killed")
    demand(name == "PeerLostError", f"the loss was raised as {name}")
    expect(t, 3.0, "the tensor of a failed all_reduce")


def _ended(
    at: Rank,
    end: Callable[[Any], None],
    what: str,
    *,
    limit_s: float = FREE_S,
    raises: bool = False,
    **options: Any,
) -> None:
    """Rank 1 never comes: `end` at rank 0 has the stream free and leaves the tensor as it was."""
    dist, t = _begin(at, **options)
    if at.rank == 1:
        at.hear(0, "freed")
        return
    _held(at, dist, t)
    end(dist)
    _freed(at, what, limit_s)
    at.tell("freed")
    if raises:
        _raises(lambda: dist.all_reduce(t), f"the call after {what}")
    expect(t, 3.0, f"the tensor of an all_reduce after {what}")


def timed_out(at: Rank) -> None:
    """The time-out of the group ends the hold, and the next call raises."""
    what, limit_s = f"a time-out of {TIMEOUT_S:.0f} s", TIMEOUT_S + FREE_S
    _ended(at, lambda _: None, what, limit_s=limit_s, raises=True, timeout_s=TIMEOUT_S)


def aborted(at: Rank) -> None:
    """The program aborts its group."""
    _ended(at, lambda dist: dist.distributed_c10d._abort_process_group(), "abort")


def destroyed(at: Rank) -> None:
    """The program destroys its group."""

    def destroy(dist: Any) -> None:
        began = time.monotonic()
        dist.destroy_process_group()
        seconds = time.monotonic() - began
        demand(seconds < DESTROY_S, f"destroy_process_group took {seconds:.0f} s")

    _ended(at, destroy, "destroy")


def exits(at: Rank) -> None:
    """The program ends; processes.py looks whether the process does."""
    dist, t = _begin(at)
    if at.rank == 1:
        at.hear(0, "held")
        at.hear(0, "over")
        return
    _held(at, dist, t)
    at.finish()
    at.tell("over")
    sys.exit(0)


def captured(at: Rank) -> None:
    """A graph is captured beside an operation in flight; an operation in a capture is refused."""
    device, dist = start(at)
    t, x, y = (full(device, COUNT, 1.0 + at.rank) for _ in range(3))
    dist.all_reduce(x)
    device.synchronize()

    def compute() -> None:
        y.copy_(x, non_blocking=True)
        at.tell("capturing")
        time.sleep(CAPTURE_S)  # meanwhile the operation has its outcome

    if at.rank == 0:
        work = dist.all_reduce(t, async_op=True)
        try:
            replay = device.capture(compute)
        except RuntimeError as error:
            raise CheckFailedError(f"the capture was spoiled: {error}") from error
    else:
        at.hear(0, "capturing")
        work = dist.all_reduce(t, async_op=True)
    work.wait()
    expect(t, 3.0, "the all_reduce beside a capture")
    if at.rank == 0:
        y.zero_()
        replay()
        expect(y, 3.0, "what the graph computes")
        said: list[str] = []

        def call() -> None:
            y.copy_(x, non_blocking=True)
            try:
                dist.all_reduce(t)
            except RuntimeError as error:
                said.append(str(error))

        device.capture(call)
        demand(said, "an all_reduce in a capture was not refused")
        demand("captured" in said[0], f"an all_reduce in a capture raises: {said[0]}")
    dist.barrier()
    dist.all_reduce(t)
    expect(t, 6.0, "the all_reduce after a capture")
    at.note("a capture and operations go on beside each other")
    dist.destroy_process_group()
