"""What a program should not do to a fixed group, and what it gets: gloo's answer or a clear error.

Never a hang, a crash or a wrong number. Wrong lengths, layouts and types are in test_fixed.py,
forked children and ends of the program in test_life_cycle.py, a machine that has nothing left to
give in test_nothing_left.py.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import failure, fixed_group, hear, say

CLEAR = (RuntimeError, ValueError, TypeError)  # DistBackendError is a RuntimeError
LO = {"GLOO_SOCKET_IFNAME": "lo"}


# ------------------------------------------------------------------------------ overlaps

COUNT = 300_000  # several segments


def overlaps(rank: int, group: Any) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Calls whose tensors share memory; each returns what came and what is right."""
    import torch
    import torch.distributed as dist

    n, other = COUNT, 1 - rank
    whole = torch.arange(2.0 * n)  # what a gather of the halves of all ranks gives

    def half(of: Any, number: int) -> Any:
        return of[number * n : (number + 1) * n]

    def gather(place: int) -> tuple[Any, Any]:
        out = torch.full((2 * n,), -1.0)
        mine = out[place : place + n]
        mine.copy_(half(whole, rank))
        dist.all_gather_into_tensor(out, mine, group=group)
        return out, whole

    def gather_list(place: int) -> tuple[Any, Any]:
        out = [torch.full((n,), 1.0 + rank) for _ in range(2)]
        dist.all_gather(out, out[place], group=group)
        return torch.cat(out), torch.tensor([1.0, 2.0]).repeat_interleave(n)

    def reduce_scatter(place: int) -> tuple[Any, Any]:
        x = whole + rank
        out = x[place : place + n]
        dist.reduce_scatter_tensor(out, x, group=group)
        return out, half(2 * whole + 1, rank)

    def reduce_scatter_list() -> tuple[Any, Any]:
        x = [half(whole, i) + rank for i in range(2)]
        dist.reduce_scatter(x[other], x, group=group)
        return x[other], half(2 * whole + 1, rank)

    def all_to_all(place: int) -> tuple[Any, Any]:
        x = torch.zeros(3 * n)
        x[: 2 * n] = whole + 10 * n * rank
        out = x[place : place + 2 * n]
        dist.all_to_all_single(out, x[: 2 * n], group=group)
        return out, torch.cat([half(whole, rank), half(whole + 10 * n, rank)])

    def scatter() -> tuple[Any, Any]:
        parts = [torch.full((n,), 5.0), torch.full((n,), 6.0)]
        out = parts[1] if rank == 0 else torch.zeros(n)
        dist.scatter(out, parts if rank == 0 else None, src=0, group=group)
        return out, torch.full((n,), 5.0 + rank)

    def gather_to_root() -> tuple[Any, Any]:
        parts = [torch.full((n,), 5.0 + rank) for _ in range(2)]
        dist.gather(parts[1], parts if rank == 0 else None, dst=0, group=group)
        return parts[0] if rank == 0 else torch.full((n,), 5.0), torch.full((n,), 5.0)

    return {
        "all_gather in its place": lambda: gather(rank * n),
        "all_gather in another's place": lambda: gather(other * n),
        "all_gather across": lambda: gather(n // 2),
        "all_gather of a list in its place": lambda: gather_list(rank),
        "all_gather of a list in another's place": lambda: gather_list(other),
        "reduce_scatter in its place": lambda: reduce_scatter(rank * n),
        "reduce_scatter in another's place": lambda: reduce_scatter(other * n),
        "reduce_scatter across": lambda: reduce_scatter(n // 2),
        "reduce_scatter of a list": reduce_scatter_list,
        "all_to_all in place": lambda: all_to_all(0),
        "all_to_all across": lambda: all_to_all(n // 2),
        "scatter": scatter,
        "gather": gather_to_root,
    }


def passes_overlapping_tensors(rank: int, world: int, meet: str, across: bool) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    results = {}
    for name, call in overlaps(rank, dist.group.WORLD).items():
        if name.endswith("across") != across:
            continue
        try:
            got, wanted = call()
            results[name] = "right" if torch.equal(got, wanted) else "wrong"
        except CLEAR as error:
            results[name] = f"error: {error}"
    say(results=results)
    dist.barrier()


def wrong_of_overlaps(run_peers: Any, tmp_path: Path, across: bool) -> set[str]:
    wrong = set()
    for peer in run_peers(passes_overlapping_tensors, 2, 2, str(tmp_path / "meet"), across):
        results = peer.next()["results"]
        assert len(results) == (3 if across else 10)
        wrong |= {name for name, result in results.items() if result == "wrong"}
        peer.finish()
    return wrong


def test_an_output_that_is_a_whole_input_gives_no_wrong_number(
    run_peers: Any, tmp_path: Path
) -> None:
    assert wrong_of_overlaps(run_peers, tmp_path, False) == set()


def test_an_output_across_inputs_gives_no_wrong_number(run_peers: Any, tmp_path: Path) -> None:
    assert wrong_of_overlaps(run_peers, tmp_path, True) == set()


# ------------------------------------------------------------------------------ no memory


def passes_tensors_without_memory(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)

    def shrunk(tensor: Any, left: int) -> Any:
        tensor.untyped_storage().resize_(4 * left)
        return tensor

    freed, whole = shrunk(torch.ones(100_000), 0), torch.ones(100_000)
    calls: dict[str, Callable[[], Any]] = {
        "freed": lambda: dist.all_reduce(freed),
        "a part is left": lambda: dist.all_reduce(shrunk(torch.ones(9), 8)),
        "a view": lambda: dist.all_reduce(shrunk(torch.ones(2, 2).t(), 3)),
        "an input": lambda: dist.all_gather_into_tensor(whole.repeat(world), freed),
        "an output": lambda: dist.all_gather([whole, freed], whole),
        "a message": lambda: dist.send(freed, 1 - rank),
        "a receive": lambda: dist.recv(freed, 1 - rank),
    }
    texts = {name: failure(call) for name, call in calls.items()}
    empty = shrunk(torch.ones(0), 0)
    dist.all_reduce(empty)
    dist.all_reduce(whole)
    say(texts=texts, sums=whole.unique().tolist())
    dist.barrier()


def test_a_tensor_whose_memory_was_freed_is_an_error_at_the_call(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(passes_tensors_without_memory, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        line = peer.next()
        assert line["sums"] == [2.0]
        for name, text in line["texts"].items():
            assert "has no memory for its" in text, (name, text)
        peer.finish()


# ------------------------------------------------------------------------------ one tensor, twice


Check = Callable[[str, Any, Any], None]  # name, what came, what is right


def shares_and_drops(rank: int, n: int, check: Check) -> None:
    """A tensor of `n` elements in several operations in flight, changed, or dropped before wait."""
    import torch
    import torch.distributed as dist

    ones, mine = torch.ones(n), torch.full((n,), 1.0 + rank)
    t = ones.clone()
    works = [dist.all_reduce(t, async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
    check("one after the other", t, 16 * ones)
    t = mine.clone()
    works = [dist.broadcast(t, src, async_op=True) for src in (1, 0, 1)]
    works.append(dist.all_reduce(t, async_op=True))
    for work in reversed(works):
        work.wait()
    check("broadcast, then reduced", t, 4 * ones)
    outs = [torch.zeros(2 * n) for _ in range(3)]
    works = [dist.all_gather_into_tensor(out, mine, async_op=True) for out in outs]
    works += [dist.isend(mine, 1 - rank), dist.irecv(t, 1 - rank)]
    for work in works:
        work.wait()
    for out in outs:
        check("read by several", out, torch.tensor([1.0, 2.0]).repeat_interleave(n))
    check("received meanwhile", t, (2.0 - rank) * ones)

    # Changed before the wait: any number may come, and the group goes on.
    t = ones.clone()
    work = dist.all_reduce(t, async_op=True)
    if rank == 0:
        t.fill_(7.0)
    work.wait()
    t = ones.clone()
    dist.all_reduce(t)
    check("after a change", t, 2 * ones)

    # Dropped before the wait, with its Work, while others take its memory.
    for i in range(20):
        t = ones + rank + i
        work = dist.all_reduce(t, async_op=True)
        del t
        if rank == 0 and i % 2:
            work = None
        if i == 0:
            gc.collect()
        noise = [torch.full((n,), -1.0) for _ in range(3)]
        if work is not None:
            work.wait()
            check("dropped", work.result()[0], (3.0 + 2 * i) * ones)
        del noise


def passes_what_autograd_knows(rank: int, gloo: Any, check: Check) -> list[Any]:
    """As gloo does, which says no only to lists of leaves; returns where the errors differ."""
    import torch
    import torch.distributed as dist

    def leaf(values: Any) -> Any:
        return values.clone().requires_grad_()

    def over(call: Callable[[Any], list[Any]]) -> list[Any]:
        results: list[Any] = []
        for group in (dist.group.WORLD, gloo):
            try:
                results.append([t.detach().clone() for t in call(group)])
            except CLEAR as error:
                results.append(type(error))
        return results

    five = torch.ones(5) + rank

    def broadcast_leaf(g: Any) -> list[Any]:
        p = leaf(five)
        dist.broadcast(p, 1, group=g)
        p.square().sum().backward()
        return [p, p.grad]

    def reduce_view(g: Any) -> list[Any]:
        p = leaf(five)
        dist.all_reduce(p[1:3], group=g)
        return [p]

    def reduce_strided(g: Any) -> list[Any]:
        p = torch.nn.Parameter(torch.ones(3, 5).t())
        dist.all_reduce(p, group=g)
        return [p]

    def reduce_result(g: Any) -> list[Any]:
        p = leaf(five)
        q = p * (2 + rank)
        dist.all_reduce(q, group=g)
        q.sum().backward()
        return [q, p.grad]

    def gather_leaves(g: Any) -> list[Any]:
        out = [leaf(torch.zeros(5)) for _ in range(2)]
        dist.all_gather(out, leaf(five), group=g)
        return out

    def reduce_inference(g: Any) -> list[Any]:
        with torch.inference_mode():
            t = torch.ones(3)
        dist.all_reduce(t, group=g)
        return [t]

    wrong: list[Any] = []
    for call in (
        *(broadcast_leaf, reduce_view, reduce_strided),
        *(reduce_result, gather_leaves, reduce_inference),
    ):
        ours, theirs = over(call)
        if isinstance(ours, type):
            if not (isinstance(theirs, type) and issubclass(ours, theirs)):
                wrong.append([call.__name__, str(ours), str(theirs)])
        elif not isinstance(theirs, type):
            for a, b in zip(ours, theirs, strict=True):
                check(call.__name__, a, b)
    return wrong


def mistreats_tensors(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
    wrong: list[Any] = []

    def check(name: str, got: Any, wanted: Any) -> None:
        if not torch.equal(got, wanted):
            wrong.append([name, got.flatten()[:3].tolist(), wanted.flatten()[:3].tolist()])

    for n in (5, COUNT):
        shares_and_drops(rank, n, check)
    wrong += passes_what_autograd_knows(rank, gloo, check)

    # One place for all elements: gloo writes beyond it.
    spread = torch.ones(1).expand(1000)
    text = failure(lambda: dist.all_reduce(spread))
    out = [torch.zeros(1000) for _ in range(2)]
    dist.all_gather(out, spread)
    say(wrong=wrong, spread=text, read=out[1].sum().item())
    dist.barrier()


def test_a_tensor_may_be_in_several_operations_dropped_or_known_to_autograd(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(mistreats_tensors, 2, 2, str(tmp_path / "meet"), env=LO):
        line = peer.next()
        assert line["wrong"] == []
        assert "share one place in memory" in line["spread"]
        assert line["read"] == 1000.0
        peer.finish()


# ------------------------------------------------------------------------------ more than 2^31

BIG = 2**31 + 8
BLOCK = 1_000_003


def sends_more_than_2_to_the_31(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet, timeout_s=180)
    block = torch.randint(0, 127, (BLOCK,), dtype=torch.uint8, generator=torch.manual_seed(3))
    t = torch.zeros(BIG, dtype=torch.uint8)

    def pieces() -> Iterator[tuple[Any, Any]]:
        for i in range(0, BIG, BLOCK):
            piece = t[i : i + BLOCK]
            yield piece, block[: len(piece)]

    if rank == 0:
        for piece, values in pieces():
            piece.copy_(values)
    dist.broadcast(t, 0)
    broadcast = all(torch.equal(piece, values) for piece, values in pieces())
    dist.all_reduce(t)
    reduced = all(torch.equal(piece, 2 * values) for piece, values in pieces())
    say(broadcast=broadcast, reduced=reduced)
    dist.barrier()


@pytest.mark.long
def test_more_than_2_to_the_31_elements(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(sends_more_than_2_to_the_31, 2, 2, str(tmp_path / "meet")):
        line = peer.next(timeout_s=180)  # of a busy machine
        assert line["broadcast"]
        assert line["reduced"]
        peer.finish()


# ------------------------------------------------------------------------------ ranks


def names_wrong_ranks(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
    alone = [[dist.new_group([r], backend=b) for r in range(world)] for b in ("pccl", "gloo")]
    ours, world_group = dist.new_group(), dist.group.WORLD
    t, other = torch.ones(3), 1 - rank

    def with_root(options: Any, root: int) -> Any:
        options.rootRank = root
        return options

    cases: dict[str, Callable[[Any, Any], Any]] = {
        "send to nobody": lambda g, _: dist.send(t, 5, group=g),
        "send to -1": lambda g, _: dist.send(t, -1, group=g),
        "send to itself": lambda g, _: dist.send(t, rank, group=g),
        "receive from nobody": lambda g, _: dist.recv(t, 5, group=g),
        "receive from -3": lambda g, _: dist.recv(t, -3, group=g),
        "negative tag": lambda g, _: dist.send(t, other, group=g, tag=-1),
        "root -1": lambda g, _: dist.broadcast(t, -1, group=g),
        "destination 9": lambda g, _: dist.reduce(t, 9, group=g),
        "root not in the group": lambda _, own: dist.broadcast(t, other, group=own),
        "receiver not in the group": lambda _, own: dist.send(t, other, group=own),
        "group rank out of range": lambda g, _: dist.broadcast(t, group=g, group_src=2),
        "a group of strangers": lambda g, _: dist.new_group([0, 5], backend=g.name()),
    }
    for root in (-1, world):
        cases |= {
            f"broadcast from {root}": lambda g, _, r=root: g.broadcast(
                [t], with_root(dist.BroadcastOptions(), r)
            ).wait(),
            f"reduce to {root}": lambda g, _, r=root: g.reduce(
                [t], with_root(dist.ReduceOptions(), r)
            ).wait(),
            f"scatter from {root}": lambda g, _, r=root: g.scatter(
                [t], [[t, t]], with_root(dist.ScatterOptions(), r)
            ).wait(),
            f"gather to {root}": lambda g, _, r=root: g.gather(
                [[t, t]], [t], with_root(dist.GatherOptions(), r)
            ).wait(),
        }
    wrong = []
    for name, call in cases.items():
        classes: list[Any] = []
        for group, own in zip((ours, gloo), alone, strict=True):
            try:
                call(group, own[rank])
                classes.append(None)
            except CLEAR as error:
                classes.append(type(error))
        if classes[0] is None or classes[1] is None or not issubclass(classes[0], classes[1]):
            wrong.append(f"{name}: {classes}")
    for call in (lambda: world_group.send([t], 5, 0), lambda: world_group.recv([t], -2, 0)):
        text = failure(call)  # gloo's would wait for ever
        if "rank" not in text:
            wrong.append(text)
    dist.all_reduce(t)
    say(cases=len(cases), wrong=wrong, sum=t[0].item())
    dist.barrier()


def test_ranks_that_are_not_there_raise_what_gloo_raises(run_peers: Any, tmp_path: Path) -> None:
    for peer in run_peers(names_wrong_ranks, 2, 2, str(tmp_path / "meet"), env=LO):
        line = peer.next()
        assert line["wrong"] == []
        assert line["cases"] == 20
        assert line["sum"] == 2.0  # nobody is disturbed
        peer.finish()


# ------------------------------------------------------------------------------ time-outs


def sets_odd_timeouts(rank: int, world: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    texts = {}
    if rank == 0:
        for seconds in (0, -1):
            began = time.monotonic()
            text = failure(lambda s=seconds: fixed_group(0, 2, f"{meet}{s}", timeout_s=s))
            texts[f"init {seconds}"] = [text, time.monotonic() - began]
        dist.distributed_c10d._world.group_count = 0  # names of groups are counted
    fixed_group(rank, world, meet, timeout_s=30)
    group = dist.group.WORLD
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
    t = torch.ones(3)
    for seconds in (0, -1, -5):  # none of its own: the group's
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=seconds)
        group.allreduce([t], options).wait()
    for seconds in (0, -5):
        began = time.monotonic()
        text = failure(lambda s=seconds: dist.distributed_c10d._set_pg_timeout(timedelta(0, s)))
        texts[f"group {seconds}"] = [text, time.monotonic() - began]
    alone = dist.new_group()
    dist.distributed_c10d._set_pg_timeout(timedelta(0), alone)
    if rank == 0:  # the other rank never comes
        texts["call of group 0"] = [failure(lambda: dist.all_reduce(t.clone(), group=alone)), 0.0]
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=30))
    if rank == 1:
        for g in (group, gloo):
            hear()
            g.allreduce([t]).wait()
        say(texts=texts)
        dist.barrier()
        return
    for name, g in (("pccl", group), ("gloo", gloo)):
        work = g.allreduce([t])
        for ms in (50, 1):
            began = time.monotonic()
            text = failure(lambda w=work, ms=ms: w.wait(timedelta(milliseconds=ms)))
            texts[f"{name} {ms}"] = [text, time.monotonic() - began]
        say(waited=name)
        work.wait(timedelta(0))  # as long as it takes
    say(texts=texts, sum=t[0].item())
    dist.barrier()


def test_time_outs_of_nothing_and_less(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(sets_odd_timeouts, 2, 2, str(tmp_path / "meet"), env=LO)
    for name in ("pccl", "gloo"):
        peers[0].next(waited=name)
        peers[1].tell("go")
    line = peers[0].next()
    assert line["sum"] == 32.0
    texts = line["texts"]
    assert "1 of 2 ranks have not come" in texts["init 0"][0]
    assert texts["init -1"][0].startswith("ValueError")
    assert texts["group 0"][0] == ""
    assert texts["call of group 0"][0].startswith("OperationTimeoutError")
    assert "must not be negative" in texts["group -5"][0]
    for ms in (50, 1):
        for backend in ("pccl", "gloo"):
            assert "Error" in texts[f"{backend} {ms}"][0], (backend, ms)
            assert texts[f"{backend} {ms}"][1] < 10, (backend, ms)
    for peer in peers:
        peer.finish()


def waits_less_than_nothing(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet, timeout_s=6)
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=6))
    waited = {}
    if rank == 0:
        for name, group in (("gloo", gloo), ("pccl", dist.group.WORLD)):
            work = group.allreduce([torch.ones(1)])
            began = time.monotonic()
            text = failure(lambda w=work: w.wait(timedelta(milliseconds=-5)))
            waited[name] = [text, time.monotonic() - began]
    say(waited=waited)
    hear()


def test_a_wait_of_less_than_nothing_does_not_wait(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(waits_less_than_nothing, 2, 2, str(tmp_path / "meet"), env=LO)
    waited = peers[0].next()["waited"]
    for peer in peers:
        peer.tell("go")
        peer.finish(status=None)
    for text, seconds in waited.values():
        assert "Error" in text
        assert seconds < 4
