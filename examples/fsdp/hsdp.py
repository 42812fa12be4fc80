"""HSDP over machines that come and go: one `pccl-run --replica` is one replica of the model.

The ranks of a replica shard the model among themselves, and average their gradients with the
ranks of the same number in the other replicas. A replica that loses a rank is started anew by
pccl-run and joins again; the others go on meanwhile. With --checkpoint the same command goes on
after all of them were lost. README.md beside this file says how to run it.

Names of tensors carry their shape: B rows of a batch, D features.
"""

import argparse
import contextlib
import hashlib
import signal
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import pccl_backend as pccl

WIDTH, ROWS = 128, 16


def build(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(step: int, replica: int, rank: int) -> tuple[Tensor, Tensor]:
    """Other rows at each step, replica and rank; the target of each row is its length."""
    random = torch.Generator().manual_seed(10_000 * step + 100 * replica + rank)
    x_BD = torch.randn(ROWS, WIDTH, generator=random) * torch.rand(ROWS, 1, generator=random)
    return x_BD, x_BD.norm(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of the run (default: that of pccl-run)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--checkpoint", help="folder that all replicas see")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    options = parser.parse_args()

    pccl.leave_on(signal.SIGTERM)
    dist.init_process_group("pccl")
    rank = dist.get_rank()
    group = pccl.group(pccl.join(options.url, replica="torchrun"))
    model = build(pccl.hsdp_mesh(group, device_type="cpu"))  # without it: the accelerator
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = pccl.SharedState(model=model, optimizer=optimizer, step=0)
    checkpoints = pccl.Checkpoints(options.checkpoint) if options.checkpoint else None
    if checkpoints and (loaded := checkpoints.load(state)) and rank == 0:
        print(f"goes on from step {loaded}, unless the run is further", flush=True)
    boundary = group.refresh(state)
    while not boundary.left and state["step"] < options.steps:
        x_BD, y_B1 = batch(state["step"], boundary.rank, rank)
        loss = (model(x_BD) - y_B1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        boundary = group.refresh(state)
        if checkpoints and state["step"] % options.save_every == 0:
            try:
                checkpoints.save(state, boundary)
            except RuntimeError as error:  # the last write has failed: train on
                print(error, flush=True)
        if rank == 0 and boundary.rank == 0 and state["step"] % 10 == 0:
            print(
                f"step {state['step']:4d}  loss {loss.item():.4f}  {boundary.size} replicas",
                flush=True,
            )
        time.sleep(options.pause)
    if not boundary.left:
        if checkpoints:
            checkpoints.save_end(state, boundary)
        boundary = group.finish()  # called by all members: nobody can join the finished run
        if checkpoints:
            checkpoints.save_end(state, boundary)  # writes only if the writer was lost before
    if checkpoints:
        checkpoints.close()
    weights = b"".join(p.to_local().detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(weights).hexdigest()[:16]
    print(f"rank {rank} ends after step {state['step']} with weights {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with contextlib.suppress(pccl.RunEndedError):  # the log says when it ended
        main()
