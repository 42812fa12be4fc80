"""Test a training loop without processes: a simulated elastic run, with losses and joins on demand.

    from pccl_backend import testing

    def test_the_loop_survives_a_loss():
        run = testing.simulate(train, members=3, events=[testing.Lose(member=1, step=4)])
        assert [m.outcome for m in run] == ["ended", "lost", "ended"]
        assert run[0].result == run[2].result

`train` is the program of one member. It calls `pccl.join(url)` or `init_process_group("pccl", ...)`
(with any URL: no master is asked), `pccl.elastic`, `pccl.group().refresh` and torch.distributed, as
it would in a process of its own. Members are threads that run one at a time, so a run is the same
every time. A run in which no member can go on raises SimulationError, whose text says where each
member waits.

Not simulated: replicas of several ranks, groups made by `new_group`, programs without boundaries,
the master, time-outs and the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._simulation import Run
from ._simulation_group import SimulatedGroup, simulated_c10d
from ._simulation_members import Member, MemberLost, SimulationError

__all__ = ["Event", "Join", "Leave", "Lose", "Member", "MemberLost", "SimulationError", "simulate"]

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Event:
    """Something that happens at a chosen place of a simulated run; use Lose, Join or Leave."""

    def loses(self, member: int, step: int, operation: int | None) -> bool:
        """Is this member lost before this operation of the step (None: at its boundary)?"""
        return False

    def lets_go(self, member: int, step: int) -> bool:
        """Does this member ask to leave at the boundary that ends the step?"""
        return False

    def brings(self, step: int) -> bool:
        """Is a newcomer admitted by the boundary with which the step begins?"""
        return False


@dataclass(frozen=True)
class Lose(Event):
    """A member is lost, as by SIGKILL.

    Attributes:
        member: Number of the member: founders are 0, 1, ..., newcomers have the next numbers.
        step: The step in which the member is lost. The first boundary of a run begins step 1.
        operation: The member is lost before it issues this operation of the step, counted from 0;
            operations that it has issued and that are not committed lose its contribution. None:
            the member is lost at the boundary that ends the step.
    """

    member: int
    step: int
    operation: int | None = None

    def loses(self, member: int, step: int, operation: int | None) -> bool:
        """Answers as Event says."""
        return (self.member, self.step, self.operation) == (member, step, operation)


@dataclass(frozen=True)
class Join(Event):
    """A newcomer comes, and is admitted by the boundary with which this step begins."""

    step: int

    def brings(self, step: int) -> bool:
        """Answers as Event says."""
        return self.step == step


@dataclass(frozen=True)
class Leave(Event):
    """A member asks to leave in this step, and is let go by the boundary that ends it."""

    member: int
    step: int

    def lets_go(self, member: int, step: int) -> bool:
        """Answers as Event says."""
        return (self.member, self.step) == (member, step)


def simulate(
    program: Callable[[], Any],
    *,
    members: int = 2,
    events: Sequence[Event] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[Member]:
    """Runs `program` in a simulated elastic run, once for each member, until all have ended.

    Args:
        program: Called without arguments in the thread of each member.
        members: Founders, 1 or more.
        events: Losses, joins and leaves, each with its place in the run.
        timeout_s: Seconds for the whole run, of the clock on the wall.

    Returns:
        The members, founders first, then newcomers in the order in which they came: `outcome`
        ("ended", "left", "lost", "failed"), `result`, `error`, `steps`. An exception of a program
        is in `error`, and is not raised here.

    Raises:
        ValueError: `members` is below 1.
        SimulationError: No member can go on, the run has not ended in time, or it has ended before
            one of the events could happen, although no program has failed.
    """
    if members < 1:
        raise ValueError(f"members is {members!r}; expected 1 or more")
    run = Run(program, events, SimulatedGroup)
    with simulated_c10d(run.everybody):
        return run.start(members, timeout_s)
