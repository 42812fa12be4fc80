"""The life of fixed groups: many at once, every kind of end, forks, spawned processes, signals.

Each set of processes is started once and does several things, since starting torch is what costs.
What arguments do is in test_bad_input.py, what losses do in test_fixed.py.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    PATIENCE_S,
    common_store,
    failure,
    fixed_group,
    hear,
    resources,
    say,
    wait_until,
)
from interrupts import answer_signals, interrupt, interrupted, wait_inside, waits

FRESH = True  # peers are interpreters of their own, from start to end
HERE = Path(__file__).resolve().parent
PROMPT_S = 10.0  # for what must not wait for a time-out of 60 s


# ------------------------------------------------------------------------------ many at once

GROUPS = 1000


def uses_many_groups(rank: int, world: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    store = common_store(rank, meet)  # a file would take 10 s to make the groups in
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    dist.init_process_group(
        "pccl", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    dist.all_reduce(torch.ones(1))
    # The bulk lane joins meanwhile, with descriptors of its own for a moment.
    wait_until(lambda: all(link["lanes"] == 2 for link in pccl.links()))
    dist.all_reduce(torch.ones(1))

    def round_of_groups() -> dict[str, Any]:
        groups = [dist.new_group() for _ in range(GROUPS)]
        works = []
        for i, group in enumerate(groups):
            t = torch.full((3,), 1.0 + i)
            works.append((dist.all_reduce(t, group=group, async_op=True), t))
        for work, _ in works:
            work.wait()
        alive = resources()
        for group in groups:
            dist.destroy_process_group(group)
        alive["right"] = sum(t.tolist() == [2.0 + 2 * i] * 3 for i, (_, t) in enumerate(works))
        return alive

    before = resources()
    rounds = [round_of_groups() for _ in range(3)]
    gc.collect()
    say(before=before, rounds=rounds, after=resources())
    dist.barrier()

    # Hundreds in flight, on several groups, waited for in another order than issued.
    groups = [dist.new_group() for _ in range(4)]
    works = []
    for i in range(800):
        t = torch.full((1 + i * 37 % 20_000,), float(rank + i))
        works.append((dist.all_reduce(t, group=groups[i % 4], async_op=True), t, 2.0 * i + 1))
    wrong = 0
    for work, t, wanted in reversed(works):
        work.wait()
        wrong += not bool((t == wanted).all())

    # Messages, posted by their receiver in the opposite order.
    tags = range(400)
    messages = [torch.full((5,), float(tag)) for tag in tags]
    if rank == 0:
        works = [dist.isend(m, 1, tag=tag) for tag, m in zip(tags, messages, strict=True)]
    else:
        for m in messages:
            m.zero_()
        works = [dist.irecv(messages[tag], 0, tag=tag) for tag in reversed(tags)]
    for work in works:
        work.wait()
    wrong += sum(m.tolist() != [float(tag)] * 5 for tag, m in zip(tags, messages, strict=True))

    # A thread for each group.
    threads_wrong: list[Any] = []

    def issue(number: int) -> None:
        for i in range(200):
            t = torch.full((1 + 97 * number,), float(rank + number + i))
            dist.all_reduce(t, group=groups[number])
            if not bool((t == 1.0 + 2 * (number + i)).all()):
                threads_wrong.append([number, i, t[0].item()])

    threads = [threading.Thread(target=issue, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    running = sum(thread.is_alive() for thread in threads)
    say(wrong=wrong, threads_wrong=threads_wrong, running=running)
    dist.barrier()


def test_a_thousand_groups_share_connections_and_threads_and_leave_nothing_behind(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(uses_many_groups, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        line = peer.next()
        before, after = line["before"], line["after"]
        for alive in line["rounds"]:
            assert alive["right"] == GROUPS
            assert alive["descriptors"] == before["descriptors"]
            alive["threads"] = [t for t in alive["threads"] if t != "pccl-complete"]
            assert alive["threads"] == before["threads"]
        assert after["descriptors"] == before["descriptors"]
        # A group takes 10 KiB: two more rounds that leave theirs behind would be 20 MiB.
        assert after["kib"] - line["rounds"][0]["kib"] < 10_000
        line = peer.next(wrong=0)
        assert line["threads_wrong"] == []
        assert line["running"] == 0
        peer.finish()


# ------------------------------------------------------------------------------ end and again


def ends_and_begins_again(rank: int, world: int, meet: str) -> None:
    import torch

    counts, sums, texts, dropped, given_up = [], [], [], [], []
    for turn in range(5):
        dist = fixed_group(rank, world, meet + str(turn % 2))  # a store that was used, too
        default, other = dist.group.WORLD, dist.new_group()
        t = torch.ones(3)
        dist.all_reduce(t, group=other)
        dist.all_reduce(t)
        sums.append(t[0].item())
        half = default.split_group([0, 1], group_name="half")
        half.allreduce([t]).wait()
        alive = weakref.ref(half)
        del half  # nobody has destroyed it
        gc.collect()
        dropped.append(alive() is None)
        pending = default.allreduce([t]) if rank == 0 else None
        counts.append({**resources(), "kib": 0})
        dist.barrier(group=other)  # the other one has counted as well
        dist.destroy_process_group()
        if pending is not None:
            given_up.append(failure(pending.wait))
        for use in (
            lambda d=default, t=t: d.allreduce([t]).wait(),
            lambda d=default: d.barrier().wait(),
            lambda d=default, t=t: d.send([t], 1 - rank, 0).wait(),
        ):
            texts.append(failure(use))
        texts.append(failure(lambda d=default, t=t, dist=dist: dist.all_reduce(t, group=d)))
        texts.append(failure(lambda t=t, dist=dist: dist.all_reduce(t)))
        alive = weakref.ref(default)
        del default, other, pending, use
        gc.collect()
        dropped.append(alive() is None)
    say(counts=counts, sums=sums, texts=texts, dropped=dropped, given_up=given_up)


def test_a_process_may_end_its_groups_and_make_them_again(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(ends_and_begins_again, 2, 2, str(tmp_path / "meet")):
        line = peer.next()
        assert line["sums"] == [4.0] * 5
        assert line["dropped"] == [True] * 10
        assert [c["descriptors"] for c in line["counts"][1:]] == (
            [line["counts"][1]["descriptors"]] * 4
        )
        for text in line["texts"]:
            assert text.startswith(("GroupClosedError", "ValueError", "RuntimeError")), text
        for text in line["given_up"]:  # by this rank, or by the other one that was faster
            assert text.startswith(("GroupClosedError", "PeerLostError")), text
        peer.finish()


# ------------------------------------------------------------------------------ forks


def sockets() -> set[str]:
    links = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            continue  # that of listdir itself
    return {link for link in links if link.startswith("socket:")}


class Looks:
    """A dataset whose items are what a worker of a DataLoader sees."""

    def __init__(self, tensor: Any, group: Any = None, pending: Any = None) -> None:
        self.tensor, self.group, self.pending = tensor, group, pending

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> dict[str, Any]:
        import torch.distributed as dist

        t, g = self.tensor, self.group
        other = 1 - dist.get_rank() if dist.is_initialized() else 0
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(t, group=g),
            "async": lambda: dist.all_reduce(t, group=g, async_op=True),
            "send": lambda: dist.send(t, other, group=g),
            "recv": lambda: dist.recv(t, other, group=g),
            "barrier": lambda: dist.barrier(group=g),
            "objects": lambda: dist.broadcast_object_list([1], group=g),
            "new_group": lambda: dist.new_group([dist.get_rank()]),
        }
        if self.pending is not None:
            calls["wait"] = self.pending.wait
        errors = {name: failure(call) for name, call in calls.items()}
        return {"pid": os.getpid(), "sockets": sorted(sockets()), "errors": errors}


def first(items: list[Any]) -> Any:
    return items[0]


def collates_with_a_collective(items: list[Any]) -> Any:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    return items


def makes_its_own_group(meet: str) -> float:
    import torch

    dist = fixed_group(0, 1, meet)
    t = torch.ones(1)
    dist.all_reduce(t)
    return float(t)


def in_a_fork(call: Callable[[], Any]) -> tuple[int, Any]:
    """Status and result of a child that ends as a program does, with what runs at exit."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(call()).encode())
        sys.exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = json.loads(pipe.read() or "null")
    return os.waitpid(child, 0)[1], result


