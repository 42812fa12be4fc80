"""Device tensors, on a fake asynchronous device: results, streams, failures, memory.

The device is "slow" (tests/fake_device): as with a GPU, what is enqueued happens later, and who
frees too early reads garbage. Two ranks share it.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, hear, say, wait_until

sys.path.insert(0, str(ROOT / "tests" / "fake_device"))
import fake_device
from fake_device import MAP


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    fake_device.build()


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

    def quantised(device: str) -> list[Any]:
        import pccl_backend as pccl

        t = values(device, 700001)
        pccl.all_reduce(t, quantise="int8")
        return [t]

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
        "quantised": quantised,
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

    dist = fake_device.group(rank, meet, backend)
    slow = fake_device.load()
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


@pytest.mark.parametrize("stream_wait", ["0", "1"])
def test_every_call_gives_on_a_device_what_it_gives_on_the_cpu(
    run_peers: Any, tmp_path: Path, stream_wait: str
) -> None:
    environment = {"PCCL_STREAM_WAIT": stream_wait}
    meet = str(tmp_path / "meet")
    for peer in run_peers(gives_what_the_cpu_gives, 2, meet, MAP, env=environment):
        lines = peer.finish()
        assert lines[-1]["compared"] == 15
        assert (lines[-1]["blocks"] > 0) == (stream_wait == "1")
        assert lines[-1]["open"] == 0


def test_a_mixed_map_serves_the_device(run_peers: Any, tmp_path: Path) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    peers = run_peers(
        gives_what_the_cpu_gives, 2, str(tmp_path / "meet"), "cpu:gloo,slow:pccl", env=environment
    )
    for peer in peers:
        assert peer.finish()[-1] == {"compared": 3, "blocks": 0, "open": 0}


# ------------------------------------------------------------------------------------------ order


def shares_memory(rank: int, meet: str) -> None:
    """Two collectives on the same memory, where a temporary stands between; then a barrier."""
    import torch
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    slow.set_copy_delay_us(5_000)
    pg = dist.group.WORLD

    def plain(x: Any) -> list[Any]:
        return [dist.all_reduce(x, async_op=True)]

    def transposed(x: Any) -> list[Any]:
        return [dist.all_reduce(x.t(), async_op=True)]

    def coalesced(x: Any) -> list[Any]:
        return [pg.allreduce_coalesced([x], dist.AllreduceCoalescedOptions())]

    def premultiplied(x: Any) -> list[Any]:
        return [dist.all_reduce(x, op=_make_nccl_premul_sum(1.0), async_op=True)]

    def read_by_a_gather(x: Any) -> list[Any]:
        out = torch.zeros(2, *x.shape, device="slow")
        work = pg.allgather_into_tensor_coalesced([out], [x])
        work.wait()
        x.copy_(2 * out[1])
        return []

    wrong = {}
    for first in (plain, transposed, coalesced, premultiplied):
        for second in (plain, transposed, coalesced, premultiplied, read_by_a_gather):
            x = torch.ones(64, 64).to("slow")
            for work in first(x) + second(x):
                work.wait()
            if not bool((x.cpu() == 4).all()):
                wrong[f"{first.__name__}, {second.__name__}"] = x.cpu().unique().tolist()
    for call in (plain, transposed, coalesced):
        for how in ("wait", "is_completed", "future"):
            x = torch.ones(64, 64).to("slow")
            works = call(x)
            barrier = dist.barrier(async_op=True)
            if how == "wait":
                barrier.wait()
            elif how == "future":
                barrier.get_future().wait()
            else:
                wait_until(barrier.is_completed)
            if not bool((x.cpu() == 2).all()):
                wrong[f"{call.__name__}, barrier, {how}"] = x.cpu().unique().tolist()
            assert len(works) == 1
    say(wrong=wrong)
    dist.destroy_process_group()


@pytest.mark.parametrize("stream_wait", ["0", "1"])
def test_a_collective_begins_after_earlier_ones_on_its_memory_and_a_barrier_ends_after_all(
    run_peers: Any, tmp_path: Path, stream_wait: str
) -> None:
    environment = {"PCCL_STREAM_WAIT": stream_wait}
    for peer in run_peers(shares_memory, 2, str(tmp_path / "meet"), env=environment):
        assert peer.next()["wrong"] == {}
        peer.finish()


# ------------------------------------------------------------------------------------------ waiting


def waits_on_the_cpu(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t, seen = (torch.empty(1000, device="slow") for _ in range(2))
    slow.set_copy_delay_us(50_000)
    for how in ("wait", "synchronize"):
        syncs, began = slow.syncs(), time.monotonic()
        slow.fill_later(t, 3.0 + rank, 200_000)
        work = dist.all_reduce(t, async_op=True)
        getattr(work, how)()
        assert time.monotonic() - began > 0.2
        assert work.is_success()
        seen.copy_(t, non_blocking=True)  # ordered behind the copy back, which may still go on
        slow.fill_later(t, 100.0, 0)
        assert slow.syncs() == syncs
        assert set(seen.cpu().tolist()) == {7.0}
        assert set(t.cpu().tolist()) == {100.0}
    t.fill_(2.0)
    if rank == 1:
        say(ready=True)
        hear()
    say(ready=True)
    with pytest.raises(dist.DistBackendError, match="rank 1") as caught:
        dist.all_reduce(t)
    assert set(t.cpu().tolist()) == {2.0}
    say(error=type(caught.value).__name__, blocks=slow.blocks_made())


def test_wait_holds_the_cpu_by_default_and_raises_what_has_failed(
    run_peers: Any, tmp_path: Path
) -> None:
    survivor, victim = run_peers(waits_on_the_cpu, 2, str(tmp_path / "meet"))
    victim.next(ready=True)
    survivor.next(ready=True)
    victim.kill()
    assert survivor.finish()[-1] == {"error": "PeerLostError", "blocks": 0}


# ------------------------------------------------------------------------------------------ limits


def is_asked_for_much(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    one = torch.ones(10, device="slow")
    dist.all_reduce(one)
    one.cpu()
    gc.collect()
    # An input is given up when its copy is done, whenever the other rank comes.
    gathered = torch.empty(2_000_000, device="slow")
    base = slow.device_bytes()
    part = torch.empty(1_000_000, device="slow")
    if rank == 1:
        hear()
    work = dist.all_gather_into_tensor(gathered, part, async_op=True)
    del part
    if rank == 0:
        wait_until(lambda: slow.device_bytes() == base, what="the input is given up")
        assert not work.is_completed()
        say(given_up=True)
    work.wait()
    if rank == 1:
        hear()
    # 50 operations of 3 MB, whose tensors the program drops at once: the calls wait for room.
    done = threading.Event()
    if rank == 0:

        def watch() -> None:
            wait_until(lambda: slow.pinned_bytes() > 60_000_000)
            say(full=True)
            done.set()

        threading.Thread(target=watch).start()
    works = []
    for _ in range(50):
        output = torch.empty(500_000, device="slow")
        part = torch.full((250_000,), 1.0 + rank, device="slow")
        works.append(dist.all_gather_into_tensor(output, part, async_op=True))
        del output, part
    for work in works:
        work.wait()
    if rank == 0:
        assert done.wait(60)
    # Of 150 MB, with room for calls that go on because this machine is busy for 5 s.
    assert slow.pinned_peak() < (64 << 20) + 20_000_000, slow.pinned_peak()
    # Receives whose sender comes only after a collective do not keep that one from being called.
    one.fill_(1.0)
    messages = [torch.empty(1_000_000, device="slow") for _ in range(25)]
    if rank == 0:
        works = [dist.irecv(message, 1) for message in messages]
    began = time.monotonic()
    dist.all_reduce(one)
    assert time.monotonic() - began < 4.5
    if rank == 1:
        works = [dist.isend(message, 0) for message in messages]
    for work in works:
        work.wait()
    say(done=True)
    dist.destroy_process_group()


def test_memory_of_operations_in_flight_is_bounded_and_inputs_are_given_up_early(
    run_peers: Any, tmp_path: Path
) -> None:
    first, second = run_peers(is_asked_for_much, 2, str(tmp_path / "meet"))
    first.next(given_up=True)
    second.tell(1)
    first.next(full=True)
    second.tell(1)
    for peer in (first, second):
        assert peer.finish()[-1] == {"done": True}


def uses_one_device(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.full((1000,), 1.0 + rank, device="slow:1")
    dist.all_reduce(t)
    work = dist.all_reduce(t, async_op=True)
    future = work.get_future()
    work.wait()
    wait_until(future.done)
    assert set(t.cpu().tolist()) == {6.0}
    assert slow.contexts() == 1 << 1
    syncs = slow.syncs()
    dist.all_reduce(t, op=dist._make_nccl_premul_sum(0.5))
    assert slow.syncs() == syncs
    assert set(t.cpu().tolist()) == {6.0}
    say(done=True)
    dist.destroy_process_group()


@pytest.mark.parametrize("stream_wait", ["0", "1"])
def test_a_call_uses_the_device_of_its_tensors_only_and_does_not_wait_for_the_device(
    run_peers: Any, tmp_path: Path, stream_wait: str
) -> None:
    environment = {"PCCL_STREAM_WAIT": stream_wait}
    for peer in run_peers(uses_one_device, 2, str(tmp_path / "meet"), env=environment):
        assert peer.finish()[-1] == {"done": True}


def captures_a_graph(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.empty(1000, device="slow")
    slow.fill_later(t, 1.0 + rank, 200_000)
    began = dist.all_reduce(t, async_op=True)
    slow.capture(True)
    refused = []
    for call in (lambda: dist.all_reduce(t), lambda: dist.barrier(), began.wait):
        try:
            call()
        except RuntimeError as error:
            refused.append(str(error))
    wait_until(began.is_completed)
    slow.capture(False)
    began.wait()
    assert set(t.cpu().tolist()) == {3.0}
    spoiled = slow.captures_spoiled()
    slow.fail_queries(5)
    dist.all_reduce(t)
    assert set(t.cpu().tolist()) == {6.0}
    say(refused=refused, spoiled=spoiled)
    dist.destroy_process_group()


def test_a_capture_of_a_graph_goes_on_beside_operations_and_a_captured_call_is_refused(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(captures_a_graph, 2, str(tmp_path / "meet")):
        line = peer.finish()[-1]
        assert line["spoiled"] == 0
        assert ["captured" in text for text in line["refused"]] == [True, True], line


# ----------------------------------------------------------------------------------------- failures


def has_a_broken_device(rank: int, meet: str) -> None:
    import torch

    dist = fake_device.group(rank, meet)
    slow = fake_device.load()
    t = torch.empty(1000, device="slow")
    slow.fill_later(t, 2.0, 100_000)  # the call has returned when the copy begins
    slow.fail_copies(rank == 0)
    work = dist.all_reduce(t, async_op=True)
    wait_until(lambda: not work.is_success())
    with pytest.raises(dist.DistBackendError, match="fallen off the bus") as caught:
        work.wait()
    assert "\n" not in str(caught.value)
    say(done=True)


def test_a_copy_that_fails_is_an_error_at_all_ranks(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(has_a_broken_device, 2, str(tmp_path / "meet")):
        assert peer.finish()[-1] == {"done": True}
