"""Groups made out of others in real processes: shrink, split, options; types beyond gloo."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from conftest import failure, fixed_group, hear, say

# ------------------------------------------------------------------------------------------ shrink


def goes_on_without_who_was_lost(rank: int, world: int, meet: str) -> None:
    import torch
    from torch.distributed import distributed_c10d

    dist = fixed_group(rank, world, meet)
    dist.barrier()
    say(ready=True)
    if rank == 1:
        hear()
    say(lost=failure(lambda: dist.all_reduce(torch.ones(1000))))
    itself = [0, 1] if rank == 0 else [1, rank]
    say(refused=failure(lambda: dist.shrink_group(itself)))
    smaller = dist.shrink_group([1], shrink_flags=distributed_c10d.SHRINK_ABORT)
    t = torch.tensor([10.0**rank])
    dist.all_reduce(t)  # the new default group
    listed: list[Any] = [None, None]
    dist.all_gather_object(listed, rank)
    say(rank=dist.get_rank(), size=dist.get_world_size(), sum=t.item(), listed=listed)
    again = dist.new_group([0, 1])  # groups of the smaller one work as of any other
    dist.all_reduce(t, group=again)
    say(again=t.item(), same=smaller is dist.group.WORLD)
    dist.destroy_process_group()


def test_survivors_of_a_loss_go_on_in_a_shrunk_group(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(goes_on_without_who_was_lost, 3, 3, str(tmp_path / "meet"))
    for peer in peers:
        peer.next(ready=True)
    peers[1].kill()
    for place, peer in enumerate((peers[0], peers[2])):
        assert "rank 1" in peer.next()["lost"]
        assert peer.next()["refused"].startswith("RuntimeError")
        line = peer.next(size=2)
        assert line == {"rank": place, "size": 2, "sum": 101.0, "listed": [0, 2]}
        assert peer.next() == {"again": 202.0, "same": True}
        peer.finish()


def shrinks_alone(rank: int, world: int, meet: str) -> None:
    dist = fixed_group(rank, world, meet)
    dist.barrier()
    if rank == 1:
        hear()  # a survivor that does not come
        return
    backend = dist.group.WORLD._get_backend(__import__("torch").device("cpu"))
    options = backend.options
    options._timeout = timedelta(seconds=2)
    say(text=failure(lambda: backend.shrink([2], 0, options)))
    dist.barrier(group=dist.new_group([0]) if rank == 0 else None)
    dist.destroy_process_group()


def test_a_survivor_that_does_not_shrink_is_named_and_the_group_stays(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(shrinks_alone, 3, 3, str(tmp_path / "meet"))
    text = peers[0].next()["text"]
    assert text.startswith("OperationTimeoutError")
    assert "rank 1" in text
    assert "did not make this group" in text
    text = peers[2].next()["text"]
    assert "excludes itself" in text


# ------------------------------------------------------------------------------------------ options


def gives_options(rank: int, world: int, meet: str) -> None:
    import copy

    import torch
    import torch.distributed as dist

    import pccl_backend

    try:
        fixed_group(rank, world, meet + "-wrong", pg_options={"timeout": 3})
    except TypeError as error:
        say(wrong=str(error), open=dist.is_initialized())
    options = pccl_backend.Options(goodbye_timeout_s=4.0)
    fixed_group(rank, world, meet, timeout_s=77.0, pg_options=options)
    own = dist.group.WORLD._get_backend(torch.device("cpu")).options
    same = dist.new_group([0, 1], pg_options=own)
    none = dist.new_group([0, 1])
    try:
        dist.new_group([0, 1], pg_options=pccl_backend.Options(goodbye_timeout_s=5.0))
    except ValueError as error:
        say(differs=str(error))
    t = torch.ones(3)
    for group in (same, none):
        dist.all_reduce(t, group=group)
    parts = dist.group.WORLD.split_group([0, 1], opts=copy.deepcopy(own), group_name="half")
    dist.all_reduce(t, group=parts)
    say(sum=t.tolist(), backend=own.backend, seconds=own._timeout.total_seconds())
    dist.destroy_process_group()


def test_options_are_ours_or_an_error_before_anything_is_opened(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(gives_options, 2, 2, str(tmp_path / "meet")):
        line = peer.next()
        assert "builtins.dict" in line["wrong"]
        assert "pccl_backend.Options" in line["wrong"]
        assert line["open"] is False
        assert "goodbye_timeout_s=4.0" in peer.next()["differs"]
        assert peer.next() == {"sum": [8.0] * 3, "backend": "pccl", "seconds": 77.0}
        peer.finish()


# ------------------------------------------------------------------------------- more than gloo


def reduces_what_gloo_does_not(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    got: dict[str, Any] = {}
    for name in ("int16", "uint16", "float8_e4m3fn", "float8_e5m2"):
        t = torch.tensor([1.0, 2.0, 3.0]).to(getattr(torch, name))
        dist.all_reduce(t)
        got[name] = t.float().tolist()
    t = torch.tensor([1.0, 3.0]).to(torch.float8_e4m3fn)
    dist.all_reduce(t, op=dist.ReduceOp.AVG)
    got["mean"] = t.float().tolist()

    half = dist._make_nccl_premul_sum(0.5)
    own = dist._make_nccl_premul_sum(torch.tensor([rank + 1.0]))  # a factor of each rank's own
    t = torch.arange(4.0)
    dist.all_reduce(t, op=half)
    got["premul"] = t.tolist()
    t = torch.arange(4.0, dtype=torch.bfloat16)
    dist.all_reduce(t, op=own)
    got["premul own"] = t.float().tolist()
    t = torch.ones(2, 3).t()  # not contiguous
    dist.all_reduce(t, op=own)
    got["premul strided"] = t.tolist()
    source = torch.arange(4.0)
    into = torch.empty(2)
    dist.reduce_scatter_tensor(into, source, op=own)
    got["premul scattered"] = into.tolist()
    kept = torch.arange(2.0)
    dist.reduce(kept, dst=0, op=half)
    got["premul reduced"] = kept.tolist()
    got["source"] = source.tolist()
    for call in (
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=half),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2), op=dist.ReduceOp.BOR),
    ):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            got.setdefault("refused", []).append(str(error))
    say(got=json.loads(json.dumps(got)))
    dist.destroy_process_group()


def test_types_and_reductions_that_gloo_does_not_take(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(reduces_what_gloo_does_not, 2, 2, str(tmp_path / "meet"))
    for rank, peer in enumerate(peers):
        got = peer.next()["got"]
        for name in ("int16", "uint16", "float8_e4m3fn", "float8_e5m2"):
            assert got[name] == [2.0, 4.0, 6.0], name
        assert got["mean"] == [1.0, 3.0]
        assert got["premul"] == [0.0, 1.0, 2.0, 3.0]
        assert got["premul own"] == [0.0, 3.0, 6.0, 9.0]
        assert got["premul strided"] == [[3.0] * 2] * 3
        assert got["premul scattered"] == [[0.0, 3.0], [6.0, 9.0]][rank]
        assert got["premul reduced"] == ([0.0, 1.0])
        assert got["source"] == [0.0, 1.0, 2.0, 3.0]
        integer, bits = got["refused"]
        assert "floating type" in integer
        assert "cannot reduce" in bits
        peer.finish()
