"""Device tensors with PCCL_STREAM_WAIT=1, on the fake device: `wait()` holds the stream.

See test_device.py for what the device is, and for the default, which holds the CPU.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, hear, say, wait_until

sys.path.insert(0, str(ROOT / "tests" / "fake_device"))
import fake_device
from fake_device import MAP

HOLD = {"PCCL_STREAM_WAIT": "1"}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    fake_device.build()


# ------------------------------------------------------------------------------------------ streams


def keeps_the_order_of_streams(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()

    def empty() -> Any:
        return torch.empty(3_000_000, device="slow")

    # A slow kernel, the call, wait(), and what comes after it: all are only enqueued.
    slow.set_copy_delay_us(30_000)
    t, seen = empty(), empty()
    syncs = slow.syncs()
    slow.hold_fills(True)
    slow.fill_later(t, 3.0 + rank, 0)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    seen.copy_(t, non_blocking=True)
    slow.fill_later(t, 100.0, 0)
    assert not work.is_completed()
    assert slow.blocks_open() == 1
    slow.hold_fills(False)
    wait_until(work.is_completed)
    wait_until(lambda: slow.blocks_open() == 0)
    assert slow.syncs() == syncs
    assert set(seen.cpu().tolist()) == {7.0}
    assert set(t.cpu().tolist()) == {100.0}

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
    for peer in run_peers(keeps_the_order_of_streams, 2, str(tmp_path / "meet"), env=HOLD):
        assert peer.finish()[-1] == {"done": True}


# ----------------------------------------------------------------------------------------- failures


def loses_its_peer(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
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
    survivor, victim = run_peers(loses_its_peer, 2, str(tmp_path / "meet"), env=HOLD)
    victim.next(ready=True)
    assert survivor.next(ready=True)["open"] == 1
    victim.kill()
    errors = survivor.finish()[-1]["errors"]
    assert [name for name, _ in errors] == ["PeerLostError"] * 3
    assert all("rank 1" in text for _, text in errors)
    assert ["an earlier operation has failed" in text for _, text in errors] == [False, True, False]


# ------------------------------------------------------------------------------------------ elastic


def is_elastic(rank: int, url: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    slow = fake_device.load()
    dist.init_process_group(MAP, init_method=url)
    t = torch.full((3_000_000,), 1.0, device="slow")
    dist.all_reduce(t)
    assert slow.blocks_made() == 0  # without a boundary its return is where numbers may change
    pccl.group().refresh({"step": 0})
    if rank == 1:
        hear()  # so the operation of rank 0 is under way where that one waits
    before = dist.all_reduce(t, async_op=True)
    before.wait()
    if rank == 0:
        assert slow.blocks_made() > 0
        say(waited=True)
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
    survivor, victim = run_peers(is_elastic, 2, master.url, env=HOLD)
    survivor.next(waited=True)
    victim.tell("go on")
    victim.next(ready=True)
    survivor.next(ready=True)
    victim.kill()
    assert survivor.finish()[-1] == {"done": True}


# ------------------------------------------------------------------------------------------ hazards


def reads_a_coalesced_future(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    backend = dist.group.WORLD._get_backend(torch.device("slow"))
    tensors = [torch.full((n,), 1.0 + rank, device="slow") for n in (10, 1000)]
    seen = [torch.empty_like(t) for t in tensors]
    slow.set_copy_delay_us(100_000)
    backend._start_coalescing()
    for t in tensors:
        backend.allreduce([t], dist.AllreduceOptions())
    future = backend._end_coalescing().get_future()
    values = future.wait()
    slow.set_copy_delay_us(0)
    for copy, value in zip(seen, values, strict=True):
        copy.copy_(value, non_blocking=True)
    say(read=[copy.cpu()[0].item() for copy in seen])
    dist.destroy_process_group()


def test_what_follows_a_coalesced_future_follows_the_copies_back(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(reads_a_coalesced_future, 2, str(tmp_path / "meet"), env=HOLD):
        assert peer.finish()[-1] == {"read": [3.0, 3.0]}


def has_many_streams(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.full((1000,), 1.0 + rank, device="slow")
    dist.all_reduce(t)
    assert set(t.cpu().tolist()) == {3.0}
    made = slow.blocks_made()
    if rank == 1:
        hear()
    work = dist.all_reduce(t, async_op=True)
    if rank == 0 and made == 0:
        say(waits=True)
    work.wait()
    event = torch.Event("slow")
    event.record(torch.accelerator.current_stream())
    for _ in range(8):  # as many as the pool has
        torch.Stream(device="slow").wait_event(event)
    if rank == 0 and made > 0:
        say(waits=True)
    wait_until(lambda: slow.blocks_open() == 0, timeout_s=20, what="the stream is released")
    assert set(t.cpu().tolist()) == {6.0}
    say(held=made > 0)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("environment", "held"),
    [
        ({}, True),
        ({"SLOW_RUNTIME": "0"}, False),  # no streams but those of the pool
        ({"CUDA_LAUNCH_BLOCKING": "1"}, False),
    ],
)
def test_no_stream_of_the_program_can_hold_up_the_copies_that_end_its_hold(
    run_peers: Any, tmp_path: Path, environment: dict[str, str], held: bool
) -> None:
    first, second = run_peers(
        has_many_streams, 2, str(tmp_path / "meet"), env={**HOLD, **environment}
    )
    first.next(waits=True)
    second.tell(1)
    for peer in (first, second):
        assert peer.finish()[-1] == {"held": held}


def loads_kernels(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.full((1000,), 1.0 + rank, device="slow")
    strided = torch.full((20, 30), 1.0 + rank, device="slow").t()
    several = [torch.full((n,), 1.0 + rank, device="slow") for n in (5, 50)]
    slow.load_kernels(True)
    for _ in range(2):
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        dist.all_reduce(strided)
        dist.all_reduce_coalesced(several)
    wait_until(lambda: slow.blocks_open() == 0, timeout_s=20, what="the streams are released")
    assert work.is_success()
    assert {x for y in (t, strided, *several) for x in y.cpu().flatten().tolist()} == {6.0}
    say(held=slow.blocks_made() > 0)
    dist.destroy_process_group()


def test_no_kernel_is_launched_where_a_hold_waits_for_the_thread_that_launches(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(loads_kernels, 2, str(tmp_path / "meet"), env=HOLD):
        assert peer.finish()[-1] == {"held": True}


def has_a_device_that_hangs(rank: int, meet: str, how: str) -> None:
    import torch

    dist = fake_device.group(rank, meet, timeout_s=60)
    slow = fake_device.load()
    t = torch.full((1000,), 1.0 + rank, device="slow")
    dist.all_reduce(t)
    assert set(t.cpu().tolist()) == {3.0}
    if rank == 1:
        hear()
        say(end=True)
        return
    if how == "a call":
        slow.hang_copies(True)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert slow.blocks_open() == 1
    if how == "a hold":
        slow.time_out_blocks()
    else:
        began = time.monotonic()
        wait_until(lambda: slow.blocks_open() == 0, timeout_s=60, what="the stream is released")
        assert time.monotonic() - began > 5
    wait_until(lambda: not work.is_success(), timeout_s=60)
    slow.hang_copies(False)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(t)
    say(error=str(caught.value), limit_s=slow.block_timeout_ms() / 1000)


@pytest.mark.long
@pytest.mark.parametrize("how", ["a call", "a hold"])
def test_a_device_that_does_not_answer_ends_the_hold_with_an_error(
    run_peers: Any, tmp_path: Path, how: str
) -> None:
    first, second = run_peers(has_a_device_that_hangs, 2, str(tmp_path / "meet"), how, env=HOLD)
    line = first.finish()[-1]
    second.tell(1)
    expected = "has not returned from a call" if how == "a call" else "held a stream"
    assert expected in line["error"]
    assert line["limit_s"] == 60 + 30 + 30
    second.next(end=True)


def asks_before_its_optimizer(rank: int, meet: str) -> None:
    import torch

    import pccl_backend as pccl

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.full((1000,), 1.0 + rank, device="slow")
    dist.all_reduce(t)
    pccl.wait_for_devices()
    wait_until(lambda: slow.blocks_open() == 0)  # the copies back may still go on
    assert set(t.cpu().tolist()) == {3.0}
    with pytest.raises(ValueError, match="timeout_s"):
        pccl.wait_for_devices(timeout_s=0)
    if rank == 1:
        say(ready=True)
        hear()
    gathered = torch.full((2000,), 7.0, device="slow")
    slow.set_copy_delay_us(5_000_000)  # a failed operation stays until its copies have ended
    dist.all_gather_into_tensor(gathered, t)
    say(ready=True)
    with pytest.raises(pccl.OperationTimeoutError, match=r"0\.2 s"):
        pccl.wait_for_devices(timeout_s=0.2)
    say(timed_out=True)
    with pytest.raises(pccl.PeerLostError, match="rank 1"):
        pccl.wait_for_devices()
    pccl.wait_for_devices()
    slow.set_copy_delay_us(0)
    assert set(gathered.cpu().tolist()) == {7.0}
    say(done=True)


def test_wait_for_devices_raises_what_would_only_be_known_later(
    run_peers: Any, tmp_path: Path
) -> None:
    survivor, victim = run_peers(asks_before_its_optimizer, 2, str(tmp_path / "meet"), env=HOLD)
    victim.next(ready=True)
    survivor.next(timed_out=True)
    victim.kill()
    assert survivor.finish()[-1] == {"done": True}
