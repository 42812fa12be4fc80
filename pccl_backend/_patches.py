"""The two calls of torch.distributed that ask for the name "gloo", made to work for "pccl" too."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._config import NAME


def apply() -> None:
    """Replaces both, once; for groups of other backends they do what they did."""
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
