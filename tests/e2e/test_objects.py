"""Options(objects=False): torch unpickles nothing that another member has sent."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import common_store, failure, hear, say
from elastic_members import Start

NONE = {"PCCL_OBJECTS": "0"}


class Program:
    """What it is pickled to is a program: it makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def make(rank: int, meet: str) -> Any:
    import torch.distributed as dist

    store = common_store(rank, meet)
    dist.init_process_group(
        "pccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    return dist


def calls_them(rank: int, meet: str) -> None:
    import torch
    from torch.distributed import broadcast_object_list as taken_before
    from torch.distributed.optim import zero_redundancy_optimizer as zero

    dist = make(rank, meet)
    two: list[Any] = [None, None]
    beside = dist.new_group(backend="gloo")
    refused = {
        "all_gather_object": lambda: dist.all_gather_object(two, rank),
        "gather_object": lambda: dist.gather_object(rank, two if rank == 0 else None, dst=0),
        "broadcast_object_list": lambda: dist.broadcast_object_list(two, src=0),
        "scatter_object_list": lambda: dist.scatter_object_list([None], two, src=0),
        "send_object_list": lambda: dist.send_object_list(two, 1 - rank),
        "recv_object_list": lambda: dist.recv_object_list(two, 1 - rank),
        "of a group": lambda: dist.all_gather_object(two, rank, dist.new_group([0, 1])),
        "of ZeRO": lambda: zero._broadcast_object(two, 0, dist.group.WORLD),
        "by keyword": lambda: dist.broadcast_object_list(two, src=0, group=dist.group.WORLD),
    }
    say(refused={name: failure(call) for name, call in refused.items()})
    if rank == 0:
        say(sends=failure(lambda: taken_before(two, src=0)))
    dist.all_gather_object(two, rank, group=beside)  # of another backend
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    say(beside=two, sum=tensor.tolist())
    hear()
    dist.destroy_process_group()


def test_they_are_refused_at_the_caller_and_nothing_is_sent(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(calls_them, 2, str(tmp_path / "meet"), env=NONE)
    for peer in peers:
        for name, text in peer.next()["refused"].items():
            assert text.startswith("RuntimeError: "), (name, text)
            assert "PCCL_OBJECTS=0: torch unpickles what other members send" in text
            assert name in text or " " in name
    assert "an object collective" in peers[0].next()["sends"]
    for peer in peers:
        assert peer.next(sum=[2.0, 2.0, 2.0])["beside"] == [0, 1]
        peer.tell("end")
    for peer in peers:
        peer.finish()


def sends_a_program(rank: int, meet: str, file: str) -> None:
    from torch.distributed import broadcast_object_list as taken_before

    dist = make(rank, meet)
    objects: list[Any] = [Program(file) if rank == 0 else None]
    say(text=failure(lambda: taken_before(objects, src=0)))
    hear()
    dist.destroy_process_group()


@pytest.mark.long
def test_a_program_that_a_member_sends_is_not_run(run_peers: Any, tmp_path: Path) -> None:
    for option, is_run in (({}, True), (NONE, False)):
        meet, file = str(tmp_path / f"meet-{is_run}"), tmp_path / f"made-{is_run}"
        peers = run_peers(sends_a_program, 1, meet, str(file))
        peers += run_peers(sends_a_program, 1, meet, str(file), first=1, env=option)
        assert peers[0].next()["text"] == ""
        assert ("an object collective" in peers[1].next()["text"]) != is_run
        assert file.exists() == is_run  # else this test would show nothing
        for peer in peers:
            peer.tell("end")
            peer.finish()


def calls_them_in_a_run(rank: int, url: str) -> None:
    import torch.distributed as dist

    import pccl_backend as pccl

    dist.init_process_group("pccl", init_method=url, timeout=timedelta(seconds=60))
    pccl.group().refresh({"step": 0})
    objects: list[Any] = [None]
    say(
        default=failure(lambda: dist.all_gather_object(objects, rank)),
        group=failure(
            lambda: dist.broadcast_object_list(objects, src=0, group=dist.new_group([0]))
        ),
    )
    dist.destroy_process_group()


def test_they_are_refused_on_the_groups_of_a_run(run_peers: Any, start_master: Start) -> None:
    master = start_master("--min-peers", "1")
    (peer,) = run_peers(calls_them_in_a_run, 1, master.url, env=NONE)
    for text in peer.next().values():
        assert text.startswith("RuntimeError: "), text
        assert "PCCL_OBJECTS=0: torch unpickles what other members send" in text
    peer.finish()