def forks(rank: int, world: int, meet: str) -> None:
    import torch
    from torch.utils.data import DataLoader

    early = in_a_fork(lambda: makes_its_own_group(meet + f"alone{rank}"))
    others = sockets()
    dist = fixed_group(rank, world, meet)
    t = torch.ones(2)
    dist.all_reduce(t)
    ours = sockets() - others
    pending = dist.irecv(torch.ones(7), 1 - rank)  # in flight at the fork
    looks = Looks(torch.ones(2), dist.group.WORLD, pending)
    loader = DataLoader(looks, num_workers=2, batch_size=1, collate_fn=first)
    for item in loader:
        dist.all_reduce(t)  # while the workers are at it
        say(
            own=len(ours),
            in_child=item["pid"] != os.getpid(),
            kept=sorted(ours & set(item["sockets"])),
            errors=item["errors"],
        )
    status, texts = in_a_fork(
        lambda: [
            failure(lambda: dist.all_reduce(torch.ones(1))),
            failure(pending.is_completed),
            failure(lambda: pending.get_future().wait()),
            failure(dist.destroy_process_group),
        ]
    )
    say(status=status, texts=texts, early=early)
    loader = DataLoader(
        torch.arange(4), num_workers=1, batch_size=1, collate_fn=collates_with_a_collective
    )
    say(collate=failure(lambda: list(loader)))
    dist.all_reduce(t)
    dist.send(torch.zeros(7), 1 - rank)
    pending.wait()
    say(sum=t[0].item())
    dist.barrier()


