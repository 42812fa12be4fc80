"""Figures for the report, which no limit judges; and a long random mix, which must hold."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable
from typing import Any

from .device_group import Late, event_of_now, expect, full, holding, start
from .plan import SOAK
from .rank import Rank, demand

REPEATS = 5
PINNED_COUNT = 1 << 24
MATRIX = 1024
PRODUCTS = 20
LEAK_BYTES = 64 << 20
STALL_S = 0.2
ROUNDS_MIN = 3  # of 20 operations
STALL_ONE_IN = 10


def _median_s(call: Callable[[], Any], device: Any) -> float:
    times = []
    for _ in range(REPEATS):
        device.synchronize()
        began = time.perf_counter()
        call()
        device.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times)[REPEATS // 2]


def speed(at: Rank) -> None:
    """Times of all_reduce, rates of copies, and what a hold costs a rank on the same device."""
    device, dist = start(at)
    for size in device.speed_bytes:
        t = full(device, size // 4, 1.0)
        dist.all_reduce(t)
        seconds = _median_s(lambda t=t: dist.all_reduce(t), device)  # type: ignore[misc]
        at.note(**{f"all_reduce_{size}_bytes_ms": round(1000 * seconds, 3)})
    t, host = full(device, PINNED_COUNT, 1.0), device.pinned(PINNED_COUNT)
    for name, copy in {
        "to_device": lambda: t.copy_(host, non_blocking=True),
        "to_host": lambda: host.copy_(t, non_blocking=True),
    }.items():
        rate = 4 * PINNED_COUNT / _median_s(copy, device) / 1e9
        at.note(**{f"pinned_{name}_gb_per_s": round(rate, 2)})
    if holding():
        _beside_a_hold(at, device, dist)
    at.note("figures are in the report")
    dist.barrier()
    dist.destroy_process_group()


def _beside_a_hold(at: Rank, device: Any, dist: Any) -> None:
    """Products of matrices of rank 1: alone, and while rank 0 holds its stream."""
    a = full(device, MATRIX * MATRIX, 1.0).view(MATRIX, MATRIX)
    t = full(device, 1000, 1.0 + at.rank)

    def products() -> None:
        for _ in range(PRODUCTS):
            a @ a

    times = []

    def call() -> Any:
        if at.rank == 1:
            times.append(_median_s(products, device))
        return dist.all_reduce(t, async_op=True)

    products()
    alone = _median_s(products, device)
    Late(at)(call, lambda: None)
    device.synchronize()
    if at.rank == 1:
        at.note(matmul_alone_ms=round(1000 * alone, 2))
        at.note(matmul_beside_a_hold_ms=round(1000 * times[0], 2))


def soak(at: Rank) -> None:
    """Calls by chance, the same at both ranks, with pauses by chance that are not."""
    import torch

    seconds = float(os.environ[SOAK])
    device, dist = start(at)
    where = torch.device(device.type, device.index)
    same, own = random.Random(1), random.Random(2 + at.rank)
    streams = [torch.Stream(device=where) for _ in range(40)]
    done, rounds, base = 0, 0, 0
    began = time.monotonic()
    go_on = torch.ones(1)  # on the CPU: both ranks end together
    while go_on.item() > 0:
        for _ in range(20):
            if own.randrange(STALL_ONE_IN) == 0:
                time.sleep(own.random() * STALL_S)
            _one_of_many(same, at, device, dist, streams)
            done += 1
        rounds += 1
        device.synchronize()
        gc.collect()
        now = sum(device.memory()[name] for name in ("device", "pinned"))
        passed = time.monotonic() - began
        if rounds == 1 or passed < seconds / 4:
            base = now
        demand(now < base + LEAK_BYTES, f"{now - base >> 20} MiB more than after {passed:.0f} s")
        go_on.fill_(1.0 if passed < seconds or rounds < ROUNDS_MIN else 0.0)
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
    at.note(f"{done} operations in {seconds:.0f} s", operations=done)
    dist.destroy_process_group()


def _one_of_many(same: random.Random, at: Rank, device: Any, dist: Any, streams: list[Any]) -> None:
    """One thing that a program does; both ranks have drawn the same."""
    import torch

    what = same.randrange(6)
    count = same.choice((1, 1000, 100_000, 1_000_000))
    t = full(device, count, 0.0)
    device.fill_later(t, 1.0 + at.rank, same.choice((0.0, 0.02)))
    if what == 0:
        dist.all_reduce(t)
    elif what == 1:  # none waited for but the last
        works = [dist.all_reduce(t, op=dist.ReduceOp.MAX, async_op=True) for _ in range(3)]
        works[-1].wait()
        dist.all_reduce(t)
    elif what == 2:
        whole = torch.empty(2 * count, device=t.device)
        dist.all_gather_into_tensor(whole, t)
        dist.reduce_scatter_tensor(t, whole)
        t = t if at.rank == 1 else t + 2  # 2 of rank 0's part, 4 of rank 1's
        expect(t, 4.0, "gather and scatter")
        return
    elif what == 3:
        dist.all_reduce_coalesced([t, full(device, 10, 1.0)])
    elif what == 4:
        whole = torch.empty(2 * count, device=t.device).view(count, 2)
        whole.fill_(1.0 + at.rank)
        dist.all_reduce(whole[:, 0])
        t = whole[:, 0]
    else:
        dist.all_reduce(t, async_op=True).wait()
        event = event_of_now()
        copies = []
        for stream in streams:
            with stream:
                stream.wait_event(event)
                copies.append(t.to("cpu", non_blocking=True))
        device.synchronize()
        for copy in copies[::8]:
            expect(copy, 3.0, "a copy of a side stream")
    expect(t, 4.0 if what == 1 else 3.0, f"operation {what} of {count}")
