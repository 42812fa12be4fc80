"""Functions of torch.distributed that are replaced for groups of pccl.

Two ask for the name "gloo" and are made to work for "pccl" too. With `Options(objects=False)` those
that unpickle what other members send are refused; `torch.distributed` is Python there, and hands
the backend nothing but tensors of bytes, so a backend alone cannot tell them from others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._config import NAME

# What a program calls, refused before anything is sent; and the two that all of these go through,
# for a program that has taken the first ones from torch before there was a group.
_OF_OBJECTS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
_PICKLES = ("_object_to_tensor", "_tensor_to_object")


def apply(*, objects: bool) -> None:
    """Replaces them, once; for groups of other backends they do what they did.

    Args:
        objects: Whether object collectives stay allowed.
    """
    _patch("monitored_barrier", _monitored_barrier)
    if not objects:
        for name in (*_OF_OBJECTS, *_PICKLES):
            _patch(name, _refused)
        # Sends and unpickles by functions of its own.
        from torch.distributed.optim import zero_redundancy_optimizer

        _patch("_broadcast_object", _refused, zero_redundancy_optimizer)
    if not hasattr(dist, "set_timeout"):  # torch 2.14 asks every backend
        _patch("_set_pg_timeout", _set_pg_timeout)


def _patch(name: str, replacement: Any, module: Any = distributed_c10d) -> None:
    theirs = getattr(module, name, None)
    if theirs is None or hasattr(theirs, "pccl_replaces"):
        return
    ours = replacement(theirs)
    ours.__name__, ours.__doc__ = theirs.__name__, theirs.__doc__
    ours.pccl_replaces = theirs
    setattr(module, name, ours)
    if getattr(dist, name, None) is theirs:
        setattr(dist, name, ours)


def _refused(theirs: Callable[..., Any]) -> Any:
    parameters = inspect.signature(theirs)

    @functools.wraps(theirs)
    def refuses(*args: Any, **kwargs: Any) -> Any:
        if not _is_ours(parameters.bind(*args, **kwargs).arguments.get("group")):
            return theirs(*args, **kwargs)
        name = theirs.__name__
        raise RuntimeError(
            f"{name if name in _OF_OBJECTS else 'an object collective'} on a group of pccl is "
            "refused, by Options(objects=False) or PCCL_OBJECTS=0: torch unpickles what other "
            "members send, so each of them could run its code here. Send tensors in its place, or "
            "put plain values into the state that refresh shares"
        )

    return refuses


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
