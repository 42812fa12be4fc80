"""Hooks of a program on changes of the membership, called on the thread `pccl-events`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.hooks import RemovableHandle

from ._config import NAME

HOOKS = ("epoch", "joined", "left", "evicted", "master_lost", "master_back")

_log = logging.getLogger(NAME)


@dataclass(frozen=True)
class Change:
    """A change of a run, which is given to the hooks of `ElasticGroup.on`.

    Attributes:
        what: The name of the hook.
        epoch: Number of the newest epoch, "incarnation.counter".
        members: Number of members of this peer group in that epoch.
        joined: Ids of the peers that are new in that epoch, of all peer groups.
        left: Ids of the peers of the epoch before that have left or were lost.
        text: The reason; empty for "epoch", "joined" and "left".
        joined_names: Names of the peers in `joined`, in the same order, as log lines have them.
        left_names: Names of the peers in `left`.
    """

    what: str
    epoch: str
    members: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    text: str
    joined_names: tuple[str, ...] = ()
    left_names: tuple[str, ...] = ()


Hook = Callable[[Change], None]

_hooks: dict[str, OrderedDict[int, Hook]] = {what: OrderedDict() for what in HOOKS}


def add(what: str, function: Hook) -> RemovableHandle:
    """Calls `function` at each event of that name.

    Raises:
        ValueError: There is no such event.
    """
    if what not in _hooks:
        raise ValueError(f"what is {what!r}; expected one of {', '.join(HOOKS)}")
    handle = RemovableHandle(_hooks[what])
    _hooks[what][handle.id] = function
    return handle


def forget() -> None:
    """Drops all hooks: their group is gone."""
    for functions in _hooks.values():
        functions.clear()


def tell(event: dict[str, Any]) -> None:
    """Calls the hooks of an event of the engine. What they raise is logged."""
    names = [event["what"]]
    if event["what"] == "epoch":
        names += [name for name, key in (("joined", "joined"), ("left", "lost")) if event[key]]
    elif event["what"] == "left":
        return  # this peer has: its boundary says so
    for name in names:
        change = Change(
            what=name,
            epoch=event["epoch"],
            members=event["members"],
            joined=tuple(event["joined"]),
            left=tuple(event["lost"]),
            text=event["text"],
            joined_names=tuple(event["joined_names"]),
            left_names=tuple(event["lost_names"]),
        )
        for function in list(_hooks[name].values()):
            try:
                function(change)
            except Exception:
                _log.exception("the hook %r for %r has failed", function, name)
