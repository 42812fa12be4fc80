"""The entry point: makes the name "pccl" and the scheme pccl:// known to torch.distributed.

Called by `import torch` (entry point group torch.backends), by torch 2.14 and later when the name
is used (torch.distributed.backends), and by `import pccl_backend`. It imports no other module of
pccl, starts no thread and loads no extension. An exception here would break `import torch` for
all programs of the environment, so each exception becomes one log line. The code that makes groups
is in _making.py and _rendezvous.py, which are imported when the first group is made.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

NAME = "pccl"


def register() -> None:
    """Registers backend "pccl" and the rendezvous pccl://. Idempotent; never raises."""
    try:
        _register()
    except Exception as error:
        logging.getLogger(NAME).warning(
            "backend %r could not be registered with torch.distributed: %s: %s",
            NAME,
            type(error).__name__,
            error,
        )


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # not the function

    if getattr(dist.Backend, "_plugins", {}).get(NAME.upper()) is None:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices())
    _hide_from_device_maps(dist.Backend)
    handlers = rendezvous._rendezvous_handlers
    if NAME not in handlers:
        rendezvous.register_rendezvous_handler(NAME, _rendezvous)
    # Whether it is set is asked here, and nothing else of it: _config.py reads it.
    if os.environ.get("PCCL_MASTER") and not isinstance(handlers["env"], _EnvRendezvous):
        handlers["env"] = _EnvRendezvous(handlers["env"])


def devices() -> list[str]:
    """The devices to register for. A list: torch walks a str letter by letter.

    torch takes what is listed for a device that is there (ShardedTensor makes its buffers on the
    first that is not the CPU), so a build without CUDA must not read of it.
    """
    import torch

    return ["cpu"] if torch.version.cuda is None and torch.version.hip is None else ["cpu", "cuda"]


class _Plugins(dict[str, Any]):
    """c10d's table of backends, whose list of names leaves ours out.

    To torch 2.13 any name in that list means that "cpu:gloo" has no default backend: its sequence
    numbers and hooks then fail. Nothing else asks for the list.
    """

    def keys(self) -> Any:
        """The names of the others."""
        return [name for name in self if name != NAME.upper()]


def _hide_from_device_maps(backend: Any) -> None:
    plugins = getattr(backend, "_plugins", None)
    if type(plugins) is dict and _version() < (2, 14):
        backend._plugins = _Plugins(plugins)


def _version() -> tuple[int, ...]:
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _create(options: Any, pg_options: Any) -> Any:
    from . import _making

    return _making.create(options, pg_options)


def _rendezvous(url: str, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    from . import _rendezvous

    yield _rendezvous.meet(url, **kwargs)
    raise RuntimeError("Unable to perform re-rendezvous using pccl:// method")


class _EnvRendezvous:
    """env:// where PCCL_MASTER is set: "pccl" meets at that master, all others as ever."""

    def __init__(self, others: Any) -> None:
        self.others = others

    def __call__(self, url: str, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        from . import _rendezvous

        if _rendezvous.env_means_master():
            yield _rendezvous.meet(None, **kwargs)
            raise RuntimeError("Unable to perform re-rendezvous using PCCL_MASTER")
        try:
            yield from self.others(url, **kwargs)
        except ValueError as error:
            if "expected, but not set" not in str(error):  # of a variable of torchrun's
                raise
            raise ValueError(
                f"{error}. PCCL_MASTER is set, which the backend 'pccl' alone follows; expected "
                "init_process_group('pccl'), or the variables of torchrun for another backend"
            ) from None
