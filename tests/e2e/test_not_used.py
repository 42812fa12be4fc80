"""Installed and not used, pccl changes nothing: gloo's and mixed groups behave as without it.

The same program runs with torch's autoload of us on and off, and says what it sees; the two must
say the same. A group that pccl serves for a device that nobody uses is compared with gloo's too.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from conftest import PATIENCE_S, TORCH, fixed_group, hear, resources, say

FRESH = True  # peers are interpreters of their own, from start to end

LO = {"GLOO_SOCKET_IFNAME": "lo"}
WITHOUT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def behaviour(group: Any) -> dict[str, Any]:
    """What a group gives for calls of all kinds: values, names, errors and warnings."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(group), dist.get_world_size(group)

    def t() -> Any:
        return torch.arange(6.0) + rank

    def all_gather() -> Any:
        out = [torch.zeros(6) for _ in range(world)]
        dist.all_gather(out, t(), group=group)
        return [x.tolist() for x in out]

    def exchange() -> Any:
        got = torch.zeros(6)
        works = [dist.isend(t(), 1 - rank, group=group), dist.irecv(got, 1 - rank, group=group)]
        for work in works:
            work.wait()
        return got.tolist()

    def over(call: Callable[[Any], Any]) -> Any:
        tensor = t()
        call(tensor)
        return tensor.tolist()

    def objects() -> Any:
        out: list[Any] = [None] * world
        dist.all_gather_object(out, {"rank": rank}, group=group)
        return out

    backend = group._get_backend(torch.device("cpu"))
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: over(lambda x: dist.all_reduce(x, group=group)),
        "broadcast": lambda: over(lambda x: dist.broadcast(x, 1, group=group)),
        "all_gather": all_gather,
        "exchange": exchange,
        "objects": objects,
        "barrier": lambda: dist.barrier(group=group),
        "monitored_barrier": lambda: dist.monitored_barrier(group, timedelta(seconds=30)),
        "monitored, of seconds": lambda: dist.monitored_barrier(group, 30.0),
        "set time-out": lambda: dist.distributed_c10d._set_pg_timeout(timedelta(0, 40), group),
        "time-out": lambda: str(backend.options._timeout),
        "number": group._get_sequence_number_for_group,
        "hooks": group._has_hooks,
        "device types": lambda: sorted(map(str, group._device_types)),
        "names": lambda: [group.name(), backend.name(), dist.get_backend(group)],
        "wrong sizes": lambda: dist.all_gather([t()] * 3, t(), group=group),
        "wrong root": lambda: dist.broadcast(t(), group=group, group_src=7),
        "wrong type": lambda: dist.all_reduce([t()], group=group),
        "sparse": lambda: dist.broadcast(t().to_sparse(), 0, group=group),
    }
    seen = {}
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = call()
            except Exception as error:
                value = [type(error).__name__, str(error).splitlines()[0]]
        seen[name] = [value, sorted({str(w.message).splitlines()[0] for w in caught})]
    return seen


def uses_gloo(rank: int, world: int, meet: str) -> None:
    import torch

    replaced = ("monitored_barrier", "_set_pg_timeout")
    dist = fixed_group(rank, world, meet, backend="gloo")
    c10d = dist.distributed_c10d
    seen = {"default": behaviour(dist.group.WORLD)}
    for backend in ("cpu:gloo", "cpu:gloo,cuda:gloo"):
        seen[backend] = behaviour(dist.new_group(backend=backend))
    seen["torch's own"] = {
        name: getattr(c10d, name).__module__ + str(hasattr(getattr(c10d, name), "pccl_replaces"))
        for name in replaced
    }
    seen["types"] = [str(dist.Backend.default_device_backend_map), dist.Backend("GLOO")]
    seen["threads"] = [name for name in resources()["threads"] if "pccl" in name]
    loaded = [name for name in sys.modules if name.startswith("pccl")]
    dist.destroy_process_group()
    fixed_group(rank, world, meet + "again", backend="cpu:gloo")
    t = torch.ones(2)
    dist.all_reduce(t)
    seen["again"] = t.tolist()
    dist.destroy_process_group()
    say(seen=seen, loaded=loaded, known="pccl" in dist.Backend.backend_list)


