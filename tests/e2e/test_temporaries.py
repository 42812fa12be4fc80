"""Tensors that go through a temporary: order, memory, failures. And calls that a rank does not wait
for, or does not come to."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fixed_group, hear, resources, say
from elastic_members import Run, Start

ROUNDS = 5
BIG = 1 << 20  # elements


def _coalesced(dist: Any, tensors: list[torch.Tensor]) -> Any:
    options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return backend.allreduce_coalesced(tensors, options)


def _transposed_twice(dist: Any, rank: int) -> bool:
    tensor = torch.ones(400, 300).t()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    return bool((tensor == 4).all())


def _view_then_base(dist: Any, rank: int) -> bool:
    base = torch.ones(1000, 8)
    first = dist.all_reduce(base[:, :4], async_op=True)
    second = dist.all_reduce(base, async_op=True)
    second.wait()
    first.wait()
    return bool((base[:, :4] == 4).all() and (base[:, 4:] == 2).all())


def _base_then_view(dist: Any, rank: int) -> bool:
    base = torch.ones(1000, 800)
    first = dist.all_reduce(base, async_op=True)
    second = dist.all_reduce(base[:, :4], async_op=True)
    second.wait()
    first.wait()
    return bool((base[:, :4] == 4).all() and (base[:, 4:] == 2).all())


def _coalesced_then_plain(dist: Any, rank: int) -> bool:
    tensor = torch.ones(100_000)
    first = _coalesced(dist, [tensor])
    second = dist.all_reduce(tensor, async_op=True)
    second.wait()
    first.wait()
    return bool((tensor == 4).all())


def _column_then_base(dist: Any, rank: int) -> bool:
    base = torch.full((4, 4), float(rank))
    first = dist.broadcast(base[:, 0], 1, async_op=True)
    second = dist.all_reduce(base, async_op=True)
    second.wait()
    first.wait()
    return bool(base.tolist() == [[2.0, 1.0, 1.0, 1.0]] * 4)


def _gathered_then_reduced(dist: Any, rank: int) -> bool:
    wide = torch.zeros(3, 2)
    first = dist.all_gather([wide[:, 0], wide[:, 1]], torch.full((3,), rank + 1.0), async_op=True)
    second = dist.all_reduce(wide, async_op=True)
    second.wait()
    first.wait()
    return bool(wide.tolist() == [[2.0, 4.0]] * 3)


def _all_to_all_in_place(dist: Any, rank: int) -> bool:
    tensor = torch.ones(BIG)
    first = dist.all_reduce(tensor, async_op=True)
    second = dist.all_to_all_single(tensor, tensor, async_op=True)
    second.wait()
    first.wait()
    return bool((tensor == 2).all())


def _gathered_over_its_input(dist: Any, rank: int) -> bool:
    tensor = torch.ones(2 * BIG)
    first = dist.all_reduce(tensor[:BIG], async_op=True)
    second = dist.all_gather_into_tensor(tensor, tensor[:BIG], async_op=True)
    second.wait()
    first.wait()
    return bool((tensor == 2).all())


def _scattered_over_its_input(dist: Any, rank: int) -> bool:
    tensor = torch.ones(2 * BIG)
    first = dist.all_reduce(tensor, async_op=True)
    second = dist.reduce_scatter_tensor(tensor[:BIG], tensor, async_op=True)
    second.wait()
    first.wait()
    return bool((tensor[:BIG] == 4).all() and (tensor[BIG:] == 2).all())


def _sparse(count: int = BIG // 16) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(count)[None], torch.ones(count), (count,))


def _sparse_twice(dist: Any, rank: int) -> bool:
    tensor = _sparse()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    return bool((tensor.to_dense() == 4).all())


def _sparse_before_a_barrier(dist: Any, rank: int) -> bool:
    tensor = _sparse()
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    right = bool((tensor.to_dense() == 2).all())
    work.wait()
    return right


def _sparse_after_its_values(dist: Any, rank: int) -> bool:
    tensor = _sparse().coalesce()
    first = dist.all_reduce(tensor.values(), async_op=True)
    second = dist.all_reduce(tensor, async_op=True)
    second.wait()
    first.wait()
    return bool((tensor.to_dense() == 4).all())


CASES = [
    *(_transposed_twice, _view_then_base, _base_then_view),
    *(_coalesced_then_plain, _column_then_base, _gathered_then_reduced),
    *(_all_to_all_in_place, _gathered_over_its_input, _scattered_over_its_input),
    *(_sparse_twice, _sparse_before_a_barrier, _sparse_after_its_values),
]


def shares_memory(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    for case in CASES:
        say(case=case.__name__, right=[case(dist, rank) for _ in range(ROUNDS)])
    dist.destroy_process_group()


def test_an_operation_begins_after_those_before_it_on_the_same_memory(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(shares_memory, 2, str(tmp_path / "meet"))
    for peer in peers:
        for case in CASES:
            assert peer.next(case=case.__name__)["right"] == [True] * ROUNDS
        peer.finish()


def reduces_at_the_boundary(rank: int, url: str) -> None:
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url)
    state = {"w": torch.full((2000, 2000), 1.0)}
    pccl.group().refresh(state)
    works = [dist.all_reduce(state["w"].t(), async_op=True)]
    boundary = pccl.group().refresh(state, verify=True)
    say(w=state["w"].unique().tolist(), received=boundary.bytes_received)
    for work in works:
        work.wait()
    dist.destroy_process_group()


def test_a_boundary_sees_results_that_nobody_has_waited_for(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2", "--state", "none")
    for peer in run_peers(reduces_at_the_boundary, 2, master.url):
        said = peer.next(received=0)
        assert said["w"] == [2.0]
        peer.finish()


def fails_to_copy(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    errors = []
    shared = torch.ones(1).expand(4)
    for tensors in ([shared], [torch.ones(3), shared]):
        try:
            _coalesced(dist, tensors).wait()
        except RuntimeError as error:
            errors.append(str(error))
    say(errors=errors)
    indices = [[0]] if rank == 0 else [[40_000_000_000]]
    sparse = torch.sparse_coo_tensor(indices, [1.0], (5,), check_invariants=False)
    for pause_s in (0.0, 0.5):  # whether wait() copies, or another thread has tried to
        work = dist.all_reduce(sparse, async_op=True)
        time.sleep(pause_s)
        try:
            work.wait()
            say(sparse="", success=work.is_success())
        except RuntimeError as error:
            say(sparse=str(error), success=work.is_success(), again=str(work.exception()))
    dist.destroy_process_group()


def test_a_result_that_cannot_be_copied_is_a_failure_of_its_operation(
    run_peers: Run, tmp_path: Path
) -> None:
    for peer in run_peers(fails_to_copy, 2, str(tmp_path / "meet")):
        errors = peer.next()["errors"]
        assert len(errors) == 2
        assert all("several elements of a tensor that is written share" in e for e in errors)
        for _ in range(2):
            said = peer.next()
            assert "rank 1 has the index 40000000000 in dimension 0, of size 5" in said["sparse"]
            assert said["success"] is False
        peer.finish()


def has_unequal_own_parts(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    mine, other = torch.arange(4.0), torch.zeros(4)
    splits = ([1, 3], [3, 1]) if rank == 1 else ([3, 1], [1, 3])
    try:
        dist.all_to_all_single(other, mine, *splits)
    except RuntimeError as error:
        say(all_to_all=str(error), other=other.tolist())
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    good = [[torch.zeros(2), torch.zeros(2)] for _ in range(2)]
    bad = [[torch.zeros(2), torch.zeros(1).expand(2)] for _ in range(2)]
    inputs = [torch.full((2,), 10.0 + rank), torch.full((2,), 20.0 + rank)]
    if rank == 0:
        try:
            backend.allgather_coalesced(bad, inputs)
        except RuntimeError as error:
            say(gather=str(error))
    backend.allgather_coalesced(good, inputs).wait()
    say(good=[[part[0].item() for part in parts] for parts in good])
    dist.destroy_process_group()


def test_a_call_that_is_refused_has_sent_nothing(run_peers: Run, tmp_path: Path) -> None:
    peers = run_peers(has_unequal_own_parts, 2, str(tmp_path / "meet"))
    for rank, peer in enumerate(peers):
        said = peer.next(other=[0.0] * 4)
        assert f"rank {rank} sends itself 1 elements and wants to receive 3" in said["all_to_all"]
        if rank == 0:
            assert "share one place in memory" in peer.next()["gather"]
        peer.next(good=[[10.0, 20.0], [11.0, 21.0]])
        peer.finish()


def drops_tensors(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 1, meet)
    dist.all_reduce(torch.ones(4).t())
    before = resources()["kib"]
    dist.all_reduce(torch.ones(30_000, 1000).t())
    say(grown_kib=resources()["kib"] - before)
    dist.destroy_process_group()


def test_tensors_and_temporaries_are_released_with_the_operation(
    run_peers: Run, tmp_path: Path
) -> None:
    (peer,) = run_peers(drops_tensors, 1, str(tmp_path / "meet"))
    assert peer.next()["grown_kib"] < 50_000  # each of them has 117,188
    peer.finish()


# ---------------------------------------------------------------------- not waiting, not coming


def drops_the_first(rank: int, url: str) -> None:
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url)
    say(rank=dist.get_rank())
    while (word := hear()) != "end":
        work = dist.all_reduce(torch.ones(10), async_op=True)
        if word == "wait":
            work.wait()
        else:
            while not work.is_completed():
                time.sleep(0.005)
        say(after=word, rank=dist.get_rank(), size=dist.get_world_size())
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(1) * dist.get_rank())
    say(gathered=[part.item() for part in parts])
    dist.destroy_process_group()


@pytest.mark.parametrize("others_wait", [True, False])
def test_rank_and_size_follow_a_loss_whose_first_operation_was_not_waited_for(
    run_peers: Run, start_master: Start, others_wait: bool
) -> None:
    master = start_master("--min-peers", "3", "--state", "none")
    peers = run_peers(drops_the_first, 3, master.url)
    by_rank = {peer.next()["rank"]: peer for peer in peers}
    by_rank.pop(0).kill()
    first, second = by_rank[1], by_rank[2]
    first.tell("wait" if others_wait else "poll")
    second.tell("poll")
    for peer in (first, second):
        peer.next()
    for peer in (first, second):
        peer.tell("wait")
    for rank, peer in enumerate((first, second)):
        peer.next(after="wait", rank=rank, size=2)
        peer.tell("end")
    for peer in (first, second):
        assert peer.next()["gathered"] == [0.0, 1.0]
        peer.finish()


def misses_one(rank: int, where: str) -> None:
    if where.startswith("pccl://"):
        import torch.distributed as dist

        import pccl_backend as pccl

        pccl.join(where)
    else:
        dist = fixed_group(rank, 2, where)
    store = dist.distributed_c10d._get_default_store()

    def meets(timeout_s: float) -> str:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:
            return str(error)
        return ""

    own = dist.get_rank()
    said = [meets(60)]
    if own == 0:
        said.append(meets(1))
        store.set("over", b"1")
    else:
        store.wait(["over"], timedelta(seconds=120))
    said += [meets(60) for _ in range(2)]
    say(own=own, said=said)
    dist.destroy_process_group()


@pytest.mark.parametrize("elastic", [False, True])
def test_monitored_barriers_go_on_after_one_that_a_rank_has_missed(
    run_peers: Run, start_master: Start, tmp_path: Path, elastic: bool
) -> None:
    where = str(tmp_path / "meet")
    if elastic:
        where = start_master("--min-peers", "2", "--state", "none").url
    for peer in run_peers(misses_one, 2, where):
        line = peer.next()
        if line["own"] == 0:
            assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in line["said"].pop(1)
        assert line["said"] == [""] * 3
        peer.finish()


def meets_with_a_newcomer(index: int, url: str) -> None:
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url)
    group, state = pccl.group(), {"w": torch.zeros(3)}
    say(size=group.refresh(state).size)
    if index < 2:
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        say(met=2)
        while group.refresh(state).size < 3:
            time.sleep(0.01)
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    say(met=3)
    hear()  # whose word is on its way when another one leaves has an error
    dist.destroy_process_group()


def test_a_newcomer_has_not_counted_the_monitored_barriers_before_it(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2", "--state", "none")
    peers = run_peers(meets_with_a_newcomer, 2, master.url)
    for peer in peers:
        peer.next(met=2)
    peers += run_peers(meets_with_a_newcomer, 1, master.url, first=2)
    for peer in peers:
        peer.next(met=3)
    for peer in peers:
        peer.tell("end")
        peer.finish()


def meets_in_two_threads(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    errors: list[str] = []

    def meets() -> None:
        try:
            for _ in range(20):
                dist.monitored_barrier(timeout=timedelta(seconds=60))
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=meets) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(errors=errors)
    dist.destroy_process_group()


def test_two_threads_may_call_monitored_barriers_at_once(run_peers: Run, tmp_path: Path) -> None:
    for peer in run_peers(meets_in_two_threads, 2, str(tmp_path / "meet")):
        peer.next(errors=[])
        peer.finish()
