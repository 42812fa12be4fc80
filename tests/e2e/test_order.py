"""A barrier ends after all that its rank has called before it, in fixed and in elastic groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fixed_group, say
from elastic_members import Run, Start

WORLD = 2
ROUNDS = 15
COUNT = 1 << 20  # 4 MiB each
FOUR = 4


def _reduced(dist: Any, rank: int, group: Any) -> Callable[[], bool]:
    tensors = [torch.full((COUNT,), float(rank + 1)) for _ in range(FOUR)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    return lambda: len(works) == FOUR and all(bool((t == 3).all()) for t in tensors)


def _copied_back(dist: Any, rank: int, group: Any) -> Callable[[], bool]:
    """Not contiguous: received elsewhere and copied when the call is over."""
    tensors = [torch.full((1024, COUNT // 1024), float(rank + 1)).t() for _ in range(FOUR)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    return lambda: len(works) == FOUR and all(bool((t == 3).all()) for t in tensors)


def _received(dist: Any, rank: int, group: Any) -> Callable[[], bool]:
    out = [torch.full((COUNT,), float(rank + 1)) for _ in range(FOUR)]
    into = [torch.zeros(COUNT) for _ in range(FOUR)]
    works = [dist.irecv(t, group=group, group_src=1 - rank) for t in into]
    works += [dist.isend(t, group=group, group_dst=1 - rank) for t in out]

    def right() -> bool:
        arrived = all(bool((t == 2 - rank).all()) for t in into)
        for work in works:
            work.wait()
        return arrived

    return right


def _needs_later_calls(dist: Any, rank: int, group: Any) -> Callable[[], bool]:
    """What is called before the barrier waits for what is called after it, at both ranks."""
    into, out = torch.zeros(COUNT), torch.full((COUNT,), float(rank + 1))
    received = dist.irecv(into, group=group, group_src=1 - rank, tag=7)
    sent = dist.isend(out, group=group, group_dst=1 - rank, tag=8)

    def right() -> bool:
        other = torch.zeros(COUNT)
        later = dist.isend(out, group=group, group_dst=1 - rank, tag=7)
        dist.recv(other, group=group, group_src=1 - rank, tag=8)
        for work in (received, sent, later):
            work.wait()
        return bool((into == 2 - rank).all()) and bool((other == 2 - rank).all())

    return right


CALLS = (_reduced, _copied_back, _received, _needs_later_calls)


def _rounds(dist: Any, rank: int, group: Any) -> dict[str, int]:
    wrong = {}
    for call in CALLS:
        for is_async in (False, True):
            key = f"{call.__name__}, async {is_async}"
            wrong[key] = 0
            for _ in range(ROUNDS):
                right = call(dist, rank, group)
                barrier = dist.barrier(group=group, async_op=is_async)
                if is_async:
                    barrier.wait()
                wrong[key] += not right()
    return wrong


def fixed_member(rank: int, meet: str) -> None:
    dist = fixed_group(rank, WORLD, meet)
    say(wrong=_rounds(dist, rank, dist.group.WORLD))
    dist.destroy_process_group()


def elastic_member(index: int, url: str) -> None:
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    say(wrong=_rounds(dist, dist.get_rank(), dist.group.WORLD))
    dist.barrier()
    dist.destroy_process_group()


def _none_wrong(peers: list[Any]) -> None:
    for peer in peers:
        wrong = peer.next()["wrong"]
        assert len(wrong) == 2 * len(CALLS)
        assert not any(wrong.values()), wrong
        peer.finish()


def test_a_barrier_of_a_fixed_group_ends_after_what_was_called_before_it(
    run_peers: Run, tmp_path: Path
) -> None:
    _none_wrong(run_peers(fixed_member, WORLD, str(tmp_path / "meet")))


@pytest.mark.long
def test_a_barrier_of_an_elastic_group_ends_after_what_was_called_before_it(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", str(WORLD))
    _none_wrong(run_peers(elastic_member, WORLD, master.url))


def leaves_after_a_barrier(rank: int, meet: str) -> None:
    dist = fixed_group(rank, WORLD, meet)
    failed = []
    for _ in range(ROUNDS):
        group = dist.new_group()
        tensors = [torch.full((COUNT,), float(rank + 1)) for _ in range(FOUR)]
        works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
        into, out = torch.zeros(COUNT), torch.full((COUNT,), float(rank + 1))
        if rank == 0:
            works.append(dist.irecv(into, group=group, group_src=1))
        else:
            works.append(dist.isend(out, group=group, group_dst=0))
        dist.barrier(group=group)
        dist.destroy_process_group(group)
        for work in works:
            try:
                work.wait()
            except RuntimeError as error:
                failed.append(str(error))
        if not all(bool((t == 3).all()) for t in tensors) or (rank == 0 and into[-1] != 2):
            failed.append("wrong")
    say(failed=failed)
    dist.barrier()
    dist.destroy_process_group()


def test_a_group_that_is_destroyed_after_a_barrier_fails_nothing(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(leaves_after_a_barrier, WORLD, str(tmp_path / "meet"))
    for peer in peers:
        assert peer.next()["failed"] == []
        peer.finish()
