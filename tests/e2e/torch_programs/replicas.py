"""Programs that hold whole replicas: DDP and its hooks, uneven inputs, ZeRO-1, averaged models."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import Here, close, gradients, parameters, train
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_fsdp import DoubleLinear


def perceptron(here: Here, *, norm: bool = False) -> nn.Module:
    """Differs between ranks: DDP makes the replicas equal."""
    torch.manual_seed(3 + here.rank)
    middle = nn.BatchNorm1d(24) if norm else nn.ReLU()
    return nn.Sequential(nn.Linear(10, 24), middle, nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))


def batches(here: Here, count: int = 4) -> list[torch.Tensor]:
    return [here.values(8, 10, salt=i) for i in range(count)]


@close
def ddp_options(here: Here) -> Any:
    out: list[Any] = []
    options: list[dict[str, Any]] = [
        {"bucket_cap_mb": 0.001},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        {"find_unused_parameters": True},
    ]
    for each in options:
        model = DistributedDataParallel(perceptron(here, norm=True), **each)
        losses = train(model, batches(here))
        out += [losses, parameters(model), list(model.buffers())]
    return out


@close
def ddp_without_sync_and_with_unused_parameters(here: Here) -> Any:
    model = DistributedDataParallel(perceptron(here))
    with model.no_sync():
        model(here.values(8, 10)).sum().backward()
    alone = gradients(model)
    model(here.values(8, 10, salt=1)).sum().backward()
    torch.manual_seed(here.rank)
    unused = DistributedDataParallel(
        DoubleLinear(6, use_second_linear=False), find_unused_parameters=True
    )
    losses = train(unused, [here.values(4, 6, salt=i) for i in range(3)])
    return alone, gradients(model), losses, parameters(unused)


Registers = Callable[[DistributedDataParallel], None]


def hooks(here: Here) -> dict[str, Registers]:
    def powers(**options: Any) -> power_sgd.PowerSGDState:
        return power_sgd.PowerSGDState(
            here.group, start_powerSGD_iter=2, min_compression_rate=1, **options
        )

    def local(model: DistributedDataParallel) -> None:
        state = local_sgd.PostLocalSGDState(here.group, here.group, start_localSGD_iter=2)
        model.register_comm_hook(state, local_sgd.post_localSGD_hook)

    registers: dict[str, Registers] = {"local SGD": local}
    for name, state, hook in (
        ("all_reduce", here.group, default_hooks.allreduce_hook),
        ("float16", here.group, default_hooks.fp16_compress_hook),
        ("powerSGD", powers(), power_sgd.powerSGD_hook),
        (
            "powerSGD in float16",
            powers(matrix_approximation_rank=2),
            default_hooks.fp16_compress_wrapper(power_sgd.powerSGD_hook),
        ),
    ):
        registers[name] = lambda m, s=state, h=hook: m.register_comm_hook(s, h)
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        registers[f"C++ {kind}"] = lambda m, k=kind: m._register_builtin_comm_hook(k)
    return registers


@close
def ddp_hooks(here: Here) -> Any:
    out = {}
    for name, register in hooks(here).items():
        model = DistributedDataParallel(perceptron(here))
        register(model)
        out[name] = [train(model, batches(here)), parameters(model)]
    return out


@close
def composable_replicate(here: Here) -> Any:
    model = perceptron(here)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    replicate(model)
    return train(model, batches(here)), parameters(model)


@close
def uneven_inputs(here: Here) -> Any:
    """Rank 0 has two batches, rank 1 five; with ZeRO-1 too; and the early end."""
    out: list[Any] = []
    for zero in (False, True):
        model = DistributedDataParallel(perceptron(here))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        joined: list[Any] = [model]
        if zero:
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1
            )
            joined.append(optimizer)
        with Join(joined):
            losses = train(model, batches(here, 2 + 3 * here.rank), optimizer)
        out += [losses, parameters(model)]
    model = DistributedDataParallel(perceptron(here))
    ended = None
    try:
        with model.join(throw_on_early_termination=True):
            train(model, batches(here, 2 + here.rank))
    except RuntimeError as error:
        ended = str(error)
    return out, ended


@close
def zero_1(here: Here) -> Any:
    out: list[Any] = []
    for view in (False, True):
        model = DistributedDataParallel(perceptron(here), gradient_as_bucket_view=view)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.Adam,
            parameters_as_bucket_view=view,
            lr=0.01,
        )
        losses = train(model, batches(here), optimizer)
        optimizer.consolidate_state_dict(to=1)
        state = optimizer.state_dict()["state"] if here.rank == 1 else {}
        out += [losses, parameters(model), state]
    return out


@close
def averaged_models(here: Here) -> Any:
    out: list[Any] = []
    model = perceptron(here)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    out += [train(model, batches(here, 5), optimizer), parameters(model)]
    return out
