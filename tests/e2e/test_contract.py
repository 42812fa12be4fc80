"""What c10d and its users expect of a backend beside results: words, errors, limits of waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, fixed_group, hear, say
from elastic_members import Run

sys.path.insert(0, str(ROOT / "tests" / "fake_device"))
import fake_device

# ------------------------------------------------------------------------------- refused arguments


def _bad_calls(dist: Any, rank: int, pg: Any) -> dict[str, tuple[Callable[[], Any], str]]:
    """Name -> the call, and the words that gloo's users look for."""
    t, o, other, longer = torch.ones(4), torch.ones(4), torch.ones(4).double(), torch.ones(5)

    def root(options: Any, rank: int) -> Any:
        options.rootRank = rank
        return options

    def operation(options: Any, op: Any) -> Any:
        options.reduceOp = op
        return options

    bits = operation(dist.AllreduceOptions(), dist.ReduceOp.BAND)
    sparse = torch.eye(4).to_sparse()
    gathers, scatters = root(dist.GatherOptions(), 0), root(dist.ScatterOptions(), 0)
    calls = {
        "broadcast from nobody": (
            lambda: pg.broadcast([t], root(dist.BroadcastOptions(), 7)),
            "invalid root rank: 7",
        ),
        "reduce to nobody": (
            lambda: pg.reduce([t], root(dist.ReduceOptions(), -1)),
            "invalid root rank: -1",
        ),
        "bits of floats": (
            lambda: pg.allreduce([t], bits),
            "Cannot use ReduceOp.BAND with non-integral dtype",
        ),
        "least of sparse": (
            lambda: pg.allreduce([sparse], operation(dist.AllreduceOptions(), dist.ReduceOp.MIN)),
            "unsupported reduction operation (allreduce of sparse tensors only works with "
            "ReduceOp.SUM)",
        ),
        "gather of two": (
            lambda: pg.gather([], [t, t], gathers),
            "requires a single-element input tensor list",
        ),
        "scatter to two": (
            lambda: pg.scatter([o, o], [], scatters),
            "requires a single-element output tensor list",
        ),
        "all_gather, no list": (
            lambda: pg.allgather([], [t]),
            "requires input/output tensor lists to have the same length",
        ),
        "all_gather, short": (
            lambda: pg.allgather([[t]], [t]),
            "invalid output tensor list at index 0 (expected length 2, got 1)",
        ),
        "all_gather, types": (
            lambda: pg.allgather([[t, other]], [t]),
            "invalid tensor type at index 1",
        ),
        "all_gather, coalesced, few lists": (
            lambda: pg.allgather_coalesced([[t]], [t]),
            "output lists should be equal to world size",
        ),
        "all_gather, coalesced, lengths": (
            lambda: pg.allgather_coalesced([[t, t], [t, t]], [t]),
            "invalid output size: (expected length 1, got 2)",
        ),
        "reduce_scatter, short": (
            lambda: pg.reduce_scatter([o], [[t]]),
            "invalid input tensor list size, must be world size",
        ),
        "all_to_all, short": (
            lambda: pg.alltoall([t], [t]),
            "input tensor list size 1 does not match world size 2",
        ),
        "all_to_all, splits": (
            lambda: pg.alltoall_base(o, t, [4], [4]),
            "Number of tensor splits not equal to group size",
        ),
        "send of two": (lambda: pg.send([t, t], 1 - rank, 0), "takes a single tensor"),
        "send with gaps": (
            lambda: pg.send([torch.ones(4, 2).t()], 1 - rank, 0),
            "input tensor has to be contiguous",
        ),
        "send, tag": (lambda: pg.send([t], 1 - rank, -1), "Tag must be nonnegative"),
    }
    if rank != 0:
        return {
            **calls,
            "gather, not the root": (
                lambda: pg.gather([[t, t]], [t], gathers),
                "requires empty output on non-root",
            ),
            "scatter, not the root": (
                lambda: pg.scatter([o], [[t, t]], scatters),
                "requires empty input on non-root",
            ),
        }
    return {
        **calls,
        "gather, no list": (
            lambda: pg.gather([], [t], gathers),
            "requires a single-element output list containing a list with 2 tensors",
        ),
        "gather, short": (
            lambda: pg.gather([[t]], [t], gathers),
            "Incorrect output list size 1. Output list size should be 2, same as size of the "
            "process group.",
        ),
        "gather, sizes": (
            lambda: pg.gather([[longer, t]], [t], gathers),
            "invalid tensor size at index 0",
        ),
        "scatter, no list": (
            lambda: pg.scatter([o], [], scatters),
            "requires a single-element input list containing a list with 2 tensors",
        ),
        "scatter, short": (
            lambda: pg.scatter([o], [[t]], scatters),
            "Incorrect input list size 1. Input list size should be 2, same as size of the "
            "process group.",
        ),
        "scatter, types": (
            lambda: pg.scatter([o], [[t, other]], scatters),
            "invalid tensor type at index 1",
        ),
    }


