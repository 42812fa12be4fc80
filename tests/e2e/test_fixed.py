"""Fixed groups in real processes: results against gloo, losses, goodbyes, errors, resources."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    PATIENCE_S,
    ROOT,
    failure,
    fixed_group,
    free_port,
    hear,
    resources,
    say,
    wait_until,
)

HERE = Path(__file__).resolve().parent


def torchrun(world: int, *command: str, timeout_s: float = 240, **variables: str) -> str:
    """Runs a script under torchrun; its output. Fails if it does."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(world), *command),
        ],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **variables},
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


@pytest.mark.parametrize(
    ("world", "variables"),
    [
        (2, {}),
        (3, {}),
        (4, {}),
        (2, {"PCCL_SHARED_MEMORY": "0"}),
        (3, {"PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": "none"}),
    ],
)
def test_every_call_gives_what_gloo_gives_with_no_import_of_ours(
    world: int, variables: dict[str, str]
) -> None:
    assert "import pccl" not in (HERE / "gloo_compare.py").read_text()
    end = ["--destroy"] if world == 3 else []  # the others end without destroying the group
    out = torchrun(world, str(HERE / "gloo_compare.py"), *end, **variables)
    assert out.count("620 calls compared") == world


def test_the_fsdp_example_runs_unchanged() -> None:
    script = ROOT / "examples/fsdp/train.py"
    assert "import pccl" not in script.read_text()
    out = torchrun(2, str(script))
    assert "loss" in out


# ------------------------------------------------------------------------------------------- peers


