"""The functions that c10d calls to make a group "pccl": a fixed one, an elastic one, or both."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _calls, _extension, _rank_tables, _rendezvous, _session
from ._config import EXACT, NAME
from ._errors import NotAdmittedError

BESIDE_NAME = "pccl-elastic"


def create(options: Any, pg_options: Any) -> Any:
    """The creator that c10d calls: an elastic ProcessGroup, or the Backend of a fixed group."""
    given = _rendezvous.given_options(pg_options)
    module = _extension.extension(given)
    timeout_s = options.timeout.total_seconds()
    is_default = len(options.global_ranks_in_group) == 0
    quantise = getattr(pg_options, "quantise", None) or EXACT  # also `options` of a group of pccl
    if is_default:
        quantise = _rendezvous.quantise_of_default(given)
    if is_default and not getattr(options, "enable_reconfigure", False):
        joined = _rendezvous.take_joined(options.store) or _rendezvous.join_by_environment(
            module, timeout_s
        )
        if joined is not None:
            _session.watch(module)
            return module.create_elastic(
                timeout_s, options.group_id, list(joined.device_types), joined.quantise or quantise
            )
    backend = _create_fixed(module, options, timeout_s)
    backend.quantise = quantise
    return backend


def _create_fixed(module: Any, options: Any, timeout_s: float) -> Any:
    if getattr(options, "enable_reconfigure", False):
        return module.create_unconfigured(
            options.store, options.group_rank, options.group_size, timeout_s
        )
    _be_the_default()
    parent = _rank_tables.elastic_default(module)
    if parent is not None and len(options.global_ranks_in_group) > 0:
        return _create_of_run(module, options, timeout_s)
    return module.create_fixed(
        options.store, options.group_rank, options.group_size, timeout_s, options.group_id
    )


def _create_of_run(module: Any, options: Any, timeout_s: float) -> Any:
    """The Backend of a fixed group of members of the elastic default group."""
    view = module.group_view()
    if not view["admitted"]:
        raise NotAdmittedError(
            "this peer has not been admitted yet: call refresh() before a group is made"
        )
    peers = [view["numbering"][rank] for rank in options.global_ranks_in_group]
    number = _rank_tables.number_of_group(view, options.group_id, peers)
    backend = module.create_of_run(peers, options.group_rank, timeout_s, options.group_id, number)
    _rank_tables.note_made(options.group_id, peers)
    return backend


def _be_the_default() -> None:
    """Makes "cpu:pccl" the default backend of its group, as c10d does with "pccl" alone."""
    made = _calls.locals_of("_new_process_group_helper")
    if made and set(made["backend_config"].get_device_backend_map().values()) == {NAME}:
        made["pg"]._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def create_beside(joined: _rendezvous.Joined, timeout_s: float) -> Any:
    """The group of a run that was joined beside a default group, known to c10d as new_group's are.

    Global ranks mean the default group's world. Of the members of the new group only this process
    has one there: the others are named by their ranks in it (`group_src`, `group_dst`).
    """
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
    module = _extension.loaded()
    itself = dist.get_rank()
    world.pg_group_ranks[pg] = _rank_tables.LiveRanks(
        lambda: module.group_view(), lambda view: {itself: int(view["rank"])}
    )
    _rank_tables.note_beside(pg)
    return pg
