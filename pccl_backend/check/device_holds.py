"""A held stream, and what a program does behind it: nothing of that may keep the hold from ending.

The hold of rank 0 ends when rank 1 has come and the result was copied back. A driver that makes the
copy wait for something that waits for the hold makes that a hang, which the limit ends.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from .device_group import Late, event_of_now, expect, full, start
from .rank import Rank, demand

COUNT = 100_000
LATE_S = 1.0
ENDS_S = 10.0
STREAMS, COPYING_STREAMS = 64, 40
COPY_COUNT = 1_000_000


def _released(at: Rank, name: str, began: float) -> None:
    seconds = time.monotonic() - began
    demand(seconds < ENDS_S + LATE_S, f"{name} ended after {seconds:.1f} s")
    at.note(**{f"{name}_s": round(seconds, 2)})


def launches(at: Rank) -> None:
    """More launches than a queue takes, by one thread and by two."""
    device, dist = start(at)
    t, other, third = (full(device, COUNT, 1.0 + at.rank) for _ in range(3))
    late = Late(at)

    def one() -> None:
        began = time.monotonic()
        device.launch(other, device.launches)
        device.synchronize()
        _released(at, "launches_of_one_thread", began)

    def two() -> None:
        began = time.monotonic()
        threads = [
            threading.Thread(target=device.launch, args=(tensor, device.launches // 2))
            for tensor in (other, third)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        device.synchronize()
        _released(at, "launches_of_two_threads", began)

    for meanwhile, value in ((one, 3.0), (two, 6.0)):
        late(lambda: dist.all_reduce(t, async_op=True), meanwhile, late_s=LATE_S)
        expect(t, value, "the held all_reduce")
    at.note(f"{device.launches} launches wait behind a hold")
    dist.destroy_process_group()


def calls(at: Rank) -> None:
    """Calls that wait for the device, or allocate, while a stream is held."""
    device, dist = start(at)
    late = Late(at)
    t = full(device, COUNT, 1.0 + at.rank)
    value = 1.0
    for name, call in device.slow_calls(t).items():

        def meanwhile(name: str = name, call: Any = call) -> None:
            began = time.monotonic()
            call()
            device.synchronize()
            _released(at, name.replace(" ", "_"), began)

        late(lambda: dist.all_reduce(t, async_op=True), meanwhile)
        value = 3.0 if value == 1.0 else 2 * value
        expect(t, value, f"the all_reduce that was held during {name}")
    dist.destroy_process_group()


def copies(at: Rank) -> None:
    """Streams that wait for the held one, with copies both ways behind that."""
    import torch

    device, dist = start(at)
    t = full(device, COUNT, 1.0 + at.rank)
    host = [device.pinned(COPY_COUNT) for _ in range(COPYING_STREAMS)]
    there = [full(device, COPY_COUNT, 0.0) for _ in range(COPYING_STREAMS)]
    where = torch.device(device.type, device.index)
    streams = [torch.Stream(device=where) for _ in range(COPYING_STREAMS)]

    def meanwhile() -> None:
        began = time.monotonic()
        event = event_of_now()
        for index, stream in enumerate(streams):
            with stream:
                if index % 2 == 0:  # the others copy beside the hold
                    stream.wait_event(event)
                host[index].fill_(float(index))
                there[index].copy_(host[index], non_blocking=True)
                host[index].copy_(there[index], non_blocking=True)
        device.synchronize()
        _released(at, f"copies_of_{COPYING_STREAMS}_streams", began)
        for index, got in enumerate(host):
            demand(bool((got == index).all()), f"stream {index} has copied something else")

    Late(at)(lambda: dist.all_reduce(t, async_op=True), meanwhile, late_s=LATE_S)
    expect(t, 3.0, "the held all_reduce")
    dist.destroy_process_group()


def streams(at: Rank) -> None:
    """As many streams as a pool has, and more, each waiting for the held one."""
    device, dist = start(at)
    t = full(device, COUNT, 1.0 + at.rank)
    dist.all_reduce(t)

    def meanwhile() -> None:
        began = time.monotonic()
        event = event_of_now()
        many = device.streams(STREAMS)
        for stream in many:
            stream.wait_event(event)
        device.synchronize()
        _released(at, f"{len(many)}_waiting_streams", began)

    Late(at)(lambda: dist.all_reduce(t, async_op=True), meanwhile, late_s=LATE_S)
    expect(t, 6.0, "the held all_reduce")
    dist.destroy_process_group()
