"""What `elastic` refuses and warns of: models and optimizers with which members diverge."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ._group import ElasticGroup
from ._sampler import ElasticSampler

_log = logging.getLogger("pccl")


def check_optimizers(model: nn.Module, optimizers: list[Any]) -> None:
    if not optimizers:
        raise ValueError("there is no optimizer; expected one at least")
    known = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"{type(optimizer).__name__} is no torch.optim.Optimizer")
        if _is_divided(optimizer):
            raise ValueError(
                f"{type(optimizer).__name__} divides its state among the ranks that were there "
                "when it was made, and a lost one takes its part along; expected an optimizer that "
                "each member has whole, or FSDP2 over hsdp_mesh(pg)"
            )
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"{type(optimizer).__name__} has parameters that are not the model's; expected an "
                "optimizer made of model.parameters(), after fully_shard where that is used"
            )


def unscheduled(
    optimizers: Sequence[torch.optim.Optimizer], state: Mapping[str, Any]
) -> list[torch.optim.Optimizer]:
    """The optimizers of which nothing in `state` may be the scheduler."""
    others = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, ElasticSampler)
    objects = [p for p in state.values() if hasattr(p, "state_dict") and not isinstance(p, others)]
    schedulers = [p for p in objects if isinstance(p, torch.optim.lr_scheduler.LRScheduler)]
    if len(schedulers) < len(objects):  # an object of the program's own may hold them all
        return []
    return [o for o in optimizers if all(p.optimizer is not o for p in schedulers)]


def warn_of_scheduler(optimizer: torch.optim.Optimizer) -> None:
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        _log.warning(
            "%s has a learning rate scheduler, and the state of elastic does not: a newcomer's "
            "begins anew, with other learning rates than those of the members, whose model is then "
            'another one; expected elastic(..., state={"scheduler": scheduler})',
            type(optimizer).__name__,
        )


def _is_divided(optimizer: Any) -> bool:
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer)


def check_ddp(model: DistributedDataParallel, group: ElasticGroup) -> None:
    if model.process_group is not group.process_group:
        raise ValueError(
            "the model's process_group is not the elastic group; expected "
            "DistributedDataParallel(module, process_group=pg, **pccl_backend.ddp_kwargs)"
        )
    rebuilds = "it makes new buckets in its second forward"
    for wrong, why in (
        (model.broadcast_buffers, "it broadcasts buffers in each forward"),
        (model.static_graph, f"with static_graph=True {rebuilds}"),
        (not model.find_unused_parameters, rebuilds),
    ):
        if wrong:
            raise ValueError(
                f"the model's calls would not be those of a newcomer: {why}; expected "
                "DistributedDataParallel(module, process_group=pg, **pccl_backend.ddp_kwargs)"
            )
    if model._comm_hooks:
        raise ValueError(
            "the model has a communication hook (mixed_precision is one); expected none: elastic "
            "registers one that averages over those who contributed, or the one that it is given "
            "(hook=pccl_backend.quantised_hook(...))"
        )


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The FSDP modules of `model`. FSDP takes a second to import: looks only if that was done."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [] if fsdp is None else [m for m in model.modules() if isinstance(m, fsdp.FSDPModule)]


def check_fsdp(modules: list[Any], group: ElasticGroup) -> None:
    """The gradients cross the replicas in the elastic group, where torch lets us see that."""
    for module in modules:
        state: Any = module._get_fsdp_state()
        one = [] if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
        for part in getattr(state, "_fsdp_param_groups", one):
            mesh = getattr(part, "mesh_info", None)
            if mesh is None:
                continue
            if getattr(mesh, "replicate_process_group", None) is not group.process_group:
                raise ValueError(
                    "the model's mesh does not reduce in the elastic group; expected "
                    "fully_shard(module, mesh=pccl_backend.hsdp_mesh(pg))"
                )
            _check_average(part)


def _check_average(part: Any) -> None:
    """Raises ValueError unless torch averages these gradients with AVG.

    A sum that it divides by the members that were there is wrong in a step that loses one.
    """
    policy = part.mp_policy
    for parameter in part.fsdp_params:
        if not parameter.sharded_param.requires_grad:
            continue
        dtype = policy.reduce_dtype or policy.param_dtype or parameter.sharded_param.dtype
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"FSDP2 sums gradients of {dtype} and divides by the replicas that were there when "
                "the backward began, which is wrong in a step that loses one; expected "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32), or torch.bfloat16"
            )
    factor = getattr(part, "gradient_divide_factor", None)
    if factor is not None or getattr(part, "force_sum_reduction_for_comms", False):
        raise ValueError(
            "the model has a gradient divide factor, or reduces by sums, which is wrong in a step "
            "that loses a replica; expected FSDP2 to average: neither set_gradient_divide_factor "
            "nor set_force_sum_reduction_for_comms"
        )