def refused_by_both(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 2, meet)
    groups = {"pccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    tried, differ = 0, []
    for backend, pg in groups.items():
        for name, (call, words) in _bad_calls(dist, rank, pg).items():
            tried += 1
            try:
                call().wait()
                differ.append([backend, name, "no error"])
            except RuntimeError as error:
                missing = backend == "gloo" and "does not support" in str(error)  # torch 2.11
                if words not in str(error) and not missing:
                    differ.append([backend, name, str(error)[:300]])
    total = torch.ones(3)
    dist.all_reduce(total)
    say(tried=tried, differ=differ, total=total.tolist())
    dist.barrier()
    dist.destroy_process_group()


def test_what_is_refused_is_refused_with_gloos_words(run_peers: Run, tmp_path: Path) -> None:
    peers = run_peers(refused_by_both, 2, str(tmp_path / "meet"), env={"GLOO_SOCKET_IFNAME": "lo"})
    for peer in peers:
        line = peer.next()
        assert line["differ"] == []
        assert line["tried"] >= 38
        assert line["total"] == [2.0] * 3
        peer.finish()


# ------------------------------------------------------------------------------- monitored_barrier

CASES = {"two": ([0], True), "one": ([0, 2], True), "first": ([0], False)}


def misses_barriers(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 3, meet)
    limit = timedelta(seconds=1)
    texts = {}
    for name, (present, wait_all_ranks) in CASES.items():
        group = dist.new_group()
        if rank in present:
            try:
                dist.monitored_barrier(group, limit, wait_all_ranks=wait_all_ranks)
            except RuntimeError as error:
                texts[name] = str(error)
        dist.barrier()
    say(texts=texts)
    dist.destroy_process_group()


def test_a_monitored_barrier_names_the_missing_ranks_as_gloo_does(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(misses_barriers, 3, str(tmp_path / "meet"))
    texts = peers[0].next()["texts"]
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms" in texts["two"]
    assert "Ranks 1 failed to pass monitoredBarrier in 1000 ms" in texts["one"]
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in texts["first"]
    other = peers[2].next()["texts"]
    assert "successfully reached monitoredBarrier" in other["one"]
    for peer in peers:
        peer.finish()


# ------------------------------------------------------------------------------------------- abort


def aborts(rank: int, meet: str) -> None:
    from torch._C._distributed_c10d import ErrorType, _ProcessGroupWrapper

    dist = fixed_group(rank, 3, meet)
    cpu = torch.device("cpu")
    gloo = dist.new_group(backend="gloo")._get_backend(cpu)
    before, after = [], []
    for _ in range(30):
        backend = dist.new_group()._get_backend(cpu)
        # Up to torch 2.13 Python reaches a Backend's error over TORCH_DISTRIBUTED_DEBUG's wrapper.
        seen = backend if hasattr(backend, "get_error") else _ProcessGroupWrapper(backend, gloo)
        dist.barrier()
        before.append(seen.get_error() == ErrorType.SUCCESS)
        dist.barrier()
        backend.abort()
        after.append(seen.get_error() == ErrorType.SUCCESS)
    say(before=before, after=after)
    dist.barrier()
    dist.destroy_process_group()


def test_an_abort_is_seen_by_the_next_look_at_the_error(run_peers: Run, tmp_path: Path) -> None:
    peers = run_peers(aborts, 3, str(tmp_path / "meet"), env={"GLOO_SOCKET_IFNAME": "lo"})
    for peer in peers:
        line = peer.next()
        assert line["before"] == [True] * 30
        assert line["after"] == [False] * 30
        peer.finish()


# -------------------------------------------------------------------------------------- coalescing


def breaks_off(rank: int, meet: str) -> None:
    dist = fixed_group(rank, 1, meet)
    dist.group.WORLD._start_coalescing(torch.device("cpu"))  # and an exception follows
    alive = []
    for _ in range(3000):
        tensor = torch.ones(4096)
        dist.all_reduce(tensor)
        alive.append(tensor.untyped_storage()._weak_ref())
    freed = sum(torch.UntypedStorage._expired(weak) for weak in alive)
    large = []
    for _ in range(40):
        tensor = torch.ones(1 << 20)  # 4 MiB: all of them are more than are kept
        dist.all_reduce(tensor)
        large.append(tensor.untyped_storage()._weak_ref())
    freed_large = sum(torch.UntypedStorage._expired(weak) for weak in large)
    say(freed=freed, freed_large=freed_large)
    dist.destroy_process_group()


def test_a_coalescing_that_an_exception_breaks_off_keeps_no_later_tensors(
    run_peers: Run, tmp_path: Path
) -> None:
    (peer,) = run_peers(breaks_off, 1, str(tmp_path / "meet"))
    line = peer.next()
    assert line["freed"] > 1500
    assert line["freed_large"] > 20
    peer.finish()


# ------------------------------------------------------------------------------------------ device


@pytest.fixture(scope="module")
def _device() -> None:
    fake_device.build()


def makes_a_group_of_some(rank: int, meet: str) -> None:
    import torch.distributed as dist

    fake_device.load()
    dist.init_process_group(
        fake_device.MAP,
        store=dist.FileStore(meet, 2),
        rank=rank,
        world_size=2,
        device_id=torch.device("slow:0"),
    )
    group = dist.new_group([0])
    total = torch.ones(3)
    if rank == 0:
        dist.all_reduce(total, group=group)
    dist.all_reduce(total)
    say(total=total.tolist())
    dist.destroy_process_group()


@pytest.mark.usefixtures("_device")
def test_a_group_with_a_device_id_has_groups_of_some_ranks(run_peers: Run, tmp_path: Path) -> None:
    peers = run_peers(makes_a_group_of_some, 2, str(tmp_path / "meet"))
    for peer in peers:
        assert peer.next()["total"] == [2.0] * 3
        peer.finish()


def waits_with_a_limit(rank: int, meet: str) -> None:
    dist = fake_device.group(rank, meet)
    tensor = torch.ones(1000).to("slow")
    if rank == 1:
        hear()
        dist.all_reduce(tensor)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        try:
            work.wait(timedelta(milliseconds=300))
            say(raised="")
        except RuntimeError as error:
            say(raised=str(error))
        work.wait(timedelta(seconds=100))
    say(total=tensor.cpu()[:2].tolist())
    dist.destroy_process_group()


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("stream_wait", ["0", "1"])
def test_a_wait_with_a_limit_on_a_device_tensor_waits(
    run_peers: Run, tmp_path: Path, stream_wait: str
) -> None:
    meet = str(tmp_path / "meet")
    peers = run_peers(waits_with_a_limit, 2, meet, env={"PCCL_STREAM_WAIT": stream_wait})
    assert "timed out after 300 ms" in peers[0].next()["raised"]
    peers[1].tell("go")
    for peer in peers:
        assert peer.next()["total"] == [2.0, 2.0]
        peer.finish()
