"""Checkpoints of runs: the writer is killed while it writes, all are killed, all come back."""

import contextlib
import hashlib
import re
import runpy
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, Peer, fixed_group, free_port, hear, say, wait_until
from elastic_members import Run, Start, digest, one
from torch import nn

from pccl_backend._sampling import Deal

WIDTH = 33  # not divisible: the last shard is smaller
SAMPLES = list(range(40))
NO_OBJECTS = {"PCCL_OBJECTS": "0"}  # nothing that pccl does by itself needs them
WRITER: Any = SimpleNamespace(writer=True, step=1, finished=False)  # a boundary without a run

# ------------------------------------------------------------------------------ in the peers


def make(seed: int, *, sharded: bool = False) -> Any:
    import pccl_backend as pccl

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return pccl.SharedState(model=model, optimizer=optimizer, step=0, note={"made by": seed})


def train(state: Any, random: int) -> None:
    model, optimizer = state._parts["model"], state._parts["optimizer"]
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(random))
    model(x).square().mean().backward()
    for parameter in model.parameters():
        if not hasattr(parameter, "to_local"):
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
    state["step"] += 1


def bits(state: Any) -> str:
    """Of all that is shared; of DTensors the whole."""
    found = hashlib.sha256()
    for name, value in sorted(state.wholes().items()):
        if hasattr(value, "to_local"):
            value = value.full_tensor()
        text = digest(value) if isinstance(value, torch.Tensor) else repr(value)
        found.update(f"{name} {text}\n".encode())
    return found.hexdigest()


def hold(owner: Any, name: str) -> None:
    """Whoever calls it stays there."""

    def held(*_: Any, **__: Any) -> None:
        say(did="held", at=name)
        threading.Event().wait()

    setattr(owner, name, held)


def trainer(index: int, url: str, folder: str) -> None:
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    group = pccl.group(pccl.join(url, timeout_s=120.0))
    state = make(index)
    checkpoints = pccl.Checkpoints(folder)
    loaded = checkpoints.load(state)
    boundary = group.refresh(state)
    say(did="begin", loaded=loaded, size=boundary.size, bits=bits(state), writer=boundary.writer)
    while (word := hear()) != "end":
        if word == "hold before the index":
            hold(_checkpoints.Writer, "finish")
        elif word == "hold before the name":
            hold(pccl.Checkpoints, "_publish")
        elif word == "wait":  # a checkpoint has its name before its write has ended
            assert checkpoints._writing is not None
            say(did=word, ended=checkpoints._writing.has_ended(60.0))
        else:
            train(state, 100 * state["step"] + index)
            boundary = group.refresh(state)
            saves = word == "save" and checkpoints.save(state, boundary)
            say(did=word, step=state["step"], bits=bits(state), saves=saves)
    checkpoints.close()
    dist.destroy_process_group()


