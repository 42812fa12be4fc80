"""A run in one process: members as threads, one at a time, with losses and joins at chosen places.

Programs use `testing.py`. The rules are those of the engine as a program sees them
(docs/explanation/losses.md): commit when all members have issued, replay among the survivors, one
failure for the rest of a step, boundaries that vote. This module has these rules a second time,
small enough to be read; no socket, no clock and no master takes part.

One member runs at a time, until it waits for another one. Then the first member, in order, that can
go on runs. So a run is the same every time, and a run in which no member can go on is noticed at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch

from . import _simulated
from ._errors import (
    GroupClosedError,
    MismatchError,
    NotAdmittedError,
    PeerLostError,
    RunEndedError,
)
from ._group import Boundary
from ._simulation_members import Member, MemberLost, Message, Operation, SimulationError
from ._simulation_state import equalise, exchange_of
from ._state import Snapshot

REPLAYABLE = ("all_reduce", "reduce_scatter", "barrier")
ROOTED = ("broadcast", "scatter", "reduce")


class Run:
    """The members of one simulated run, the operations of the step, and whose turn it is."""

    def __init__(
        self,
        program: Callable[[], Any],
        events: Sequence[Any],
        group_of: Callable[[Member], Any],
    ) -> None:
        """Takes the program that each member calls, the events, and what makes a member's group."""
        self.program = program
        self._group_of = group_of
        self._coming = list(events)
        self.everybody: list[Member] = []
        self.members: list[Member] = []  # of the epoch, in rank order
        self.numbering: list[Member] = []  # of the step: pinned between boundaries
        self.step = 0
        self.epoch = 1
        self.operations: dict[int, Operation] = {}
        self.failed_from: int | None = None  # index in this step: everything from there on fails
        self.contributed: set[Member] | None = None  # to all operations of this step
        self.voted: list[Member] = []  # members of the last boundary that voted
        self._compares = False  # that one was the first, or has admitted newcomers
        self._offers: dict[str, Snapshot] = {}
        self._turn = threading.Condition()
        self._running: Member | None = None
        self._broken: str | None = None

    # -------------------------------------------------------------------------- threads and turns

    def start(self, members: int, timeout_s: float) -> list[Member]:
        """Runs the program in `members` founders and in newcomers; returns all members."""
        for _ in range(members):
            self._add()
        self.members = list(self.everybody)
        self.numbering = list(self.members)
        for member in self.members:
            member.admitted = True
        with self._turn:
            self._pass_on()
            over = self._turn.wait_for(self._is_over, timeout_s)
            if not over:
                self._break(f"the simulated run has not ended within {timeout_s:g} s")
        for member in self.everybody:
            if member.thread is not None:
                member.thread.join(timeout=5.0)
        failed = any(m.outcome == "failed" for m in self.everybody)
        if self._broken is None and self._coming and not failed:
            events = ", ".join(map(repr, self._coming))
            self._broken = f"the run has ended before these events: {events}"
        if self._broken is not None:
            raise SimulationError(self._broken)
        return self.everybody

    def _is_over(self) -> bool:
        return all(m.outcome != "running" for m in self.everybody) or self._broken is not None

    def _add(self) -> Member:
        member = Member(self, len(self.everybody))
        member.ready = lambda: True
        member.group = self._group_of(member)
        self.everybody.append(member)
        member.thread = threading.Thread(
            target=self._live, args=(member,), name=f"member-{member.number}", daemon=True
        )
        member.thread.start()
        return member

    def _live(self, member: Member) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._running is member or self._broken is not None)
        _simulated.enter(member.group)
        error: BaseException | None = None
        try:
            if self._broken is None:
                member.result = self.program()
        except BaseException as raised:
            error = raised
        with self._turn:
            if member.outcome == "running":
                clean = error is None or (isinstance(error, SystemExit) and not error.code)
                member.error = None if clean else error
                ended = "left" if member.told_left and not member.finished else "ended"
                member.outcome = ended if clean else "failed"
                self._gone(member)
            member.ready = None
            self._pass_on()
            self._turn.notify_all()

    def wait(
        self, member: Member, ready: Callable[[], bool], what: str, *, soft: bool = False
    ) -> None:
        """Lets other members run until `ready()`, or (`soft`) until no other member can run."""
        with self._turn:
            member.ready, member.soft, member.waits_for = ready, soft, what
            self._pass_on()
            self._turn.wait_for(lambda: self._running is member or self._broken is not None)
            member.ready = None
            if self._broken is not None:
                raise SimulationError(self._broken)
        self._check_alive(member)

    def _check_alive(self, member: Member) -> None:
        if member.outcome == "lost":
            raise MemberLost(f"simulated member {member.number} is lost")

    def _pass_on(self) -> None:
        """Gives the turn to the first member that can go on. Under the lock."""
        waiting = [m for m in self.everybody if m.outcome == "running" and m.ready is not None]
        able = [m for m in waiting if m.ready is not None and m.ready()]
        soft = [m for m in waiting if m.soft]
        chosen = next(iter(able or soft), None)
        if chosen is not None:
            chosen.soft = False
        elif waiting:
            lines = [f"member {m.number} waits for {m.waits_for}" for m in waiting]
            self._break("no member can go on: " + "; ".join(lines))
        self._running = chosen
        self._turn.notify_all()

    def _break(self, text: str) -> None:
        self._broken = text
        self._turn.notify_all()

    # -------------------------------------------------------------------------- who is there

    def rank_of(self, member: Member) -> int:
        """Rank of a member in the numbering of the step; provisional for a newcomer."""
        return self.numbering.index(member) if member in self.numbering else len(self.numbering)

    def size_for(self, member: Member) -> int:
        """Size in the numbering of the step; a newcomer that asks is counted too."""
        return len(self.numbering) + (member not in self.numbering)

    def lose(self, member: Member) -> None:
        """Loses the member, as by SIGKILL, with its contributions that are not committed."""
        member.outcome = "lost"
        self._gone(member)

    def _gone(self, member: Member) -> None:
        """The survivors go on in the next epoch."""
        if member not in self.members:
            self._maybe_boundary()  # nobody waits for a newcomer that is gone
            return
        self.members.remove(member)
        if not self.members:
            return
        self.epoch += 1
        for operation in self.operations.values():
            operation.posts.pop(member, None)
        for other in self.everybody:
            other.inbox = [m for m in other.inbox if m.source is not member]
        for message in member.inbox:
            message.error = PeerLostError(f"send: {self._name(member)} was lost")
            message.done = True
        self._tell("epoch", left=(member.peer,))
        self._tell("left", left=(member.peer,))
        for index in sorted(self.operations):
            self._judge(index)
        self._maybe_boundary()

    def _name(self, member: Member) -> str:
        if member in self.numbering:
            return f"rank {self.numbering.index(member)}"
        return f"member {member.number}"

    def _tell(self, what: str, joined: tuple[str, ...] = (), left: tuple[str, ...] = ()) -> None:
        from ._events import Change

        change = Change(what, f"1.{self.epoch}", len(self.members), joined, left, "", joined, left)
        for member in self.members:
            for function in list(member.hooks.get(what, {}).values()):
                function(change)

    # -------------------------------------------------------------------------- collectives

    def post(self, member: Member, operation: Operation, post: Any, *, is_async: bool) -> Operation:
        """Issues an operation; without `is_async` returns with its outcome, or raises its error."""
        self._check_alive(member)
        self._lose_at(member, member.index)
        if member.told_left:
            raise GroupClosedError(f"{operation.kind}: this replica has left the run")
        if not member.admitted:
            raise NotAdmittedError(
                f"{operation.kind}: this peer has not been admitted yet: call refresh() before the "
                "first operation"
            )
        index, member.index = member.index, member.index + 1
        with self._turn:
            known = self.operations.setdefault(index, operation)
            if known.same != operation.same or known.kind != operation.kind:
                known.error = MismatchError(
                    f"operation {index} of step {self.step}: member {member.number} calls "
                    f"{operation.kind}{operation.same}, others {known.kind}{known.same}"
                )
            known.posts[member] = post
            self._judge(index)
        if not known.done:
            self.wait(
                member, lambda: known.done, f"{known.kind} {self.step}.{index}", soft=is_async
            )
        if not is_async:
            self.outcome(member, known)
        return known

    def outcome(self, member: Member, operation: Operation) -> None:
        """Waits for the outcome; raises the error of a failed operation."""
        if not operation.done:
            self.wait(member, lambda: operation.done, operation.kind)
        if operation.error is not None:
            raise operation.error

    def _judge(self, index: int) -> None:
        """Fails or commits the operation, if its time has come. Under the lock, or in the turn."""
        operation = self.operations[index]
        if operation.done:
            return
        lost = [m for m in self.numbering if m not in self.members]
        if operation.error is None and lost and not self._survives(operation):
            names = ", ".join(f"rank {self.numbering.index(m)}" for m in lost)
            operation.error = PeerLostError(
                f"{operation.kind} {self.step}.{index}: {names} was lost; the tensors are unchanged"
            )
        if self.failed_from is not None and index >= self.failed_from and operation.error is None:
            operation.error = self.operations[self.failed_from].error
        if operation.error is not None:
            self.failed_from = index if self.failed_from is None else self.failed_from
            operation.done = True
            for later in sorted(self.operations):
                if later > index:
                    self._judge(later)
            return
        if any(m not in operation.posts for m in self.members):
            return
        ranks = {self.numbering.index(m): post for m, post in operation.posts.items()}
        operation.run(ranks)
        operation.done = True
        if operation.kind != "barrier":
            members = set(operation.posts)
            self.contributed = members if self.contributed is None else self.contributed & members

    def _survives(self, operation: Operation) -> bool:
        if operation.kind in REPLAYABLE:
            return True
        root_lives = operation.root >= 0 and self.numbering[operation.root] in self.members
        return operation.kind in ROOTED and root_lives

    def _lose_at(self, member: Member, operation: int | None) -> None:
        """Carries out a loss that is due before this operation, or at this boundary."""
        if self._happens(lambda event: event.loses(member.number, self.step, operation)):
            self.lose(member)
            self._check_alive(member)

    # -------------------------------------------------------------------------- point-to-point

    def send(self, member: Member, to: int, tag: int, tensor: torch.Tensor) -> Message:
        """Hands the message over; `wait_for_send` waits for its outcome."""
        self._check_alive(member)
        message = Message(member, self.numbering[to], tag, tensor)
        if message.to in self.members:
            message.to.inbox.append(message)
        else:
            message.error = PeerLostError(f"send: rank {to} was lost")
            message.done = True
        return message

    def wait_for_send(self, message: Message) -> None:
        """Returns when the receive has taken it.

        Raises:
            PeerLostError: Its receiver was lost.
        """
        to = self._name(message.to)
        self.wait(message.source, lambda: message.done, f"send to {to} (tag {message.tag})")
        if message.error is not None:
            raise message.error

    def receive(self, member: Member, source: int | None, tag: int, tensor: torch.Tensor) -> int:
        """Waits for a message from `source` (None: any rank) and returns the rank of its sender.

        Raises:
            PeerLostError: `source` was lost.
        """
        self._check_alive(member)
        wanted = None if source is None else self.numbering[source]

        def found() -> Message | None:
            return next(
                (m for m in member.inbox if m.tag == tag and wanted in (None, m.source)), None
            )

        def ready() -> bool:
            return found() is not None or (wanted is not None and wanted not in self.members)

        whom = "any rank" if source is None else f"rank {source}"
        self.wait(member, ready, f"recv from {whom} (tag {tag})")
        message = found()
        if message is None:
            raise PeerLostError(f"recv: rank {source} was lost; the tensor is unchanged")
        member.inbox.remove(message)
        message.done = True
        if message.tensor.numel() * message.tensor.element_size() != (
            tensor.numel() * tensor.element_size()
        ):
            message.error = MismatchError(
                f"recv: {self._name(message.source)} sends {tuple(message.tensor.shape)}, this "
                f"rank receives {tuple(tensor.shape)} (tag {tag})"
            )
            raise message.error
        with torch.no_grad():
            tensor.copy_(message.tensor.view(tensor.shape))
        return self.rank_of(message.source)

    # -------------------------------------------------------------------------- boundaries

    def boundary(
        self,
        member: Member,
        state: MutableMapping[str, Any] | None,
        *,
        verify: bool = False,
        admits: bool = True,
        finishes: bool = False,
    ) -> Boundary:
        """Meets the others: `refresh`, (`admits` false) `resume`, or `finish`."""
        self._check_alive(member)
        if member.told_left:
            raise GroupClosedError("this replica has left the run")
        self._lose_at(member, None)
        if self._happens(lambda event: event.lets_go(member.number, self.step)):
            member.wants_to_leave = True
        shared = None if state is None else exchange_of(state, self._offers)
        unfinished = [o for o in self.operations.values() if member in o.posts and not o.done]
        for operation in unfinished:
            self.wait(member, lambda o=operation: o.done, operation.kind)  # type: ignore[misc]
        member.shared, member.verify, member.at_boundary = shared, verify, True
        member.finishes = finishes
        member.answer = None
        with self._turn:
            if admits and member.admitted:
                self._bring_newcomers()
            self._maybe_boundary()
        if member.answer is None:
            at = f"the boundary after step {self.step}"
            self.wait(member, lambda: member.answer is not None, at)
        answer = member.answer
        assert answer is not None
        if isinstance(answer, Exception):
            raise answer
        member.steps.append(answer.step)
        member.left_at = answer if answer.left else None
        return answer

    def _bring_newcomers(self) -> None:
        """Starts the newcomers that the coming boundary admits."""
        while self._happens(lambda event: event.brings(self.step + 1)):
            self._add()

    def _happens(self, is_it: Callable[[Any], bool]) -> bool:
        """Does such an event come now? It comes once."""
        event = next(filter(is_it, self._coming), None)
        if event is not None:
            self._coming.remove(event)
        return event is not None

    def _finish(self, door: list[Member]) -> None:
        """All members say that the run is finished: it ends here, and nobody joins it any more."""
        self.numbering = list(self.members)
        for m in self.members:
            m.at_boundary, m.told_left, m.finished = False, True, True
            m.answer = Boundary(
                epoch=f"1.{self.epoch}",
                rank=self.rank_of(m),
                size=len(self.members),
                step=self.step,
                voted=True,
                admitted=False,
                left=False,
                bytes_received=0,
                contributors=(),
                size_changed=False,
                paused_s=0.0,
                finished=True,
            )
        for m in door:
            m.at_boundary = False
            m.answer = RunEndedError(f"the run is finished, after step {self.step}")

    def _maybe_boundary(self) -> None:
        """Passes the boundary if all members, and all newcomers that it admits, stand at it."""
        door = [m for m in self.everybody if not m.admitted and m.outcome == "running"]
        waiting = [*self.members, *door]
        if not self.members or any(not m.at_boundary for m in waiting):
            return
        if all(m.finishes for m in self.members):
            self._finish(door)
            return
        contributors = tuple(
            rank
            for rank, m in enumerate(self.numbering)
            if self.contributed is None or m in self.contributed
        )
        gone = [m for m in self.members if m.wants_to_leave]
        votes = (
            bool(door or gone or self._compares)
            or any(m.verify for m in self.members)
            or self.members != self.voted
            or self.failed_from is not None
        )
        received = dict.fromkeys(waiting, 0)
        if votes:
            try:
                received.update(self._equalise(door, contributors))
            except Exception as error:  # also what setting a value of a state raises
                for m in waiting:
                    m.at_boundary, m.answer = False, error
                return
        self._pass(door, gone, received, contributors, votes=votes)

    def _equalise(self, door: list[Member], contributors: tuple[int, ...]) -> dict[Member, int]:
        """Gives all members and newcomers one shared state; returns the bytes that each got."""
        for m in self.members:
            if m.shared is not None:
                m.shared.settle(contributors or None)
        return equalise(self.members, door, self._offers, founding=not self.voted)

    def _pass(
        self,
        door: list[Member],
        gone: list[Member],
        received: dict[Member, int],
        contributors: tuple[int, ...],
        *,
        votes: bool,
    ) -> None:
        """The next step begins, with those at the door and without those that are gone."""
        waiting = [*self.members, *door]
        size_before = len(self.numbering)
        if door or gone:
            self.epoch += 1
        self.members = [*(m for m in self.members if m not in gone), *door]
        self.numbering = list(self.members)
        if votes:
            self._compares = bool(door) or not self.voted
            self.voted = list(self.members)
        self.step += 1
        self.operations, self.failed_from, self.contributed = {}, None, None
        for m in waiting:
            m.at_boundary, m.index, m.shared = False, 0, None
            m.told_left = m in gone
            m.answer = Boundary(
                epoch=f"1.{self.epoch}",
                rank=self.rank_of(m),
                size=len(self.members),
                step=self.step,
                voted=votes,
                admitted=m in door,
                left=m in gone,
                bytes_received=received[m],
                contributors=() if m in door else contributors,
                size_changed=m in door or len(self.members) != size_before,
                paused_s=0.0,
            )
        for m in door:
            m.admitted = True
        if door or gone:
            self._tell("epoch", tuple(m.peer for m in door), tuple(m.peer for m in gone))
