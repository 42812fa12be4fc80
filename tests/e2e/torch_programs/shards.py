"""Programs that cut a model into parts: FSDP2, FSDP1, tensor parallel, experts, pipelines."""

from typing import Any

import torch
import torch.distributed as dist
from common import Here, close, gradients, own, parameters, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import (
    DEVICEInitMode,
    FSDPInitMode,
    FSDPTestMixin,
    MLPStack,
    check_sharded_parity,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed._tensor.common_dtensor import (
    MLPModule,
    ModelArgs,
    Transformer,
)

CPU = torch.device("cpu")


def transformer(*, seed: int = 5, **options: Any) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ModelArgs(dropout_p=0.0, **options))


def sharded(model: Transformer, **options: Any) -> Transformer:
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def texts(here: Here, count: int = 2) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Batches and targets, two of each rank."""
    batches = [here.tokens(2, 8, below=8, salt=i) for i in range(count)]
    return batches, [batch.roll(-1, 1) for batch in batches]


@close
def fsdp2(here: Here) -> Any:
    """Losses and parts with several policies; the plain one against DDP."""
    mesh = init_device_mesh("cpu", (here.size,))
    batches, targets = texts(here)
    policies: list[dict[str, Any]] = [
        {"reshard_after_forward": True},
        {"reshard_after_forward": False},
        {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        {"mp_policy": MixedPrecisionPolicy(torch.float16, torch.float16)},
        {"shard_placement_fn": lambda p: Shard(p.ndim - 1) if p.shape[-1] % 2 == 0 else Shard(0)},
    ]
    out: list[Any] = []
    for policy in policies:
        model = sharded(transformer(weight_tying=False), mesh=mesh, **policy)
        losses = train(model, batches, targets=targets)
        out += [losses, parameters(model), [str(p.placements) for p in model.parameters()]]
    reference = nn.parallel.DistributedDataParallel(transformer(weight_tying=False))
    train(reference, batches, targets=targets)
    model = sharded(transformer(weight_tying=False), mesh=mesh)
    train(model, batches, targets=targets)
    check_sharded_parity(TestCase(), reference.module, model)
    return out


@close
def fsdp2_accumulates_clips_and_reduces_twice(here: Here) -> Any:
    """Uneven parts, gradients of two batches, a hook behind reduce-scatter, total norm."""
    torch.manual_seed(1)
    model = MLPStack(7)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    model(here.values(3, 7)).sum().backward()
    model.set_requires_gradient_sync(True)
    model(here.values(3, 7, salt=1)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    clipped = gradients(model)
    model.zero_grad()
    model.set_all_reduce_hook(lambda t: dist.all_reduce(t, op=dist.ReduceOp.MAX))
    model.set_force_sum_reduction_for_comms(True)
    model(here.values(3, 7)).sum().backward()
    handle = model.unshard(async_op=True)
    assert handle is not None
    handle.wait()
    whole = [p.detach().clone() for p in model[0].parameters()]
    model.reshard()
    return clipped, norm.full_tensor(), gradients(model), whole


@close
def fsdp2_with_checkpointed_activations(here: Here) -> Any:
    batches, targets = texts(here)
    model = sharded(transformer(checkpoint_activations=True))
    return train(model, batches, targets=targets), parameters(model)


class Parity(FSDPTestMixin, TestCase):
    """torch's own comparison of FSDP1 with DDP."""

    process_group: Any = None


@close
def fsdp1(here: Here) -> Any:
    parity = Parity()
    parity.process_group = here.group
    count = 0
    for model in (common_fsdp.NestedWrappedModule, common_fsdp.TransformerWithSharedParams):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
            parity._test_fsdp_parity(
                model,
                FSDPInitMode.RECURSIVE,
                DEVICEInitMode.DEVICE_BEFORE,
                sharding_strategy=strategy,
                use_orig_params=strategy is ShardingStrategy.FULL_SHARD,
                device_id=CPU,
            )
            count += 1
    return count


@close
def tensor_parallel(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    plan = {
        "net1": ColwiseParallel(input_layouts=Shard(0)),
        "net2": RowwiseParallel(output_layouts=Shard(0)),
    }
    model = parallelize_module(MLPModule("cpu"), mesh, plan)
    out: list[Any] = [train(model, [here.values(4, 10, salt=i) for i in range(3)])]
    out.append(parameters(model))
    tokens = torch.arange(16).reshape(2, 8) % 8
    for sequences in (False, True):
        model = Transformer.parallelize(transformer(), mesh, sequences, True)
        out += [train(model, [tokens] * 2, targets=[tokens.roll(1, 1)] * 2), parameters(model)]
    return out


@close
def parallel_loss(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    torch.manual_seed(2)
    model = parallelize_module(nn.Linear(6, 8), mesh, plan)
    with loss_parallel():
        logits = model(here.values(5, 6, rank=0))
        loss = nn.functional.cross_entropy(logits, torch.arange(5))
        loss.backward()
    return own(loss), gradients(model)


@close
def experts(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    model = Transformer.parallelize(transformer(num_experts=4), None, False, ep_mesh=mesh)
    batches, targets = texts(here)
    return train(model, batches, targets=targets), parameters(model)


@close
def pipelines(here: Here) -> Any:
    """GPipe and 1F1B with one stage a rank, interleaved 1F1B with two."""

    def stages(count: int) -> list[nn.Module]:
        torch.manual_seed(4)
        return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean()

    x, target = here.values(8, 6, rank=0), here.values(8, 6, rank=1)
    out: list[Any] = []
    for schedule_class in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
        per_rank = 2 if schedule_class is ScheduleInterleaved1F1B else 1
        total = per_rank * here.size
        mine = {i: stages(total)[i] for i in range(here.rank, total, here.size)}
        built = [PipelineStage(module, i, total, CPU) for i, module in mine.items()]
        schedule = schedule_class(
            built if per_rank > 1 else built[0], n_microbatches=4, loss_fn=loss_of
        )
        losses: list[torch.Tensor] = []
        first = [x] if here.rank == 0 else []
        last = {"target": target, "losses": losses} if here.rank == here.size - 1 else {}
        result = schedule.step(*first, **last)
        out += [losses, result, {str(i): gradients(module) for i, module in mine.items()}]
    return out


@close
def tied_weights_stay_replicated(here: Here) -> Any:
    """A plan that leaves a layer whole: its gradient is what every rank has computed."""
    mesh = init_device_mesh("cpu", (here.size,))
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = {"0": ColwiseParallel(output_layouts=Replicate())}
    model = parallelize_module(model, mesh, plan)
    model(here.values(3, 4, rank=0)).sum().backward()
    return gradients(model)
