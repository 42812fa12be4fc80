"""Replicas of two ranks: a fixed group each, and beside it the elastic group across replicas."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, Peer, fixed_group, hear, say, wait_until
from elastic_members import (
    Member,
    Run,
    Start,
    answers,
    end,
    mean,
    obey,
    one,
    tell,
    together,
)

RANKS = 2


class Shard(Member):
    """A rank of a replica."""

    def inside(self, *, value: float) -> dict[str, Any]:
        """A collective of the replica's own group."""
        tensor = torch.tensor([value])
        dist.all_reduce(tensor)
        return {"inside": tensor.item()}

    def make(self) -> dict[str, Any]:
        """Another group of the replica's ranks."""
        say(did="making")
        dist.new_group()
        return {}

    def tables(self) -> dict[str, Any]:
        """What c10d says about the two groups."""
        broadcast: list[Any] = []
        for source in range(dist.get_world_size(self.pg)):
            tensor = torch.tensor([float(self.index)])
            try:
                dist.broadcast(tensor, group=self.pg, group_src=source)
            except ValueError as error:
                broadcast.append(str(error))
        return {
            "refused": broadcast,
            "world": [dist.get_rank(), dist.get_world_size()],
            "listed": dist.get_process_group_ranks(self.pg),
            "inside": [dist.get_rank(self.pg), self.pg.rank(), self.pg.size()],
            "backends": [dist.get_backend(), dist.get_backend(self.pg)],
        }


def shard(index: int, name: str, attempt: int, url: str, folder: str) -> None:
    import pccl_backend as pccl

    rank = index % RANKS
    fixed_group(rank, RANKS, f"{folder}/{name}-{attempt}", timeout_s=60)
    replica = pccl.Replica(name, rank=rank, size=RANKS, attempt=attempt)
    pg = pccl.join(url, replica=replica, timeout_s=60.0)
    with_group = Shard(index)
    assert with_group.pg is pg
    obey(with_group)


