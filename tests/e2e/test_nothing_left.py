"""No descriptors and no threads left: a clear error, and a group when there is room again.

Never a hang or a crash. A process is limited by itself, so that nothing else on the machine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from conftest import PATIENCE_S, common_store, failure, fixed_group, hear, resources, say

FRESH = True  # peers are interpreters of their own, from start to end

# ------------------------------------------------------------------------------ descriptors


@contextlib.contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Room for `spare` more descriptors, and no hole among those that are there."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fill = []
    while (filled := os.dup(0)) <= highest:
        fill.append(filled)
    os.close(filled)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled + spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for filled in fill:
            os.close(filled)


def begins_with_few_descriptors(_: int) -> None:
    import torch.distributed as dist

    from pccl_backend import _extension

    _extension.extension()  # a library is a file

    def group() -> None:
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)

    said = []
    for spare in range(64):  # each in a process of its own: libuv's first loop needs more
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with few_descriptors(spare):
                text = failure(group)
            os.write(writer, json.dumps(text).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = json.loads(pipe.read() or '"no word"')
        said.append([spare, os.waitpid(child, 0)[1], text])
        if text == "":
            break
    say(said=said)


def test_a_first_group_without_descriptors_is_a_clear_error(run_peers: Any) -> None:
    (peer,) = run_peers(begins_with_few_descriptors, 1)
    *failed, last = peer.next()["said"]
    assert len(failed) >= 3
    assert last[2] == ""
    for _, status, text in failed:
        assert status == 0, failed
        assert re.search("descriptors|open files", text), failed
    peer.finish()


def connects_with_no_descriptor(rank: int, world: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    store = common_store(rank, meet)

    def group(timeout_s: float) -> None:
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=world, timeout=timeout)

    dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    store.set(str(rank), "here")
    store.wait(["0", "1"])  # the store has its connections now
    before = resources()["descriptors"]
    with few_descriptors(0) if rank == 1 else contextlib.nullcontext():
        began = time.monotonic()
        text = failure(lambda: group(5))
        took_s = time.monotonic() - began
    say(text=text, took_s=took_s)
    hear()
    leaked = resources()["descriptors"] - before
    group(60)  # there is room again
    t = torch.ones(1)
    with few_descriptors(0):  # connections are shared: nothing more is needed
        for other in [dist.new_group() for _ in range(50)]:
            dist.all_reduce(t, group=other)
    say(leaked=leaked, sum=t.item())
    dist.barrier()


def test_a_connection_without_descriptors_is_a_clear_error_and_later_there_is_a_group(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(connects_with_no_descriptor, 2, 2, str(tmp_path / "meet"))
    lines = [peer.next() for peer in peers]
    for line in lines:
        assert "Error" in line["text"]
        assert line["took_s"] < PATIENCE_S
    assert "open files" in "".join(peers[1].errors)
    for peer in peers:
        peer.tell("go")
    for peer in peers:
        line = peer.next()
        assert line["leaked"] <= 0
        assert line["sum"] == 2.0**50
        peer.finish()


# ------------------------------------------------------------------------------ threads

NOBODY = 65534


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """For the rest of the process: the limit does not bind root, who becomes nobody here."""
    if os.geteuid() == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, limits)


def begins_without_threads(_: int) -> None:
    import torch
    import torch.distributed as dist

    from pccl_backend import _extension, _making

    def group() -> None:
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)

    assert _making  # imported: nobody may not read root's folders
    _extension.extension()
    with no_more_threads():
        texts = [failure(group)]
        before = resources()["descriptors"]  # libuv keeps two for ever
        texts += [failure(group) for _ in range(2)]
        leaked = resources()["descriptors"] - before
        blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    group()
    t = torch.ones(1)
    dist.all_reduce(t)
    say(texts=texts, leaked=leaked, sum=t.item())
    say(blocked=blocked)
    dist.destroy_process_group()


def test_without_threads_there_is_a_clear_error_and_later_a_group(run_peers: Any) -> None:
    (peer,) = run_peers(begins_without_threads, 1)
    line = peer.next()
    for text in line["texts"]:
        assert "Error" in text
    assert line["leaked"] == 0
    assert line["sum"] == 1.0
    peer.finish()


def test_without_threads_signals_stay_as_they_were(run_peers: Any) -> None:
    (peer,) = run_peers(begins_without_threads, 1)
    assert peer.next(blocked=[])["blocked"] == []
    peer.finish()


def completes_without_threads(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    dist.barrier()
    if rank == 1:
        hear()
        dist.send(torch.ones(3), 0)
        hear()
        return
    t = torch.zeros(3)
    work = dist.irecv(t, 1)
    future = work.get_future()
    with no_more_threads():
        say(ready=True)
        deadline = time.monotonic() + 3
        while not future.done() and time.monotonic() < deadline:
            time.sleep(0.01)
        say(future=future.done(), work=work.is_completed(), values=t.tolist())


def test_without_threads_a_future_completes(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(completes_without_threads, 2, 2, str(tmp_path / "meet"))
    peers[0].next(ready=True)
    peers[1].tell("go")
    line = peers[0].next()
    peers[1].tell("go")
    assert line["work"]
    assert line["values"] == [1.0] * 3
    assert line["future"]
