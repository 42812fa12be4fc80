"""A cap on what a process sends: how long a collective takes under it, with equal results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from conftest import fixed_group, hear, say

RATE = 32_000_000
BURST_BYTES = RATE // 10
FLOATS = 4 << 20  # 16 MiB


def reduces(rank: int, world: int, meet: str) -> None:
    fixed_group(rank, world, meet)
    reduce_and_say()


def reduces_in_a_run(_: int, url: str) -> None:
    import pccl_backend as pccl

    pccl.join(url, timeout_s=60.0)
    reduce_and_say()


def reduce_and_say() -> None:
    """An all-reduce of 16 MiB, after a small one; says how long it took and what it sent."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    rank, world = dist.get_rank(), dist.get_world_size()
    small = torch.ones(10)
    dist.all_reduce(small)
    mine = torch.arange(FLOATS, dtype=torch.float32) % 1000 + rank
    expected = (torch.arange(FLOATS, dtype=torch.float32) % 1000) * world + sum(range(world))
    before = pccl.counters()
    start = time.monotonic()
    dist.all_reduce(mine)
    dist.barrier()
    took_s = time.monotonic() - start
    after = pccl.counters()
    assert torch.equal(mine, expected)
    say(
        took_s=took_s,
        sent=after["bytes_sent"] - before["bytes_sent"],
        held_ms=after["rate_held_ms"],
    )
    hear()
    dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.parametrize("plaintext", ["all", "none"])
def test_an_all_reduce_takes_as_long_as_the_rate_says(
    run_peers: Any, tmp_path: Path, plaintext: str
) -> None:
    env = {"PCCL_SHARED_MEMORY": "0", "PCCL_MAX_RATE": "32MB", "PCCL_PLAINTEXT": plaintext}
    peers = run_peers(reduces, 2, 2, str(tmp_path / "meet"), env=env)
    lines = [peer.next() for peer in peers]
    for line in lines:
        assert line["sent"] >= FLOATS * 4
        at_least_s = (line["sent"] - BURST_BYTES) / RATE
        assert at_least_s > 0.4
        assert at_least_s <= line["took_s"] < 4 * at_least_s + 5
        assert line["held_ms"] > 200
    for peer in peers:
        peer.tell("go on")
        peer.finish()


def test_a_member_that_alone_has_a_rate_keeps_to_it_and_all_get_the_results(
    run_peers: Any, start_master: Any
) -> None:
    url = start_master("--min-peers", "2").url
    env = {"PCCL_SHARED_MEMORY": "0"}
    peers = run_peers(reduces_in_a_run, 1, url, env=env)
    peers += run_peers(reduces_in_a_run, 1, url, env={**env, "PCCL_MAX_RATE": "32MB"}, first=1)
    free, held = (peer.next() for peer in peers)
    assert "sends 32.0 MB/s at most over TCP" in peers[1].log()
    assert "PCCL_MAX_RATE" not in peers[0].log()
    assert free["held_ms"] == 0
    assert held["held_ms"] > 200
    assert held["took_s"] >= (held["sent"] - BURST_BYTES) / RATE > 0.4
    for peer in peers:
        peer.tell("go on")
        peer.finish()


def test_shared_memory_has_no_rate(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(reduces, 2, 2, str(tmp_path / "meet"), env={"PCCL_MAX_RATE": "1MiB"})
    for line in [peer.next() for peer in peers]:
        assert line["held_ms"] == 0
        assert line["took_s"] < 10, "16 s at the rate"
    for peer in peers:
        peer.tell("go on")
        peer.finish()
