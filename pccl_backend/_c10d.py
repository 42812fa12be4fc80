"""What happens in torch.distributed when a group named "pccl" is made, and to its tables later.

Loads the extension (once, with the options of _config.py), meets the others at a master or in a
store, makes the group, and keeps c10d's rank tables true while the members of the elastic group
change. The only place that touches private names of torch.distributed.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, Store
from torch.distributed import distributed_c10d

from ._config import Options, Replica, Target, parse_url
from ._errors import GroupClosedError, PcclError

NAME = "pccl"
BESIDE_NAME = "pccl-elastic"
GROUPS_PER_STEP = 1 << 20  # names of groups are numbers; each step has this many of its own

BackendOptions: Any = Backend.Options

_log = logging.getLogger(NAME)


@dataclasses.dataclass(frozen=True)
class Joined:
    """A process that a master has taken, between the rendezvous and the making of the group."""

    store: Store
    rank: int
    size: int
    device_types: tuple[str, ...]


_lock = threading.Lock()
_extension: Any = None
_options: Options | None = None
_joined: Joined | None = None
_has_joined = False
_beside: Any = None  # the elastic group where it is not the default one
_made: dict[str, list[str]] = {}  # name of a fixed group -> peers, by group rank


# ------------------------------------------------------------------------------ the extension


def extension(options: Options | None = None) -> Any:
    """The extension `_C`, loaded and configured at the first call.

    Raises:
        PcclError: It cannot be loaded, or was built for another torch than the running one.
        ValueError: `options` differ from those with which this process runs already, or a PCCL_*
            variable is wrong.
    """
    global _extension, _options
    with _lock:
        if _extension is None:
            config = Options.from_environment() if options is None else options
            module = _load()
            _apply_log_level(config, module)
            module.configure_engine(config.to_engine())
            module.set_blocking_wait(config.blocking_wait)
            _say_goodbye_at_exit(module)
            _patch_c10d()
            _extension, _options = module, config
        elif options is not None and options != _options:
            raise ValueError(
                f"options={options!r}: this process runs with {_options!r} since its first group; "
                "expected the same, there is one engine a process"
            )
        return _extension


def loaded() -> Any:
    """The extension, None before its first use. Takes no lock: for handlers of signals."""
    return _extension


def config() -> Options:
    """The options with which this process runs."""
    extension()
    assert _options is not None
    return _options


def _load() -> Any:
    try:
        from . import _C
    except ImportError as error:
        raise PcclError(
            f"the extension of pccl cannot be loaded ({error}); the running torch is "
            f"{torch.__version__}: build pccl again for it (pip install --no-build-isolation)"
        ) from error
    check_torch_version(_C.TORCH_VERSION, torch.__version__)
    return _C


def check_torch_version(built: str, running: str) -> None:
    """Raises PcclError where the extension was built for another torch than the running one."""
    if built.partition("+")[0] != str(running).partition("+")[0]:
        raise PcclError(
            f"the extension of pccl was built for torch {built} and this is torch {running}: "
            "build pccl again for it (pip install --no-build-isolation)"
        )


def _apply_log_level(config: Options, module: Any) -> None:
    if config.log_level is None:
        return
    module.set_log_level(config.log_level)
    level = {"warning": logging.WARNING, "off": logging.CRITICAL + 10}.get(config.log_level)
    _log.setLevel(config.log_level.upper() if level is None else level)
    if not _log.hasHandlers():  # whoever sets the variable wants to see the lines
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("pccl %(levelname)s %(message)s"))
        _log.addHandler(handler)


def _say_goodbye_at_exit(module: Any) -> None:
    owner = os.getpid()

    def goodbye() -> None:
        if os.getpid() == owner:  # not in a forked child: the engine is its parent's
            module.end()

    atexit.register(goodbye)


# ------------------------------------------------------------------------------ rendezvous


def meet(url: str | None, *, timeout: timedelta | None = None, **_: Any) -> tuple[Any, int, int]:
    """Joins the run of a master: what the rendezvous handler of pccl:// yields.

    Blocks until the run is founded, or the master has welcomed this newcomer to a running one.

    Args:
        url: `pccl://...`; None: PCCL_MASTER's.
        timeout: For the founding; None: c10d's default.

    Raises:
        ValueError: The URL, or a device map that names another backend too.
    """
    call = _init_call()
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
        config().connect_timeout_s,
        timeout_s,
    )
    _joined = Joined(module.elastic_store(timeout_s), rank, size, device_types)
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
    backend = str(_init_call().get("backend") or "").lower()
    named = [part.rpartition(":")[2].strip() for part in backend.split(",")]
    return NAME in named and bool(os.environ.get("PCCL_MASTER"))


def _environment_target() -> Target:
    master = config().master or Options.from_environment().master
    if master is None:
        raise ValueError("PCCL_MASTER is not set; expected pccl://HOST:PORT[,HOST:PORT...][/RUN]")
    return parse_url(master, name="PCCL_MASTER")


def _init_call() -> dict[str, Any]:
    """The arguments of the running init_process_group: c10d tells a handler nothing about them.

    Empty where it cannot be found; every use has a sensible answer for that.
    """
    return _locals_of("init_process_group")


def _locals_of(function: str) -> dict[str, Any]:
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


# ------------------------------------------------------------------------------ making groups


def create(options: Any, pg_options: Any) -> Any:
    """The creator that c10d calls: an elastic ProcessGroup, or the Backend of a fixed group."""
    module = extension(given_options(pg_options))
    timeout_s = options.timeout.total_seconds()
    if getattr(options, "enable_reconfigure", False):
        return module.create_unconfigured(
            options.store, options.group_rank, options.group_size, timeout_s
        )
    if len(options.global_ranks_in_group) == 0:
        joined = _take_joined(options.store) or _join_by_environment(module, timeout_s)
        if joined is not None:
            _watch(module)
            return module.create_elastic(timeout_s, options.group_id, list(joined.device_types))
    store = options.store
    parent = elastic_default(module)
    if parent is not None and len(options.global_ranks_in_group) > 0:
        numbering = module.group_view()["numbering"]
        _made[options.group_id] = [numbering[rank] for rank in options.global_ranks_in_group]
        store = PrefixStore(epoch_prefix(module), store)
    _be_the_default()
    return module.create_fixed(
        store, options.group_rank, options.group_size, timeout_s, options.group_id
    )


def given_options(pg_options: object) -> Options | None:
    """What `pg_options=` means for the engine: None where it sets nothing of it.

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
    call = _locals_of("_new_process_group_helper")
    return [part.rpartition(":")[2].strip() for part in str(call.get("backend")).split(",")]


