"""Which thread does what: several that move, encrypt and add up bytes give the same results."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import signal
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fixed_group, hear, say, wait_until

SLOW_S = 600.0  # several threads for each of several ranks, on a machine that may have two cores
MANY = 8
ELEMENTS = 1_000_001
LANES = 1 + 3  # a small one, and a bulk one for each thread once a link has been full for a while
CALLS_MAX = 100
DROPPED = 3000
LOCKED_S = 6
ANSWER_S = 30.0  # kAnswerMs of csrc/engine/calls.h


class Watched(np.ndarray):
    """An array that a weak reference can watch."""


def drops_what_is_in_flight(rank: int, meet: str) -> None:
    """Results in memory of numpy's, dropped as soon as they are there: who ends it?"""
    dist = fixed_group(rank, 2, meet)
    threads: Counter[str] = Counter()

    def ended(_: Any) -> None:
        threads[Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()] += 1

    watches = []
    for _ in range(DROPPED):
        arrays = [np.zeros(16, dtype=np.float32).view(Watched) for _ in range(2)]
        watches += [weakref.ref(array, ended) for array in arrays]
        outputs = [torch.from_numpy(array) for array in arrays]
        work = dist.all_gather(outputs, torch.ones(16), async_op=True)
        arrays.clear()
        while not work.is_completed():
            pass
        outputs.clear()
        del work
    wait_until(lambda: sum(threads.values()) == len(watches))
    say(threads=threads)
    dist.barrier()
    dist.destroy_process_group()