def foreign_shard(index: int, name: str, url: str, folder: str) -> None:
    """A rank whose replica's own group is gloo's; it sits in a collective when it is evicted."""
    import pccl_backend as pccl
    from pccl_backend import _eviction

    _eviction.GRACE_S = 1.0  # gloo's abort wakes nobody who waits
    fixed_group(index % RANKS, RANKS, f"{folder}/{name}", backend="gloo")
    pg = pccl.join(url, replica=pccl.Replica(name, rank=index % RANKS, size=RANKS))
    pccl.group(pg).refresh({"step": 0})
    say(did="joined", pid=os.getpid())
    if hear() == "stop here":
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def trains(index: int, name: str, url: str, folder: str) -> None:
    """A rank that needs the data of the other rank of its replica, as with tensor parallelism."""
    from torch.distributed.fsdp import fully_shard

    import pccl_backend as pccl

    rank = index % RANKS
    fixed_group(rank, RANKS, f"{folder}/{name}", backend="gloo")
    pg = pccl.join(url, replica=pccl.Replica(name, rank=rank, size=RANKS), timeout_s=60.0)
    model = torch.nn.Linear(4, 4, bias=False)
    fully_shard(model, mesh=pccl.hsdp_mesh(pg, device_type="cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = pccl.ElasticSampler(32, batch=4, shuffle=False)
    pccl.elastic(model, optimizer, pg, state={"sampler": sampler})
    reduces = dist.all_reduce

    def dies(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if options.get("group") is pg and sampler.steps == 1:
            Path(f"{folder}/comes-last").touch()
            wait_until(Path(f"{folder}/kill").exists, what="the kill")
            os.kill(os.getpid(), signal.SIGKILL)
        return reduces(tensor, *arguments, **options)

    if name == "b" and rank == 1:
        dist.all_reduce = dies
    taken = []
    for samples in sampler.batches(passes=1, together=True):
        taken.append(samples)
        model(torch.ones(1, 4)).sum().backward()
        if name == "a" and rank == 0 and sampler.steps == 1:  # its peer group has reduced
            wait_until(Path(f"{folder}/comes-last").exists, what="the other peer group")
            Path(f"{folder}/kill").touch()
        optimizer.step()
        optimizer.zero_grad()
    say(taken=taken)
    dist.destroy_process_group()


def test_ranks_of_a_replica_take_the_same_samples_after_a_loss_that_one_of_them_did_not_see(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    url = start_master("--min-peers", "2").url
    a = run_peers(trains, RANKS, "a", url, str(tmp_path))
    run_peers(trains, RANKS, "b", url, str(tmp_path), first=RANKS)
    first, second = [peer.finish()[-1]["taken"] for peer in a]
    assert first == second
    assert sorted({sample for samples in first for sample in samples})[-1] == 31


def divides_layers_too(index: int, name: str, url: str, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import pccl_backend as pccl

    rank = index % RANKS
    fixed_group(rank, RANKS, f"{folder}/{name}", backend="gloo")
    pg = pccl.join(url, replica=pccl.Replica(name, rank=rank, size=RANKS), timeout_s=60.0)
    own = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("shard", "tp"))
    mesh = pccl.hsdp_mesh(pg, own)
    assert mesh.mesh_dim_names == ("replicate", "shard", "tp")
    model = parallelize_module(
        two_layers(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fully_shard(model, mesh=mesh["replicate", "shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = pccl.elastic(model, optimizer, pg)
    for _ in range(3):
        model(input_of(name)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.finish()
    say(weights=[p.full_tensor().tolist() for p in model.parameters()])
    dist.destroy_process_group()


def two_layers() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def input_of(name: str) -> torch.Tensor:
    return torch.linspace(-1, 1, 8).view(2, 4) * {"a": 1, "b": 2}[name]


def test_a_replica_divides_its_layers_among_its_ranks_too(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    url = start_master("--min-peers", "2").url
    a = run_peers(divides_layers_too, RANKS, "a", url, str(tmp_path))
    b = run_peers(divides_layers_too, RANKS, "b", url, str(tmp_path), first=RANKS)
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for name in ("a", "b"):
            (model(input_of(name)).pow(2).sum() / 2).backward()  # the mean over the replicas
        optimizer.step()
        optimizer.zero_grad()
    for peer in (*a, *b):
        weights = peer.finish()[-1]["weights"]
        for got, wanted in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(got), wanted.detach())


def ends_while_it_writes(index: int, name: str, url: str, folder: str) -> None:
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    rank = index % RANKS
    fixed_group(rank, RANKS, f"{folder}/{name}")
    pg = pccl.join(url, replica=pccl.Replica(name, rank=rank, size=RANKS), timeout_s=60.0)
    state = {"step": 1, "w": torch.ones(3) * rank}
    checkpoints = pccl.Checkpoints(f"{folder}/kept")
    boundary = pccl.group(pg).refresh(state)
    writes = _checkpoints.Writer.finish

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(2.0)
        writes(*arguments, **options)

    _checkpoints.Writer.finish = slow  # type: ignore[assignment, method-assign]
    assert checkpoints.save(state, boundary) == boundary.writer
    dist.barrier()
    say(writer=boundary.writer)


def test_a_replica_whose_programs_end_writes_its_checkpoint_to_the_end(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    url = start_master("--min-peers", "2").url
    a = run_peers(ends_while_it_writes, RANKS, "a", url, str(tmp_path))
    b = run_peers(ends_while_it_writes, RANKS, "b", url, str(tmp_path), first=RANKS)
    assert sum(peer.finish()[0]["writer"] for peer in [*a, *b]) == RANKS
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step-1"]


def test_a_replica_whose_own_group_is_not_pccls_hears_of_its_eviction_and_ends(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    arguments = ("--min-peers", "2", "--heartbeat", "0.2", "--evict-after", "1.5")
    url = start_master(*arguments).url
    a = run_peers(foreign_shard, RANKS, "a", url, str(tmp_path))
    b = run_peers(foreign_shard, RANKS, "b", url, str(tmp_path), first=RANKS)
    for peer in [*a, *b]:
        peer.next(did="joined")
    a[0].tell("sit in it")
    a[1].tell("stop here")
    a[0].finish(status=1)
    text = "".join(a[0].errors)
    assert "its own group (gloo) is aborted" in text
    assert "pccl: this replica was evicted" in text


class Replicas:
    """Replicas by name; peers in the order of their ranks."""

    def __init__(self, run_peers: Run, url: str, folder: Path) -> None:
        self._start, self._url, self._folder = run_peers, url, folder
        self.peers: dict[str, list[Peer]] = {}

    def start(self, name: str, attempt: int = 0) -> list[Peer]:
        first = RANKS * "abc".index(name)
        arguments = (name, attempt, self._url, str(self._folder))
        self.peers[name] = self._start(shard, RANKS, *arguments, first=first)
        return self.peers[name]

    def group(self, rank: int, names: str) -> list[Peer]:
        """The peer group of a rank."""
        return [self.peers[name][rank] for name in names]

    def all(self, names: str) -> list[Peer]:
        return [peer for name in names for peer in self.peers[name]]


@pytest.fixture
def replicas(
    request: pytest.FixtureRequest, run_peers: Run, start_master: Start, tmp_path: Path
) -> Replicas:
    """Replicas, "ab" or "abc", that have passed their first boundary."""
    names = request.param
    arguments = ("--min-peers", str(len(names)), "--heartbeat", "0.2", "--evict-after", "1.5")
    found = Replicas(run_peers, start_master(*arguments).url, tmp_path)
    for name in names:
        found.start(name)
    assert one(answers(found.all(names), "join"), "size") == len(names)
    together(found.all(names), "refresh")
    return found


two = pytest.mark.parametrize("replicas", ["ab"], indirect=True)
three = pytest.mark.parametrize("replicas", ["abc"], indirect=True)


def same_in_each_group(replicas: Replicas, names: str, do: str, value: str) -> None:
    """All do it; within a peer group the value agrees, between peer groups it does not."""
    tell(replicas.all(names), do)
    values = [one(answers(replicas.group(rank, names), do), value) for rank in range(RANKS)]
    assert len(set(values)) == RANKS


@two
def test_peer_groups_reduce_and_share_state_for_themselves(replicas: Replicas) -> None:
    same_in_each_group(replicas, "ab", "train", "result")
    same_in_each_group(replicas, "ab", "refresh", "w")
    assert {line["inside"] for line in together(replicas.all("ab"), "inside", value=2.0)} == {4.0}
    for name in "ab":
        for rank, line in enumerate(together(replicas.peers[name], "tables")):
            assert line["world"] == [rank, RANKS]
            assert line["listed"] == [rank]  # of the members only itself is in the world
            assert line["inside"][0] == line["inside"][1]
            assert line["inside"][2] == 2
            assert line["backends"] == ["pccl", "pccl"]
            # What a loss could end at some ranks of a replica only is refused, before it is sent.
            assert len(line["refused"]) == 2
            assert "replicas of several ranks" in line["refused"][0]
    end(replicas.all("ab"))


@pytest.mark.long
@two
@pytest.mark.parametrize("victim", range(RANKS))
def test_who_makes_a_group_with_a_rank_that_was_lost_hears_of_the_eviction(
    replicas: Replicas, victim: int
) -> None:
    killed, sibling = replicas.peers["b"][victim], replicas.peers["b"][1 - victim]
    tell([sibling], "make")
    sibling.next(did="making")
    killed.kill()
    line = answers([sibling], "make", error="EvictedError")[0]
    assert "this replica was evicted: " in line["text"]
    end([sibling])
    same_in_each_group(replicas, "a", "train", "result")
    together(replicas.all("a"), "refresh")
    end(replicas.all("a"))


@three
def test_a_replica_goes_as_a_whole_when_one_rank_is_killed_and_comes_back(
    replicas: Replicas,
) -> None:
    same_in_each_group(replicas, "abc", "train", "result")
    together(replicas.all("abc"), "refresh")
    victim, sibling = replicas.peers["b"]
    tell([sibling], "inside", value=1.0)  # it sits in a collective of its own replica
    tell(replicas.all("ac"), "issue", step=1, index=0)
    answers(replicas.all("ac"), "issue")
    victim.kill()
    line = answers([sibling], "inside", error="EvictedError")[0]
    # It hears of it by the link, or by the master: whichever is first.
    assert re.search(
        r"rank 0 (of its replica )?\([^ ]+/\d+ at 127\.0\.0\.1:\d+\) was lost", line["text"]
    )
    assert "its replica goes as a whole" in line["text"]
    tell([sibling], "refresh")
    answers([sibling], "refresh", error="EvictedError")
    end([sibling])
    lines = together(replicas.all("ac"), "wait")
    for rank in range(RANKS):
        assert {line["result"] for line in lines[rank::RANKS]} == {mean([rank, 4 + rank], 1, 0)}
    assert one(together(replicas.all("ac"), "refresh"), "size") == 2

    replicas.start("b", attempt=1)
    answers(replicas.peers["b"], "join")
    tell(replicas.peers["b"], "refresh")
    size = 2
    while size == 2:
        together(replicas.all("ac"), "train")
        size = one(together(replicas.all("ac"), "refresh"), "size")
    admitted = answers(replicas.peers["b"], "refresh")
    assert [line["admitted"] for line in admitted] == [True, True]
    same_in_each_group(replicas, "abc", "train", "result")
    tell(replicas.all("abc"), "refresh", verify=True)
    for rank in range(RANKS):
        one(answers(replicas.group(rank, "abc"), "refresh"), "w")
    end(replicas.all("abc"))


@two
def test_who_sits_in_its_replicas_group_hears_that_the_replica_was_evicted(
    replicas: Replicas,
) -> None:
    sitting, sleeper = replicas.peers["b"]
    tell([sitting], "inside", value=1.0)
    sleeper.signal(signal.SIGSTOP)
    line = answers([sitting], "inside", error="EvictedError")[0]
    assert "this replica was evicted: " in line["text"]
    assert one(together(replicas.all("a"), "refresh"), "size") == 1
    same_in_each_group(replicas, "a", "train", "result")
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "inside", value=1.0)
    answers([sleeper], "inside", error="EvictedError")
    end(replicas.all("ab"))


# ------------------------------------------------------------------------------ the example


class Launchers:
    """Torchruns of the example, one for each replica."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.started: dict[str, Peer] = {}

    def start(self, name: str) -> None:
        command = f"""
            {sys.executable} -m torch.distributed.run --nproc-per-node {RANKS} --max-restarts 3
            --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id {name} --monitor-interval 0.1
            {ROOT}/examples/fsdp/hsdp.py --url {self._url} --steps 100 --pause 0.05
        """.split()
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        environment["PCCL_LOG_LEVEL"] = "info"
        self.started[name] = Peer(command, environment, name)

    def rank(self, name: str, rank: int) -> psutil.Process:
        workers = psutil.Process(self.started[name].pid).children()
        (found,) = [w for w in workers if w.environ().get("RANK") == str(rank)]
        return found

    def text(self, name: str) -> str:
        return "".join(self.started[name].errors)


@pytest.fixture
def launchers(start_master: Start) -> Iterator[Launchers]:
    # With one replica it holds: so the run is not over before the other one is back.
    found = Launchers(start_master("--min-peers", "2", "--hold-below", "2").url)
    yield found
    for peer in found.started.values():
        peer.close()


@pytest.mark.long
def test_the_example_of_hsdp_survives_a_kill_and_ends_with_the_same_weights(
    launchers: Launchers,
) -> None:
    names = ("west", "east")
    for name in names:
        launchers.start(name)
    (reports,) = wait_until(
        lambda: [name for name in names if "2 replicas" in launchers.text(name)], what="ten steps"
    )
    hit = next(name for name in names if name != reports)
    launchers.rank(hit, 1).kill()
    log = launchers.started[hit].log
    wait_until(lambda: "admitted" in launchers.text(hit), what=f"its return\n{log()}")
    for peer in launchers.started.values():
        peer.finish()
    digests = [
        set(
            re.findall(
                r"rank (\d) ends after step 100 with weights ([0-9a-f]{16})", launchers.text(name)
            )
        )
        for name in names
    ]
    assert digests[0] == digests[1]
    assert sorted(rank for rank, _ in digests[0]) == ["0", "1"]
