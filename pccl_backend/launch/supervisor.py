"""The decisions of `pccl-run`: a function of events and times to actions.

The supervisor reads no clock, starts no process and waits for nothing: `executor` reports events
with their times, and carries out the actions. So each decision can be tested without a process.

A *unit* is started, and started again, as a whole: one worker, all ranks of a replica, or the
master of `--standalone`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

SERVER_GRACE_S = 5.0  # of the master, when the workers have ended
RENEW_AFTER_S = 2.0  # of the master: the last workers of a run that is over end within that time
REPLACE_GRACE_S = 10.0  # of the other ranks of a replica that has lost one
LOST_AFTER_S = 10.0  # from SIGKILL; a process that has not ended by then hangs in the kernel


@dataclass(frozen=True)
class Rules:
    """How often, how soon and how long.

    Attributes:
        delay_s: From the first failure of a unit to its next start; doubled by each further one.
        delay_s_max: The longest delay.
        steady_s: When a unit has lived for so long, its failures are forgotten. Longer than
            newcomers wait when all members of a run are lost (pccl-master's --refound-after), or
            a program that always fails after that wait would never be given up.
        failures_max: The launcher gives up after so many failures that were not forgotten.
        grace_s: From the signal that ends the workers to SIGKILL.
    """

    delay_s: float = 1.0
    delay_s_max: float = 60.0
    steady_s: float = 300.0
    failures_max: int = 10
    grace_s: float = 30.0


@dataclass(frozen=True)
class Unit:
    """Processes that are started as a whole.

    Attributes:
        name: For people.
        size: Number of its processes, the ranks 0 to size - 1.
        serves: The workers need this unit: it is started again until they have ended, then ended.
    """

    name: str
    size: int = 1
    serves: bool = False


# ------------------------------------------------------------------------------ events


@dataclass(frozen=True)
class Ended:
    """A process has ended; `status` is negative for a signal, as subprocess has it.

    `finished`: its program had returned from `finish`, so only what follows can have failed.
    """

    unit: int
    rank: int
    attempt: int
    status: int
    finished: bool = False


@dataclass(frozen=True)
class Asked:
    """The launcher is to end: a signal came, or the cloud takes the machine back."""

    signal: int
    why: str


@dataclass(frozen=True)
class RunEnded:
    """A worker has learned that its run has ended: there is nothing to start again for."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Ended | Asked | RunEnded | Tick

# ------------------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Start:
    """Start all processes of a unit; `attempt` counts from 0.

    `clients`, of a unit that serves: the number of workers (or replicas) that are still to run.
    """

    unit: int
    attempt: int
    clients: int = 0


@dataclass(frozen=True)
class Signal:
    """Send a signal to one process."""

    unit: int
    rank: int
    number: int


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class ShowErrors:
    """Show the last lines that a process has written to stderr."""

    unit: int
    rank: int


@dataclass(frozen=True)
class Exit:
    """All has ended; so does the launcher, with this status."""

    status: int


Action = Start | Signal | Say | ShowErrors | Exit


@dataclass
class _State:
    """The state of a unit.

    Attributes:
        unit: What it is.
        attempt: Of the last start; -1: none yet.
        start_s: When it is started next; None: it runs, or is done.
        began_s: When it was last started.
        alive: Ranks whose processes run.
        failed: The first rank that ended with another status than 0 since then, and that status.
        finished: That rank had finished the run.
        failures: Since it got somewhere.
        kill_s: When those that are alive get SIGKILL; None: nothing ends them.
        was_killed: They got it.
        clients: With which a unit that serves was last started.
        renew_s: When that unit is ended, to be started with fewer clients; None: it is not.
        renewed: That unit was ended for it.
        done: It is not started again.
    """

    unit: Unit
    attempt: int = -1
    start_s: float | None = 0.0
    began_s: float = 0.0
    alive: set[int] = field(default_factory=set)
    failed: tuple[int, int] | None = None
    finished: bool = False
    failures: int = 0
    kill_s: float | None = None
    was_killed: bool = False
    clients: int = 0
    renew_s: float | None = None
    renewed: bool = False
    done: bool = False


class Supervisor:
    """The units of a launcher. `step` is called with what happens, and with Tick at `wake_s()`."""

    def __init__(self, units: Sequence[Unit], rules: Rules) -> None:
        """All units are started by the first step."""
        self._states = [_State(unit) for unit in units]
        self._rules = rules
        self._ending = False
        self._handed_on: set[int] = set()
        self._run_ended = False
        self._status = 0
        self._actions: list[Action] = []

    def step(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done, in this order, now that `event` has happened."""
        self._actions = []
        if isinstance(event, Ended):
            self._ended(event, now_s)
        elif isinstance(event, Asked):
            self._asked(event, now_s)
        elif isinstance(event, RunEnded):
            self._end_of_run()
        for index, state in enumerate(self._states):
            self._pass_time(index, state, now_s)
        self._end_servers(now_s)
        self._renew_servers(now_s)
        if all(state.done for state in self._states):
            self._actions.append(Exit(self._status))
        return self._actions

    def wake_s(self) -> float:
        """When `step` has to be called next, if nothing happens before; infinity: never."""
        times = [t for s in self._states for t in (s.start_s, s.kill_s, s.renew_s)]
        return min((time for time in times if time is not None), default=math.inf)

    # ------------------------------------------------------------------------- what happens

    def _ended(self, event: Ended, now_s: float) -> None:
        state = self._states[event.unit]
        if event.attempt != state.attempt or event.rank not in state.alive:
            return  # it was given up before
        state.alive.discard(event.rank)
        if event.status != 0 and state.failed is None:
            state.failed, state.finished = (event.rank, event.status), event.finished
        if not state.alive:
            self._unit_ended(event.unit, now_s)
        elif event.status != 0 and state.kill_s is None and not event.finished:
            self._say(
                f"rank {event.rank} of {state.unit.name} {described(event.status)}; "
                "its other ranks are ended"
            )
            self._signal(event.unit, signal.SIGTERM, now_s, REPLACE_GRACE_S)

    def _unit_ended(self, index: int, now_s: float) -> None:
        state = self._states[index]
        state.kill_s, state.was_killed = None, False
        rank, status = state.failed or (0, 0)
        if self._ending:
            state.done = True
            if not state.unit.serves:
                self._status = self._status or exit_status(status)
            return
        if state.renewed:
            state.renewed, state.start_s = False, now_s
            return
        lived_s = now_s - state.began_s
        if not state.unit.serves and (status == 0 or self._run_ended or state.finished):
            state.done = True
            of_run = ": its run is finished" if self._run_ended else ""
            if state.finished:
                of_run = " after `finish`: the run is finished, what its program does then failed"
                self._status = self._status or exit_status(status)
            elif self._run_ended and status != 0 and state.failures > 0:
                of_run += "; its start before this one failed"
            self._say(f"{state.unit.name} {described(status)}{of_run}")
            return
        state.failures = 1 if lived_s >= self._rules.steady_s else state.failures + 1
        told = f"{state.unit.name} {described(status)} after {lived_s:.1f} s"
        if state.failures >= self._rules.failures_max:
            self._give_up(index, rank, status, told, now_s)
            return
        delay_s = min(
            self._rules.delay_s * 2.0 ** min(state.failures - 1, 60), self._rules.delay_s_max
        )
        state.start_s = now_s + delay_s
        if state.failures > 1:
            told += f", failure {state.failures} in a row of {self._rules.failures_max}"
        self._say(f"{told}; next start in {delay_s:g} s")

    def _give_up(self, index: int, rank: int, status: int, told: str, now_s: float) -> None:
        state = self._states[index]
        state.done = True
        self._say(
            f"{told}, failure {state.failures} in a row: pccl-run gives up. The last lines of its "
            "stderr:"
        )
        self._actions.append(ShowErrors(index, rank))
        self._status = exit_status(status) or 1
        self._end_all(signal.SIGTERM, now_s)

    def _asked(self, event: Asked, now_s: float) -> None:
        if not self._ending:
            self._say(
                f"{event.why}; {signal.Signals(event.signal).name} goes to the workers, SIGKILL to "
                f"those that have not ended in {self._rules.grace_s:g} s"
            )
        self._end_all(event.signal, now_s)

    def _end_of_run(self) -> None:
        self._run_ended = True
        for state in self._states:
            if state.start_s is not None and not state.unit.serves:
                state.start_s, state.done = None, True
                self._say(f"{state.unit.name} is not started again: the run has ended")

    # ------------------------------------------------------------------------- what follows

    def _end_all(self, number: int, now_s: float) -> None:
        """Hands the signal to all workers; the first time it also sets their deadline.

        Once, or a second SIGTERM might meet a worker that is leaving in good order just where
        Python has taken its handlers away, and kill it. Who types Ctrl-C again means it.
        """
        self._ending = True
        if number in self._handed_on and number != signal.SIGINT:
            return
        self._handed_on.add(number)
        for index, state in enumerate(self._states):
            if state.unit.serves or state.done:
                continue
            if state.alive:
                self._signal(index, number, now_s, self._rules.grace_s)
            else:
                state.start_s, state.done = None, True

    def _signal(self, index: int, number: int, now_s: float, grace_s: float) -> None:
        state = self._states[index]
        self._actions += [Signal(index, rank, number) for rank in sorted(state.alive)]
        if state.kill_s is None:
            state.kill_s = now_s + grace_s

    def _pass_time(self, index: int, state: _State, now_s: float) -> None:
        if state.start_s is not None and now_s >= state.start_s:
            state.attempt += 1
            state.start_s, state.began_s = None, now_s
            state.failed, state.finished = None, False
            state.alive = set(range(state.unit.size))
            state.clients = max(1, len(self._left())) if state.unit.serves else 0
            self._actions.append(Start(index, state.attempt, state.clients))
        if state.kill_s is None or now_s < state.kill_s:
            return
        if not state.was_killed:
            self._say(f"{state.unit.name} has not ended in time: SIGKILL")
            self._actions += [Signal(index, r, signal.SIGKILL) for r in sorted(state.alive)]
            state.was_killed, state.kill_s = True, now_s + LOST_AFTER_S
            return
        self._say(
            f"{state.unit.name} has not ended {LOST_AFTER_S:g} s after SIGKILL: it hangs in the "
            "kernel (a device, a file system), and is left behind"
        )
        for rank in sorted(state.alive):
            self._ended(Ended(index, rank, state.attempt, -signal.SIGKILL), now_s)

    def _end_servers(self, now_s: float) -> None:
        """The master goes when the last worker has gone."""
        if self._left():
            return
        self._ending = True
        for index, state in enumerate(self._states):
            if state.unit.serves and not state.alive:
                state.start_s, state.done = None, True
            elif state.unit.serves and state.kill_s is None:
                self._signal(index, signal.SIGTERM, now_s, SERVER_GRACE_S)

    def _renew_servers(self, now_s: float) -> None:
        """The master founds the run anew with the workers that are left.

        It waits for as many workers as there were at its start. A worker that has ended with
        status 0 does not come, so the others would wait in vain once all members are lost. While a
        worker lives that was not started again lately, the run may have a member, and needs no
        founding; a run that is finished is not founded anew.
        """
        left = self._left()
        is_over = self._ending or self._run_ended
        may_found = not is_over and all(self._is_new(state, now_s) for state in left)
        for index, state in enumerate(self._states):
            is_due = state.clients > len(left) and may_found
            if not is_due or not state.alive or state.kill_s is not None:
                state.renew_s = None
            elif state.renew_s is None:
                state.renew_s = now_s + RENEW_AFTER_S
            elif now_s >= state.renew_s:
                state.renew_s, state.renewed = None, True
                self._say(
                    f"{state.unit.name} is started anew, so that it no longer waits for workers "
                    f"that have ended with status 0: {len(left)} of {state.clients} are left"
                )
                self._signal(index, signal.SIGTERM, now_s, SERVER_GRACE_S)

    def _is_new(self, state: _State, now_s: float) -> bool:
        """Was it started again lately, or is it about to be?"""
        lived_s = now_s - state.began_s
        return state.start_s is not None or (state.attempt > 0 and lived_s < self._rules.steady_s)

    def _left(self) -> list[_State]:
        """Workers, or replicas, that run or are to be started."""
        return [state for state in self._states if not state.unit.serves and not state.done]

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))


def exit_status(status: int) -> int:
    """The status with which a shell tells of a process that ended so."""
    return 128 - status if status < 0 else status


def described(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
