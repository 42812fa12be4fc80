"""What the programs of this folder share: arguments, data for a small language model, the report.

A program is started by torchrun with the name of a backend and ends with one line of JSON from rank
0: what a user would look at, losses and a digest of the weights. Nothing here or in the programs
imports anything of ours: the backend's name is the only difference between two runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

VOCABULARY, LENGTH = 64, 16


def parser() -> argparse.ArgumentParser:
    """The arguments that every program takes."""
    program = argparse.ArgumentParser()
    program.add_argument("backend", nargs="?", default="gloo")
    program.add_argument("--folder", type=Path, default=Path("build/programs-out"))
    return program


def texts(count: int, seed: int = 0) -> torch.Tensor:
    """Token sequences that can be learned: each counts on from where it starts, (count, LENGTH)."""
    starts = torch.randint(0, VOCABULARY, (count, 1), generator=torch.Generator().manual_seed(seed))
    return (starts + torch.arange(LENGTH)) % VOCABULARY


def mean(loss: torch.Tensor) -> float:
    """The mean of the ranks' losses."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def digest(state: Any) -> str:
    """A short name for the bits of a state dict, nested as it may be."""
    sha = hashlib.sha256()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                sha.update(str(key).encode())
                walk(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                walk(item)
        elif isinstance(value, torch.Tensor):
            sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
            sha.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
        else:
            sha.update(repr(value).encode())

    walk(state)
    return sha.hexdigest()[:16]


def report(**outcome: Any) -> None:
    """Rank 0: the line for whoever compares runs, with the backend that the default group has."""
    if dist.get_rank() == 0:
        print(json.dumps({"program": Path(sys.argv[0]).stem, **outcome, **_world()}), flush=True)


def finish() -> None:
    """Ends the group and, over gloo, the process, without destructors.

    In torch 2.13 those of gloo can lock up at the end of a DDP program, seen on a loaded machine:
    ~Reducer holds the GIL and joins gloo's thread, which waits for the GIL to drop a tensor.
    """
    if dist.get_backend() == "gloo":
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


def _world() -> dict[str, Any]:
    return {"backend": dist.get_backend(), "ranks": dist.get_world_size()}
