"""Calls that wait while Python goes on elsewhere: handlers of signals, kernels of subclasses."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from conftest import fixed_group, hear, say
from elastic_members import Run


class StopHere(Exception):
    pass


def interrupts_after(seconds: float) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise StopHere

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def coalesces_two_types(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    floats, integers = torch.ones(4), torch.ones(3, dtype=torch.int32)
    if rank == 1:
        hear()
    before = dist.all_reduce(integers, async_op=True)
    if rank == 0:
        interrupts_after(0.3)
        try:  # waits in the call for the integers, of which rank 1 has not called the sum
            backend.allreduce_coalesced([floats, integers])
        except StopHere:
            say(interrupted=floats.tolist())
    backend.allreduce_coalesced([floats, integers]).wait()
    before.wait()
    say(floats=floats.tolist(), integers=integers.tolist())
    dist.destroy_process_group()


def test_a_call_of_several_types_that_is_interrupted_is_not_issued_in_part(
    run_peers: Run, tmp_path: Path
) -> None:
    first, second = run_peers(coalesces_two_types, 2, str(tmp_path / "meet"))
    first.next(interrupted=[1.0] * 4)
    second.tell("go")
    for peer in (first, second):
        peer.next(floats=[2.0] * 4, integers=[4] * 3)
        peer.finish()


def meets_after_an_interruption(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    if rank == 0:
        hear()
    else:
        interrupts_after(0.3)
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=600))
        except StopHere:
            say(interrupted=True)
    for _ in range(2):
        dist.monitored_barrier(timeout=timedelta(days=200_000))
    say(met=2)
    dist.destroy_process_group()


def test_a_monitored_barrier_takes_up_one_that_was_interrupted(
    run_peers: Run, tmp_path: Path
) -> None:
    first, second = run_peers(meets_after_an_interruption, 2, str(tmp_path / "meet"))
    second.next(interrupted=True)
    first.tell("go")
    for peer in (first, second):
        peer.next(met=2)
        peer.finish()


def looks_at_autograd(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    seen: list[bool] = []

    def look(number: int, frame: Any) -> None:
        seen.append((torch.ones(1, requires_grad=True) * 2).requires_grad)
        say(looked=True)

    signal.signal(signal.SIGALRM, look)
    strided = torch.ones(4, 3).t()
    for reduce in (lambda: dist.all_reduce(strided), lambda: dist.all_reduce(_sparse())):
        if rank == 1:
            hear()
        first = dist.all_reduce(strided, async_op=True)
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        reduce()
        first.wait()
    say(seen=seen)
    dist.destroy_process_group()


def _sparse() -> torch.Tensor:
    return torch.ones(4).to_sparse()


def test_a_handler_that_runs_in_a_call_has_autograd(run_peers: Run, tmp_path: Path) -> None:
    first, second = run_peers(looks_at_autograd, 2, str(tmp_path / "meet"))
    for _ in range(2):
        first.next(looked=True)
        second.tell("go")
    first.next(seen=[True, True])
    for peer in (first, second):
        peer.finish()


class InPython(torch.Tensor):
    """Whose copies are Python's, so that they need the GIL."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def polls_a_subclass(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    for _ in range(60):
        tensor = torch.Tensor._make_subclass(InPython, torch.ones(300, 200).t())
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        work.wait()
        assert tensor.as_subclass(torch.Tensor).unique().tolist() == [2.0]
    say(done=True)
    dist.destroy_process_group()


def test_a_result_that_python_copies_may_be_polled_for(run_peers: Run, tmp_path: Path) -> None:
    for peer in run_peers(polls_a_subclass, 2, str(tmp_path / "meet")):
        peer.next(done=True)
        peer.finish()