def parts(samples: list[int]) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Of a model with one weight for each sample: it shows how often that has counted, and when.

    All numbers are sums of few powers of two: exact, in whatever order members add them up.
    """
    model = nn.Linear(len(samples), 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.5)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def loss_of(model: nn.Module, indices: list[int]) -> torch.Tensor:
    rows = nn.functional.one_hot(torch.tensor(indices), len(SAMPLES)).float()
    return model(rows).mean()


def counting(index: int, url: str, folder: str) -> None:
    """`elastic` with checkpoints; a step for each word."""
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    pg = pccl.join(url, timeout_s=120.0)
    model, optimizer, scheduler = parts(SAMPLES)
    ddp = nn.parallel.DistributedDataParallel(model, process_group=pg, **pccl.ddp_kwargs)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    sampler = pccl.ElasticSampler(SAMPLES, batch=4, global_batch=8)
    checkpoints = pccl.Checkpoints(folder, every=3)
    more = {"sampler": sampler, "scheduler": scheduler, "scaler": scaler}
    run = pccl.elastic(ddp, optimizer, pg, state=more, checkpoints=checkpoints)
    say(did="begin", step=run.state["step"], size=run.boundary.size, scale=scaler.get_scale())
    given: list[int] = []
    for indices in sampler.batches(passes=2):
        given += indices
        with contextlib.nullcontext() if sampler.is_last else ddp.no_sync():
            scaler.scale(loss_of(ddp, indices) / sampler.accumulation).backward()
        if not sampler.is_last:
            continue
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        say(did="step", step=run.state["step"], given=given, writer=run.boundary.writer)
        given = []
        word = hear()
        if word == "hold":
            hold(_checkpoints.Writer, "finish")
        if word == "wait" and checkpoints._writing is not None:
            checkpoints._writing.has_ended(60.0)
    say(
        did="end",
        weights=model.weight.tolist()[0],
        scale=scaler.get_scale(),
        samples=run.samples_total,
    )
    checkpoints.close()
    dist.destroy_process_group()


def sharded(index: int, url: str, folder: str, meet: str) -> None:
    """`elastic` with checkpoints in replicas of two ranks; a step for each word.

    All data are equal, so however many replicas there are, their mean has the same bits.
    """
    from torch.distributed.fsdp import fully_shard

    import pccl_backend as pccl

    replica, rank = divmod(index, 2)
    fixed_group(rank, 2, f"{meet}-{replica}")
    group = pccl.group(
        pccl.join(url, replica=pccl.Replica(f"r{replica}", rank, 2), timeout_s=120.0)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    fully_shard(model, mesh=pccl.hsdp_mesh(group, device_type="cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints = pccl.Checkpoints(folder, every=2)
    run = pccl.elastic(model, optimizer, group, checkpoints=checkpoints)
    say(did="begin", step=run.state["step"], size=run.boundary.size)
    step = run.state["step"]
    while (word := hear()) != "end":
        if word == "wait" and checkpoints._writing is not None:
            checkpoints._writing.has_ended(60.0)
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        parameters = [p.to_local().detach() for p in model.parameters()]
        say(did="step", step=step, bits=[digest(p) for p in parameters])
    checkpoints.close()
    dist.destroy_process_group()


def shard(index: int, folder: str) -> None:
    """Two ranks of a replica write, and then three read; fixed groups will do, without a run."""
    if index < 2:
        fixed_group(index, 2, f"{folder}/two")
        write_shard(index, folder)
        dist.destroy_process_group()
    fixed_group(index, 3, f"{folder}/three")
    read_shard(folder)
    dist.destroy_process_group()


def write_shard(index: int, folder: str) -> None:
    import pccl_backend as pccl

    state = make(0, sharded=True)
    checkpoints = pccl.Checkpoints(f"{folder}/even")
    train(state, index)
    assert checkpoints.save(state, WRITER)
    say(step=state["step"], bits=bits(state))
    train(state, index)  # meanwhile
    checkpoints.close()
    odd = pccl.Checkpoints(f"{folder}/odd")
    assert odd.save({"seen": torch.ones(1) * index, "step": 1}, WRITER)
    odd.close()


def own_tensors(index: int, folder: str) -> None:
    """Two ranks whose tensors have other names, and other shapes; then one rank alone reads."""
    import pccl_backend as pccl

    fixed_group(index, 2, f"{folder}/meet")

    def state(value: float, step: int) -> dict[str, Any]:
        uneven, stage = torch.full((3 - index,), value), torch.full((2,), value)
        return {"step": step, "uneven": uneven, f"stage{index}": stage}

    checkpoints = pccl.Checkpoints(f"{folder}/kept")
    checkpoints.save_end(state(1.0 + index, 5), WRITER)
    back = state(0.0, 0)
    step = checkpoints.load(back)
    checkpoints.close()
    for save in (checkpoints.save, checkpoints.save_end):
        with pytest.raises(RuntimeError, match="step 6 is not saved: these Checkpoints are closed"):
            save(state(1.0, 6), WRITER)
    broken: Any = pccl.Checkpoints(f"{folder}/kept")
    if index == 0:

        def names() -> list[str]:
            raise OSError("stale file handle")

        broken._names = names
    with pytest.raises(OSError, match="stale file handle"):  # at both
        broken.load(back)
    broken.close()
    say(step=step, uneven=back["uneven"].tolist(), stage=back[f"stage{index}"].tolist())
    dist.destroy_process_group()
    if index == 0:
        with pytest.raises(ValueError, match=r"only rank 1 has 'stage1'; expected a replica of 2"):
            pccl.Checkpoints(f"{folder}/kept").load(state(0.0, 0))


def fails_once(index: int, folder: str) -> None:
    """Two ranks of a replica, of which one cannot write its file the first time."""
    import pccl_backend as pccl
    from pccl_backend import _checkpoint_files

    fixed_group(index, 2, f"{folder}/meet")
    checkpoints = pccl.Checkpoints(f"{folder}/kept")
    state = make(0, sharded=True)
    train(state, 0)
    writes = _checkpoint_files.Writer.write_data

    def fails(*_: Any) -> None:
        _checkpoint_files.Writer.write_data = writes  # type: ignore[method-assign]
        raise OSError("the disk of rank 1 is full")

    if index == 1:
        _checkpoint_files.Writer.write_data = fails  # type: ignore[assignment, method-assign]
    assert checkpoints.save(state, WRITER)
    with pytest.raises(RuntimeError) as raised:
        checkpoints.close()
    say(text=str(raised.value), there=names(Path(folder) / "kept"))
    again = pccl.Checkpoints(f"{folder}/kept")
    assert again.save(state, WRITER)
    again.close()
    dist.destroy_process_group()


def no_thread(index: int, folder: str) -> None:
    """Two ranks of a replica, of which one has no thread for the first write.

    Their programs end while the second one goes on, and do not close the checkpoints.
    """
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    fixed_group(index, 2, f"{folder}/meet")
    checkpoints = pccl.Checkpoints(f"{folder}/kept", every=1)
    state = make(0, sharded=True)
    threads, writes = _checkpoints.Background, _checkpoints.Writer.finish

    def none(*_: Any) -> None:
        _checkpoints.Background = threads  # type: ignore[misc]
        raise RuntimeError("can't start new thread")

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(1.0)
        writes(*arguments, **options)

    if index == 1:
        _checkpoints.Background = none  # type: ignore[assignment, misc]
    train(state, 0)
    begun = [checkpoints.save_when_due(state, WRITER)]
    train(state, 0)
    _checkpoints.Writer.finish = slow  # type: ignore[assignment, method-assign]
    begun.append(checkpoints.save_when_due(state, WRITER))
    say(begun=begun)


def by_hand(index: int, url: str, folder: str, program: str, steps: int, trouble: str) -> None:
    """Runs the loop of the how-to page; all its writes are slow, or the first one has trouble."""
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    group = pccl.group(pccl.join(url, timeout_s=120.0))
    writes = _checkpoints.Writer.finish

    def finish(*arguments: Any, **options: Any) -> None:
        if trouble == "slow":
            time.sleep(1.0)
        elif not Path(f"{folder}.troubled").exists():
            Path(f"{folder}.troubled").touch()
            if trouble == "fails":
                raise OSError("the disk is full")
            say(did="held")
            threading.Event().wait()
        writes(*arguments, **options)

    def train(state: dict[str, Any]) -> None:
        dist.all_reduce(state["w"], op=dist.ReduceOp.AVG)
        state["step"] += 1

    _checkpoints.Writer.finish = finish  # type: ignore[assignment, method-assign]
    state = {"step": 0, "w": torch.ones(3)}
    given = {"pccl": pccl, "group": group, "state": state, "steps": steps, "train": train}
    runpy.run_path(program, init_globals=given)
    say(did="end", there=names(Path(folder)))
    dist.destroy_process_group()


def program_fails(index: int, url: str, folder: str) -> None:
    """The writer's program fails while its checkpoint is being written, which goes on."""
    import pccl_backend as pccl
    from pccl_backend import _checkpoints

    group = pccl.group(pccl.join(url, timeout_s=120.0))
    state = {"step": 1, "w": torch.ones(3)}
    checkpoints = pccl.Checkpoints(folder)
    boundary = group.refresh(state)
    go_on = Path(f"{folder}.goes-on")
    writes = _checkpoints.Writer.finish

    def finish(*arguments: Any, **options: Any) -> None:
        wait_until(go_on.exists, what="the other member, which has gone on")
        writes(*arguments, **options)

    _checkpoints.Writer.finish = finish  # type: ignore[assignment, method-assign]
    if checkpoints.save(state, boundary):
        raise RuntimeError("out of memory, say")
    dist.all_reduce(state["w"])
    say(w=state["w"].tolist())
    go_on.touch()
    checkpoints.close()
    dist.destroy_process_group()


