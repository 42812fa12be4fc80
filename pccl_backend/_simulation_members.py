"""The parts of a simulated run (_simulation.py): members, their calls, the loss of a member."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ._group import Boundary
from ._state import Exchange

if TYPE_CHECKING:
    from ._simulation import Run


class MemberLost(BaseException):
    """Raised in the thread of a simulated member at the place where it is lost."""


class SimulationError(RuntimeError):
    """No member can go on, or the run took too long: the text says where each member waits."""


@dataclass
class Operation:
    """A collective call of one step, until its outcome.

    Attributes:
        kind: As the engine names it.
        same: The values that must be equal at all members: reduction, type, number of elements,
            root.
        run: Computes the result from the posts of the contributors, by rank, into their outputs.
        root: Rank of the root in the numbering of the step; -1 without one.
        posts: Inputs and outputs of each member.
        error: Why the operation failed.
        done: Whether the operation has its outcome.
    """

    kind: str
    same: tuple[Any, ...]
    run: Callable[[dict[int, Any]], None]
    root: int = -1
    posts: dict[Member, Any] = field(default_factory=dict)
    error: Exception | None = None
    done: bool = False


@dataclass(eq=False)
class Message:
    """A point-to-point send, until a receive has taken it or one of its ends is lost."""

    source: Member
    to: Member
    tag: int
    tensor: torch.Tensor
    error: Exception | None = None
    done: bool = False


@dataclass(eq=False)
class Member:
    """A simulated member: its thread, and its place in the run.

    Attributes:
        number: 0 for the first founder; newcomers count on, in the order in which they join.
        outcome: "running", "ended" (also after `finish`), "left", "lost" or "failed".
        result: What the program returned.
        error: What the program raised.
        steps: Number of the step at each boundary that the member has passed.
    """

    run: Run
    number: int
    outcome: str = "running"
    result: Any = None
    error: BaseException | None = None
    steps: list[int] = field(default_factory=list)

    admitted: bool = False
    index: int = 0  # of the next operation of this step
    wants_to_leave: bool = False
    told_left: bool = False
    finished: bool = False
    left_at: Boundary | None = None
    shared: Exchange | None = None  # its state, at a boundary
    at_boundary: bool = False
    verify: bool = False
    finishes: bool = False
    answer: Boundary | Exception | None = None
    inbox: list[Message] = field(default_factory=list)
    hooks: dict[str, OrderedDict[int, Callable[[Any], None]]] = field(default_factory=dict)
    group: Any = None  # its ElasticGroup
    thread: threading.Thread | None = None
    ready: Callable[[], bool] | None = None  # it waits until this holds
    soft: bool = False  # it may go on, if nobody else can
    waits_for: str = ""

    @property
    def peer(self) -> str:
        """The id of this member, as hooks name it."""
        return f"{self.number:016x}"
