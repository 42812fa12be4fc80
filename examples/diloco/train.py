"""DiLoCo on machines that come and go: a plain training loop, one all_reduce and one refresh.

Each process trains alone for a window of steps, then all meet: `refresh` admits newcomers and makes
the shared state equal, `all_reduce` averages how far each process went. Kill a process, or start
another one, at any time. README.md beside this file says how to run it.

Names of tensors carry their shape: B sequences, T bytes of each, D width of the model.
"""

import argparse
import contextlib
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import pccl_backend as pccl


class ByteModel(nn.Module):
    """Predicts the next byte from those before, with a transformer."""

    def __init__(self, width: int = 128, layers: int = 2, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embed(ids_BT) + self.place[: ids_BT.shape[1]]
        mask_TT = nn.Transformer.generate_square_subsequent_mask(ids_BT.shape[1])
        return self.head(self.layers(x_BTD, mask=mask_TT, is_causal=True))


def text() -> Tensor:
    """The sources of Python's standard library, one uint8 each."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batch(data: Tensor, random: torch.Generator, sequences: int = 8, length: int = 64) -> Tensor:
    """Returns `(B, T + 1)` bytes from random places."""
    starts_B = torch.randint(len(data) - length - 1, (sequences,), generator=random)
    return data[starts_B[:, None] + torch.arange(length + 1)].long()


def inner_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Tensor,
    random: torch.Generator,
    n: int,
) -> float:
    """Trains alone for `n` steps; returns the mean loss."""
    total = 0.0
    for _ in range(n):
        ids_BT = batch(data, random)
        logits_BTV = model(ids_BT[:, :-1])
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / n


class Outer:
    """The outer optimizer: Nesterov momentum over the averaged pseudo-gradients.

    All members share `state`, bit for bit, and a newcomer receives it: the outer parameters, their
    momentum, and the number of outer steps done ("step", the revision of the state).
    """

    def __init__(self, model: nn.Module, lr: float = 0.7, momentum: float = 0.9) -> None:
        self.lr, self.momentum = lr, momentum
        self.params = dict(model.named_parameters())
        self.outer = {n: p.detach().clone() for n, p in self.params.items()}
        self.velocity = {n: torch.zeros_like(p) for n, p in self.outer.items()}
        self.state = {"step": 0}
        self.state |= {f"outer.{n}": p for n, p in self.outer.items()}
        self.state |= {f"velocity.{n}": v for n, v in self.velocity.items()}

    @torch.no_grad()
    def load(self) -> None:
        """Inner steps begin at the outer parameters."""
        for name, p in self.params.items():
            p.copy_(self.outer[name])

    @torch.no_grad()
    def step(self) -> None:
        """Averages how far all members went, and goes there.

        If a member is lost in the middle, the others do the reduction again: the average is over
        them. This code has nothing to do for it.
        """
        flat = torch.cat([(self.outer[n] - p).view(-1) for n, p in self.params.items()])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        sizes = [p.numel() for p in self.params.values()]
        for name, part in zip(self.params, flat.split(sizes), strict=True):
            delta, velocity = part.view_as(self.outer[name]), self.velocity[name]
            velocity.mul_(self.momentum).add_(delta)
            self.outer[name].sub_(self.lr * (delta + self.momentum * velocity))
        self.state["step"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="pccl://HOST:PORT of the master")
    parser.add_argument("--steps", type=int, default=30, help="outer steps")
    parser.add_argument("--every", type=int, default=25, help="inner steps in an outer step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)  # all begin with the same model
    model = ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # each keeps its own
    data, random = text(), torch.Generator()
    random.seed()  # other batches in each process

    pccl.join(args.url)
    group, outer = pccl.group(), Outer(model)
    while True:
        boundary = group.refresh(outer.state)  # admits newcomers, equalises the state
        outer.load()
        if boundary.left or outer.state["step"] >= args.steps:
            break
        loss = inner_steps(model, optimizer, data, random, args.every)
        outer.step()
        print(
            f"step {outer.state['step']:3d}  loss {loss:.3f}  rank {group.rank} of {group.size}  "
            f"epoch {group.epoch}",
            flush=True,
        )
    if not boundary.left:
        group.finish()  # called by all members: nobody can join the finished run
    dist.destroy_process_group()


if __name__ == "__main__":
    with contextlib.suppress(pccl.RunEndedError):  # the log says when it ended
        main()