def _be_the_default() -> None:
    """Makes "cpu:pccl" the default backend of its group, as c10d does with "pccl" alone."""
    made = _locals_of("_new_process_group_helper")
    if made and set(made["backend_config"].get_device_backend_map().values()) == {NAME}:
        made["pg"]._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def create_beside(joined: Joined, timeout_s: float) -> Any:
    """The group of a run that was joined beside a default group, known to c10d as new_group's are.

    Global ranks mean the default group's world. Of the members of the new group only this process
    has one there: the others are named by their ranks in it (`group_src`, `group_dst`).
    """
    global _beside
    world = distributed_c10d._world
    make: Any = distributed_c10d._new_process_group_helper
    pg, _ = make(
        joined.size,
        joined.rank,
        [],
        NAME,
        joined.store,
        group_name=BESIDE_NAME,
        timeout=timedelta(seconds=timeout_s),
        group_desc="elastic",
    )
    module = loaded()
    itself = dist.get_rank()
    world.pg_group_ranks[pg] = LiveRanks(
        lambda: module.group_view(), lambda view: {itself: int(view["rank"])}
    )
    _beside = pg
    return pg


def epoch_prefix(module: Any) -> str:
    """Before the store keys of groups that are made from the elastic one: never the same twice.

    The number of the newest epoch moves under a running program; the step and the peers in their
    numbering change at the same place of the program at all members, so that these meet.
    """
    view = module.group_view()
    peers = hashlib.sha256(" ".join(view["numbering"]).encode()).hexdigest()[:16]
    return f"epoch-{view['step']}-{peers}"


def elastic_default(module: Any = None) -> Any:
    """The default group where it is the elastic one, else None."""
    group = dist.group.WORLD
    module = _extension if module is None else module
    return group if group is not None and module is not None and module.is_elastic(group) else None


def elastic_group() -> Any:
    """The elastic group of this process: the default one, or one beside it; None without."""
    default = elastic_default()
    if default is not None:
        return default
    return _beside if _beside is not None and _beside in distributed_c10d._world.pg_map else None


def _take_joined(store: Any) -> Joined | None:
    """What `meet` left for this call: the store that it gave is below the prefixes of `store`."""
    global _joined
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    joined, _joined = _joined, None
    return joined if joined is not None and joined.store is store else None


def _join_by_environment(module: Any, timeout_s: float) -> Joined | None:
    """PCCL_MASTER that was set after `import torch`, or that our env:// could not see."""
    if not os.environ.get("PCCL_MASTER"):
        return None
    call = _init_call()
    method = call.get("init_method")
    if call and not (isinstance(method, str) and method.startswith("env://")):
        return None  # store=, tcp:// or file://: the argument wins
    backend = str(call.get("backend") or NAME)
    return join_master(module, _environment_target(), timeout_s, elastic_devices(backend))


