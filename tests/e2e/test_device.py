"""Device tensors, on a fake asynchronous device: results, streams, failures, memory.

The device is "slow" (tests/fake_device): as with a GPU, what is enqueued happens later, and who
frees too early reads garbage. Two ranks share it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, hear, say, wait_until

sys.path.insert(0, str(ROOT / "tests" / "fake_device"))
import fake_device

MAP = "cpu:pccl,slow:pccl"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    fake_device.build()


def _group(rank: int, meet: str, backend: str = MAP) -> Any:
    import torch.distributed as dist

    fake_device.load()
    dist.init_process_group(
        backend, store=dist.FileStore(meet, 2), rank=rank, world_size=2, device_id=None
    )
    return dist


def _device() -> Any:
    import torch

    return torch.ops.slowdev


# ------------------------------------------------------------------------------------------ results


def _calls(dist: Any, rank: int) -> dict[str, Callable[[str], list[Any]]]:
    """Name -> a function that makes the call on a device and returns what it wrote."""
    import torch

    def values(device: str, count: int, add: int = 0, dtype: Any = torch.float32) -> Any:
        return (torch.arange(count) % 97 + add + 10 * rank).to(dtype).to(device)

    def all_reduce(count: int, op: Any, dtype: Any = torch.float32) -> Callable[[str], list[Any]]:
        def call(device: str) -> list[Any]:
            t = values(device, count, dtype=dtype)
            dist.all_reduce(t, op=op)
            return [t]

        return call

    def not_contiguous(device: str) -> list[Any]:
        t = values(device, 600).view(20, 30).t()
        dist.all_reduce(t)
        wide = values(device, 40).view(10, 4)
        dist.broadcast(wide[:, 1], src=1)
        return [t, wide]

    def broadcast(device: str) -> list[Any]:
        t = values(device, 300000)
        dist.broadcast(t, src=1)
        return [t]

    def reduce(device: str) -> list[Any]:
        t = values(device, 300000)
        dist.reduce(t, dst=0)
        return [t]

    def all_gather(device: str) -> list[Any]:
        parts = [torch.zeros(500 + i, device=device) for i in range(2)]
        dist.all_gather(parts, values(device, 500 + rank))
        whole = torch.zeros(1000, device=device)
        dist.all_gather_into_tensor(whole, values(device, 500))
        whole[500 * rank : 500 * (rank + 1)] += 1
        dist.all_gather_into_tensor(whole, whole[500 * rank : 500 * (rank + 1)])  # in place
        return [*parts, whole]

    def gather_scatter(device: str) -> list[Any]:
        parts = [torch.zeros(100, device=device) for _ in range(2)] if rank == 0 else None
        dist.gather(values(device, 100), parts, dst=0)
        got = torch.zeros(100, device=device)
        dist.scatter(got, [values(device, 100, i) for i in range(2)] if rank == 1 else None, src=1)
        return [*(parts or []), got]

    def reduce_scatter(device: str) -> list[Any]:
        one = torch.zeros(3000, device=device)
        dist.reduce_scatter(one, [values(device, 3000, i) for i in range(2)])
        other = torch.zeros(300000, device=device)
        dist.reduce_scatter_tensor(other, values(device, 600000), op=dist.ReduceOp.AVG)
        return [one, other]

    def all_to_all(device: str) -> list[Any]:
        one = torch.zeros(7, device=device)
        lengths = [3, 4]
        dist.all_to_all_single(
            one, values(device, 2 * lengths[rank]), lengths, [lengths[rank], lengths[rank]]
        )
        parts = [torch.zeros(50, device=device) for _ in range(2)]
        dist.all_to_all(parts, [values(device, 50, i) for i in range(2)])
        return [one, *parts]

    def messages(device: str) -> list[Any]:
        got = [torch.zeros(n, device=device) for n in (10, 400000, 10)]
        if rank == 0:
            works = [dist.isend(values(device, t.numel(), i), 1) for i, t in enumerate(got[:2])]
            dist.recv(got[2])  # from any
        else:
            works = [dist.irecv(t, 0) for t in got[:2]]
            dist.send(values(device, 10), 0)
        for work in works:
            work.wait()
        return got

    def coalesced(device: str) -> list[Any]:
        tensors = [values(device, n) for n in (5, 1000)]
        dist.all_reduce_coalesced(tensors)
        outputs = [torch.zeros(2 * n, device=device) for n in (4, 600)]
        with dist.distributed_c10d._coalescing_manager():
            for output in outputs:
                dist.all_gather_into_tensor(output, values(device, output.numel() // 2))
        return [*tensors, *outputs]

    return {
        "nothing": all_reduce(0, dist.ReduceOp.SUM),
        "small": all_reduce(7, dist.ReduceOp.SUM, torch.int64),
        "average": all_reduce(3000, dist.ReduceOp.AVG),
        "half": all_reduce(3000, dist.ReduceOp.MAX, torch.bfloat16),
        "several segments": all_reduce(5_000_000, dist.ReduceOp.SUM),
        "broadcast": broadcast,
        "reduce": reduce,
        "not contiguous": not_contiguous,
        "all_gather": all_gather,
        "gather and scatter": gather_scatter,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "messages": messages,
        "coalesced": coalesced,
    }


def _trains(dist: Any, rank: int) -> None:
    """DDP waits for futures, functional collectives for works that they keep."""
    import torch
    from torch.distributed import _functional_collectives as functional
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    model = DistributedDataParallel(model.to("slow"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model((torch.arange(160.0).view(8, 20) / (160 + rank + step)).to("slow")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
    both = [torch.zeros_like(weights) for _ in range(2)]
    dist.all_gather(both, weights)
    assert torch.equal(both[0], both[1])
    one = torch.full((5,), 1.0 + rank, device="slow")
    total = functional.all_reduce(one, "sum", dist.group.WORLD)
    assert (total + 1).cpu().tolist() == [4.0] * 5


def gives_what_the_cpu_gives(rank: int, meet: str, backend: str) -> None:
    import torch

    dist = _group(rank, meet, backend)
    slow = _device()
    calls = _calls(dist, rank)
    if backend != MAP:  # CPU tensors go to gloo, which takes no parts of different sizes
        calls = {name: calls[name] for name in ("small", "broadcast", "reduce_scatter")}
    for name, call in calls.items():
        expected = call("cpu")
        got = call("slow")
        assert all(t.device.type == "slow" for t in got)
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one.cpu(), other), (name, one.cpu(), other)
    assert str(dist.group.WORLD._get_backend(torch.device("slow")).name()) == "pccl"
    if backend == MAP:
        _trains(dist, rank)
    dist.barrier()
    say(compared=len(calls), blocks=slow.blocks_made(), open=slow.blocks_open())
    dist.destroy_process_group()


def test_every_call_gives_on_a_device_what_it_gives_on_the_cpu(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(gives_what_the_cpu_gives, 2, str(tmp_path / "meet"), MAP):
        lines = peer.finish()
        assert lines[-1]["compared"] == 14
        assert lines[-1]["blocks"] > 0
        assert lines[-1]["open"] == 0


def test_a_mixed_map_serves_the_device_and_a_blocking_wait_holds_no_stream(
    run_peers: Any, tmp_path: Path
) -> None:
    environment = {"PCCL_BLOCKING_WAIT": "1", "GLOO_SOCKET_IFNAME": "lo"}
    peers = run_peers(
        gives_what_the_cpu_gives, 2, str(tmp_path / "meet"), "cpu:gloo,slow:pccl", env=environment
    )
    for peer in peers:
        assert peer.finish()[-1] == {"compared": 3, "blocks": 0, "open": 0}


# ------------------------------------------------------------------------------------------ streams


def keeps_the_order_of_streams(rank: int, meet: str) -> None:
    import torch

    dist = _group(rank, meet)
    slow = _device()

    def empty() -> Any:
        return torch.empty(3_000_000, device="slow")

    # A slow kernel, the call, wait(), and what comes after it: all are only enqueued.
    slow.set_copy_delay_us(30_000)
    t, seen = empty(), empty()
    syncs = slow.syncs()
    began = time.monotonic()
    slow.fill_later(t, 3.0 + rank, 300_000)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    seen.copy_(t, non_blocking=True)
    slow.fill_later(t, 100.0, 0)
    took_s = time.monotonic() - began
    assert not work.is_completed()
    assert slow.blocks_open() == 1
    wait_until(work.is_completed)
    assert time.monotonic() - began > 0.3
    wait_until(lambda: slow.blocks_open() == 0)
    assert slow.syncs() == syncs
    assert set(seen.cpu().tolist()) == {7.0}
    assert set(t.cpu().tolist()) == {100.0}
    assert took_s < 0.25, took_s

    # Operations on the same memory, none waited for but the last.
    syncs = slow.syncs()
    slow.fill_later(t, 1.0 + rank, 50_000)
    for _ in range(3):
        work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert slow.syncs() == syncs
    assert set(t.cpu().tolist()) == {12.0}

    # Two that go different ways at the two ranks: neither waits for the other's stream.
    side, other = torch.Stream(device="slow"), torch.Stream(device="slow")
    first, second = torch.full((10,), 1.0, device="slow"), torch.zeros(10, device="slow")
    if rank == 0:
        with side:
            slow.fill_later(first, 5.0, 0)
            dist.irecv(second, 1).wait()
            sent = dist.isend(second, 1, tag=1)  # can only leave when `second` is there
        with other:
            asked = dist.isend(first, 1, tag=2)  # rank 1 sends `second` only after this
        sent.wait()
        asked.wait()
    else:
        dist.recv(first, 0, tag=2)
        wait_until(lambda: slow.blocks_open() == 0)
        dist.send(second + 9, 0)
        dist.recv(second, 0, tag=1)
    assert second.cpu().tolist() == [9.0] * 10

    # Many small ones: calls, waits and the thread that watches the device meet at every point.
    small = torch.full((4,), 1.0 + rank, device="slow")
    slow.set_copy_delay_us(0)
    for _ in range(200):
        dist.all_reduce(small, op=dist.ReduceOp.AVG)
    assert small.cpu().tolist() == [1.5] * 4

    # A future's callback follows the copy back.
    slow.fill_later(t, 2.0, 20_000)
    future = dist.all_reduce(t, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] + 1)
    assert set(doubled.wait().cpu().tolist()) == {5.0}

    # Memory that is given up at once, while it is in use.
    kept = empty()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000, device="slow").expand(3000, 1000)[0].clone())
    kept.fill_(1.0 + rank)
    dist.all_reduce(kept)
    assert set(kept.cpu().tolist()) == {3.0}

    with pytest.raises(RuntimeError, match="got one on slow:0 and one on cpu"):
        dist.all_gather([torch.zeros(10), torch.zeros(10)], first)
    with pytest.raises(RuntimeError, match="meta"):
        dist.group.WORLD._get_backend(torch.device("slow")).allreduce(
            [torch.zeros(3, device="meta")], dist.AllreduceOptions()
        )
    del t, seen, first, second, small, work, future, doubled, kept
    if rank == 0:
        del sent, asked
    gc.collect()
    wait_until(lambda: slow.device_bytes() == 0 and slow.pinned_bytes() == 0, what="memory freed")
    say(done=True)
    dist.destroy_process_group()


def test_wait_holds_the_stream_and_not_the_cpu_and_nothing_waits_for_the_device(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(keeps_the_order_of_streams, 2, str(tmp_path / "meet")):
        assert peer.finish()[-1] == {"done": True}


# ----------------------------------------------------------------------------------------- failures


def loses_its_peer(rank: int, meet: str) -> None:
    import torch

    dist = _group(rank, meet)
    slow = _device()
    t = torch.full((3_000_000,), 2.0, device="slow")
    dist.all_reduce(t)
    seen = torch.zeros_like(t)
    t.cpu()
    if rank == 1:
        say(ready=True)
        hear()
    known = dist.all_reduce(t, async_op=True)
    late = dist.all_reduce(t, async_op=True)
    late.wait()
    seen.copy_(t, non_blocking=True)
    say(ready=True, open=slow.blocks_open())
    wait_until(lambda: slow.blocks_open() == 0, what="the stream is released")
    assert set(seen.cpu().tolist()) == {4.0}
    assert not known.is_success()
    errors = []
    for call in (known.wait, lambda: dist.all_reduce(t), lambda: dist.all_reduce(t)):
        try:
            call()
        except dist.DistBackendError as error:
            errors.append((type(error).__name__, str(error)))
    assert set(t.cpu().tolist()) == {4.0}
    say(errors=errors)


def test_a_loss_leaves_the_tensor_releases_the_stream_and_is_raised_at_the_next_call(
    run_peers: Any, tmp_path: Path
) -> None:
    survivor, victim = run_peers(loses_its_peer, 2, str(tmp_path / "meet"))
    victim.next(ready=True)
    assert survivor.next(ready=True)["open"] == 1
    victim.kill()
    errors = survivor.finish()[-1]["errors"]
    assert [name for name, _ in errors] == ["PeerLostError"] * 3
    assert all("rank 1" in text for _, text in errors)
    assert ["an earlier operation has failed" in text for _, text in errors] == [False, True, False]


def has_a_broken_device(rank: int, meet: str) -> None:
    import torch

    dist = _group(rank, meet)
    slow = _device()
    t = torch.full((1000,), 2.0, device="slow")
    slow.fail_copies(rank == 0)
    work = dist.all_reduce(t, async_op=True)
    wait_until(lambda: not work.is_success())
    with pytest.raises(dist.DistBackendError, match="fallen off the bus"):
        work.wait()
    say(done=True)


def test_a_copy_that_fails_is_an_error_at_all_ranks(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(has_a_broken_device, 2, str(tmp_path / "meet")):
        assert peer.finish()[-1] == {"done": True}


# ------------------------------------------------------------------------------------------ elastic


def is_elastic(rank: int, url: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    fake_device.load()
    slow = _device()
    dist.init_process_group(MAP, init_method=url)
    t = torch.full((3_000_000,), 1.0, device="slow")
    dist.all_reduce(t)
    assert slow.blocks_made() == 0  # without a boundary its return is where numbers may change
    pccl.group().refresh({"step": 0})
    before = dist.all_reduce(t, async_op=True)
    before.wait()
    assert slow.blocks_made() > 0
    assert set(t.cpu().tolist()) == {4.0}
    if rank == 1:
        say(ready=True)
        hear()
    t.fill_(3.0)
    whole = torch.full((6_000_000,), 8.0, device="slow")
    replayed = dist.all_reduce(t, async_op=True)
    gathered = dist.all_gather_into_tensor(whole, t, async_op=True)
    for work in (replayed, gathered):
        work.wait()
    say(ready=True)
    assert set(t.cpu().tolist()) == {3.0}  # of one contributor
    assert set(whole.cpu().tolist()) == {8.0}  # cannot be replayed
    with pytest.raises(pccl.PeerLostError, match="all_gather"):
        pccl.group().refresh({"step": 1})
    t.fill_(5.0)
    dist.all_reduce(t)
    assert set(t.cpu().tolist()) == {5.0}
    say(done=True)


def test_in_an_elastic_group_an_operation_is_replayed_and_copied_back_after_the_commit(
    run_peers: Any, start_master: Any
) -> None:
    master = start_master("--min-peers", "2", "--evict-after", "2")
    survivor, victim = run_peers(is_elastic, 2, master.url)
    victim.next(ready=True)
    survivor.next(ready=True)
    victim.kill()
    assert survivor.finish()[-1] == {"done": True}
