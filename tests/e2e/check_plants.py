"""Faults for the checks of an installation to find: functions of cases, run in their processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pccl_backend.check import elastic, fixed
from pccl_backend.check.rank import Rank, demand


def holds(at: Rank) -> None:
    at.note("fine", figure=7)
    at.tell("done")
    at.hear((at.rank + 1) % at.size, "done")


def finds_something(at: Rank) -> None:
    demand(at.rank == 0, "the sky is green")


def raises(at: Rank) -> None:
    raise ValueError("no such thing")


def ends_early(at: Rank) -> None:
    os._exit(3)


def hangs(at: Rank) -> None:
    time.sleep(1000)


def does_not_end(at: Rank) -> None:
    threading.Thread(target=time.sleep, args=(1000,)).start()


def ends_badly(at: Rank) -> None:
    at.finish()
    os._exit(5)


def outlives_its_kill(at: Rank) -> None:
    sys.exit(0)


def _with(patch: Callable[[Any], None], check: Callable[[Rank], None], at: Rank) -> None:
    import torch.distributed as dist

    patch(dist)
    check(at)


def adds_wrong(at: Rank) -> None:
    """A sum has one wrong value, of a size that is not the first."""

    def patch(dist: Any) -> None:
        reduce = dist.all_reduce

        def all_reduce(t: Any, *arguments: Any, **options: Any) -> Any:
            work = reduce(t, *arguments, **options)
            if t.numel() == 1_000_003:
                t[999_999] += 1
            return work

        dist.all_reduce = all_reduce

    _with(patch, fixed.results, at)


def sees_no_loss(at: Rank) -> None:
    class Deaf:
        def wait(self) -> None:
            return

    def patch(dist: Any) -> None:
        reduce = dist.all_reduce
        dist.all_reduce = lambda t, async_op=False: Deaf() if async_op else reduce(t)

    _with(patch, fixed.loss, at)


def goes_apart(at: Rank) -> None:
    """The members of the elastic group hold different bits."""

    def patch(dist: Any) -> None:
        reduce = dist.all_reduce

        def all_reduce(t: Any, *arguments: Any, **options: Any) -> Any:
            work = reduce(t, *arguments, **options)
            if t.numel() == 1000 and at.rank == 1:
                t[7] += 1e-3
            return work

        dist.all_reduce = all_reduce

    _with(patch, elastic.survives, at)
