"""Meshes for models that are spread over a replica and reduce with the other replicas."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ._group import ElasticGroup
from ._group import group as group_of
from ._session import talk


def hsdp_mesh(
    group: dist.ProcessGroup | ElasticGroup | None = None,
    shard: DeviceMesh | dist.ProcessGroup | None = None,
    *,
    device_type: str | None = None,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> DeviceMesh:
    """Makes the mesh for `fully_shard` with replicas that come and go.

    FSDP2 reduce-scatters the gradients in the second dimension of the mesh (the ranks of this
    replica), and then averages them over the members of the elastic group, however many these are.
    The mesh has size 1 in the first dimension, and is not changed when replicas come and go.

    Where a replica divides its ranks further, `shard` is the mesh that its program makes of them,
    ("shard", "tp") for example: `fully_shard` takes mesh["replicate", "shard"], and
    `parallelize_module` mesh["tp"], of the mesh that this returns.

    Args:
        group: The elastic group, of `join(url, replica=...)`; None: that of this process.
        shard: The ranks of this replica: a DeviceMesh, or a process group; None: the default
            group.
        device_type: Device of the tensors; None: that of `shard`, else the accelerator of this
            machine, else "cpu".
        mesh_dim_names: Names of all dimensions, that of the replicas first; None: ("replicate",
            "shard"), or "replicate" and the names of `shard`'s dimensions if these are several.

    Returns:
        A mesh of shape (1, ranks of the replica), or (1, *shape of `shard`).

    Raises:
        ValueError: There is no elastic group, it is the default one, `shard` has more ranks than
            this process's replica (`join` without `replica=`: each process is a replica), or
            names are missing.
    """
    elastic = group_of(group).process_group
    inner: list[Any]
    names: tuple[str, ...] = ("shard",)
    if isinstance(shard, DeviceMesh):
        inner = shard.get_all_groups()
        ranks = shard.mesh.cpu()
        device_type = device_type or shard.device_type
        if shard.ndim > 1:
            names = shard.mesh_dim_names or ()
    else:
        inner = [dist.group.WORLD if shard is None else shard]
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device_type = device_type or ("cpu" if accelerator is None else accelerator.type)
        ranks = torch.tensor(dist.get_process_group_ranks(inner[0]), device="cpu")
    if elastic in inner:
        raise ValueError(
            "the elastic group is the default one; expected init_process_group('pccl') for the "
            "ranks of this replica, and then join(url, replica=...)"
        )
    if ranks.numel() > talk.replica_size:
        raise ValueError(
            f"shard has {ranks.numel()} ranks, and the replica of this process has "
            f"{talk.replica_size}; expected all ranks of shard in one replica: "
            "join(url, replica='torchrun') under torchrun or pccl-run --replica, or "
            "join(url, replica=Replica(...))"
        )
    names = mesh_dim_names or ("replicate", *names)
    if len(names) != 1 + len(inner):
        raise ValueError(
            f"mesh_dim_names is {names!r} for {1 + len(inner)} dimensions; expected a name for "
            "each, that of the replicas first"
        )
    return DeviceMesh.from_group(
        [elastic, *inner], device_type, mesh=ranks.unsqueeze(0), mesh_dim_names=names
    )
