"""Which ranks pass data through memory that they share, and that it changes no result."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import fixed_group, hear, say

SIZES = [1, 7, 1000, 300_001]  # elements: small segments, odd ones, several ones
AREA_BYTES_PER_RANK = 2 << 20  # from there on ranks of one machine read each other's areas


def reduces(rank: int, world: int, meet: str) -> None:
    """All dtypes whose elements differ in size, by a reduction and by a copy; then the counters."""
    import torch

    import pccl_backend as pccl

    dist = fixed_group(rank, world, meet)
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.complex128):
        for size in SIZES:
            mine = (torch.arange(size) % 5 + rank).to(dtype)
            expected = sum((torch.arange(size) % 5 + of).to(dtype) for of in range(world))
            got = mine.clone()
            dist.all_reduce(got)
            assert torch.equal(got, torch.as_tensor(expected)), (dtype, size)
            parts = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(parts, mine)
            for of, part in enumerate(parts):
                assert torch.equal(part, (torch.arange(size) % 5 + of).to(dtype)), (dtype, size)
        large = world * AREA_BYTES_PER_RANK // mine.element_size() + 3
        got = (torch.arange(large) % 5 + rank).to(dtype)
        dist.all_reduce(got)
        expected = sum((torch.arange(large) % 5 + of).to(dtype) for of in range(world))
        assert torch.equal(got, torch.as_tensor(expected)), (dtype, large)
    counters = pccl.counters()
    links = pccl.links()
    assert sum(link["bytes_sent"] for link in links) >= counters["bytes_sent"] > 0
    assert sum(link["bytes_received"] for link in links) > 100_000
    assert all(link["lanes"] >= 2 and not link["bbr"] and link["limit"] == 0 for link in links)
    assert all(len(link["by_lane"]) == link["lanes"] for link in links)
    assert all(sum(lane["bytes_sent"] for lane in link["by_lane"]) > 0 for link in links)
    ways = {name: count for name, count in counters.items() if name.startswith("ops_by_")}
    assert sum(ways.values()) == counters["ops_committed"]
    carriers = sorted(link["carrier"] for link in links)
    say(sent=counters["bytes_sent"], shared=counters["bytes_shared"], carriers=carriers)
    hear()
    dist.destroy_process_group()


@pytest.mark.parametrize("plaintext", ["all", "none"])
def test_ranks_of_one_machine_share_memory_unless_one_of_them_does_not_want_that(
    run_peers: Any, tmp_path: Path, plaintext: str
) -> None:
    env = {"PCCL_PLAINTEXT": plaintext, "PCCL_LOG_LEVEL": "debug"}
    tcp = "TCP" if plaintext == "all" else "TCP, encrypted"
    meet = str(tmp_path / "meet")
    peers = run_peers(reduces, 3, 4, meet, env=env)
    peers += run_peers(reduces, 1, 4, meet, env=env | {"PCCL_SHARED_MEMORY": "0"}, first=3)
    lines = [peer.next() for peer in peers]
    for line in lines[:3]:
        assert 0 < line["shared"] < line["sent"], "with two of the others"
        assert line["carriers"] == [tcp, "shared memory", "shared memory"]
    assert lines[3]["shared"] == 0
    assert lines[3]["carriers"] == [tcp, tcp, tcp]
    for peer in peers:
        peer.tell("go on")
        peer.finish()
    for peer, line in zip(peers, lines, strict=True):
        said = re.findall(r"the link to peer \S+ goes through (.*)$", "".join(peer.errors), re.M)
        assert sorted(said) == line["carriers"]


def reduces_with_small_files(rank: int, world: int, meet: str, limited: list[int]) -> None:
    """As `reduces`; a rank of `limited` can have no file of 64 KiB, nor memory to share."""
    if rank in limited:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    reduces(rank, world, meet)


@pytest.mark.long
@pytest.mark.parametrize("limited", [[0], [1], [0, 1, 2]])
def test_ranks_without_memory_to_share_use_a_socket_of_the_machine(
    run_peers: Any, tmp_path: Path, limited: list[int]
) -> None:
    peers = run_peers(reduces_with_small_files, 3, 3, str(tmp_path / "meet"), limited)
    lines = [peer.next() for peer in peers]
    for rank, line in enumerate(lines):
        shared = line["carriers"].count("shared memory")
        assert line["carriers"] == ["a unix socket"] * (2 - shared) + ["shared memory"] * shared
        assert (line["shared"] > 0) == (shared > 0)
        if rank not in limited:  # with the other one that has memory, at least
            assert shared >= 1
        elif len(limited) == len(lines):
            assert shared == 0
    for peer in peers:
        peer.tell("go on")
        peer.finish()


def one_of_two(meet: str, rank: int, address: str) -> list[str]:
    """The command of one rank, which prints its counters."""
    program = f"""
import json, torch, pccl_backend, torch.distributed as dist
dist.init_process_group("pccl", store=dist.FileStore({meet!r}, 2), rank={rank}, world_size=2)
t = torch.ones(300_000)
dist.all_reduce(t)
assert t.eq(2).all()
print(json.dumps(pccl_backend.counters()), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
    return ["env", f"PCCL_INTERFACE={address}", sys.executable, "-c", program]


def test_hosts_that_are_emulated_on_one_machine_use_tcp(tmp_path: Path) -> None:
    from chaos.run import why_not
    from wan.wan import Wan

    if reason := why_not():
        pytest.skip(reason)

    with Wan(2) as wan:
        ranks = [
            wan.popen(
                rank + 1,
                one_of_two(str(tmp_path / "meet"), rank, wan.address(rank + 1)),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        lines = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    for line in lines:
        assert line["bytes_sent"] > 1_000_000
        assert line["bytes_shared"] == 0


def test_ranks_in_containers_whose_dev_shm_is_of_no_use_share_memory(tmp_path: Path) -> None:
    """Each in a mount namespace of its own, as in two containers that share a network."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("it needs root, to make mount namespaces")
    useless = 'mount -t tmpfs -o ro none /dev/shm && ! touch /dev/shm/x 2>&- && exec "$@"'
    start = ["unshare", "--mount", "sh", "-c", useless, "sh"]
    ranks = [
        subprocess.Popen(
            [*start, *one_of_two(str(tmp_path / "meet"), rank, "127.0.0.1")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    for line in lines:
        assert line["bytes_shared"] > 1_000_000