def test_a_program_that_uses_gloo_sees_no_difference(run_peers: Any, tmp_path: Path) -> None:
    worlds = [
        run_peers(uses_gloo, 2, 2, str(tmp_path / name), env={**LO, **env})
        for name, env in (("with", {}), ("without", WITHOUT))
    ]
    with_it, without = [[peer.next() for peer in world] for world in worlds]
    for ours, theirs in zip(with_it, without, strict=True):
        assert ours["known"]
        assert not theirs["known"]
        assert sorted(ours["loaded"]) in ([], ["pccl_backend", "pccl_backend._register"])
        assert ours["seen"] == theirs["seen"]
        assert ours["seen"]["threads"] == []
        assert ours["seen"]["cpu:gloo"]["number"][0] > 0
    for peers in worlds:
        for peer in peers:
            peer.finish()
            assert "No backend of type" not in "".join(peer.errors)


def passes_through(name: str, call: Callable[[], Any]) -> bool:
    """Does this call, which raises, reach torch's own function of that name?"""
    import torch.distributed as dist

    try:
        call()
    except TypeError as error:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        file = dist.distributed_c10d.__file__
        return any(code.co_name == name and code.co_filename == file for code in frames)
    raise AssertionError("it does not raise")


def uses_mixed_groups(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet, backend="cpu:gloo,cuda:pccl")
    c10d = dist.distributed_c10d
    mixed, gloo = dist.group.WORLD, dist.new_group(backend="cpu:gloo")
    groups = {"mixed": behaviour(mixed), "gloo": behaviour(gloo)}
    swapped = dist.new_group(backend="cpu:pccl,cuda:gloo")
    only = dist.new_group(backend="cpu:pccl")
    groups["swapped"], groups["only"] = behaviour(swapped), behaviour(only)
    groups["mixed, later"], groups["gloo, later"] = behaviour(mixed), behaviour(gloo)
    say(groups=groups)

    # Who serves the CPU, and whom the two functions ask that are replaced.
    kinds = [type(g._get_backend(torch.device("cpu"))).__name__ for g in (mixed, swapped, only)]
    delegates = [
        [
            passes_through("monitored_barrier", lambda g=group: dist.monitored_barrier(g, "x")),
            passes_through("_set_pg_timeout", lambda g=group: c10d._set_pg_timeout("x", g)),
        ]
        for group in (dist.new_group(backend="gloo"), only)
    ]
    exported = dist.monitored_barrier is c10d.monitored_barrier
    say(kinds=kinds, delegates=delegates, exported=exported)

    # A time-out that was set holds, whoever serves the group.
    waited = {}
    for name, group in (("mixed", mixed), ("swapped", swapped), ("gloo", gloo)):
        c10d._set_pg_timeout(timedelta(seconds=1), group)
        if rank == 0:
            began = time.monotonic()
            try:
                dist.all_reduce(torch.ones(1), group=group)
                text = ""
            except RuntimeError as error:
                text = type(error).__name__
            waited[name] = [text, time.monotonic() - began]
    say(waited=waited)
    hear()


def test_mixed_groups_are_served_by_whom_they_name(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(uses_mixed_groups, 2, 2, str(tmp_path / "meet"), env=LO)
    values = ("all_reduce", "broadcast", "all_gather", "exchange", "objects", "barrier")
    for peer in peers:
        groups = peer.next()["groups"]
        for name, seen in groups.items():
            for call in values:
                assert seen[call] == groups["gloo"][call], (name, call)
            for call in ("wrong sizes", "wrong root", "wrong type", "sparse"):
                assert seen[call][0][0].endswith("Error"), (name, call)
        different = {"names", "device types", "monitored_barrier", "monitored, of seconds"}
        for name in ("mixed", "mixed, later", "gloo, later"):
            for call in groups["gloo"].keys() - different - {"number"}:
                assert groups[name][call] == groups["gloo"][call], (name, call)
        for name in ("mixed", "swapped", "only"):  # pccl lets them
            assert groups[name]["monitored_barrier"] == [None, []], name
        assert groups["only"]["names"][0] == ["custom", "pccl", "cpu:pccl"]
        assert groups["swapped"]["names"][0] == ["gloo", "pccl", "cpu:pccl,cuda:gloo"]
        line = peer.next()
        assert line["kinds"][0] == "ProcessGroupGloo"
        assert line["kinds"][1:] == ["Backend", "Backend"]
        assert line["delegates"] == [[True, True], [False, TORCH >= (2, 14)]]
        assert line["exported"]
    waited = peers[0].next()["waited"]
    peers[1].next()
    assert set(waited) == {"mixed", "swapped", "gloo"}
    for name, (text, seconds) in waited.items():
        assert text, name
        assert seconds < PATIENCE_S / 2, name
    for peer in peers:
        peer.tell("go")
    for peer in peers:
        peer.finish()
