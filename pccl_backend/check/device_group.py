"""What the checks of a device have in common: their group, values, and a rank that comes late."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .cases import HOLD
from .rank import Rank, demand

HELD_S = 20.0  # by then a call to wait() has returned, where it holds the stream and not the CPU


def holding() -> bool:
    """Whether this process asks for streams to be held."""
    return os.environ.get(HOLD) == "1"


def start(at: Rank, backend: str = "", **options: Any) -> tuple[Any, Any]:
    """The device of this rank, made current, and `torch.distributed` with the group of the case."""
    device = at.device
    device.select()
    return device, at.group(backend or device.map, **options)


def full(device: Any, count: int, value: float) -> Any:
    """A tensor on the device."""
    import torch

    return torch.full((count,), value, device=torch.device(device.type, device.index))


def expect(tensor: Any, value: float, what: str) -> None:
    """All values are this one. Waits for the device."""
    found = sorted(set(tensor.detach().cpu().flatten().tolist()))
    demand(found == [value], f"{what}: {str(found)[:60]}, expected {value}")


def event_of_now() -> Any:
    """An event behind all that the current stream has."""
    import torch

    stream = torch.accelerator.current_stream()
    event = torch.Event(stream.device.type)
    event.record(stream)
    return event


class Late:
    """Operations for which rank 1 comes late: rank 0 is behind its wait(), and a stream is held."""

    def __init__(self, at: Rank) -> None:
        """Takes what all such operations of a case share."""
        self._at, self._count = at, 0

    def __call__(
        self, call: Callable[[], Any], meanwhile: Callable[[], Any], *, late_s: float = 0.5
    ) -> None:
        """Rank 0 calls, waits, and does `meanwhile`; rank 1 comes so long after that wait()."""
        at, word = self._at, f"held-{self._count}"
        self._count += 1
        if at.rank == 0:
            work = call()
            work.wait()
            demand(
                not work.is_completed(), "wait() returned behind the operation: nothing was held"
            )
            at.tell(word)
            meanwhile()
            return
        at.hear(0, word, limit_s=HELD_S)
        time.sleep(late_s)
        call().wait()
