"""Builds the fake device of `fake_device.cpp` against the installed torch, once, and loads it."""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import functools
import hashlib
import os
import shlex
import subprocess
import types
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("fake_device.cpp")
MAP = "cpu:pccl,slow:pccl"
BUILD = SOURCE.parents[2] / "build" / "fake_device"


def build() -> Path:
    """The library; compiled where the source or torch has changed (half a minute)."""
    known = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = BUILD / f"fake_device-{known}.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            folder = Path(torch.__file__).parent
            compiler = shlex.split(os.environ.get("CXX", "g++"))
            flags = ["-shared", "-fPIC", "-std=c++20", "-O0", "-w", f"-isystem{folder / 'include'}"]
            libraries = [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
            made = library.with_suffix(".new")
            command = [*compiler, *flags, str(SOURCE), "-o", str(made), *libraries]
            subprocess.run(command, check=True)
            made.rename(library)
    return library


@functools.cache
def load() -> Any:
    """In a process of a test: the device is there, as "slow". Returns its switches and counters."""
    library = build()
    if os.environ.get("SLOW_RUNTIME", "1") == "1":  # the runtime's own functions can be found
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(library)
    module = types.ModuleType("torch.slow")  # what torch looks for below its own name
    vars(module).update(
        _lazy_init=lambda: None,
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        current_device=lambda: 0,
    )
    torch._register_device_module("slow", module)
    return torch.ops.slowdev


def group(rank: int, meet: str, backend: str = MAP, timeout_s: float = 1800.0) -> Any:
    """Makes a group of two ranks, whose tensors may be on the device; returns `dist`."""
    import torch.distributed as dist

    load()
    dist.init_process_group(
        backend,
        store=dist.FileStore(meet, 2),
        rank=rank,
        world_size=2,
        device_id=None,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    return dist
