"""c10d's tables of ranks, kept true while the members of the elastic group change.

With _patches.py, _calls.py, _making.py and _checkpoint_files.py the only modules that touch private
names of torch.distributed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _extension
from ._errors import GroupClosedError

GROUPS_PER_STEP = 1 << 20  # names of groups are numbers; each step has this many of its own

_beside: Any = None  # the elastic group where it is not the default one


@dataclass
class _GroupsOfRun:
    """The fixed groups that were made from the elastic default group.

    Attributes:
        peers: The members of each group, by its name, in the order of their ranks.
        where: Step and numbering in which a group was last asked for.
        attempts: How often each group was asked for in that step and numbering.
    """

    peers: dict[str, list[str]] = field(default_factory=dict)
    where: str = ""
    attempts: Counter[str] = field(default_factory=Counter)


_of_run = _GroupsOfRun()


def elastic_default(module: Any = None) -> Any:
    """The default group where it is the elastic one, else None."""
    group = dist.group.WORLD
    module = _extension.loaded() if module is None else module
    return group if group is not None and module is not None and module.is_elastic(group) else None


def elastic_group() -> Any:
    """The elastic group of this process: the default one, or one beside it; None without."""
    default = elastic_default()
    if default is not None:
        return default
    return _beside if _beside is not None and _beside in distributed_c10d._world.pg_map else None


def note_beside(group: Any) -> None:
    """The elastic group of this process stands beside a default group."""
    global _beside
    _beside = group


def note_made(name: str, peers: list[str]) -> None:
    """A fixed group of these peers was made from the elastic default group."""
    alive = set(distributed_c10d._world.pg_names.values())
    for other in [known for known in _of_run.peers if known not in alive]:
        del _of_run.peers[other]
    _of_run.peers[name] = peers


def number_of_group(view: Any, name: str, peers: list[str]) -> str:
    """A name for a group that is made from the elastic one, the same at all its members.

    The number of the newest epoch moves under a running program; the step and the numbering change
    at the same place of the program at all members, and so does the count of the groups of this
    name and these peers that were made in the step.
    """
    where = " ".join([str(view["step"]), *view["numbering"]])
    if where != _of_run.where:
        _of_run.where = where
        _of_run.attempts.clear()
    what = " ".join([name, *peers])
    _of_run.attempts[what] += 1
    return f"{where} / {what} / {_of_run.attempts[what]}"


class LiveRanks(dict[int, int]):
    """c10d's {global rank: group rank} of one group, true at every look.

    In a program without boundaries rank and size of an elastic group change when an operation
    returns. Python is not told of that, so the table asks the engine when it is read.
    """

    def __init__(self, look: Any, ranks: Any) -> None:
        """`look()` returns the present state of the group, `ranks` makes the table from it."""
        super().__init__()
        self._look = look
        self._ranks = ranks
        # The last result of `look` and its table: replaced together, so that no thread sees a mix.
        self._known: tuple[Any, dict[int, int]] = (None, {})

    def _now(self) -> dict[int, int]:
        seen, table = self._known
        try:
            now = self._look()
        except GroupClosedError:
            return table  # after destroy: the last one stays
        if now != seen:
            table = self._ranks(now)
            self._known = (now, table)
        return table

    def __getitem__(self, key: int) -> int:
        return self._now()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._now()

    def __iter__(self) -> Iterator[int]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __eq__(self, other: object) -> bool:
        return self._now() == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._now())

    def get(self, key: int, default: Any = None) -> Any:
        """Does what that of a dict does."""
        return self._now().get(key, default)

    def keys(self) -> Any:
        """Does what that of a dict does."""
        return self._now().keys()

    def values(self) -> Any:
        """Does what that of a dict does."""
        return self._now().values()

    def items(self) -> Any:
        """Does what that of a dict does."""
        return self._now().items()

    def copy(self) -> dict[int, int]:
        """Returns a plain dict."""
        return dict(self._now())


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
        peers = None if pg is default else _of_run.peers.get(world.pg_names.get(pg, ""))
        if pg is default or peers is not None:
            world.pg_group_ranks[pg] = LiveRanks(
                lambda: module.group_view()["numbering"], functools.partial(_ranks_of, peers)
            )
    if new_numbers:
        world.group_count = GROUPS_PER_STEP * int(module.group_view()["step"])
