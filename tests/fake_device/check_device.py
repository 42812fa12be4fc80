"""The fake device as `pccl_backend.check` asks for a device, with faults that a test plants.

CHECK_PLANT names a fault; a check that does not find it is no check.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import fake_device

PLANT = os.environ.get("CHECK_PLANT", "")
LEAK_BYTES = 70 << 20  # between two looks


class Device:
    type = "slow"
    map = fake_device.MAP
    launches = 2000
    bytes_max = 8_000_000
    speed_bytes = (4, 1 << 20)
    trains_on = "cpu"
    count = 2
    index = 0

    def __init__(self, rank: int) -> None:
        self._slow = fake_device.load()
        self._leaked = 0
        plant(rank, self._slow)

    def select(self) -> None:
        pass

    def properties(self) -> dict[str, Any]:
        return {"gpus": self.count, "gpu": "fake"}

    def hazards(self) -> list[str]:
        return ["it drives a display"] if PLANT == "display" else []

    def contexts(self) -> list[int]:
        return [index for index in range(2) if self._slow.contexts() >> index & 1]

    def fill_later(self, tensor: Any, value: float, seconds: float) -> None:
        self._slow.fill_later(tensor, value, int(seconds * 1e6))

    def launch(self, tensor: Any, count: int) -> None:
        for _ in range(count):
            if PLANT == "queue" and self._slow.blocks_open():  # a full queue stops all threads
                self._slow.hang_copies(True)
                time.sleep(1000)
            self._slow.fill_later(tensor, 1.0, 0)

    def first_use(self, tensor: Any) -> None:
        self._slow.load_kernels(True)
        tensor.clone()

    def synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize()

    def streams(self, count: int) -> list[Any]:
        import torch

        return [torch.Stream(device="slow") for _ in range(count)]

    def pinned(self, count: int) -> Any:
        import torch

        return torch.empty(count, pin_memory=True)

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        spoiled = self._slow.captures_spoiled()
        self._slow.capture(True)
        try:
            body()
        finally:
            self._slow.capture(False)
        if self._slow.captures_spoiled() > spoiled or PLANT == "capture":
            raise RuntimeError("operation failed due to a previous error during capture")
        return body

    def slow_calls(self, tensor: Any) -> dict[str, Callable[[], Any]]:
        import torch

        def hang() -> None:
            while self._slow.blocks_open():
                time.sleep(0.01)

        calls = {
            "item": lambda: tensor[0].item(),
            "synchronize": self.synchronize,
            "allocate": lambda: torch.empty(1 << 20, device="slow"),
            "pin": lambda: self.pinned(1 << 20),
        }
        if PLANT == "calls":
            self._slow.set_copy_delay_us(15_000_000)
            calls["empty_cache"] = hang
        return calls

    def memory(self) -> dict[str, int]:
        slow = self._slow
        self._leaked += LEAK_BYTES if PLANT == "leak" else 0
        return {
            "device": slow.device_bytes() + self._leaked,
            "device_peak": slow.device_bytes(),
            "pinned": slow.pinned_bytes(),
            "pinned_peak": slow.pinned_peak(),
        }

    def reset_peaks(self) -> None:
        pass


def plant(rank: int, slow: Any) -> None:
    """Faults of the backend and of the device."""
    import torch
    import torch.distributed as dist

    reduce = dist.all_reduce

    class NotWaited:
        """A work whose wait() waits for nothing."""

        def __init__(self, work: Any) -> None:
            self._work = work

        def wait(self) -> None:
            return

        def __getattr__(self, name: str) -> Any:
            return getattr(self._work, name)

    def all_reduce(t: Any, *arguments: Any, **options: Any) -> Any:
        work = reduce(t, *arguments, **options)
        if PLANT == "unordered" and options.get("async_op"):
            return NotWaited(work)
        if PLANT == "wrong" and t.device.type == "slow" and t.numel() == 2_000_001:
            t[2_000_000] += 1
        return work

    if PLANT in ("unordered", "wrong"):
        dist.all_reduce = all_reduce
    if PLANT == "context":
        torch.ones(1, device="slow:0")
    if PLANT == "barrier":
        dist.barrier = lambda *a, **k: None
    if PLANT == "alone":  # each rank trains its own model
        ddp: Any = torch.nn.parallel.DistributedDataParallel
        ddp.forward = lambda self, *inputs: self.module(*inputs)
    if PLANT == "busy":
        torch.accelerator.current_stream = lambda: NeverFree(torch.Stream(device="slow"))
    if PLANT == "stuck" and rank == 0:  # while a stream is held no call of a copy returns

        def later() -> None:
            while not slow.blocks_open():
                time.sleep(0.001)
            slow.hang_copies(True)

        threading.Thread(target=later, daemon=True).start()


class NeverFree:
    def __init__(self, stream: Any) -> None:
        self.query = lambda: False
        self.device = stream.device
