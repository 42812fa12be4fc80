"""What pccl-run decides, on a clock of the test: no process is started."""

import math
import random
import signal
from typing import Any

import pytest

from pccl_backend.launch.supervisor import (
    LOST_AFTER_S,
    RENEW_AFTER_S,
    REPLACE_GRACE_S,
    SERVER_GRACE_S,
    Action,
    Asked,
    Ended,
    Event,
    Exit,
    Rules,
    RunEnded,
    Say,
    ShowErrors,
    Signal,
    Start,
    Supervisor,
    Tick,
    Unit,
    described,
    exit_status,
)

TERM, KILL = signal.SIGTERM, signal.SIGKILL
RULES = Rules(delay_s=1.0, delay_s_max=60.0, steady_s=60.0, failures_max=10, grace_s=30.0)


class Host:
    """A supervisor and its clock; what it says is kept apart from what it does."""

    def __init__(self, *units: Unit, rules: Rules = RULES) -> None:
        self.now_s = 1000.0
        self.said: list[str] = []
        self.supervisor = Supervisor(units, rules)
        self.first = self.tell(Tick())

    def tell(self, event: Event) -> list[Action]:
        actions = self.supervisor.step(event, self.now_s)
        self.said += [action.text for action in actions if isinstance(action, Say)]
        return [action for action in actions if not isinstance(action, Say)]

    def ends(
        self, unit: int, status: int, *, rank: int = 0, attempt: int = 0, finished: bool = False
    ) -> list[Action]:
        return self.tell(Ended(unit, rank, attempt, status, finished))

    def after(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.tell(Tick())

    def wakes_in_s(self) -> float:
        return self.supervisor.wake_s() - self.now_s


def workers(count: int, **settings: Any) -> Host:
    return Host(*(Unit(f"worker {i}") for i in range(count)), **settings)


def test_all_are_started_at_once_and_nothing_is_waited_for() -> None:
    host = workers(3)
    assert host.first == [Start(0, 0), Start(1, 0), Start(2, 0)]
    assert host.wakes_in_s() == math.inf
    assert host.after(1e6) == []


def test_the_one_that_dies_is_started_again_and_the_others_are_left_alone() -> None:
    host = workers(3)
    host.after(5.0)
    assert host.ends(1, -9) == []
    assert host.wakes_in_s() == 1.0
    assert host.after(0.9) == []
    assert host.after(0.1) == [Start(1, 1)]
    assert host.said == ["worker 1 was ended by SIGKILL after 5.0 s; next start in 1 s"]


def test_delays_double_up_to_the_longest() -> None:
    host = workers(1, rules=Rules(failures_max=100))
    waits = []
    for attempt in range(9):
        host.ends(0, 1, attempt=attempt)
        waits.append(host.wakes_in_s())
        assert host.after(waits[-1]) == [Start(0, attempt + 1)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert host.said[0].endswith("after 0.0 s; next start in 1 s")
    assert host.said[8].endswith("after 0.0 s, failure 9 in a row of 100; next start in 60 s")


def test_a_run_that_got_somewhere_begins_the_delays_and_the_count_anew() -> None:
    host = workers(1)
    for attempt in range(9):
        host.ends(0, 1, attempt=attempt)
        host.after(60.0)
    host.after(60.0)
    assert host.ends(0, 1, attempt=9) == []  # the tenth failure, but not in a row
    assert host.wakes_in_s() == 1.0
    host.after(1.0)
    assert host.ends(0, 1, attempt=10) == []
    assert host.wakes_in_s() == 2.0


def test_ten_quick_failures_end_the_launcher_with_the_status_and_the_last_lines() -> None:
    host = workers(2)
    for attempt in range(9):
        assert host.ends(0, 3, attempt=attempt) == []
        host.after(60.0)
    assert host.ends(0, 3, attempt=9) == [ShowErrors(0, 0), Signal(1, 0, TERM)]
    assert "failure 10 in a row: pccl-run gives up" in host.said[-1]
    assert host.wakes_in_s() == 30.0
    assert host.ends(1, 0) == [Exit(3)]


def test_giving_up_on_one_that_is_killed_ends_as_a_shell_would() -> None:
    host = workers(1, rules=Rules(failures_max=1))
    assert host.ends(0, -11) == [ShowErrors(0, 0), Exit(139)]


def test_who_ends_with_status_0_is_not_started_again_and_the_launcher_ends_with_the_last() -> None:
    host = workers(2)
    assert host.ends(0, 0) == []
    assert host.wakes_in_s() == math.inf
    assert host.ends(1, 0) == [Exit(0)]


def test_a_signal_is_handed_on_and_a_good_leave_is_status_0() -> None:
    host = workers(2)
    assert host.tell(Asked(TERM, "SIGTERM")) == [Signal(0, 0, TERM), Signal(1, 0, TERM)]
    assert host.ends(0, 0) == []
    assert host.ends(1, 0) == [Exit(0)]
    assert len([line for line in host.said if "SIGTERM goes to the workers" in line]) == 1


def test_a_second_ctrl_c_is_handed_on_too_and_sets_no_later_deadline() -> None:
    host = workers(1)
    host.tell(Asked(signal.SIGINT, "SIGINT"))
    host.after(10.0)
    assert host.tell(Asked(signal.SIGINT, "SIGINT")) == [Signal(0, 0, signal.SIGINT)]
    assert host.wakes_in_s() == 20.0


def test_another_signal_is_handed_on_once() -> None:
    host = workers(1)
    host.tell(Asked(TERM, "SIGTERM"))
    assert host.tell(Asked(TERM, "SIGTERM")) == []
    assert host.tell(Asked(signal.SIGHUP, "SIGHUP")) == [Signal(0, 0, signal.SIGHUP)]


def test_who_has_not_ended_after_the_grace_is_killed() -> None:
    host = workers(2)
    host.tell(Asked(TERM, "SIGTERM"))
    host.ends(0, 0)
    assert host.after(30.0) == [Signal(1, 0, KILL)]
    assert host.ends(1, -9) == [Exit(137)]


def test_who_does_not_even_end_when_killed_is_left_behind() -> None:
    host = workers(1)
    host.tell(Asked(TERM, "SIGTERM"))
    assert host.after(30.0) == [Signal(0, 0, KILL)]
    assert host.after(LOST_AFTER_S) == [Exit(137)]
    assert "hangs in the kernel" in host.said[-1]


def test_who_waits_for_its_next_start_when_the_signal_comes_is_not_started() -> None:
    host = workers(2)
    host.ends(0, 1)
    assert host.tell(Asked(TERM, "aws: terminate")) == [Signal(1, 0, TERM)]
    assert host.after(1.0) == []
    assert host.ends(1, 0) == [Exit(0)]


def test_who_fails_when_it_is_asked_to_end_gives_the_status() -> None:
    host = workers(3)
    host.tell(Asked(TERM, "SIGTERM"))
    host.ends(0, 0)
    host.ends(1, 7)
    assert host.ends(2, -15) == [Exit(7)]


def test_when_the_run_has_ended_nobody_is_started_again() -> None:
    host = workers(3)
    host.ends(0, 1)
    assert host.tell(RunEnded()) == []  # 0 waited for its next start
    assert host.wakes_in_s() == math.inf
    assert host.ends(1, 1) == []
    assert host.ends(2, 0) == [Exit(0)]
    assert "worker 0 is not started again: the run has ended" in host.said


def test_a_failure_before_the_end_of_the_run_was_found_is_said_once_more() -> None:
    host = workers(1)
    host.ends(0, 1)
    assert host.after(1.0) == [Start(0, 1)]
    host.tell(RunEnded())
    assert host.ends(0, 1, attempt=1) == [Exit(0)]
    assert "its run is finished; its start before this one failed" in host.said[-1]


def test_who_fails_after_it_has_finished_the_run_gives_the_status_and_is_not_started_again() -> (
    None
):
    host = workers(3)
    assert host.ends(0, -9, finished=True) == []
    assert "worker 0 was ended by SIGKILL after `finish`" in host.said[-1]
    assert host.wakes_in_s() == math.inf
    assert host.ends(1, 0, finished=True) == []
    host.tell(RunEnded())  # which 2 has learned too late
    assert host.ends(2, 1) == [Exit(137)]


def test_a_rank_of_a_replica_that_fails_after_the_end_gives_the_status() -> None:
    host = Host(Unit("replica", size=2))
    assert host.ends(0, 3, rank=1, finished=True) == []  # rank 0 may still save the model
    assert host.ends(0, 0, rank=0, finished=True) == [Exit(3)]


def test_an_attempt_that_was_given_up_says_nothing_of_the_next_one() -> None:
    host = Host(Unit("replica", size=2))
    host.ends(0, 1, rank=0)
    host.after(REPLACE_GRACE_S)
    host.after(LOST_AFTER_S)
    assert host.after(1.0) == [Start(0, 1)]
    assert host.ends(0, -9, rank=1, attempt=0) == []
    assert host.wakes_in_s() == math.inf


# ------------------------------------------------------------------------------ replicas


def test_a_replica_is_replaced_as_a_whole() -> None:
    host = Host(Unit("the replica", size=3))
    assert host.first == [Start(0, 0)]
    assert host.ends(0, -9, rank=1) == [Signal(0, 0, TERM), Signal(0, 2, TERM)]
    assert host.ends(0, 1, rank=0) == []
    assert host.ends(0, 0, rank=2) == []
    assert host.wakes_in_s() == 1.0
    assert host.after(1.0) == [Start(0, 1)]
    assert "rank 1 of the replica was ended by SIGKILL; its other ranks are ended" in host.said


def test_ranks_of_a_replica_that_do_not_end_are_killed() -> None:
    host = Host(Unit("the replica", size=2))
    host.ends(0, 1, rank=0)
    assert host.after(REPLACE_GRACE_S) == [Signal(0, 1, KILL)]
    host.ends(0, -9, rank=1)
    assert host.after(1.0) == [Start(0, 1)]


def test_a_replica_whose_ranks_end_one_after_the_other_has_ended() -> None:
    host = Host(Unit("the replica", size=2))
    assert host.ends(0, 0, rank=0) == []
    assert host.after(1e5) == []
    assert host.ends(0, 0, rank=1) == [Exit(0)]


def test_what_is_shown_of_a_replica_is_the_rank_that_failed_first() -> None:
    host = Host(Unit("the replica", size=2), rules=Rules(failures_max=1))
    host.ends(0, 5, rank=1)
    assert host.ends(0, 1, rank=0) == [ShowErrors(0, 1), Exit(5)]


def test_a_signal_while_a_replica_is_being_ended_starts_no_other_one() -> None:
    host = Host(Unit("the replica", size=2))
    host.ends(0, 1, rank=0)
    assert host.tell(Asked(TERM, "SIGTERM")) == [Signal(0, 1, TERM)]
    assert host.wakes_in_s() == REPLACE_GRACE_S
    assert host.ends(0, -15, rank=1) == [Exit(1)]


# ------------------------------------------------------------------------------ the master


def with_master(**settings: Any) -> Host:
    return Host(Unit("the master", serves=True), Unit("worker 0"), **settings)


def with_three_workers() -> Host:
    return Host(Unit("the master", serves=True), *(Unit(f"worker {i}") for i in range(3)))


def test_the_master_goes_when_the_last_worker_has_gone() -> None:
    host = with_master()
    assert host.ends(1, 0) == [Signal(0, 0, TERM)]
    assert host.wakes_in_s() == SERVER_GRACE_S
    assert host.ends(0, 0) == [Exit(0)]


def test_a_master_that_does_not_end_is_killed_and_changes_no_status() -> None:
    host = with_master()
    host.ends(1, 0)
    assert host.after(SERVER_GRACE_S) == [Signal(0, 0, KILL)]
    assert host.ends(0, -9) == [Exit(0)]


def test_a_master_that_ends_is_started_again_whatever_its_status() -> None:
    host = with_master()
    host.ends(0, 0)
    assert host.after(1.0) == [Start(0, 1, clients=1)]


def test_the_master_is_started_for_the_workers_that_have_not_ended_with_status_0() -> None:
    host = with_three_workers()
    assert host.first[0] == Start(0, 0, clients=3)
    host.ends(1, 0)
    host.ends(0, -9)
    assert host.after(1.0) == [Start(0, 1, clients=2)]


def test_when_all_that_are_left_were_started_again_the_master_waits_for_no_others() -> None:
    host = with_three_workers()
    host.ends(1, 0)
    host.ends(2, -9)
    assert host.after(1.0) == [Start(2, 1)]
    assert host.wakes_in_s() == math.inf  # worker 2 may still be a member: the run is not lost
    host.ends(3, -9)
    assert host.after(1.0) == [Start(3, 1)]
    assert host.after(RENEW_AFTER_S - 1.0) == [Signal(0, 0, TERM)]
    assert host.said[-1] == (
        "the master is started anew, so that it no longer waits for workers that have ended with "
        "status 0: 2 of 3 are left"
    )
    assert host.ends(0, 0) == [Start(0, 1, clients=2)]
    assert host.wakes_in_s() == math.inf


def test_a_run_whose_workers_were_started_again_long_ago_keeps_its_master() -> None:
    host = with_three_workers()
    host.ends(2, -9)
    host.after(1.0)
    host.ends(3, -9)
    host.after(1.0)
    host.after(RULES.steady_s)
    host.ends(1, 0)
    assert host.wakes_in_s() == math.inf
    host.ends(2, -9, attempt=1)
    assert host.after(1.0) == [Start(2, 2)]
    assert host.wakes_in_s() == math.inf  # worker 3 may still be a member


def test_a_run_that_is_finished_keeps_its_master_while_a_worker_saves() -> None:
    host = with_three_workers()
    for worker in (2, 3):
        host.ends(worker, -9)
    host.after(1.0)
    host.ends(1, 0)
    assert host.wakes_in_s() == RENEW_AFTER_S
    host.tell(RunEnded())
    assert host.wakes_in_s() == math.inf
    assert host.after(RENEW_AFTER_S) == []


def test_a_master_that_is_due_when_the_last_worker_ends_waits_for_no_fewer_than_one() -> None:
    host = with_three_workers()
    host.ends(0, -9)
    host.ends(1, 0)
    host.ends(2, 0)
    host.now_s += 1.0
    assert host.ends(3, 0) == [Start(0, 1, clients=1), Signal(0, 0, TERM)]
    assert host.ends(0, 0, attempt=1) == [Exit(0)]


def test_a_master_that_ends_by_itself_when_it_would_be_started_anew_has_failed() -> None:
    host = with_three_workers()
    host.ends(1, 0)
    host.ends(2, -9)
    host.ends(3, -9)
    host.ends(0, 1)
    assert Start(0, 1, clients=2) in host.after(1.0)
    assert "the master ended with status 1 after 0.0 s; next start in 1 s" in host.said
    assert host.wakes_in_s() == math.inf


def test_a_run_whose_workers_end_one_soon_after_the_other_keeps_its_master() -> None:
    host = with_three_workers()
    host.ends(3, -9)
    host.after(1.0)
    host.ends(1, 0)
    host.ends(2, 0)
    assert host.wakes_in_s() == RENEW_AFTER_S
    host.now_s += RENEW_AFTER_S / 2
    assert host.ends(3, 0, attempt=1) == [Signal(0, 0, TERM)]
    assert host.ends(0, 0) == [Exit(0)]


def test_a_master_that_is_started_anew_when_the_last_worker_ends_is_not_started() -> None:
    host = with_three_workers()
    host.ends(1, 0)
    host.ends(2, 0)
    host.ends(3, -9)
    host.after(1.0)
    assert host.after(RENEW_AFTER_S) == [Signal(0, 0, TERM)]
    assert host.ends(3, 0, attempt=1) == []
    assert host.ends(0, 0) == [Exit(0)]


def test_a_signal_leaves_the_master_until_the_workers_have_left() -> None:
    host = with_master()
    assert host.tell(Asked(TERM, "SIGTERM")) == [Signal(1, 0, TERM)]
    assert host.ends(1, 0) == [Signal(0, 0, TERM)]
    assert host.ends(0, 0) == [Exit(0)]


def test_a_master_that_dies_while_the_workers_end_is_not_started_again() -> None:
    host = with_master()
    host.tell(Asked(TERM, "SIGTERM"))
    assert host.ends(0, -9) == []
    assert host.ends(1, 0) == [Exit(0)]


def test_a_master_that_cannot_start_ends_the_launcher() -> None:
    host = with_master(rules=Rules(failures_max=2))
    host.ends(0, 1)
    host.after(1.0)
    assert host.ends(0, 1, attempt=1) == [ShowErrors(0, 0), Signal(1, 0, TERM)]
    assert host.ends(1, 0) == [Exit(1)]


# ------------------------------------------------------------------------------ by chance


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_a_launcher_that_is_asked_to_end_does_in_time(seed: int) -> None:
    """Also where processes ignore SIGTERM, and some even SIGKILL (they hang in the kernel)."""
    chance = random.Random(seed)
    units = [Unit("the master", serves=True)] * chance.randrange(2)
    units += [Unit(f"unit {i}", size=chance.randint(1, 3)) for i in range(chance.randint(1, 3))]
    supervisor, now_s = Supervisor(units, RULES), 0.0
    running: dict[tuple[int, int], int] = {}
    dying: list[tuple[tuple[int, int], int]] = []
    asked_s, exits = math.inf, []

    def tell(event: Event) -> None:
        for action in supervisor.step(event, now_s):
            match action:
                case Start(unit, attempt):
                    assert now_s <= asked_s
                    running.update({(unit, rank): attempt for rank in range(units[unit].size)})
                case Exit(status):
                    exits.append(status)
                case Signal(unit, rank, number):
                    if chance.random() < (0.9 if number == KILL else 0.5):
                        dying.append(((unit, rank), -number))

    def end(process: tuple[int, int], status: int) -> None:
        if process in running:
            tell(Ended(*process, running.pop(process), status))

    tell(Tick())
    for _ in range(500):
        now_s += chance.choice([0.0, 0.1, 1.0, 10.0, 70.0])
        if dying:
            end(*dying.pop(0))
        elif now_s > 400 and asked_s == math.inf:
            asked_s = now_s
            tell(Asked(TERM, "SIGTERM"))
        elif running and chance.random() < 0.3:
            end(chance.choice(sorted(running)), chance.choice([0, 1, -9]))
        else:
            tell(Tick())
        if exits:
            break
        assert supervisor.wake_s() < math.inf or running
    assert exits


# ------------------------------------------------------------------------------ words


def test_endings_in_words() -> None:
    assert described(3) == "ended with status 3"
    assert described(-9) == "was ended by SIGKILL"
    assert described(-63) == "was ended by signal 63"
    assert exit_status(-15) == 143
    assert exit_status(4) == 4
