"""FSDP2 with the backend "pccl": an ordinary script for torchrun.

The name of the backend is the only word about pccl in it: after `pip install` nothing has to be
imported. README.md beside this file says how to run it.

Names of tensors carry their shape: B rows of a batch, D features.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

WIDTH, ROWS, STEPS = 256, 32, 50


def build() -> nn.Module:
    """A perceptron, sharded layer by layer over all ranks."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def batch(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows, and their targets: the length of each."""
    x_BD = torch.randn(ROWS, WIDTH, generator=random) * torch.rand(ROWS, 1, generator=random)
    return x_BD, x_BD.norm(dim=1, keepdim=True)


def main() -> None:
    dist.init_process_group("pccl")
    rank = dist.get_rank()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(rank)  # other rows on each rank
    for step in range(1, STEPS + 1):
        x_BD, y_B1 = batch(random)
        loss = (model(x_BD) - y_B1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d}  loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
