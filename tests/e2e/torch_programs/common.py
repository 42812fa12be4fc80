"""What the programs of this folder share: how one is marked, where it runs, its inputs.

A program is a function that gets a `Here` and returns what a rank has seen: tensors and plain
values in lists and dictionaries. It knows no backend: the worker has made the default group. All
that it draws comes from seeds, so that two runs differ by the backend only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import functional


@dataclass(frozen=True)
class Here:
    """A rank of the default group, and a folder that all ranks see."""

    rank: int
    size: int
    folder: Path

    @property
    def group(self) -> dist.ProcessGroup:
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    def values(self, *shape: int, salt: int = 0, rank: int | None = None) -> torch.Tensor:
        """Values around 1 that depend on rank, shape and salt."""
        own = self.rank if rank is None else rank
        generator = torch.Generator().manual_seed(1000 * own + salt)
        return torch.rand(shape, generator=generator) + 0.5

    def tokens(self, *shape: int, below: int, salt: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.rank + salt)
        return torch.randint(0, below, shape, generator=generator)


Program = Callable[[Here], Any]


def exact(program: Program) -> Program:
    """Marks a program whose outcome has the same bits whoever moves the data."""
    program.exact = True  # type: ignore[attr-defined]
    return program


def close(program: Program) -> Program:
    """Marks a program whose floats may differ by rounding."""
    program.exact = False  # type: ignore[attr-defined]
    return program


def own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what this rank holds of it."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().clone()


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: own(parameter) for name, parameter in model.named_parameters()}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: own(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def train(
    model: torch.nn.Module,
    batches: list[torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    targets: list[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """One step for each batch; the losses. Without targets the loss is the mean square."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for i, batch in enumerate(batches):
        out = model(batch)
        if targets is None:
            loss = out.square().mean()
        else:
            loss = functional.cross_entropy(out.flatten(0, 1), targets[i].flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(own(loss))
    return losses
