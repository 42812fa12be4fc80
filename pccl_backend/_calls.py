"""The running call of torch.distributed, where c10d tells a handler or creator nothing about it."""

from __future__ import annotations

import sys
from typing import Any

from torch.distributed import distributed_c10d


def init_call() -> dict[str, Any]:
    """The arguments of the running init_process_group: c10d tells a handler nothing about them.

    Empty where it cannot be found; every use has a sensible answer for that.
    """
    return locals_of("init_process_group")


def locals_of(function: str) -> dict[str, Any]:
    """The variables of a function of c10d that is running; empty where it cannot be found."""
    frame = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == function
            and frame.f_globals.get("__name__") == distributed_c10d.__name__
        ):
            return dict(frame.f_locals)
        frame = frame.f_back  # type: ignore[assignment]
    return {}
