"""What the checks need of a GPU, by PyTorch's own calls. A test has another device of this shape.

`select` makes the device current and its context; before it nothing here touches a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from .rank import CheckFailedError

CALIBRATION_CYCLES = 20_000_000
QUERY = "name,driver_version,pcie.link.gen.current,pcie.link.width.current,display_active"
COMMAND_S = 20.0
KERNEL_TIME_LIMIT = 17  # CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT
HELD_BYTES = (2 << 30, 1 << 30)  # allocated on the device and pinned, while a stream is held
VARIABLES = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES")


class Device:
    """A GPU of this process: ranks take the GPUs in turn, and share them where there are fewer.

    Attributes:
        type: For torch.
        count: Number of them in this machine.
        index: The one of this rank.
        map: Of backends, for `init_process_group`.
        launches: More than a stream's queue takes.
        bytes_max: Of the largest tensor whose result is compared.
        speed_bytes: Sizes that are timed.
        trains_on: The device of the trainers.
    """

    type = "cuda"
    map = "cpu:pccl,cuda:pccl"
    launches = 20_000
    bytes_max = 100_000_000
    speed_bytes = (4, 64 << 10, 1 << 20, 64 << 20, 1 << 30)
    trains_on = "cuda"

    def __init__(self, rank: int) -> None:
        """Raises CheckFailedError where torch sees no GPU."""
        self._torch: Any = importlib.import_module("torch")
        if not self._torch.cuda.is_available():
            raise CheckFailedError("torch.cuda.is_available() is False: torch sees no GPU here")
        self.count = int(self._torch.cuda.device_count())
        self.index = rank % self.count
        self._cycles_per_s = 0.0

    def select(self) -> None:
        """Makes it the current device."""
        torch = self._torch
        torch.cuda.set_device(self.index)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):  # the first one loads the kernel; clocks rise under load
            begin.record()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            end.record()
            end.synchronize()
        # The clock is the highest, so that a kernel takes at least as long as it is asked to.
        highest = 1000 * getattr(torch.cuda.get_device_properties(self.index), "clock_rate", 0)
        measured = CALIBRATION_CYCLES / (begin.elapsed_time(end) / 1000)
        self._cycles_per_s = max(highest, measured)

    # ----------------------------------------------------------------------------- what it is

    def properties(self) -> dict[str, Any]:
        """What the report says of the device."""
        torch = self._torch
        got = torch.cuda.get_device_properties(self.index)
        found = {
            "gpus": self.count,
            "gpu": f"{got.name}, {got.total_memory / 2**30:.0f} GiB",
            "compute_capability": f"{got.major}.{got.minor}",
            "cuda": torch.version.cuda or "none",
            "hip": torch.version.hip or "none",
            "nvidia_smi": _nvidia_smi(),
            "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "not named"),
        }
        return found | {name: os.environ.get(name, "not set") for name in VARIABLES}

    def hazards(self) -> list[str]:
        """Why no stream should be held on it, whatever the checks find."""
        reasons = []
        if self._torch.version.hip:
            reasons.append("ROCm: at most 64 launches may wait behind a hold")
        if self._has_time_limit():
            reasons.append("the driver ends long kernels on this GPU (it drives a display)")
        missing = [name for name in self._runtime_names() if not _is_found(name)]
        if missing:
            reasons.append(f"not found in this process: {', '.join(missing)}")
        return reasons

    def _runtime_names(self) -> list[str]:
        """What pccl looks for by name (csrc/torch/device_calls.cpp)."""
        prefix = "hip" if self._torch.version.hip else "cuda"
        return [f"{prefix}StreamCreateWithPriority", f"{prefix}ThreadExchangeStreamCaptureMode"]

    def _has_time_limit(self) -> bool:
        if self._torch.version.hip:
            return False
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CheckFailedError(f"the driver's library cannot be loaded: {error}") from error
        value, device = ctypes.c_int(0), ctypes.c_int(0)
        calls = [
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(device), self.index),
            driver.cuDeviceGetAttribute(ctypes.byref(value), KERNEL_TIME_LIMIT, device),
        ]
        if any(calls):
            raise CheckFailedError(f"the driver does not tell its time limit: errors {calls}")
        return value.value != 0

    def contexts(self) -> list[int]:
        """The devices that this process has begun to use."""
        has = self._torch._C._cuda_hasPrimaryContext
        return [index for index in range(self.count) if has(index)]

    # ----------------------------------------------------------------------------- what it does

    def fill_later(self, tensor: Any, value: float, seconds: float) -> None:
        """Queues a kernel that takes so long, and one that fills the tensor."""
        if seconds > 0:
            self._torch.cuda._sleep(int(seconds * self._cycles_per_s))
        tensor.fill_(value)

    def launch(self, tensor: Any, count: int) -> None:
        """Queues so many kernels."""
        for _ in range(count):
            tensor.add_(1)

    def first_use(self, tensor: Any) -> None:
        """Queues kernels that this process has not loaded yet."""
        tensor.erfinv().cumsum(0).sort()
        self._torch.fft.fft(tensor).angle()
        self._torch.linalg.qr(tensor[:64].view(8, 8))

    def synchronize(self) -> None:
        """Waits for all of it."""
        self._torch.cuda.synchronize()

    def streams(self, count: int) -> list[Any]:
        """So many streams of each priority."""
        least, greatest = self._torch.cuda.Stream.priority_range()
        priorities = range(greatest, least + 1)
        return [self._torch.cuda.Stream(priority=p) for p in priorities for _ in range(count)]

    def pinned(self, count: int) -> Any:
        """A float32 tensor of pinned memory."""
        return self._torch.empty(count, pin_memory=True)

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Captures what `body` queues; returns a function that replays it."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            body()
        return lambda: graph.replay()

    def slow_calls(self, tensor: Any) -> dict[str, Callable[[], Any]]:
        """Calls that wait for the device, or that a driver may hold up while a stream is held."""
        torch = self._torch

        def runs_out_of_memory() -> None:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(1 << 50, device="cuda", dtype=torch.uint8)

        def from_another_thread() -> None:
            thread = threading.Thread(target=lambda: tensor.clone().sum().item())
            thread.start()
            thread.join()

        on_device, pinned = HELD_BYTES
        room = torch.cuda.mem_get_info()[0] // 4
        return {
            "item": lambda: tensor[0].item(),
            "synchronize": torch.cuda.synchronize,
            "empty_cache": torch.cuda.empty_cache,
            "allocate": lambda: torch.empty(min(on_device, room), device="cuda", dtype=torch.uint8),
            "pin": lambda: torch.empty(pinned, dtype=torch.uint8, pin_memory=True),
            "out of memory": runs_out_of_memory,
            "item of another thread": from_another_thread,
        }

    def memory(self) -> dict[str, int]:
        """Bytes in use, and their peaks since `reset_peaks`."""
        torch = self._torch
        self.pinned(1)  # the allocator looks for blocks that are free when it is asked for one
        stats = torch.cuda.host_memory_stats()
        return {
            "device": torch.cuda.memory_allocated(),
            "device_peak": torch.cuda.max_memory_allocated(),
            "pinned": int(stats.get("active_bytes.current", 0)),
            "pinned_peak": int(stats.get("active_bytes.peak", 0)),
        }

    def reset_peaks(self) -> None:
        """Makes `memory` count peaks anew from here on."""
        self._torch.cuda.reset_peak_memory_stats()
        self._torch.cuda.reset_peak_host_memory_stats()


def _is_found(name: str) -> bool:
    return hasattr(ctypes.CDLL(None), name)


def _nvidia_smi() -> str:
    """What the tool says of the GPUs; a report does without it."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return "not in PATH"
    command = [path, f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "; ".join(done.stdout.strip().splitlines()) or done.stderr.strip()[:200]