def test_a_forked_child_holds_no_socket_of_ours_and_is_told_so(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(forks, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        for _ in range(4):
            line = peer.next(in_child=True)
            assert line["own"] >= 2
            assert line["kept"] == []
            assert len(line["errors"]) == 8
            for text in line["errors"].values():
                assert text.startswith("GroupClosedError: this process was forked"), line["errors"]
        line = peer.next(status=0)
        assert line["early"] == [0, 1.0]  # forked before there was a group
        *used, ended = line["texts"]
        assert len(used) == 3
        for text in used:
            assert text.startswith("GroupClosedError: this process was forked"), line["texts"]
        assert ended == ""  # it may end what it cannot use
        line = peer.next()
        assert "GroupClosedError" in line["collate"]
        assert "this process was forked" in line["collate"]
        assert peer.next()["sum"] == 2.0**6
        peer.finish()


# ------------------------------------------------------------------------------ spawned processes


def is_spawned(rank: int, meet: str) -> None:
    import torch
    from torch.utils.data import DataLoader

    dist = fixed_group(rank, 2, meet)
    t = torch.ones(2)
    dist.all_reduce(t)
    items = []
    if rank == 0:
        loader = DataLoader(
            Looks(t), num_workers=1, batch_size=1, collate_fn=first, multiprocessing_context="spawn"
        )
        items = list(loader)
    dist.barrier()
    dist.all_reduce(t)
    say(rank=rank, sum=t[0].item(), items=items)
    dist.destroy_process_group()


def spawns(_: int, meet: str) -> None:
    import torch.multiprocessing as mp

    sys.path.insert(0, str(HERE))  # where a spawned process finds this module
    sys.modules["test_life_cycle"] = sys.modules[__name__]
    is_spawned.__module__ = "test_life_cycle"
    mp.spawn(is_spawned, args=(meet,), nprocs=2)
    say(done=True)


def test_spawned_ranks_and_spawned_workers_of_a_loader(run_peers: Any, tmp_path: Path) -> None:
    (peer,) = run_peers(spawns, 1, str(tmp_path / "meet"))
    lines = sorted((peer.next(), peer.next()), key=lambda line: line["rank"])
    assert [line["rank"] for line in lines] == [0, 1]
    assert [line["sum"] for line in lines] == [4.0, 4.0]
    assert len(lines[0]["items"]) == 4
    for item in lines[0]["items"]:  # a process of its own, that has no group
        for text in item["errors"].values():
            assert "has not been initialized" in text
    peer.next(done=True)
    peer.finish()


# ------------------------------------------------------------------------------ signals


def is_interrupted(rank: int, world: int, meet: str) -> None:
    import torch

    answer_signals()
    dist = fixed_group(rank, world, meet)
    tensors = {name: torch.ones(4) for name in (*INTERRUPTED, "nested", "in the handler")}
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(tensors["all_reduce"]),
        "wait": lambda: dist.all_reduce(tensors["wait"], async_op=True).wait(),
        "recv": lambda: dist.recv(tensors["recv"], 1),
        "barrier": dist.barrier,
    }
    if rank == 1:
        calls["recv"] = lambda: dist.send(tensors["recv"] * 2, 0)
        for call in calls.values():
            hear()
            call()
        hear()
        dist.all_reduce(tensors["nested"])
        dist.all_reduce(tensors["in the handler"])
        say(lost=failure(dist.barrier))
        dist.destroy_process_group()
        interrupted("init", lambda: fixed_group(0, 2, meet + "nobody"))
        return
    for name in INTERRUPTED:
        interrupted(name, calls[name])

    def uses_the_group(*_: Any) -> None:
        dist.all_reduce(tensors["in the handler"])

    signal.signal(signal.SIGUSR2, uses_the_group)
    waits("nested", lambda: dist.all_reduce(tensors["nested"]))
    tensors["barrier"] *= 2
    say(wrong=[name for name, t in tensors.items() if t.tolist() != [2.0] * 4])
    waits("end", lambda: dist.recv(tensors["recv"], 1))


INTERRUPTED = ("all_reduce", "wait", "recv", "barrier")


@pytest.mark.long
def test_signals_are_handled_while_a_collective_waits(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(is_interrupted, 2, 2, str(tmp_path / "meet"))
    for name in INTERRUPTED:
        wait_inside(peers[0], name)
        began = interrupt(peers[0])
        peers[0].next(interrupted=name)
        assert time.monotonic() - began < PROMPT_S
        peers[1].tell("go")  # the operation itself goes on
    wait_inside(peers[0], "nested")
    peers[0].signal(signal.SIGUSR2)
    peers[1].tell("go")
    assert peers[0].next()["wrong"] == []
    wait_inside(peers[0], "end")
    began = interrupt(peers[0])
    peers[0].finish(status=-signal.SIGINT)
    assert time.monotonic() - began < PROMPT_S
    assert "rank 0" in peers[1].next()["lost"]
    wait_inside(peers[1], "init")
    began = interrupt(peers[1])
    peers[1].next(interrupted="init")
    assert time.monotonic() - began < PROMPT_S
    peers[1].finish()


# ------------------------------------------------------------------------------ the end


class Uses:
    """Calls a collective, at the latest when the interpreter takes it down, and says what came."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name, self.call = name, call
        self.failure, self.write, self.dumps = failure, os.write, json.dumps  # they may go first

    def __call__(self) -> None:
        line = self.dumps({"end": self.name, "text": self.failure(self.call)})
        self.write(1, line.encode() + b"\n")

    def __del__(self) -> None:
        self()


kept: list[Any] = []  # what lives until the interpreter takes this module down


def just_ends(rank: int, world: int, meet: str) -> None:
    """Rank 0 ends without destroying its groups, with everything in flight that can be."""
    import torch

    early: list[Callable[[], Any]] = []
    atexit.register(lambda: early[0]())  # runs after pccl's own, which is registered later
    dist = fixed_group(rank, world, meet)
    group, other, third = dist.group.WORLD, dist.new_group(), dist.new_group()
    dist.all_reduce(torch.ones(1))

    def uses() -> Any:
        return group.allreduce([torch.ones(1)]).wait()

    early.append(Uses("atexit", uses))
    kept.append(Uses("module", uses))
    cycle = Uses("cycle", uses)
    cycle.__dict__["itself"] = cycle
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    futures = [work.get_future().then(lambda _: time.sleep(0.1)) for work in works]
    kept.append((works, futures, dist.irecv(torch.ones(3), 1 - rank, group=other)))
    # No function of this module: a thread that is still in it would keep `kept` alive.
    thread = threading.Thread(target=dist.barrier, kwargs={"group": third}, daemon=True)
    thread.start()
    say(ready=True)
    if rank == 1:
        uses()  # an error that nobody catches


def test_a_program_may_end_with_everything_in_flight(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(just_ends, 2, 2, str(tmp_path / "meet"))
    began = time.monotonic()
    lines = [peer.finish(status=status) for status, peer in enumerate(peers)]
    assert time.monotonic() - began < PATIENCE_S
    for said, peer in zip(lines, peers, strict=True):
        ends = {line["end"]: line["text"] for line in said if "end" in line}
        assert set(ends) == {"atexit", "module", "cycle"}, peer.log()
        for text in ends.values():
            assert text.startswith(("GroupClosedError", "RuntimeError")), peer.log()
    assert "PeerLostError" in peers[1].log()


class Slow:
    """Lets other threads run while the interpreter is being taken down."""

    def __init__(self) -> None:
        self.sleep = time.sleep  # modules are gone by then

    def __del__(self) -> None:
        self.sleep(0.5)


def ends_beside_threads(rank: int, world: int, meet: str) -> None:
    """Daemon threads are in the extension, waiting or asking, while the interpreter ends."""
    import torch

    from pccl_backend import _extension

    dist = fixed_group(rank, world, meet)
    module = _extension.loaded()
    began = threading.Semaphore(0)

    def asks() -> None:
        began.release()
        while True:
            module.sha256([])  # gives Python's lock back and takes it, engine or none

    def waits() -> None:
        began.release()
        with contextlib.suppress(RuntimeError):  # rank 0 may have ended before
            received.wait()

    received = dist.irecv(torch.ones(3), 1 - rank)
    threads = [asks, asks, waits]
    for function in threads:
        threading.Thread(target=function, daemon=True).start()
    for _ in threads:
        began.acquire()
    kept.append(Slow())
    say(ready=True)


def ends_as_a_wait_returns(rank: int, world: int, meet: str) -> None:
    """The interpreter ends while a thread is on its way back to Python, with an error."""
    import torch

    dist = fixed_group(rank, world, meet)
    received = dist.irecv(torch.ones(3), 1 - rank)

    def waits() -> None:
        with contextlib.suppress(RuntimeError):
            received.wait()

    threading.Thread(target=waits, daemon=True).start()
    kept.append(Slow())
    while rank == 1 and not received.is_completed():
        pass  # holds Python's lock most of the time


@pytest.mark.parametrize("function", [ends_beside_threads, ends_as_a_wait_returns])
def test_a_thread_that_meets_the_end_of_the_interpreter_does_not_end_the_process_by_a_signal(
    run_peers: Any, tmp_path: Path, function: Callable[..., None]
) -> None:
    peers = run_peers(function, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        peer.finish(status=0)
        assert "terminate called" not in peer.log()
