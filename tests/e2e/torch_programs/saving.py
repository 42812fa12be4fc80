"""Programs on state: state dicts of sharded models, checkpoints, other layouts at load."""

import unittest
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import Here, close, exact, parameters, train
from shards import CPU, sharded, texts, transformer
from torch import nn
from torch.distributed._shard import sharded_tensor, sharding_spec
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.common_fsdp import MLPStack
from torch.testing._internal.distributed.common_state_dict import VerifyStateDictMixin

FULL = StateDictOptions(full_state_dict=True)


class Verify(VerifyStateDictMixin, unittest.TestCase):
    """torch's own comparison of state dicts."""


def trained(here: Here, seed: int = 5) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded(transformer(seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches, targets = texts(here)
    train(model, batches, optimizer, targets)
    return model, optimizer


@close
def distributed_state_dicts(here: Here) -> Any:
    """Whole state dicts of a sharded model at all ranks, at rank 0, and back from there."""
    model, optimizer = trained(here)
    parts, optimizer_parts = get_state_dict(model, optimizer)
    whole = get_model_state_dict(model, options=FULL)
    optimizer_whole = get_optimizer_state_dict(model, optimizer, options=FULL)
    at_0 = get_model_state_dict(model, options=StateDictOptions(True, True))
    optimizer_at_0 = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(True, True, flatten_optimizer_state_dict=True)
    )
    assert (len(at_0) > 0) == (here.rank == 0)
    Verify()._verify_msd(whole, parts)

    other, other_optimizer = trained(here, seed=6)
    from_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, whole if here.rank == 0 else {}, options=from_0)
    set_optimizer_state_dict(
        other, other_optimizer, optimizer_whole if here.rank == 0 else {}, options=from_0
    )
    _same(parameters(other), parameters(model))
    again = get_optimizer_state_dict(other, other_optimizer, options=FULL)
    _same(again["state"], optimizer_whole["state"])
    return parts, optimizer_parts, whole, optimizer_whole, at_0, optimizer_at_0


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)


@close
def checkpoint(here: Here) -> Any:
    """Saved, and loaded by a model with other weights; then one more step gives the same."""
    folder = here.folder / "checkpoint"
    model, optimizer = trained(here)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state, "step": 2}, checkpoint_id=folder)
    files = sorted(path.name for path in folder.iterdir())

    other, other_optimizer = trained(here, seed=6)
    state, optimizer_state = get_state_dict(other, other_optimizer)
    loaded = {"model": state, "optimizer": optimizer_state, "step": 0}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    _same(parameters(other), parameters(model))
    batches, targets = texts(here, 1)
    losses = [
        train(m, batches, o, targets) for m, o in ((model, optimizer), (other, other_optimizer))
    ]
    assert losses[0] == losses[1]
    return files, loaded["step"], losses[0], parameters(other)


@close
def checkpoint_behind_the_training(here: Here) -> Any:
    """async_save: what is trained meanwhile is not in it."""
    folder = here.folder / "behind"
    model, optimizer = trained(here)
    before = parameters(model)
    saving = dcp.async_save(
        {"model": get_model_state_dict(model)},
        checkpoint_id=folder,
        process_group=dist.new_group(),  # the training goes on in the other one
    )
    batches, targets = texts(here)
    train(model, batches, optimizer, targets)
    saving.result()
    dist.barrier()
    state = get_model_state_dict(model)
    dcp.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(model, state)
    _same(parameters(model), before)
    return before


@exact
def checkpoint_in_another_layout(here: Here) -> Any:
    """Saved sharded by rows; loaded by columns, whole, in one process, and as plain tensors."""
    folder = here.folder / "layouts"
    mesh = init_device_mesh("cpu", (here.size,))
    whole = torch.arange(35.0).reshape(5, 7)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    small = torch.arange(3, dtype=torch.int16)
    dcp.save({"x": rows, "small": small, "text": "some"}, checkpoint_id=folder)
    out: list[Any] = []
    for placement in (Shard(1), Replicate(), Shard(0)):
        to = distribute_tensor(torch.zeros(5, 7), mesh, [placement])
        state = {"x": to, "small": torch.zeros_like(small), "text": ""}
        dcp.load(state, checkpoint_id=folder)
        assert torch.equal(state["x"].full_tensor(), whole)
        out.append(state)
    alone = {"x": torch.zeros(5, 7)}
    dcp.load(alone, checkpoint_id=folder, no_dist=True)
    assert torch.equal(alone["x"], whole)
    sums = DTensor.from_local(torch.ones(2), mesh, [Partial()]).redistribute(mesh, [Shard(0)])
    return out, alone, sums


@close
def fsdp1_state_dicts(here: Here) -> Any:
    """Whole at rank 0, in parts with and without a mesh; the optimizer's too; and back."""
    out: list[Any] = []
    kinds = (
        (
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(rank0_only=True),
            FullOptimStateDictConfig(rank0_only=True),
        ),
        (StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()),
        (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig()),
    )
    for mesh in (None, init_device_mesh("cpu", (here.size,))):
        torch.manual_seed(1)
        model = FullyShardedDataParallel(
            MLPStack(6), device_id=CPU, device_mesh=mesh, use_orig_params=True
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, [here.values(3, 6, salt=i) for i in range(2)], optimizer)
        for kind, config, optimizer_config in kinds:
            with FullyShardedDataParallel.state_dict_type(model, kind, config, optimizer_config):
                state = model.state_dict()
                optimizer_state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
                out += [state, optimizer_state.get("state", {})]
                if getattr(config, "rank0_only", False):
                    continue
                model.load_state_dict(state)
                optimizer.load_state_dict(
                    FullyShardedDataParallel.optim_state_dict_to_load(
                        model, optimizer, optimizer_state
                    )
                )
    return out


@exact
def sharded_tensors(here: Here) -> Any:
    """The old ones, before DTensor: gathered, and resharded."""
    rows, columns = (
        sharding_spec.ChunkShardingSpec(dim, [f"rank:{rank}/cpu" for rank in range(here.size)])
        for dim in (0, 1)
    )
    x = sharded_tensor.full(rows, (5, 4), 2.5)
    for shard in x.local_shards():
        shard.tensor.add_(here.rank)
    whole = torch.empty(5, 4) if here.rank == 0 else None
    x.gather(0, whole)
    return x, whole, x.reshard(columns)
