"""A fixed group of real processes on this machine: its results, and the loss of a rank."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from .rank import CheckFailedError, Rank, demand

SIZES = (0, 1, 7, 1_000_003)
LARGE = 16_000_000  # float32: 64 MB
LOSS_S = 20.0


def same(got: Any, expected: Any, what: str) -> None:
    """The same bits; a report names the first that differ."""
    import torch

    got = got.detach().cpu()
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise CheckFailedError(f"{what}: {got.dtype} {tuple(got.shape)} came back")
    if not torch.equal(got, expected):
        apart = (got != expected).flatten().nonzero().flatten()
        first = int(apart[0])
        raise CheckFailedError(
            f"{what}: {len(apart)} of {got.numel()} values are wrong; at {first} is "
            f"{got.flatten()[first].item()}, expected {expected.flatten()[first].item()}"
        )


def results(at: Rank) -> None:
    """Every collective, against what follows from the ranks."""
    import torch

    dist = at.group()
    rank, size = at.rank, at.size

    def values(count: int, of: int = rank) -> Any:
        return (torch.arange(count) % 97 + 10.0 * of).to(torch.float32)

    for count in SIZES:
        every = [values(count, of) for of in range(size)]
        total = sum(every[1:], every[0].clone())
        t = values(count)
        dist.all_reduce(t)
        same(t, total, f"all_reduce of {count}")
        t = values(count)
        dist.broadcast(t, src=1)
        same(t, every[1], f"broadcast of {count}")
        parts = [torch.empty(count) for _ in range(size)]
        dist.all_gather(parts, values(count))
        same(torch.cat(parts), torch.cat(every), f"all_gather of {count}")
        out = torch.empty(count)
        dist.reduce_scatter_tensor(out, values(count).repeat(size))
        same(out, total, f"reduce_scatter of {count}")
        out = torch.empty(size * count)
        dist.all_to_all_single(out, values(count).repeat(size))
        same(out, torch.cat(every), f"all_to_all of {count}")
    got = torch.empty(7)
    request = dist.irecv(got, (rank - 1) % size)
    dist.send(values(7), (rank + 1) % size)
    request.wait()
    same(got, values(7, (rank - 1) % size), "send and recv")
    things: list[Any] = [None] * size
    dist.all_gather_object(things, {"rank": rank})
    demand(things == [{"rank": of} for of in range(size)], f"all_gather_object gives {things}")
    dist.barrier()
    t = torch.ones(LARGE)
    began = time.monotonic()
    dist.all_reduce(t)
    seconds = time.monotonic() - began
    demand(bool((t == size).all()), "all_reduce of 64 MB: wrong values")
    rate = 4 * LARGE / seconds / 1e9
    at.note(
        f"{size} processes; all_reduce of 64 MB in {seconds:.2f} s",
        all_reduce_64_mb_s=round(seconds, 3),
        all_reduce_gb_per_s=round(rate, 2),
    )
    dist.destroy_process_group()


def loss(at: Rank) -> None:
    """The last rank is killed in the middle of a call: the others get an error that names it."""
    import torch

    from .._errors import PeerLostError

    dist = at.group()
    victim = at.size - 1
    t = torch.ones(LARGE)
    dist.all_reduce(t)
    if at.rank == victim:
        for other in range(victim):
            at.hear(other, "called")
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(t, async_op=True)
    began = time.monotonic()
    at.tell("called")
    try:
        work.wait()
    except PeerLostError as error:
        seconds = time.monotonic() - began
        demand(f"rank {victim}" in str(error), f"the error does not name rank {victim}: {error}")
        demand(seconds < LOSS_S, f"the loss was known only after {seconds:.0f} s")
        at.note(f"the others had an error after {seconds:.2f} s", known_after_s=round(seconds, 3))
    else:
        raise CheckFailedError(f"all_reduce did not fail when rank {victim} was killed")
