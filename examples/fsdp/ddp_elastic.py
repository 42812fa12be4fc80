"""DDP over machines that come and go: ddp_plain.py, and some ten lines more."""

import argparse
import contextlib
import hashlib
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import pccl_backend as pccl

WIDTH, SAMPLES, BATCH, GLOBAL, LR = 64, 6000, 96, 192, 3e-3


def data() -> TensorDataset:
    """Rows of random numbers; the target of each row is its length."""
    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.norm(dim=1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of the run (default: that of pccl-run)")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="of the data loader")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--checkpoint", help="folder that all members see")
    options = parser.parse_args()

    pccl.leave_on(signal.SIGTERM)
    pg = pccl.join(options.url)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    model = DDP(net, process_group=pg, **pccl.ddp_kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    sampler = pccl.ElasticSampler(rows := data(), batch=BATCH, global_batch=GLOBAL)
    loader = DataLoader(rows, batch_sampler=sampler, num_workers=options.workers)
    saved = pccl.Checkpoints(options.checkpoint, every=50) if options.checkpoint else None
    run = pccl.elastic(model, optimizer, pg, state={"sampler": sampler}, checkpoints=saved)
    for x, y in sampler.batches(loader, passes=options.passes):
        with contextlib.nullcontext() if sampler.is_last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y)
            (loss / sampler.accumulation).backward()
        if not sampler.is_last:
            continue
        optimizer.param_groups[0]["lr"] = LR * sampler.samples / GLOBAL
        optimizer.step()
        optimizer.zero_grad()
        step = run.state["step"]
        if run.boundary.rank == 0 and step % 10 == 0:
            print(
                f"pass {sampler.pass_number + 1}  step {step:4d}  loss {loss:.4f}  "
                f"{run.boundary.size} members  {run.samples_total} samples counted",
                flush=True,
            )
        time.sleep(options.pause)
    run.finish()  # called by all members: saves the end; nobody can join the finished run
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(weights).hexdigest()[:16]
    print(f"ended after step {run.state['step']} with weights {digest}", flush=True)
    if saved:
        saved.close()  # waits for the write in flight
    dist.destroy_process_group()


if __name__ == "__main__":
    with contextlib.suppress(pccl.RunEndedError):  # the log says when it ended
        main()