def of_devices(index: int, folder: str) -> None:
    """Two ranks whose own group has no backend for host memory, as NCCL's has none."""
    import pccl_backend as pccl

    dist.init_process_group(
        "cuda:gloo", init_method=f"file://{folder}/meet", rank=index, world_size=2
    )
    checkpoints = pccl.Checkpoints(f"{folder}/kept")
    checkpoints.save_end({"step": 3, "own": torch.ones(2) * index}, WRITER)
    back = {"step": 0, "own": torch.zeros(2)}
    say(step=checkpoints.load(back), own=back["own"].tolist())
    checkpoints.close()
    dist.destroy_process_group()


def at_signs(index: int, folder: str) -> None:
    """Two ranks of a replica write and read names with "@", and then one refuses to read."""
    import pccl_backend as pccl

    fixed_group(index, 2, f"{folder}/meet")

    def state(fill: float) -> dict[str, Any]:
        at = ["w", "w@1", "w@@1", "a@values", "@values", "en@de.bias"]
        return {"step": 1, **{name: torch.full((2,), fill + i) for i, name in enumerate(at)}}

    checkpoints = pccl.Checkpoints(f"{folder}/kept")
    assert checkpoints.save(state(10.0 * index), WRITER)
    checkpoints.close()
    again, loaded = pccl.Checkpoints(f"{folder}/kept"), state(-100.0)
    assert again.load(loaded) == 1
    assert str(loaded) == str(state(10.0 * index))
    if index == 1:
        loaded["w@1"] = torch.zeros(5)
    with pytest.raises(ValueError, match="step-1") as raised:
        again.load(loaded)
    say(text=str(raised.value))
    again.close()
    dist.destroy_process_group()


