"""Programs of four ranks in a grid: HSDP, FSDP over tensor parallel, experts, 2-D DTensor."""

import itertools
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import Here, close, exact, own, parameters, train
from shards import CPU, sharded, texts, transformer
from torch import nn
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.testing._internal.common_fsdp import MLPStack
from torch.testing._internal.distributed._tensor.common_dtensor import Transformer

FULL = StateDictOptions(full_state_dict=True)


def grid(*names: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


@exact
def groups_of_a_grid(here: Here) -> Any:
    mesh = grid("row", "column")
    meshes = [mesh["row"], mesh["column"], mesh._flatten("all"), mesh["row", "column"]["column"]]
    out: list[Any] = [mesh.get_coordinate(), mesh["row"].get_local_rank()]
    subgroup, _ = dist.new_subgroups(2)
    enumerated, _ = dist.new_subgroups_by_enumeration([[0, 3], [2, 1]])
    for group in [each.get_group() for each in meshes] + [subgroup, enumerated]:
        t = torch.tensor([1 << here.rank])
        dist.all_reduce(t, group=group)
        gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
        dist.all_gather(gathered, torch.tensor([here.rank]), group=group)
        out.append([t, gathered, dist.get_process_group_ranks(group)])
    return out


@close
def dtensor_on_a_grid(here: Here) -> Any:
    mesh = grid("row", "column")
    single: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    layouts = list(itertools.product(single, single))
    out = []
    for source in layouts:
        x = distribute_tensor(here.values(5, 6, rank=0), mesh, source)
        for target in layouts[1::2]:
            out.append(x.redistribute(mesh, target).to_local())
        out.append(x.full_tensor())
    y = DTensor.from_local(here.values(4, 4), mesh, [Partial("max"), Partial("max")])
    out += [y.redistribute(mesh, target).to_local() for target in layouts]
    return out


@close
def hsdp(here: Here) -> Any:
    """FSDP2 with replicas of shards; with and without the reduction between replicas."""
    mesh = grid("replicate", "shard")
    batches, targets = texts(here, 3)
    model = sharded(transformer(), mesh=mesh)
    out: list[Any] = [train(model, batches, targets=targets), parameters(model)]
    model.set_requires_all_reduce(False)
    model(batches[0]).square().mean().backward()
    model.set_requires_all_reduce(True)
    model(batches[1]).square().mean().backward()
    out.append({n: own(p.grad) for n, p in model.named_parameters()})
    out.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor())
    return out


@close
def shards_of_tensor_parallel_models(here: Here) -> Any:
    """FSDP2 over tensor parallel with uneven parts; its checkpoint is loaded by FSDP2 alone."""
    mesh = grid("data", "tensor")
    torch.manual_seed(3)
    model = MLPStack(6, with_seq_parallel=True)
    model.parallelize(mesh["tensor"], mesh["data"], True, reshard_after_forward=True)
    row = mesh["data"].get_local_rank()
    losses = train(model, [here.values(2, 4, 6, rank=row, salt=i) for i in range(2)])
    folder = here.folder / "grid"
    whole = get_model_state_dict(model, options=FULL)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)

    torch.manual_seed(4)
    other = fully_shard(MLPStack(6, with_seq_parallel=True), mesh=mesh._flatten("all"))
    state = get_model_state_dict(other)
    dcp.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(other, state)
    loaded = get_model_state_dict(other, options=FULL)
    for name, tensor in whole.items():
        assert torch.equal(tensor, loaded[name])
    return losses, parameters(model), whole


@close
def experts_on_a_grid(here: Here) -> Any:
    mesh = grid("expert", "tensor")
    model = Transformer.parallelize(
        transformer(num_experts=4), mesh["tensor"], False, True, mesh["expert"]
    )
    tokens = torch.arange(16).reshape(2, 8) % 8
    return train(model, [tokens] * 2, targets=[tokens.roll(1, 1)] * 2), parameters(model)


@close
def fsdp1_hybrid(here: Here) -> Any:
    out: list[Any] = []
    for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        torch.manual_seed(1)
        model = FullyShardedDataParallel(
            MLPStack(6),
            device_mesh=grid("replicate", "shard"),
            sharding_strategy=strategy,
            device_id=CPU,
        )
        losses = train(model, [here.values(3, 6, salt=i) for i in range(2)])
        out += [losses, parameters(model)]
    return out


@close
def averaged_models_in_two_levels(here: Here) -> Any:
    torch.manual_seed(here.rank)
    model = nn.Linear(4, 3)
    averager = HierarchicalModelAverager({2: 2, 4: 4}, warmup_steps=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for i in range(4):
        out += train(model, [here.values(5, 4, salt=i)], optimizer)
        averager.average_parameters(model.parameters())
    return out, parameters(model)
