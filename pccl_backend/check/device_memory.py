"""Memory of operations in flight has a bound, and is given back."""

from __future__ import annotations

import gc
import time
from typing import Any

from .device_group import full, start
from .rank import Rank, demand

OPERATIONS = 100
COUNT = 1 << 20  # float32: 4 MiB a rank, 8 MiB gathered
LATE_S = 2.5
# 64 MiB in flight at least (docs/reference/cuda-tensors.md); pinned blocks are rounded up.
BOUND_BYTES = (2 * 64 << 20) + (32 << 20)
BACK_S = 20.0
SLACK_BYTES = 1 << 20


def bounded(at: Rank) -> None:
    """Many all_gathers whose tensors the program drops at once, while the other rank is late."""
    import torch

    device, dist = start(at)
    where = torch.device(device.type, device.index)
    dist.all_reduce(full(device, 1000, 1.0))
    device.synchronize()
    gc.collect()
    base = device.memory()
    device.reset_peaks()
    if at.rank == 1:
        at.hear(0, "begun")
        time.sleep(LATE_S)
    for index in range(OPERATIONS):
        part = torch.empty(COUNT, device=where)
        whole = torch.empty(2 * COUNT, device=where)
        work: Any = dist.all_gather_into_tensor(whole, part, async_op=True)
        del part, whole
        if index == 0:
            at.tell("begun")
    work.wait()
    device.synchronize()
    del work
    peak = device.memory()
    for name in ("device", "pinned"):
        used = max(peak[f"{name}_peak"], peak[name]) - base[name]
        demand(
            used < BOUND_BYTES,
            f"{OPERATIONS} operations held {used >> 20} MiB ({name}), expected at most "
            f"{BOUND_BYTES >> 20}",
        )
        at.note(**{f"{name}_peak_mib": used >> 20})

    def is_back() -> bool:
        device.synchronize()
        gc.collect()
        now = device.memory()
        return all(now[name] <= base[name] + SLACK_BYTES for name in ("device", "pinned"))

    at.until(is_back, "memory of the operations was not given back", limit_s=BACK_S)
    dist.barrier()
    dist.destroy_process_group()
