"""Runs programs of this folder under a backend and writes what each has returned.

    worker.py BACKEND SIZE FOLDER MODULE.PROGRAM...

Started by test_torch_programs.py, with no import of ours: the backend's name is all that it knows,
and where PCCL_MASTER is set the group is an elastic one. It forks a process for each rank, when the
imports are done. The outcome of a program at a rank is
FOLDER/MODULE.PROGRAM.RANK, written by torch.save. The first exception ends a rank, since from then
on the ranks may be at different places.
"""

import faulthandler
import importlib
import json
import multiprocessing
import os
import random
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from common import Here, Program, own
from torch.distributed._shard.sharded_tensor import ShardedTensor

TIMEOUT_S = 60.0  # of an operation: what waits longer has lost the others
DEADLINE_S = 150.0  # of a rank: then it says where it is, and ends


def plain(value: Any) -> Any:
    """What torch.load reads without running code: tensors, numbers, texts, lists, dictionaries."""
    if isinstance(value, ShardedTensor):
        return [plain(shard.tensor) for shard in value.local_shards()]
    if isinstance(value, torch.Tensor):
        return own(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a program returned a {type(value).__name__}")


def run(here: Here, name: str, program: Program) -> None:
    torch.manual_seed(here.rank)
    random.seed(here.rank)
    numpy.random.seed(here.rank)  # powerSGD draws from it
    began = time.monotonic()
    outcome = {"exact": program.exact, "values": plain(program(here))}  # type: ignore[attr-defined]
    torch.save(outcome, here.folder / f"{name}.{here.rank}")
    seconds = round(time.monotonic() - began, 2)
    sys.stdout.write(json.dumps({"program": name, "rank": here.rank, "seconds": seconds}) + "\n")
    sys.stdout.flush()


def join(backend: str, number: int, size: int, folder: Path) -> Here:
    timeout = timedelta(seconds=TIMEOUT_S)
    if "PCCL_MASTER" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        store = dist.FileStore(str(folder / "meet"), size)
        dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=timeout)
    assert dist.get_backend() == backend
    assert dist.get_world_size() == size
    return Here(dist.get_rank(), size, folder)


def be_rank(
    backend: str, number: int, size: int, folder: Path, programs: dict[str, Program]
) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    warnings.simplefilter("ignore", FutureWarning)  # newer names that torch 2.11 does not have
    here = join(backend, number, size, folder)
    for name, program in programs.items():
        run(here, name, program)
    dist.barrier()
    dist.destroy_process_group()


def main(backend: str, size: int, folder: Path, names: list[str]) -> int:
    programs = {}
    for name in names:
        module, _, function = name.partition(".")
        programs[name] = getattr(importlib.import_module(module), function)
    start = multiprocessing.get_context("fork").Process
    ranks = [
        start(target=be_rank, args=(backend, number, size, folder, programs))
        for number in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return max(abs(rank.exitcode or 0) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