def read_shard(folder: str) -> None:
    import pccl_backend as pccl

    state = make(1, sharded=True)
    even, odd = (pccl.Checkpoints(f"{folder}/{name}") for name in ("even", "odd"))
    say(step=even.load(state), bits=bits(state))
    with pytest.raises(ValueError, match=r"2 ranks and this replica has 3: 'seen' is no DTensor"):
        odd.load({"seen": torch.ones(1), "step": 0})
    even.close()
    odd.close()


# ------------------------------------------------------------------------------ in the test


def names(folder: Path) -> list[str]:
    return sorted(re.sub(r"-[0-9a-f]{8}$", "", path.name) for path in folder.iterdir())


def together(peers: list[Peer], word: str) -> list[dict[str, Any]]:
    for peer in peers:
        peer.tell(word)
    lines = [peer.next(did=word) for peer in peers]
    one(lines, "bits")
    return lines


def test_who_is_killed_while_it_writes_leaves_the_one_before_and_all_go_on_from_that(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    peers = run_peers(trainer, 2, start_master("--min-peers", "2").url, str(folder))
    begun = [peer.next(did="begin") for peer in peers]
    assert one(begun, "loaded") is None
    writer, other = peers if begun[0]["writer"] else reversed(peers)
    saved = together([writer, other], "save")
    assert [line["saves"] for line in saved] == [True, False]
    writer.tell("wait")
    assert writer.next(did="wait")["ended"]
    assert names(folder) == ["step-1"]

    writer.tell("hold before the index")
    assert together([writer, other], "save")[0]["saves"]
    writer.next(did="held")
    together([writer, other], "train")  # meanwhile
    assert names(folder) == [".writing-2", "step-1"]
    writer.kill()

    other.tell("hold before the name")
    assert together([other], "save")[0]["saves"]  # now it is the writer
    other.next(did="held")
    assert names(folder) == [".writing-4", "step-1"]
    other.kill()

    peers = run_peers(trainer, 3, start_master("--min-peers", "3").url, str(folder))
    begun = [peer.next(did="begin") for peer in peers]
    assert one(begun, "loaded") == 1
    assert one(begun, "size") == 3
    assert one(begun, "bits") == saved[0]["bits"]
    assert sum(line["saves"] for line in together(peers, "save")) == 1
    for peer in peers:
        peer.tell("end")
    for peer in peers:
        peer.finish()
    assert names(folder) == ["step-1", "step-2"]


def test_a_loop_of_elastic_goes_on_with_every_sample_counted_once_and_the_same_bits(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    peers = run_peers(counting, 2, start_master("--min-peers", "2").url, str(folder))
    assert one([peer.next(did="begin") for peer in peers], "step") == 0
    given: list[int] = []
    for step in range(
        1, 8
    ):  # the boundary after step 6 begins a write, and the one after 7 is open
        lines = [peer.next(did="step", step=step) for peer in peers]
        assert sum(line["writer"] for line in lines) == 1
        given += [i for line in lines if step <= 3 for i in line["given"]]
        for peer in peers:
            peer.tell({4: "wait", 5: "hold"}.get(step, "go"))
    (writer,) = [peer for peer, line in zip(peers, lines, strict=True) if line["writer"]]
    wait_until(lambda: any(line["did"] == "held" for line in writer.lines), what=writer.log())
    for peer in peers:
        peer.kill()
    assert names(folder) == [".writing-6", "step-3"]

    (peer,) = run_peers(counting, 1, start_master("--min-peers", "1").url, str(folder))
    begun = peer.next(did="begin")
    assert (begun["step"], begun["size"], begun["scale"]) == (3, 1, 4.0)
    for step in range(4, 11):
        given += peer.next(did="step", step=step)["given"]
        peer.tell("wait" if step == 8 else "go")  # else the next one could be left out
    peer.finish()
    end = peer.lines[-1]
    assert sorted(given) == sorted(2 * SAMPLES)
    assert end["samples"] == len(given)
    assert end["scale"] == 16.0
    assert names(folder) == ["step-6", "step-9"]

    deal = Deal(len(SAMPLES), batch=4, global_batch=8)  # what nobody has interrupted
    model, optimizer, scheduler = parts(SAMPLES)
    for _ in range(10):
        deal.give(1)
        for number in range(2):
            (loss_of(model, deal.batch(0, number)) / 2).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        deal.settle()
    assert end["weights"] == model.weight.tolist()[0]


@pytest.mark.long
def test_elastic_replicas_of_two_ranks_go_on_from_a_checkpoint_to_the_bits_that_were_lost(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"

    def begin(replicas: int, step: int) -> list[Peer]:
        url = start_master("--min-peers", str(replicas)).url
        meet = str(tmp_path / f"meet-{step}")
        peers = run_peers(sharded, 2 * replicas, url, str(folder), meet, env=NO_OBJECTS)
        lines = [peer.next(did="begin") for peer in peers]
        assert (one(lines, "step"), one(lines, "size")) == (step, replicas)
        return peers

    def steps(peers: list[Peer], *numbers: int) -> list[Any]:
        """The bits of each rank after the last of these steps; each write ends before the next."""
        lines = []
        for number in numbers:
            for peer in peers:
                peer.tell("wait")
            lines = [peer.next(did="step", step=number) for peer in peers]
        return [line["bits"] for line in lines]

    peers = begin(2, 0)
    bits = steps(peers, 1, 2, 3, 4, 5)
    assert bits[:2] == bits[2:]
    assert bits[0] != bits[1], "each rank has its own shard"
    wait_until(lambda: names(folder) == ["step-2", "step-4"], what="two checkpoints")
    for peer in peers:
        peer.kill()

    peers = begin(1, 4)
    assert steps(peers, 5) == bits[:2]
    for peer in peers:
        peer.tell("end")
    for peer in peers:
        peer.finish()


@pytest.mark.long
def test_shards_of_a_replica_are_divided_anew_among_other_ranks(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(shard, 3, str(tmp_path), env=NO_OBJECTS)
    lines = [line for peer in peers for line in peer.finish()]
    assert len(lines) == 5
    assert one(lines, "step") == 1
    one(lines, "bits")


def test_a_rank_that_cannot_write_its_file_ends_the_write_of_its_replica(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(fails_once, 2, str(tmp_path), env=NO_OBJECTS)
    for peer in peers:
        line = peer.next()
        assert "the disk of rank 1 is full" in line["text"]
        assert not any(name.startswith("step-") for name in line["there"])
    for peer in peers:
        peer.finish()
    assert "step-1" in names(tmp_path / "kept")


def test_a_rank_without_a_thread_leaves_one_checkpoint_out_and_the_next_is_written_to_its_end(
    run_peers: Run, tmp_path: Path
) -> None:
    lines = [peer.finish()[0] for peer in run_peers(no_thread, 2, str(tmp_path))]
    assert lines == [{"begun": [False, True]}] * 2
    assert names(tmp_path / "kept") == ["step-2"]


@pytest.mark.parametrize(("trouble", "steps"), [("slow", 101), ("fails", 1), ("held", 1)])
def test_the_end_of_a_loop_by_hand_is_saved_where_a_write_is_slow_or_its_writer_is_lost(
    run_peers: Run, start_master: Start, tmp_path: Path, trouble: str, steps: int
) -> None:
    from test_docs import block

    folder, program = tmp_path / "checkpoints", tmp_path / "by_hand.py"
    text = block("docs/how-to/checkpoints.md", "by-hand")
    program.write_text(text.replace("/shared/checkpoints", str(folder)))
    url = start_master("--min-peers", "2").url
    peers = run_peers(by_hand, 2, url, str(folder), str(program), steps, trouble)
    if trouble == "held":
        wait_until(lambda: any(peer.lines for peer in peers), what="a write that is held")
        writer = next(peer for peer in peers if peer.lines)
        writer.kill()
    for peer in peers:
        peer.finish(status=0 if trouble == "slow" else None)
    ends = [line for peer in peers for line in peer.lines if line["did"] == "end"]
    assert len(ends) == (2 if trouble == "slow" else 1), peers[0].log() + peers[1].log()
    assert f"step-{steps}" in names(folder)


def test_a_member_whose_program_has_failed_is_none_while_its_checkpoint_is_being_written(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    master = start_master("--min-peers", "2")
    peers = run_peers(program_fails, 2, master.url, str(folder))
    lines = [line for peer in peers for line in peer.finish(status=None)]
    assert [line["w"] for line in lines] == [[1.0] * 3], peers[0].log() + peers[1].log()
    assert names(folder) == ["step-1"]
    assert "was ended by RuntimeError: out of memory, say" in master.log()


def test_ranks_of_a_group_of_devices_alone_write_and_read(run_peers: Run, tmp_path: Path) -> None:
    lines = [peer.finish()[0] for peer in run_peers(of_devices, 2, str(tmp_path))]
    assert lines == [{"step": 3, "own": [float(rank)] * 2} for rank in range(2)]


def test_ranks_whose_tensors_differ_in_name_and_shape_get_their_own_back(
    run_peers: Run, tmp_path: Path
) -> None:
    first, second = [peer.finish()[0] for peer in run_peers(own_tensors, 2, str(tmp_path))]
    assert first == {"step": 5, "uneven": [1.0] * 3, "stage": [1.0] * 2}
    assert second == {"step": 5, "uneven": [2.0] * 2, "stage": [2.0] * 2}


def test_names_with_at_signs_come_back_at_both_ranks_and_both_refuse_what_one_does(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(at_signs, 2, str(tmp_path), env=NO_OBJECTS)
    first, second = [peer.finish()[0]["text"] for peer in peers]
    assert "another rank of this replica has refused" in first
    assert "state['w@1'] is float32 of shape (5,) here" in second


# ------------------------------------------------------------------------------ the example


def launch(run_peers: Run, url: str, folder: Path, meet: int) -> list[Peer]:
    """The two ranks of a replica, as torchrun would start them, in half the time."""
    environment = {
        **{"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(meet)},
        **{"TORCHELASTIC_RUN_ID": "west", "TORCHELASTIC_RESTART_COUNT": "0"},
    }
    arguments = ["--url", url, "--steps", "30", "--checkpoint", str(folder), "--save-every", "20"]
    return [
        run_peers(example, 1, *arguments, first=rank, env={**environment, "RANK": str(rank)})[0]
        for rank in range(2)
    ]


def example(index: int, *arguments: str) -> None:
    program = str(ROOT / "examples" / "fsdp" / "hsdp.py")
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


@pytest.mark.long
def test_the_example_of_hsdp_goes_on_from_its_checkpoint_to_the_same_weights(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    ends: list[set[tuple[str, str]]] = []
    for _ in range(2):
        url = start_master("--min-peers", "1").url
        peers = launch(run_peers, url, tmp_path / "checkpoints", free_port())
        for peer in peers:
            peer.finish()
        text = "".join(line for peer in peers for line in peer.errors)
        ends.append(set(re.findall(r"rank (\d) ends after step 30 with weights (\w+)", text)))
        assert ("goes on from step 20" in text) == (len(ends) == 2)
        assert names(tmp_path / "checkpoints") == ["step-20", "step-30"], "with the end"
        (end,) = (tmp_path / "checkpoints").glob("step-30*")
        shutil.rmtree(end)  # so that ten steps are taken again
    assert len(ends[0]) == 2
    assert ends[0] == ends[1]
