"""What programs that were written for other backends do with groups and devices."""

from __future__ import annotations

import time
from typing import Any

from .device_group import expect, full, start
from .rank import Rank, demand

COUNT = 100_000
KERNEL_S = 1.0


def device_id(at: Rank) -> None:
    """A group with a device_id: groups of some ranks, a mesh, objects, a barrier that waits."""
    import torch

    at.device.select()
    where = torch.device(at.device.type, at.device.index)
    device, dist = start(at, device_id=where)
    t = full(device, COUNT, 1.0 + at.rank)
    only = dist.new_group([0])
    if at.rank == 0:
        dist.all_reduce(t, group=only)
    dist.all_reduce(t)
    expect(t, 3.0, "all_reduce after new_group of one rank")
    # After new_group of some ranks torch names split groups differently at different ranks.
    both = dist.split_group(split_ranks=[[0, 1]])
    dist.all_reduce(t, group=both)
    expect(t, 6.0, "all_reduce in a split group")
    mesh = _mesh(device)
    dist.all_reduce(t, group=mesh.get_group())
    expect(t, 12.0, "all_reduce in a mesh")
    _objects(at, dist)
    device.fill_later(t, 1.0 + at.rank, KERNEL_S)
    began = time.monotonic()
    work = dist.all_reduce(t, async_op=True)
    dist.barrier()
    seconds = time.monotonic() - began
    demand(seconds > KERNEL_S / 2, f"barrier() passed an open all_reduce after {seconds:.2f} s")
    work.wait()
    expect(t, 3.0, "all_reduce before a barrier")
    dist.destroy_process_group()


def _mesh(device: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (2,))


def _objects(at: Rank, dist: Any) -> None:
    things: list[Any] = [None, None]
    dist.all_gather_object(things, {"rank": at.rank})
    demand(things == [{"rank": 0}, {"rank": 1}], f"all_gather_object gives {things}")
    given = [{"of": at.rank}, "a text"]
    dist.broadcast_object_list(given, src=1)
    demand(given == [{"of": 1}, "a text"], f"broadcast_object_list gives {given}")


def device_alone(at: Rank) -> None:
    """A map of backends that names the device only: objects go through it."""
    device, dist = start(at, f"{at.device.type}:pccl")
    t = full(device, COUNT, 1.0 + at.rank)
    dist.all_reduce(t)
    expect(t, 3.0, "all_reduce")
    _objects(at, dist)
    dist.destroy_process_group()


def beside_gloo(at: Rank) -> None:
    """CPU tensors go to gloo, those of the device to pccl."""
    import torch

    device, dist = start(at, f"cpu:gloo,{at.device.type}:pccl")
    t, host = full(device, COUNT, 1.0 + at.rank), torch.full((COUNT,), 1.0 + at.rank)
    dist.all_reduce(t)
    dist.all_reduce(host)
    expect(t, 3.0, "all_reduce of the device")
    expect(host, 3.0, "all_reduce of the CPU")
    name = dist.group.WORLD._get_backend(torch.device(device.type)).name()
    demand(name == "pccl", f"tensors of the device go to {name}")
    dist.barrier()
    dist.destroy_process_group()
