"""pccl: a torch.distributed backend for machines that come and go.

Once installed, `torch.distributed.init_process_group("pccl")` works with no import of this package.
The names here are for programs that meet the other members at boundaries
(`group().refresh(state)`), or catch the backend's errors. Each is loaded at first use, so that
neither the commands nor the entry point load torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._checkpoints import Checkpoints
    from ._config import Options, Replica
    from ._counters import counters, links
    from ._devices import wait_for_devices
    from ._elastic import ElasticRun, LeftRun, ddp_kwargs, elastic
    from ._errors import (
        EngineError,
        EvictedError,
        GroupClosedError,
        MismatchError,
        NoMemoryError,
        NotAdmittedError,
        OperationTimeoutError,
        PcclError,
        PeerLostError,
        ProtocolError,
        RefusedError,
        RunEndedError,
        UnreachableError,
    )
    from ._events import Change
    from ._group import Boundary, ElasticGroup, group, join
    from ._models import hsdp_mesh
    from ._notice import leave_on
    from ._quantised import all_reduce, quantised_hook
    from ._register import register
    from ._sampler import ElasticSampler
    from ._shared_state import SharedState
    from ._version import __version__

__all__ = [
    "Boundary",
    "Change",
    "Checkpoints",
    "ElasticGroup",
    "ElasticRun",
    "ElasticSampler",
    "EngineError",
    "EvictedError",
    "GroupClosedError",
    "LeftRun",
    "MismatchError",
    "NoMemoryError",
    "NotAdmittedError",
    "OperationTimeoutError",
    "Options",
    "PcclError",
    "PeerLostError",
    "ProtocolError",
    "RefusedError",
    "Replica",
    "RunEndedError",
    "SharedState",
    "UnreachableError",
    "__version__",
    "all_reduce",
    "counters",
    "ddp_kwargs",
    "elastic",
    "group",
    "hsdp_mesh",
    "join",
    "leave_on",
    "links",
    "quantised_hook",
    "register",
    "wait_for_devices",
]

_HOMES = {
    "Boundary": "_group",
    "Change": "_events",
    "Checkpoints": "_checkpoints",
    "Options": "_config",
    "Replica": "_config",
    "ElasticGroup": "_group",
    "ElasticRun": "_elastic",
    "ElasticSampler": "_sampler",
    "LeftRun": "_elastic",
    "all_reduce": "_quantised",
    "counters": "_counters",
    "links": "_counters",
    "ddp_kwargs": "_elastic",
    "elastic": "_elastic",
    "group": "_group",
    "join": "_group",
    "hsdp_mesh": "_models",
    "leave_on": "_notice",
    "quantised_hook": "_quantised",
    "register": "_register",
    "wait_for_devices": "_devices",
    "SharedState": "_shared_state",
    "__version__": "_version",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "_errors")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    # All other modules have imported torch, perhaps with its autoload off.
    if home not in ("_config", "_register", "_version"):
        from ._register import register as register_backend

        register_backend()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if "torch.distributed" in sys.modules:  # torch came first: with its autoload off this is our turn
    from ._register import register as _register_now

    _register_now()
