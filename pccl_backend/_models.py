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
    mesh_dim_names: tuple[str, str] = ("replicate", "shard"),
) -> DeviceMesh:
    """Makes the mesh for `fully_shard` with replicas that come and go.

    FSDP2 reduce-scatters the gradients in the second dimension of the mesh (the ranks of this
    replica), and then averages them over the members of the elastic group, however many these are.
    The mesh has size 1 in the first dimension, and is not changed when replicas come and go.

    Args:
        group: The elastic group, of `join(url, replica=...)`; None: that of this process.
        shard: The ranks of this replica: a DeviceMesh of one dimension, or a process group; None:
            the default group.
        device_type: Device of the tensors; None: that of `shard`, else the accelerator of this
            machine, else "cpu".
        mesh_dim_names: Names of the two dimensions: replicas, ranks of a replica.

    Returns:
        A mesh of shape (1, ranks of the replica).

    Raises:
        ValueError: There is no elastic group, it is the default one, `shard` has more ranks than
            this process's replica (`join` without `replica=`: each process is a replica), or its
            mesh has several dimensions.
    """
    elastic = group_of(group).process_group
    inner: Any
    if isinstance(shard, DeviceMesh):
        if shard.ndim != 1:
            raise ValueError(f"shard has {shard.ndim} dimensions; expected 1")
        inner, device_type = shard.get_group(), device_type or shard.device_type
    else:
        inner = dist.group.WORLD if shard is None else shard
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device_type = device_type or ("cpu" if accelerator is None else accelerator.type)
    if inner is elastic:
        raise ValueError(
            "the elastic group is the default one; expected init_process_group('pccl') for the "
            "ranks of this replica, and then join(url, replica=...)"
        )
    if dist.get_world_size(inner) > talk.replica_size:
        raise ValueError(
            f"shard has {dist.get_world_size(inner)} ranks, and the replica of this process has "
            f"{talk.replica_size}; expected all ranks of shard in one replica: "
            "join(url, replica='torchrun') under torchrun or pccl-run --replica, or "
            "join(url, replica=Replica(...))"
        )
    ranks = torch.tensor([dist.get_process_group_ranks(inner)], device="cpu")
    return DeviceMesh.from_group(
        [elastic, inner], device_type, mesh=ranks, mesh_dim_names=mesh_dim_names
    )