def test_the_engines_thread_ends_no_object_of_python(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(drops_what_is_in_flight, 2, str(tmp_path / "meet")):
        threads = peer.next()["threads"]
        assert sum(threads.values()) == 2 * DROPPED
        assert set(threads) <= {"python", "python3", "pccl-complete"}, threads
        peer.finish()


def keeps_the_lock_of_python(rank: int, meet: str) -> None:
    """Rank 0 drops a tensor that is in flight, whose storage Python has seen, and calls long C."""
    dist = fixed_group(rank, 2, meet)
    output, other = torch.ones(1000), torch.ones(1 << 20)
    if rank == 0:
        dropped = torch.ones(2000)
        dropped.untyped_storage().data_ptr()  # from now on the storage has an object of Python
        works = [dist.reduce_scatter_tensor(output, dropped, async_op=True)]
        del dropped
        works.append(dist.all_reduce(other, async_op=True))
        say(issued=True)
        ctypes.PyDLL(None).sleep(LOCKED_S)
        until = time.monotonic()
        for work in works:
            work.wait()
        say(until=until)
    else:
        hear()
        dist.reduce_scatter_tensor(output, torch.ones(2000))
        dist.all_reduce(other)
        say(at=time.monotonic())
    dist.barrier()
    dist.destroy_process_group()


def test_the_engines_thread_needs_no_lock_of_python(run_peers: Any, tmp_path: Path) -> None:
    locked, other = run_peers(keeps_the_lock_of_python, 2, str(tmp_path / "meet"))
    locked.next(issued=True)
    other.tell("go")
    assert other.next()["at"] < locked.next()["until"] - LOCKED_S / 2
    locked.finish()
    other.finish()


def collects_a_group(rank: int, meet: str) -> None:
    """A backend ends because nobody refers to it; a call on memory that Python has seen runs."""
    from pccl_backend import _C

    dist = fixed_group(rank, 2, meet)
    store = dist.PrefixStore("other", dist.distributed_c10d._get_default_store())
    backend = _C.create_fixed(store, rank, 2, 60.0, "other")
    dist.barrier()
    if rank == 0:
        tensor = torch.ones(1000)
        seen = tensor.untyped_storage()
        work = backend.allreduce([tensor])
        del tensor, work
        time.sleep(0.5)  # from now on the engine's own thread drives
        since = time.monotonic()
        del backend
        gc.collect()
        say(took=time.monotonic() - since, bytes=seen.nbytes())
        dist.barrier()
    else:
        dist.barrier()
    dist.destroy_process_group()


def test_a_group_that_python_collects_ends_at_once(run_peers: Any, tmp_path: Path) -> None:
    collects, other = run_peers(collects_a_group, 2, str(tmp_path / "meet"))
    assert collects.next()["took"] < ANSWER_S / 2  # within which the engine has to answer
    collects.finish()
    other.finish()


def threads_of(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks]


def reduces_much(rank: int, world: int, meet: str) -> None:
    """Large tensors, several in flight, exact and quantised; then its links and threads."""
    import pccl_backend as pccl

    dist = fixed_group(rank, world, meet)
    some = torch.arange(ELEMENTS, dtype=torch.float32) % 97
    for call in range(CALLS_MAX):
        tensors = [some + rank + i + call for i in range(MANY)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        for i, tensor in enumerate(tensors):
            of_all = (some + i + call) * world + sum(range(world))
            assert torch.equal(tensor, of_all), (call, i)
        lanes = torch.tensor(max(link["lanes"] for link in pccl.links()))
        dist.all_reduce(lanes, dist.ReduceOp.MIN)
        if call >= 3 and lanes == LANES:
            break
    fewer = torch.full((ELEMENTS,), 0.5) * (rank + 1)
    pccl.all_reduce(fewer, quantise="int8")
    assert torch.allclose(fewer, torch.tensor(0.5 * sum(range(1, world + 1))))
    parts = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in range(world)]
    dist.all_gather(parts, torch.full((ELEMENTS,), float(rank), dtype=torch.bfloat16))
    assert all(part.eq(of).all() for of, part in enumerate(parts))
    say(threads=threads_of(os.getpid()), lanes=[link["lanes"] for link in pccl.links()])
    hear()
    dist.destroy_process_group()


@pytest.mark.parametrize(("plaintext", "world"), [("all", 2), ("none", 2), ("none", 3)])
def test_several_threads_give_the_same_results(
    run_peers: Any, tmp_path: Path, plaintext: str, world: int
) -> None:
    env = {"PCCL_THREADS": "3", "PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": plaintext}
    peers = run_peers(reduces_much, world, world, str(tmp_path / "meet"), env=env)
    said = [peer.next(timeout_s=SLOW_S) for peer in peers]
    for line in said:
        assert line["threads"].count("pccl-helper") == 2
        assert max(line["lanes"]) == LANES
    for peer in peers:
        peer.tell("go on")
        peer.finish()


def reduces_once(rank: int, world: int, meet: str) -> None:
    """Large tensors: added, gathered, added as codes; then what came out, and its threads."""
    import pccl_backend as pccl

    dist = fixed_group(rank, world, meet)
    mine = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
    total, rounded = mine.clone(), mine.clone()
    parts = [torch.empty(ELEMENTS) for _ in range(world)]
    dist.all_reduce(total)
    dist.all_gather(parts, mine)
    pccl.all_reduce(rounded, quantise="int8")
    exact = torch.stack(parts).double().sum(0)
    assert torch.allclose(total.double(), exact, atol=1e-5)
    assert torch.allclose(rounded.double(), exact, atol=0.2)
    results = [hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in (total, rounded, *parts)]
    say(results=results, threads=threads_of(os.getpid()))
    hear()
    dist.destroy_process_group()


def test_ranks_with_different_numbers_of_threads_get_the_same_bits(
    run_peers: Any, tmp_path: Path
) -> None:
    env = {"PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": "none"}
    threads = [1, 2, 4]
    peers = []
    for rank, count in enumerate(threads):
        its = {**env, "PCCL_THREADS": str(count)}
        peers += run_peers(reduces_once, 1, 3, str(tmp_path / "meet"), env=its, first=rank)
    said = [peer.next() for peer in peers]
    assert [line["threads"].count("pccl-helper") + 1 for line in said] == threads
    assert all(line["results"] == said[0]["results"] for line in said)
    for peer in peers:
        peer.tell("go on")
        peer.finish()


def reduces_until_killed(rank: int, world: int, meet: str) -> None:
    dist = fixed_group(rank, world, meet)
    ones = torch.ones(16_000_000)
    done = 0
    try:
        while True:
            dist.all_reduce(ones)
            ones.fill_(1)
            done += 1
            if done == 2:
                say(done=done)
    except RuntimeError as error:
        say(error=str(error))


def test_a_rank_that_dies_while_threads_move_bytes_ends_the_call_of_the_others(
    run_peers: Any, tmp_path: Path
) -> None:
    env = {"PCCL_THREADS": "3", "PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": "none"}
    peers = run_peers(reduces_until_killed, 3, 3, str(tmp_path / "meet"), env=env)
    for peer in peers:
        assert peer.next() == {"done": 2}
    os.kill(peers[1].pid, signal.SIGKILL)
    for peer in (peers[0], peers[2]):
        assert "rank 1" in peer.next()["error"]
        peer.finish()


def forks_between_calls(rank: int, world: int, meet: str) -> None:
    dist = fixed_group(rank, world, meet)
    for call in range(2):
        ones = torch.ones(4_000_000)
        for _ in range(10):
            dist.all_reduce(ones)
            assert ones.eq(world).all()
            ones.fill_(1)
        if call == 0:
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    say(helpers=threads_of(os.getpid()).count("pccl-helper"))
    hear()
    dist.destroy_process_group()


def test_threads_go_on_after_a_fork_of_their_process(run_peers: Any, tmp_path: Path) -> None:
    env = {"PCCL_THREADS": "2", "PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": "none"}
    peers = run_peers(forks_between_calls, 2, 2, str(tmp_path / "meet"), env=env)
    for peer in peers:
        assert peer.next(timeout_s=SLOW_S) == {"helpers": 1}
    for peer in peers:
        peer.tell("go on")
        peer.finish()