def waits_for_a_loss(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    t = torch.ones(1000)
    dist.all_reduce(t)
    loader = torch.utils.data.DataLoader(torch.arange(100000), num_workers=2, batch_size=1)
    batches = iter(loader)
    for _ in range(
        2
    ):  # one of each worker: a worker that begins when its parent is dead never ends
        next(batches)
    say(ready=True)
    if rank == 2:
        hear()
    pending = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
    began = time.monotonic()
    errors = []
    for work in pending:
        try:
            work.wait()
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    took_s = time.monotonic() - began
    try:
        dist.barrier()
    except Exception as error:
        errors.append((type(error).__name__, str(error)))
    say(errors=errors, took_s=took_s, distributed=isinstance(error_of(dist), type))


def error_of(dist: Any) -> type:
    from pccl_backend import PeerLostError

    assert issubclass(PeerLostError, dist.DistBackendError)
    return PeerLostError


def test_a_killed_rank_fails_pending_and_later_operations_at_once_and_is_named(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(waits_for_a_loss, 3, 3, str(tmp_path / "meet"))
    for peer in peers:
        peer.next(ready=True)
    peers[2].kill()  # with two data-loader workers that hold what they inherited
    for peer in peers[:2]:
        line = peer.next(distributed=True)
        assert len(line["errors"]) == 4
        for name, text in line["errors"]:
            assert name == "PeerLostError"
            assert "rank 2" in text
            assert "127.0.0.1:" in text
        peer.finish()


def waits_for_one_that_is_late(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    dist.barrier()
    say(ready=True)
    if rank == 2:
        time.sleep(float(hear()))  # late: evaluates, compiles, saves
    t = torch.ones(5)
    dist.all_reduce(t)
    say(sum=t.tolist())
    if rank == 2:
        hear()  # stopped by the test
    kinds = (lambda: dist.all_reduce(t), lambda: dist.recv(t, src=2, tag=4))
    say(text=failure(kinds[rank]))


@pytest.mark.long
def test_a_stopped_rank_is_lost_after_the_silence_and_a_late_one_is_not(
    run_peers: Any, tmp_path: Path
) -> None:
    silence = {"PCCL_SILENCE_TIMEOUT_S": "2"}
    peers = run_peers(waits_for_one_that_is_late, 3, 3, str(tmp_path / "meet"), env=silence)
    for peer in peers:
        peer.next(ready=True)
    peers[2].tell(5)
    for peer in peers:
        assert peer.next()["sum"] == [3.0] * 5
    peers[2].signal(signal.SIGSTOP)
    named = (
        ("all_reduce", "5 elements) #2, after ", ": group 0: rank 2 ("),
        ("recv from rank 2 (tag 4, 20 bytes)",),
    )
    for peer, words in zip(peers[:2], named, strict=True):
        text = peer.next()["text"]
        assert text.startswith("PeerLostError")
        for word in (*words, " at 127.0.0.1:", "no sign of life for", ", after "):
            assert word in text, text
        peer.finish()


def meets_over_tcp(rank: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    say(ready=True)
    if rank == 1:
        hear()
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False)
    dist.init_process_group("pccl", store=store, rank=rank, world_size=2)
    t = torch.ones(3)
    dist.all_reduce(t)
    say(sum=t.tolist())


def test_a_rank_that_waits_for_a_late_one_says_so_itself_and_torch_does_not_warn(
    run_peers: Any,
) -> None:
    peers = run_peers(meets_over_tcp, 2, free_port(), env={"PCCL_LOG_LEVEL": "info"})
    for peer in peers:
        peer.next(ready=True)
    waits = "rank 0 waits: 1 of 2 ranks have not come to make the group: 1"
    wait_until(lambda: waits in peers[0].log(), what="the line about the missing rank")
    peers[1].tell("go")
    for peer in peers:
        assert peer.next()["sum"] == [2.0] * 3
        peer.finish()
    assert "waitForInput" not in peers[0].log()


def completes_and_ends(rank: int, world: int, meet: str, how: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    t = torch.full((500_000,), 1.0 + rank)
    dist.broadcast(t, src=0)
    if rank == 0:
        if how == "destroy":
            dist.destroy_process_group()
        return  # its part is complete; the others still finish among themselves
    say(sum=float(t.sum()))
    try:
        dist.all_reduce(t)
    except Exception as error:
        say(error=str(error), name=type(error).__name__)


@pytest.mark.parametrize("how", ["destroy", "just ends"])
def test_who_has_done_its_part_may_end(how: str, run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(completes_and_ends, 3, 3, str(tmp_path / "meet"), how)
    peers[0].finish()
    for peer in peers[1:]:
        assert peer.next()["sum"] == 500_000.0
        line = peer.next(name="PeerLostError")
        assert "rank 0" in line["error"]
        assert "has left" in line["error"]
        peer.finish()


def calls_too_late(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    dist.barrier()  # so that the two that call it do so at the same time
    if rank == 1:
        hear()
        return
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
    try:
        dist.all_reduce(torch.ones(5))
    except Exception as error:
        say(error=str(error), name=type(error).__name__)


def test_a_time_out_names_who_did_not_come(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(calls_too_late, 3, 3, str(tmp_path / "meet"))
    for peer in (peers[0], peers[2]):
        line = peer.next(name="OperationTimeoutError")
        assert "rank 1" in line["error"]
        assert "did not call it" in line["error"]
    peers[1].tell("go")
    for peer in peers:
        peer.finish()


def trains_with_ddp(rank: int, world: int, meet: str, backend: str) -> None:
    import hashlib

    import torch
    import torch.distributed as dist
    from labs.programs.common import finish
    from torch.nn.parallel import DistributedDataParallel

    store = dist.FileStore(meet + backend, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    torch.manual_seed(7 + rank)  # DDP makes the replicas equal
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(10):
        x = torch.randn(16, 20, generator=data)
        loss = ddp(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    say(losses=losses, digest=digest.hexdigest())
    dist.barrier()
    finish()  # gloo's destructors can lock up


def test_ddp_trains_as_with_gloo_and_ends_with_equal_replicas(
    run_peers: Any, tmp_path: Path
) -> None:
    results = {}
    for backend in ("pccl", "gloo"):
        environment = {"GLOO_SOCKET_IFNAME": "lo"}
        peers = run_peers(trains_with_ddp, 2, 2, str(tmp_path / "meet"), backend, env=environment)
        results[backend] = [p.finish()[0] for p in peers]
        assert results[backend][0]["digest"] == results[backend][1]["digest"]
    for ours, theirs in zip(results["pccl"], results["gloo"], strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)


def sleeps_in_a_hook(rank: int, world: int, meet: str) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    dist = fixed_group(rank, world, meet)
    other = dist.new_group()
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    asleep = threading.Event()

    def hook(_: Any, bucket: Any) -> Any:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def then(done: Any) -> Any:
            asleep.set()
            time.sleep(10)
            return done.value()[0]

        return future.then(then)

    hook.__annotations__.clear()  # torch wants its own classes there, or nothing
    ddp.register_comm_hook(None, hook)
    backward = threading.Thread(target=lambda: ddp(torch.ones(2, 4)).sum().backward())
    began = time.monotonic()
    backward.start()
    asleep.wait(PATIENCE_S)
    for _ in range(20):
        future = dist.all_reduce(torch.ones(3), group=other, async_op=True).get_future()
        future.wait()
    meanwhile_s = time.monotonic() - began
    say(meanwhile_s=meanwhile_s, still_asleep=backward.is_alive())
    backward.join()
    dist.barrier()


@pytest.mark.long
def test_a_hook_that_sleeps_delays_no_other_group(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(sleeps_in_a_hook, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        assert peer.next(still_asleep=True)["meanwhile_s"] < 10
    for peer in peers:
        peer.finish()


def does_many_small_operations(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)

    def operations(count: int) -> None:
        t = torch.ones(64)
        for i in range(count):
            if i % 10 == 0:
                works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(10)]
                for w in works:
                    w.wait()
            else:
                dist.all_reduce(t)

    operations(1000)
    before = resources()
    operations(10_000)
    say(before=before, after=resources())
    dist.barrier()


def test_ten_thousand_small_operations_keep_memory_threads_and_descriptors(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(does_many_small_operations, 2, 2, str(tmp_path / "meet"))
    for peer in peers:
        line = peer.next(timeout_s=180)
        before, after = line["before"], line["after"]
        assert after["kib"] - before["kib"] < 20_000
        assert after["descriptors"] == before["descriptors"]
        for seen in (before, after):  # there while it has something to do: one for the group
            assert seen["threads"].count("pccl-complete") <= 1
            seen["threads"] = [t for t in seen["threads"] if t != "pccl-complete"]
        assert after["threads"] == before["threads"]
        peer.finish()


def passes_wrong_arguments(rank: int, world: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    fixed_group(rank, world, meet)
    ours, gloo = dist.new_group(), dist.new_group(backend="gloo")
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,))
    cases: dict[str, Any] = {
        "wrong length of a list": lambda g: dist.all_gather([torch.ones(2)] * 5, torch.ones(2), g),
        "sparse": lambda g: dist.broadcast(sparse, 0, g),
        "root out of range": lambda g: dist.broadcast(torch.ones(3), 7, g),
        "bits of floats": lambda g: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, g),
        "mean of truths": lambda g: dist.all_reduce(torch.tensor([True]), dist.ReduceOp.AVG, g),
        "sizes differ": lambda g: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2), g),
        "types differ": lambda g: dist.all_gather([torch.ones(2).int()] * 2, torch.ones(2), g),
        "a list where a tensor belongs": lambda g: dist.all_reduce([torch.ones(2)], group=g),
        "split sizes that do not add up": lambda g: dist.all_to_all_single(
            torch.ones(4), torch.ones(4), [1, 1], [1, 1], group=g
        ),
    }
    wrong = []
    for name, call in cases.items():
        classes = []
        for group in (ours, gloo):
            try:
                call(group)
                classes.append(None)
            except Exception as error:
                classes.append(type(error))
        if classes[0] is None or classes[1] is None or not issubclass(classes[0], classes[1]):
            wrong.append(f"{name}: {classes}")
    fine = {
        "not contiguous": torch.arange(12.0).reshape(3, 4).t(),
        "empty": torch.ones(0),
        "no dimension": torch.tensor(2.0),
        "complex": torch.ones(3, dtype=torch.complex64) * (1 + 2j),
        "bool": torch.tensor([True, False]),
        "needs a gradient": torch.ones(3, requires_grad=True),
    }
    for name, tensor in fine.items():
        mine, theirs = tensor.detach().clone(), tensor.detach().clone()
        if name == "not contiguous":
            mine, theirs = (torch.arange(12.0).reshape(3, 4).t() for _ in range(2))
        dist.all_reduce(mine, group=ours)
        dist.all_reduce(theirs, group=gloo)
        if name == "bool":
            theirs = tensor  # gloo adds the bytes of bools; an "or" of equal ones is what they are
        if not torch.equal(mine, theirs):
            wrong.append(f"{name}: {mine} {theirs}")
    say(wrong=wrong)
    dist.barrier()


def test_wrong_arguments_raise_what_gloo_raises_and_disturb_nobody(
    run_peers: Any, tmp_path: Path
) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    peers = run_peers(passes_wrong_arguments, 2, 2, str(tmp_path / "meet"), env=environment)
    for peer in peers:
        assert peer.next()["wrong"] == []
        peer.finish()


def calls_different_operations(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    texts = []
    for call in (
        lambda: dist.all_reduce(torch.ones(4 + rank)),
        lambda: dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(4), 0),
        lambda: dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.float64][rank])),
        lambda: dist.all_reduce(torch.ones(3 * rank)),
        lambda: dist.broadcast(torch.ones(3 * rank), 0),  # whose root has nothing to send
        lambda: dist.reduce(torch.ones(3 * rank), 1),
    ):
        errors = []
        # Who only sends may be done before anybody looks: it hears of it from its next operation.
        for each in (call, lambda: dist.all_reduce(torch.ones(1))):
            try:
                each()
            except Exception as error:
                errors.append(f"{type(error).__name__} {error}")
        texts.append(errors[0] if errors else "")
    t = torch.ones(2)
    dist.all_reduce(t)
    say(texts=texts, sum=t[0].item())
    dist.barrier()


def test_ranks_that_call_different_operations_are_told_both_sides(
    run_peers: Any, tmp_path: Path
) -> None:
    peers = run_peers(calls_different_operations, 2, 2, str(tmp_path / "meet"))
    words = [("4 elements", "5 elements"), ("broadcast", "all_reduce"), ("float32", "float64")]
    words += [("0 elements", "3 elements")] * 3
    for peer in peers:
        line = peer.next()
        for text, both in zip(line["texts"], words, strict=True):
            assert text.startswith("MismatchError"), text
            for word in (*both, "rank 0", "rank 1"):
                assert word in text
        assert line["sum"] == 2.0  # the group goes on
        peer.finish()


def splits_and_coalesces(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    group = dist.group.WORLD
    # Names of torch.distributed.split_group differ so after new_group of some ranks.
    half = group.split_group([0, 2], group_name=f"half of {rank}")
    t = torch.tensor([float(rank)])
    if rank != 1:
        half.allreduce([t]).wait()
        for turn in range(2):
            part = half.split_group([0, 1], group_name=f"{turn} of {rank}")
            part.allreduce([t]).wait()
    many = [torch.full((3,), float(rank + i)) for i in range(5)]
    with dist.distributed_c10d._coalescing_manager(
        group=group, device=torch.device("cpu"), async_ops=True
    ) as manager:
        for tensor in many:
            dist.all_reduce(tensor)
    manager.wait()
    say(
        half=None if half is None else [half.rank(), half.size(), t.item()],
        sums=[tensor[0].item() for tensor in many],
    )
    dist.barrier()


def test_a_group_is_split_and_operations_are_coalesced(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(splits_and_coalesces, 3, 3, str(tmp_path / "meet"))
    lines = [peer.next() for peer in peers]
    assert [line["half"] for line in lines] == [[0, 2, 8.0], None, [1, 2, 8.0]]
    for line in lines:
        assert line["sums"] == [3.0 + 3 * i for i in range(5)]
    for peer in peers:
        peer.finish()


def uses_futures(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    late = 0
    for i in range(300):
        work = dist.all_reduce(torch.ones(16), async_op=True)
        before = work.get_future() if i % 2 else None
        work.wait()
        late += not (before or work.get_future()).done()  # DDP asks for its value at once

    def reduces_again(future: Any) -> Any:
        (tensor,) = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()

    chained = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(reduces_again)
    say(late=late, chained=chained.wait()[0].tolist())
    dist.barrier()


def test_a_future_is_complete_after_wait_and_its_callback_may_wait_for_another(
    run_peers: Any, tmp_path: Path
) -> None:
    for peer in run_peers(uses_futures, 2, 2, str(tmp_path / "meet")):
        line = peer.next()
        assert line["late"] == 0
        assert line["chained"] == [4.0] * 4
        peer.finish()


def adds_sparse_tensors(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    random = torch.Generator().manual_seed(rank)
    same = []
    for count in (0, 1, 50 * (rank + 1)):  # as many elements as each rank happens to have
        rows = torch.randint(0, 40, (2, count), generator=random)
        values = torch.randn((count, 3), generator=random)
        mine = torch.sparse_coo_tensor(rows, values, (40, 40, 3))
        dense = mine.to_dense()
        dist.all_reduce(dense)
        dist.all_reduce(mine)
        same.append(mine.is_coalesced() and torch.allclose(mine.to_dense(), dense, atol=1e-5))
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4 + rank,)))
        text = ""
    except RuntimeError as error:
        text = f"{type(error).__name__} {error}"
    say(same=same, text=text)
    dist.barrier()


def test_sparse_tensors_are_added_whatever_their_numbers_of_elements(
    run_peers: Any, tmp_path: Path
) -> None:
    for rank, peer in enumerate(run_peers(adds_sparse_tensors, 3, 3, str(tmp_path / "meet"))):
        line = peer.next()
        assert line["same"] == [True] * 3
        assert "MismatchError" in line["text"]
        assert f"rank {rank}" in line["text"]
        peer.finish()


def names_its_libuv(rank: int, world: int, meet: str) -> None:
    fixed_group(rank, world, meet)
    from pccl_backend import _C

    say(libraries=[_C.library_of(s) for s in ("uv_loop_init", "uv_timer_start")])


def test_the_libuv_in_use_is_ours_and_not_the_one_inside_torch(
    run_peers: Any, tmp_path: Path
) -> None:
    (peer,) = run_peers(names_its_libuv, 1, 1, str(tmp_path / "meet"))
    for library in peer.next()["libraries"]:
        assert re.search(r"/libuv\.|/libpccl_engine\.", library)
    peer.finish()
