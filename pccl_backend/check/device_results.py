"""Results of collectives on a device, against those of the CPU; and which devices they touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .device_group import expect, full, start
from .fixed import same
from .rank import Rank, demand

TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8")
SEGMENT = 2_000_000
COUNTS = (0, 7, SEGMENT - 1, SEGMENT, SEGMENT + 1)


def results(at: Rank) -> None:
    """Every collective, type and size; tensors that are not contiguous; coalesced calls."""
    import torch

    device, dist = start(at)
    calls = _calls(dist, at.rank)
    compared = 0

    def compare(name: str, call: Callable[..., list[Any]], count: int, dtype: Any) -> None:
        nonlocal compared
        expected = call("cpu", count, dtype)
        got = call(f"{device.type}:{device.index}", count, dtype)
        for one, other in zip(got, expected, strict=True):
            demand(one.device.type == device.type, f"{name} has moved a tensor to {one.device}")
            same(one, other, f"{name} of {count} {dtype}")
        compared += 1

    for name, call in calls.items():
        for count in COUNTS:
            compare(name, call, count, torch.float32)
        for dtype in TYPES:
            compare(name, call, 1000, getattr(torch, dtype))
    compare("all_reduce", calls["all_reduce"], device.bytes_max // 4, torch.float32)
    at.note(f"{compared} collectives give the CPU's bits", compared=compared)
    dist.destroy_process_group()


def _calls(dist: Any, rank: int) -> dict[str, Callable[..., list[Any]]]:
    """Name -> a function of device, count and type that calls, and returns what was written."""
    import torch

    def values(where: str, count: int, dtype: Any, add: int = 0) -> Any:
        return (torch.arange(count) % 23 + add + 5 * rank).to(dtype).to(where)

    def all_reduce(where: str, count: int, dtype: Any) -> list[Any]:
        total, most = values(where, count, dtype), values(where, count, dtype)
        dist.all_reduce(total)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return [total, most]

    def strided(where: str, count: int, dtype: Any) -> list[Any]:
        whole = values(where, 2 * count, dtype)
        dist.all_reduce(whole.view(count, 2).t())
        wide = values(where, 2 * count, dtype).view(count, 2)
        dist.broadcast(wide[:, 1], src=1)
        return [whole, wide]

    def broadcast(where: str, count: int, dtype: Any) -> list[Any]:
        t = values(where, count, dtype)
        dist.broadcast(t, src=1)
        return [t]

    def reduce(where: str, count: int, dtype: Any) -> list[Any]:
        t = values(where, count, dtype)
        dist.reduce(t, dst=0)
        return [t]

    def all_gather(where: str, count: int, dtype: Any) -> list[Any]:
        parts = [torch.zeros(count, dtype=dtype).to(where) for _ in range(2)]
        dist.all_gather(parts, values(where, count, dtype))
        whole = torch.zeros(2 * count, dtype=dtype).to(where)
        dist.all_gather_into_tensor(whole, values(where, count, dtype))
        return [*parts, whole]

    def reduce_scatter(where: str, count: int, dtype: Any) -> list[Any]:
        out = torch.zeros(count, dtype=dtype).to(where)
        dist.reduce_scatter_tensor(out, values(where, 2 * count, dtype))
        return [out]

    def gather_scatter(where: str, count: int, dtype: Any) -> list[Any]:
        parts = [torch.zeros(count, dtype=dtype).to(where) for _ in range(2)]
        dist.gather(values(where, count, dtype), parts if rank == 0 else None, dst=0)
        got = torch.zeros(count, dtype=dtype).to(where)
        given = [values(where, count, dtype, i) for i in range(2)] if rank == 1 else None
        dist.scatter(got, given, src=1)
        return [*parts, got]

    def all_to_all(where: str, count: int, dtype: Any) -> list[Any]:
        out = torch.zeros(2 * count, dtype=dtype).to(where)
        dist.all_to_all_single(out, values(where, 2 * count, dtype))
        return [out]

    def messages(where: str, count: int, dtype: Any) -> list[Any]:
        got = torch.zeros(count, dtype=dtype).to(where)
        if rank == 0:
            dist.send(values(where, count, dtype), 1)
            dist.recv(got)  # from any
        else:
            dist.recv(got, 0)
            dist.send(values(where, count, dtype), 0)
        return [got]

    def coalesced(where: str, count: int, dtype: Any) -> list[Any]:
        tensors = [values(where, count, dtype, add) for add in range(2)]
        dist.all_reduce_coalesced(tensors)
        return tensors

    return {
        "all_reduce": all_reduce,
        "strided": strided,
        "broadcast": broadcast,
        "reduce": reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "gather and scatter": gather_scatter,
        "all_to_all": all_to_all,
        "send and recv": messages,
        "coalesced": coalesced,
    }


def one_device(at: Rank) -> None:
    """A rank whose tensors are on the last device, and that has selected none, uses that only."""
    device = at.device
    dist = at.group(device.map)
    device.index = device.count - 1
    t = full(device, 1000, 1.0 + at.rank)
    dist.all_reduce(t)
    expect(t, 3.0, f"all_reduce on device {device.index}")
    dist.all_reduce(t, async_op=True).wait()  # a future's wait() is torch's, and uses others
    expect(t, 6.0, "the second all_reduce")
    used = device.contexts()
    demand(used == [device.index], f"tensors were on device {device.index}; it has used {used}")
    at.note(devices=device.count)
    dist.destroy_process_group()
