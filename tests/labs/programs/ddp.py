"""DDP as tutorials have it: a sampler, accumulated and clipped gradients, batch norm, a file."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import digest, finish, mean, parser, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, ROWS, EPOCHS = 16, 256, 2


def build() -> nn.Module:
    layers = [nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)]
    return nn.Sequential(*layers)


def main() -> None:
    arguments = parser().parse_args()
    dist.init_process_group(arguments.backend)

    torch.manual_seed(dist.get_rank())  # DDP gives all ranks the weights of rank 0
    model = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(rows, rows.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=8, sampler=sampler)

    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            accumulate = index % 2 == 0
            with model.no_sync() if accumulate else nullcontext():
                loss = nn.functional.mse_loss(model(x), y)
                (loss / 2).backward()
            if not accumulate:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(mean(loss))

    file = arguments.folder / "model.pt"
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), file)
    dist.barrier()
    model.load_state_dict(torch.load(file))  # on rank 1 too, whose batch norm saw other rows
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model.state_dict()))
    report(losses=losses, digests=digests)
    finish()


if __name__ == "__main__":
    main()
