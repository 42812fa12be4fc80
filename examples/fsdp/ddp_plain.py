"""A plain DDP script; ddp_elastic.py beside it is the same for machines that come and go."""

import argparse
import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, SAMPLES, BATCH, LR = 64, 6000, 96, 3e-3


def data() -> TensorDataset:
    """Rows of random numbers; the target of each row is its length."""
    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.norm(dim=1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="of the data loader")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    options = parser.parse_args()

    dist.init_process_group("pccl")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    sampler = DistributedSampler(rows := data(), seed=0)
    loader = DataLoader(rows, batch_size=BATCH, sampler=sampler, num_workers=options.workers)
    step = 0
    for number in range(options.passes):
        sampler.set_epoch(number)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if dist.get_rank() == 0 and step % 10 == 0:
                print(
                    f"pass {number + 1}  step {step:4d}  loss {loss:.4f}  "
                    f"{dist.get_world_size()} members",
                    flush=True,
                )
            time.sleep(options.pause)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(weights).hexdigest()[:16]
    print(f"ended after step {step} with weights {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