def _watch(module: Any) -> None:
    from . import _group

    _group.on_new_group()
    module.set_event_sink(_group.on_event)


# ------------------------------------------------------------------------------ rank tables


class LiveRanks(dict[int, int]):
    """c10d's {global rank: group rank} of one group, true at every look.

    Where a program has no boundary, rank and size of an elastic group change at the return of an
    operation: Python is not told, so the table asks when it is read.
    """

    def __init__(self, look: Any, ranks: Any) -> None:
        """`look()` says how things stand, `ranks` makes the table of that."""
        super().__init__()
        self._look = look
        self._ranks = ranks
        self._seen: Any = None

    def _now(self) -> None:
        try:
            seen = self._look()
        except GroupClosedError:
            return  # after destroy: the last one stays
        if seen == self._seen:
            return
        super().clear()
        super().update(self._ranks(seen))
        self._seen = seen

    def __getitem__(self, key: int) -> int:
        self._now()
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._now()
        return super().__contains__(key)

    def __iter__(self) -> Iterator[int]:
        self._now()
        return super().__iter__()

    def __len__(self) -> int:
        self._now()
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self._now()
        return super().__eq__(other)

    __hash__ = None

    def __repr__(self) -> str:
        self._now()
        return super().__repr__()

    def get(self, key: int, default: Any = None) -> Any:
        """As dict's."""
        self._now()
        return super().get(key, default)

    def keys(self) -> Any:
        """As dict's."""
        self._now()
        return super().keys()

    def values(self) -> Any:
        """As dict's."""
        self._now()
        return super().values()

    def items(self) -> Any:
        """As dict's."""
        self._now()
        return super().items()

    def copy(self) -> dict[int, int]:
        """A plain dict."""
        self._now()
        return dict(super().items())


def _ranks_of(peers: list[str] | None, numbering: list[str]) -> dict[int, int]:
    """The table of a group of `peers` (None: all) of the elastic default group."""
    ranks = {peer: rank for rank, peer in enumerate(numbering)}
    members = numbering if peers is None else peers
    return {ranks[peer]: rank for rank, peer in enumerate(members) if peer in ranks}


def sync_tables(module: Any, *, new_numbers: bool = False) -> None:
    """Brings c10d's rank tables up to date with the elastic default group.

    Args:
        module: The extension.
        new_numbers: A boundary has changed the members: the counter from which groups are named
            starts at a value that newcomers and old members agree on.
    """
    world = distributed_c10d._world
    default = elastic_default(module)
    if default is None or default not in world.pg_group_ranks:
        return
    for pg, table in list(world.pg_group_ranks.items()):
        if isinstance(table, LiveRanks):
            continue
        peers = None if pg is default else _made.get(world.pg_names.get(pg, ""))
        if pg is default or peers is not None:
            world.pg_group_ranks[pg] = LiveRanks(
                lambda: module.group_view()["numbering"], functools.partial(_ranks_of, peers)
            )
    if new_numbers:
        world.group_count = GROUPS_PER_STEP * int(module.group_view()["step"])


# ------------------------------------------------------------------------------ c10d calls by name


def _patch_c10d() -> None:
    """Lets the two calls of c10d that ask for the name "gloo" work for this one too."""
    _patch("monitored_barrier", _monitored_barrier)
    if not hasattr(dist, "set_timeout"):  # torch 2.14 asks every backend
        _patch("_set_pg_timeout", _set_pg_timeout)


def _patch(name: str, replacement: Any) -> None:
    theirs = getattr(distributed_c10d, name, None)
    if theirs is None or hasattr(theirs, "pccl_replaces"):
        return
    ours = replacement(theirs)
    ours.__name__, ours.__doc__ = theirs.__name__, theirs.__doc__
    ours.pccl_replaces = theirs
    setattr(distributed_c10d, name, ours)
    if getattr(dist, name, None) is theirs:
        setattr(dist, name, ours)


def _is_ours(group: Any) -> bool:
    if group is dist.GroupMember.NON_GROUP_MEMBER or not dist.is_initialized():
        return False
    return NAME in {part.rpartition(":")[2] for part in _backends(group)}


def _backends(group: Any) -> Iterable[str]:
    return str(dist.get_backend(group)).split(",")


def _monitored_barrier(theirs: Any) -> Any:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> Any:
        if not _is_ours(group):
            return theirs(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        elif timeout is None:
            timeout = distributed_c10d._get_default_timeout(dist.get_backend(group))
        distributed_c10d._check_valid_timeout(timeout)
        target: Any = dist.group.WORLD if group is None else group
        return target.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(theirs: Any) -> Any:
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        if not _is_ours(group):
            theirs(timeout, group)
            return
        target: Any = dist.group.WORLD if group is None else group
        target.set_timeout(timeout)

    return _set_pg_timeout
