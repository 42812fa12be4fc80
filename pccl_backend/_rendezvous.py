"""The rendezvous of pccl://: meets a master and joins its run before c10d makes the group."""

from __future__ import annotations

import dataclasses
import logging
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, Store

from . import _calls
from ._config import EXACT, NAME, VARIABLES, Options, Replica, Target, parse_url
from ._extension import config, extension

BackendOptions: Any = Backend.Options

_log = logging.getLogger(NAME)


@dataclasses.dataclass(frozen=True)
class Joined:
    """A process that a master has taken, between the rendezvous and the making of the group."""

    store: Store
    rank: int
    size: int
    device_types: tuple[str, ...]
    quantise: str | None = None  # as `join` was told; None: as the creator of the group is told


_joined: Joined | None = None
_has_joined = False


def meet(url: str | None, *, timeout: timedelta | None = None, **_: Any) -> tuple[Any, int, int]:
    """Joins the run of a master: what the rendezvous handler of pccl:// yields.

    Blocks until the run is founded, or the master has welcomed this newcomer to a running one.

    Args:
        url: `pccl://...`; None: PCCL_MASTER's.
        timeout: For the founding; None: c10d's default.

    Raises:
        ValueError: The URL, or a device map that names another backend too.
    """
    call = _calls.init_call()
    device_types = elastic_devices(str(call.get("backend") or NAME))
    options = given_options(call.get("pg_options"))
    if call.get("enable_reconfigure"):
        raise ValueError(
            "enable_reconfigure=True with a master: the master decides who the members are; "
            "expected one of the two"
        )
    module = extension(options)
    target = _environment_target() if url is None else parse_url(url)
    for name in ("rank", "world_size"):
        if call.get(name, -1) not in (-1, None):
            _log.debug("%s=%s is not used: the master gives ranks", name, call[name])
    seconds = 1800.0 if timeout is None else timeout.total_seconds()
    joined = join_master(module, target, seconds, device_types)
    return joined.store, joined.rank, joined.size


def join_master(
    module: Any,
    target: Target,
    timeout_s: float,
    device_types: tuple[str, ...],
    on_loss: str | None = None,
    replica: Replica | None = None,
    quantise: str | None = None,
) -> Joined:
    """Joins, and remembers it for `create`, which c10d calls next.

    `on_loss` None: the option's; `replica` None: one of its own.

    An engine is one peer for the whole of its life: who comes back after it was evicted, has left
    or could not join does so as a newcomer, with a new engine.
    """
    global _joined, _has_joined
    if _has_joined and not dist.is_initialized():
        module.shutdown()
    _has_joined = True
    rank, size = module.join(
        list(target.masters),
        target.run,
        None if replica is None else _place(replica),
        (on_loss or config().on_loss) == "raise",
        timeout_s,
    )
    _joined = Joined(module.elastic_store(timeout_s), rank, size, device_types, quantise)
    return _joined


def _place(replica: Replica) -> dict[str, Any]:
    fields = dataclasses.asdict(replica)
    return {"replica": fields.pop("name"), **fields}


def elastic_devices(backend: str) -> tuple[str, ...]:
    """The device types of an elastic group made with `init_process_group(backend)`.

    Raises:
        ValueError: A mixed map: an elastic group serves all of its devices itself.
    """
    if ":" not in backend:
        return ("cpu", "cuda")
    pairs = [part.partition(":") for part in backend.lower().split(",")]
    if any(name.strip() == NAME for _, _, name in pairs) and any(
        name.strip() != NAME for _, _, name in pairs
    ):
        raise ValueError(
            f"backend={backend!r}: an elastic group serves all of its devices itself; expected "
            f"{NAME!r} for each of them (a fixed group, without a pccl:// URL, can be mixed)"
        )
    return tuple(device.strip() for device, _, _ in pairs)


def env_means_master() -> bool:
    """Does the running init_process_group make an elastic group because of PCCL_MASTER?"""
    backend = str(_calls.init_call().get("backend") or "").lower()
    named = [part.rpartition(":")[2].strip() for part in backend.split(",")]
    return NAME in named and bool(os.environ.get("PCCL_MASTER"))


def _environment_target() -> Target:
    master = config().master or Options.from_environment().master
    if master is None:
        raise ValueError("PCCL_MASTER is not set; expected pccl://HOST:PORT[,HOST:PORT...][/RUN]")
    return parse_url(master, name="PCCL_MASTER")


def take_joined(store: Any) -> Joined | None:
    """The result of `meet` for this call, recognised by its store below the prefixes of `store`."""
    global _joined
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    joined, _joined = _joined, None
    return joined if joined is not None and joined.store is store else None


def join_by_environment(module: Any, timeout_s: float) -> Joined | None:
    """PCCL_MASTER that was set after `import torch`, or that our env:// could not see."""
    if not os.environ.get("PCCL_MASTER"):
        return None
    call = _calls.init_call()
    method = call.get("init_method")
    if call and not (isinstance(method, str) and method.startswith("env://")):
        return None  # store=, tcp:// or file://: the argument wins
    backend = str(call.get("backend") or NAME)
    return join_master(module, _environment_target(), timeout_s, elastic_devices(backend))


def quantise_of_default(given: Options | None) -> str:
    """The quantisation of a default group, and of `join`'s: of its options, else the variable's."""
    name = VARIABLES["quantise"]
    by_variable = Options.from_environment({name: os.environ.get(name, "")}).quantise
    return (None if given is None else given.quantise) or by_variable or EXACT


def given_options(pg_options: object) -> Options | None:
    """The engine's options in `pg_options=`; None: there are none.

    There is one engine a process, so groups that are made without options have their parent's. The
    `options` of a pccl group are taken too (they hold its time-out, which c10d passes by itself),
    and, in a mixed device map, those of another backend in the map, for which they are meant.

    Raises:
        TypeError: Something else.
    """
    if pg_options is None or isinstance(pg_options, Options):
        return pg_options
    if isinstance(pg_options, BackendOptions) and pg_options.backend in (NAME, *_map_names()):
        return None
    raise TypeError(
        f"pg_options is a {type(pg_options).__module__}.{type(pg_options).__qualname__}; expected "
        "pccl_backend.Options"
    )


def _map_names() -> list[str]:
    """Names of the backends of the group that c10d is making."""
    call = _calls.locals_of("_new_process_group_helper")
    return [part.rpartition(":")[2].strip() for part in str(call.get("backend")).split(",")]
