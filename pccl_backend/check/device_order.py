"""The environment of a GPU, the order of what is queued, and what is used for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .._config import launches_block
from .device_group import Late, event_of_now, expect, full, holding, start
from .rank import Rank, demand

COUNT = 2_000_000
KERNEL_S = 0.3
ROUNDS = 3


def environment(at: Rank) -> None:
    """Which device it is, and what speaks against holding its streams."""
    found = at.device.properties()
    for reason in at.device.hazards():
        at.unsafe(reason)
    at.note(f"{found['gpus']} x {found['gpu']}", **found)


def order(at: Rank) -> None:
    """A long kernel, an operation, wait(), and readers on two streams: each after the other."""
    import torch

    device, dist = start(at)
    t, seen, beside = (full(device, COUNT, 0.0) for _ in range(3))
    dist.all_reduce(t)
    side = torch.Stream(device=torch.device(device.type, device.index))
    ran_ahead = 0
    cpu = time.process_time()
    for index in range(ROUNDS):
        began = time.monotonic()
        device.fill_later(t, 3.0 + at.rank, KERNEL_S)
        dist.all_reduce(t, async_op=True).wait()
        ran_ahead += time.monotonic() - began < KERNEL_S / 2
        event = event_of_now()
        with side:
            side.wait_event(event)
            beside.copy_(t, non_blocking=True)
            event = event_of_now()
        seen.copy_(t, non_blocking=True)
        torch.accelerator.current_stream().wait_event(event)
        device.fill_later(t, 100.0, 0)
        expect(seen, 7.0, f"a reader behind wait(), round {index}")
        expect(beside, 7.0, f"a reader on another stream, round {index}")
        expect(t, 100.0, f"a writer behind wait(), round {index}")
    cpu_s = time.process_time() - cpu
    held = holding() and not launches_block()
    demand(ran_ahead or not held, "wait() held the CPU: no stream was held")
    demand(held or not ran_ahead, "wait() returned before the operation had its outcome")
    for _ in range(ROUNDS):  # on the same memory, none waited for but the last
        device.fill_later(t, 1.0 + at.rank, 0.05)
        for _ in range(3):
            work = dist.all_reduce(t, async_op=True)
        work.wait()
        expect(t, 12.0, "three operations on one tensor")
    _futures(at, device, dist)
    at.note("streams are held in order" if held else "", cpu_s_of_waits=round(cpu_s, 3))
    dist.destroy_process_group()


def _futures(at: Rank, device: Any, dist: Any) -> None:
    """What follows a future follows the copy back, whichever way the future was made."""
    import torch

    t, seen = full(device, COUNT, 0.0), full(device, COUNT, 0.0)

    def begin() -> Any:
        device.fill_later(t, 1.0 + at.rank, KERNEL_S)
        return dist.all_reduce(t, async_op=True).get_future()

    def coalesced() -> Any:
        backend = dist.group.WORLD._get_backend(torch.device(device.type))
        device.fill_later(t, 1.0 + at.rank, KERNEL_S)
        backend._start_coalescing()
        backend.allreduce([t], dist.AllreduceOptions())
        return backend._end_coalescing().get_future()

    ways: dict[str, Callable[[], Any]] = {
        "a future": begin,
        "a future's callback": lambda: begin().then(lambda done: done.value()[0]),
        "the future of coalesced calls": coalesced,
    }
    for name, make in ways.items():
        make().wait()
        seen.copy_(t, non_blocking=True)
        expect(seen, 3.0, f"what follows {name}")


def first_use(at: Rank) -> None:
    """The first operations of a process, and kernels that it has not loaded, beside a hold."""
    device, dist = start(at)
    t = full(device, 4096, 1.0 + at.rank)
    other = full(device, 4096, 0.25)
    strided = full(device, 600, 1.0 + at.rank).view(20, 30).t()
    several = [full(device, count, 1.0 + at.rank) for count in (5, 50)]
    Late(at)(lambda: dist.all_reduce(t, async_op=True), lambda: device.first_use(other))
    dist.all_reduce(strided)
    dist.all_reduce_coalesced(several)
    for name, got in {"a tensor": t, "a strided one": strided, "a small one": several[0]}.items():
        expect(got, 3.0, f"the first all_reduce of {name}")
    dist.destroy_process_group()
