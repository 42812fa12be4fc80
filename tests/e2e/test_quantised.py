"""Quantised all-reduces in real processes: bits, errors, settings of groups, losses, DDP's hook."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import failure, fixed_group, hear, say, wait_until
from elastic_members import Run, Start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pccl_backend._config import QUANTISATIONS

BLOCK = 256
COUNT = 70_001
LARGE = 6_000_000  # many chunks

# ------------------------------------------------------------------------------ in the peers


def contribution(rank: int, count: int = COUNT) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank + 1))


def as_sent(tensor: torch.Tensor, name: str) -> torch.Tensor:
    from pccl_backend import _extension

    sent: torch.Tensor = _extension.library().as_sent(tensor, name)
    return sent


def expected(inputs: list[torch.Tensor], name: str, *, average: bool = False) -> torch.Tensor:
    """Each contribution quantised once, added in the order of the ranks, the sum quantised once."""
    total = torch.zeros(inputs[0].numel())
    for index, given in enumerate(inputs):
        sent = as_sent(given, name)
        total = sent if index == 0 else total + sent
    return as_sent(total / len(inputs) if average else total, name)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def error_of(result: torch.Tensor, inputs: list[torch.Tensor]) -> float:
    """Relative to the exact sum, as the page of the documentation states it."""
    exact = torch.stack(inputs).double().sum(0)
    return float((result.double() - exact).norm() / exact.norm())


def bound(name: str) -> float:
    """Of the relative error on normal values, for any number of members."""
    bits = {"float16": 0.0005, "bfloat16": 0.004, "float8_e4m3": 0.05, "float8_e5m2": 0.1}
    return bits.get(name, {"int8": 0.012, "int8_zero_point": 0.012, "int4": 0.2}.get(name, 0.0))


def reduces_every_kind(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    inputs = [contribution(r) for r in range(world)]
    for name in QUANTISATIONS:
        total = inputs[rank].clone()
        assert pccl.all_reduce(total, quantise=name) is None
        assert same_bits(total, expected(inputs, name)), name
        assert error_of(total, inputs) < bound(name), (name, error_of(total, inputs))
        mean = inputs[rank].clone()
        work = pccl.all_reduce(mean, dist.ReduceOp.AVG, async_op=True, quantise=name)
        assert work is not None
        work.wait()
        assert same_bits(mean, expected(inputs, name, average=True)), name
        say(name=name, sum=digest(total), mean=digest(mean))
    exact = inputs[rank].clone()
    dist.all_reduce(exact)
    assert torch.allclose(exact, torch.stack(inputs).sum(0), atol=1e-5)
    for count in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1):
        some = [contribution(r, count) for r in range(world)]
        tensor = some[rank].clone()
        pccl.all_reduce(tensor, quantise="int8")
        assert same_bits(tensor, expected(some, "int8"))
    strided = inputs[rank][: 2 * BLOCK].view(2, BLOCK).t()
    pccl.all_reduce(strided, quantise="int8")
    flat = [i[: 2 * BLOCK].view(2, BLOCK).t().contiguous().view(-1) for i in inputs]
    flat[rank] = contribution(rank)[: 2 * BLOCK].view(2, BLOCK).t().contiguous().view(-1)
    assert same_bits(strided.contiguous().view(-1), expected(flat, "int8"))
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_kind_has_the_bits_of_a_direct_computation(
    run_peers: Run, tmp_path: Path, world: int
) -> None:
    peers = run_peers(reduces_every_kind, world, world, str(tmp_path / "meet"))
    said = [peer.finish() for peer in peers]
    assert all(lines == said[0] for lines in said)
    assert [line["name"] for line in said[0]] == list(QUANTISATIONS)


# ------------------------------------------------------------------------------------------ input


def gives_odd_blocks(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    for name in QUANTISATIONS:
        inputs = [torch.full((6 * BLOCK,), 0.5) for _ in range(world)]
        inputs[0][3] = math.nan
        inputs[1][BLOCK + 3] = -math.inf
        inputs[0][2 * BLOCK : 3 * BLOCK] = 1e-45
        inputs[1][2 * BLOCK : 3 * BLOCK] = 1e-45
        inputs[0][3 * BLOCK + 3] = 1e37
        tensor = inputs[rank].clone()
        pccl.all_reduce(tensor, quantise=name)
        assert same_bits(tensor, expected(inputs, name)), name
        assert math.isnan(tensor[3]), name
        assert not math.isfinite(tensor[BLOCK + 3]), name
        assert float(tensor[2 * BLOCK : 3 * BLOCK].abs().max()) < 1e-40, name
        assert torch.allclose(tensor[4 * BLOCK :], torch.tensor(1.0), rtol=1e-5), name
    dist.destroy_process_group()


def test_a_nan_an_infinity_and_a_huge_value_spoil_their_blocks_alone(
    run_peers: Run, tmp_path: Path
) -> None:
    for peer in run_peers(gives_odd_blocks, 2, 2, str(tmp_path / "meet")):
        peer.finish()


def asks_for_too_much(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet, pg_options=pccl.Options(quantise="int8"))
    ones = torch.ones(10)
    say(
        texts=[
            failure(lambda: pccl.all_reduce(torch.ones(3, dtype=torch.int32), quantise="int8")),
            failure(lambda: pccl.all_reduce(ones.double(), quantise="int8")),
            failure(lambda: pccl.all_reduce(ones.to_sparse(), quantise="int8")),
            failure(lambda: pccl.all_reduce(ones, dist.ReduceOp.MAX, quantise="int8")),
            failure(lambda: pccl.all_reduce(ones, quantise="int7")),
        ]
    )
    # The setting of a group leaves alone what cannot be quantised.
    for dtype in (torch.int32, torch.int64, torch.float64, torch.bfloat16):
        tensor = torch.arange(300).to(dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, (torch.arange(300).to(dtype) * world))
    most = contribution(rank, 300)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    assert torch.equal(most, torch.stack([contribution(r, 300) for r in range(world)]).amax(0))
    flat = [contribution(r, 800) for r in range(world)]
    both = [flat[rank][:300].clone(), flat[rank][300:].clone()]
    dist.all_reduce_coalesced(both)  # one operation
    assert same_bits(torch.cat(both), expected(flat, "int8"))
    with dist.distributed_c10d._coalescing_manager():
        text = failure(lambda: pccl.all_reduce(torch.ones(3), quantise="int4"))
    assert "inside of a coalescing manager" in text
    exact = contribution(rank, 300)
    pccl.all_reduce(exact, quantise="none")
    assert torch.equal(exact, contribution(0, 300) + contribution(1, 300))
    sparse = ones.to_sparse()
    pccl.all_reduce(sparse, quantise="none")
    assert torch.equal(sparse.to_dense(), ones * world)
    dist.destroy_process_group()


def test_calls_that_cannot_be_quantised_raise_at_once(run_peers: Run, tmp_path: Path) -> None:
    for peer in run_peers(asks_for_too_much, 2, 2, str(tmp_path / "meet")):
        texts = peer.next()["texts"]
        peer.finish()
        assert all(text.startswith("ValueError") for text in texts), texts
        assert "torch.int32" in texts[0]
        assert "quantise='none' reduces exactly" in texts[0]
        assert "sparse" in texts[2]
        assert "ReduceOp.SUM or ReduceOp.AVG" in texts[3]
        assert "float8_e5m2" in texts[4]


def differs(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    first = failure(
        lambda: pccl.all_reduce(contribution(rank), quantise="int8" if rank == 0 else "none")
    )
    second = failure(
        lambda: pccl.all_reduce(contribution(rank), quantise="int8" if rank == 0 else "int4")
    )
    tensor = torch.ones(5)
    dist.all_reduce(tensor)  # the group goes on
    say(texts=[first, second], sum=tensor.tolist())
    dist.destroy_process_group()


def test_ranks_that_differ_get_an_error_that_names_both(run_peers: Run, tmp_path: Path) -> None:
    for peer in run_peers(differs, 2, 2, str(tmp_path / "meet")):
        line = peer.next()
        peer.finish()
        assert line["sum"] == [2.0] * 5
        for text, other in zip(line["texts"], (")", ", quantised to int4)"), strict=True):
            assert text.startswith("MismatchError")
            assert f"all_reduce(sum, float32, {COUNT} elements, quantised to int8)" in text
            assert f"all_reduce(sum, float32, {COUNT} elements{other}" in text


# ------------------------------------------------------------------------------------------ groups


def quantises(group: Any, world: int, rank: int) -> str:
    """By which quantisation a plain all-reduce of the group is done; "none": exactly."""
    inputs = [contribution(r, 1000) for r in range(world)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, group=group)
    if same_bits(tensor, torch.stack(inputs).sum(0)):
        return "none"
    return next((name for name in QUANTISATIONS if same_bits(tensor, expected(inputs, name))), "?")


def sets_groups(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    own = dist.group.WORLD
    assert own is not None
    backend: Any = own._get_backend(torch.device("cpu"))
    found = {"default": quantises(None, world, rank)}
    found["new"] = quantises(dist.new_group([0, 1]), world, rank)
    given = dist.new_group([0, 1], pg_options=pccl.Options(quantise="bfloat16"))
    found["given"] = quantises(given, world, rank)
    found["same"] = quantises(dist.new_group([0, 1], pg_options=backend.options), world, rank)
    parts = own.split_group([0, 1], opts=copy.deepcopy(backend.options), group_name="parts")
    found["split"] = quantises(parts, world, rank)
    parent: Any = given._get_backend(torch.device("cpu"))
    found["split given"] = quantises(
        given.split_group([0, 1], opts=copy.deepcopy(parent.options), group_name="more"),
        world,
        rank,
    )
    found["shrunk"] = parent.shrink([], 0, parent.options).quantise
    try:
        dist.new_group([0, 1], pg_options=pccl.Options(quantise="int8", goodbye_timeout_s=9.0))
    except ValueError as error:
        found["other"] = str(error)[-40:]
    say(**found)
    dist.destroy_process_group()


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_the_variable_sets_the_default_group_and_options_any(
    run_peers: Run, tmp_path: Path, debug: str
) -> None:
    env = {"PCCL_QUANTISE": "int8", "TORCH_DISTRIBUTED_DEBUG": debug}
    if debug == "DETAIL":
        peers = run_peers(quantises_in_detail, 2, 2, str(tmp_path / "meet"), env=env)
        for peer in peers:
            assert peer.next() == {"default": "int8", "call": True}
            peer.finish()
        return
    for peer in run_peers(sets_groups, 2, 2, str(tmp_path / "meet"), env=env):
        found = peer.next()
        peer.finish()
        assert found.pop("other").endswith("there is one engine a process")
        assert found == {
            "default": "int8",
            "new": "none",
            "given": "bfloat16",
            "same": "int8",
            "split": "int8",
            "split given": "bfloat16",
            "shrunk": "bfloat16",
        }


def quantises_in_detail(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    found = quantises(None, world, rank)
    tensor = contribution(rank)
    pccl.all_reduce(tensor, quantise="int4")
    inputs = [contribution(r) for r in range(world)]
    say(default=found, call=same_bits(tensor, expected(inputs, "int4")))
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------------ losses


def joins(index: int, url: str) -> None:
    """A member of an elastic group that quantises; number 2 is killed with its data under way."""
    import pccl_backend as pccl

    pg = pccl.join(url, options=pccl.Options(quantise="int8"), timeout_s=60.0)
    say(joined=True)
    hear()
    tensor = contribution(index, LARGE)
    work: Any = dist.all_reduce(tensor, dist.ReduceOp.AVG, group=pg, async_op=True)
    flying = pccl.group().in_flight
    if index > 0:
        wait_until(lambda: any(o["bytes_sent"] for o in flying()), what="some data on its way")
    say(under_way=True)
    if index == 2:
        hear()  # until it is killed
    work.wait()
    inputs = [contribution(i, LARGE) for i in (0, 1)]
    say(
        sum=digest(tensor),
        right=same_bits(tensor, expected(inputs, "int8", average=True)),
        members=len(pccl.group()._contributors()),
        replayed=pccl.counters()["ops_replayed"],
    )
    hear()
    dist.destroy_process_group()


def test_a_member_that_is_killed_in_the_middle_is_left_out(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(joins, 3, master.url)
    for peer in peers:
        peer.next(joined=True)
    for peer in peers[1:]:
        peer.tell("call")
    for peer in peers[1:]:
        peer.next(under_way=True)
    peers[2].kill()
    peers[0].tell("call")
    peers[0].next(under_way=True)
    lines = [peer.next() for peer in peers[:2]]
    assert lines[0]["sum"] == lines[1]["sum"]
    assert all(line["right"] and line["members"] == 2 for line in lines), lines
    assert lines[1]["replayed"] == 1
    for peer in peers[:2]:
        peer.tell("end")
    for peer in peers[:2]:
        peer.finish()


def differs_in_a_run(index: int, url: str) -> None:
    """Member 0 has set its group, member 1 has not; both keep their tensors and go on."""
    import pccl_backend as pccl

    options = pccl.Options(quantise="int8" if index == 0 else None)
    pg = pccl.join(url, options=options, timeout_s=60.0)
    tensor = contribution(index)
    text = failure(lambda: dist.all_reduce(tensor, group=pg))
    kept = same_bits(tensor, contribution(index))
    pccl.group().resume()  # calls of the step that has failed fail too
    pccl.all_reduce(tensor, group=pg, quantise="float16")
    inputs = [contribution(i) for i in (0, 1)]
    say(text=text, kept=kept, right=same_bits(tensor, expected(inputs, "float16")))
    dist.destroy_process_group()


def test_members_that_have_set_their_groups_differently_keep_their_tensors(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    for peer in run_peers(differs_in_a_run, 2, master.url):
        line = peer.next()
        peer.finish()
        assert line["text"].startswith("MismatchError")
        assert f"all_reduce(sum, float32, {COUNT} elements)" in line["text"]
        assert f"all_reduce(sum, float32, {COUNT} elements, quantised to int8)" in line["text"]
        assert line["kept"]
        assert line["right"]


# ------------------------------------------------------------------------------------------ DDP


def make_net() -> nn.Module:
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def losses(rank: int, hook: Any, steps: int) -> tuple[list[float], nn.Module]:
    """Of each step, over a batch that is the same each time, so that errors add up."""
    net = make_net()
    ddp = DDP(net, bucket_cap_mb=0.02)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank + 1))
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (ddp(x) - x[:, :1]).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen, net


def trains(rank: int, world: int, meet: str) -> None:
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    plain, net = losses(rank, None, 30)
    flat = nn.utils.parameters_to_vector(net.parameters())
    found: dict[str, Any] = {}
    for name, feedback in (("int8", False), ("int4", False), ("int4", True)):
        hook = pccl.quantised_hook(name, error_feedback=feedback)
        seen, other = losses(rank, hook, 30)
        mine = nn.utils.parameters_to_vector(other.parameters())
        key = name + (" with feedback" if feedback else "")
        found[key] = {
            "apart": float((mine - flat).norm() / flat.norm()),
            "root": digest(mine.detach()),
            "loss": seen[-1] - plain[-1],
        }
    say(**found)
    half = DDP(make_net().to(torch.bfloat16))
    half.register_comm_hook(None, pccl.quantised_hook("int8"))
    out = half(torch.ones(1, 64, dtype=torch.bfloat16))
    say(half=failure(lambda: out.sum().backward()))
    dist.destroy_process_group()


def test_ddp_trains_with_the_hook_and_feedback_brings_it_nearer(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(trains, 2, 2, str(tmp_path / "meet"))
    found = [peer.next() for peer in peers]
    for peer in peers:
        assert "expected a dense one of torch.float32" in peer.next()["half"]
        peer.finish()
    for key in ("int8", "int4", "int4 with feedback"):
        assert found[0][key]["root"] == found[1][key]["root"], key
    apart = {key: value["apart"] for key, value in found[0].items()}
    assert apart["int8"] < 0.01
    assert apart["int4 with feedback"] < apart["int4"] < 0.2, apart


SMALL = {"int8": 0.0004, "int8_zero_point": 0.0004, "int4": 0.004}  # gradients: less than a code


def sums_small_gradients(rank: int, world: int, meet: str) -> None:
    """How much of small gradients has arrived, beside two large ones that set the codes."""
    import pccl_backend as pccl

    fixed_group(rank, world, meet)
    for number, (kind, small) in enumerate(SMALL.items()):
        net = nn.Linear(256, 1, bias=False)
        ddp = DDP(net)
        ddp.register_comm_hook(None, pccl.quantised_hook(kind, error_feedback=True))
        random = torch.Generator().manual_seed(10 * number + rank)
        came = torch.zeros(256, dtype=torch.float64)
        for _ in range(300):
            x = small * (1 + 0.3 * torch.randn(1, 256, generator=random))
            x[0, :2] = torch.tensor([1.0, -1.0])
            net.weight.grad = None
            ddp(x).sum().backward()
            came += net.weight.grad[0]
        say(kind=kind, share=(came[2:] / (300 * small)).tolist())
    dist.destroy_process_group()


def test_feedback_brings_small_gradients_through_with_many_members(
    run_peers: Run, tmp_path: Path
) -> None:
    peers = run_peers(sums_small_gradients, 4, 4, str(tmp_path / "meet"))
    for kind in SMALL:
        line, *others = (peer.next() for peer in peers)
        assert line["kind"] == kind
        assert 0.85 < min(line["share"]) <= max(line["share"]) < 1.15, kind
        assert all(other["share"] == line["share"] for other in others)
    for peer in peers:
        peer.finish()


def trains_elastic(index: int, url: str) -> None:
    """A loop of `elastic` with the hook; its parameters are the same bits at all members."""
    import pccl_backend as pccl

    pg = pccl.join(url, timeout_s=60.0)
    net = make_net()
    ddp = DDP(net, process_group=pg, bucket_cap_mb=0.02, **pccl.ddp_kwargs)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    hook = pccl.quantised_hook("int8", error_feedback=True)
    run = pccl.elastic(ddp, optimizer, pg, hook=hook)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(index + 1))
    sent = pccl.counters()["bytes_sent"]
    for _ in range(5):
        optimizer.zero_grad()
        (ddp(x) - x[:, :1]).square().mean().backward()
        optimizer.step()
    run.meet()
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    say(root=digest(flat), sent=pccl.counters()["bytes_sent"] - sent, bytes=4 * flat.numel())
    run.finish()
    dist.destroy_process_group()


def test_elastic_takes_the_hook(run_peers: Run, start_master: Start) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(trains_elastic, 2, master.url)
    lines = [peer.next() for peer in peers]
    for peer in peers:
        peer.finish()
    assert lines[0]["root"] == lines[1]["root"]
    for line in lines:
        assert line["sent"] < 5 * line["bytes"] / 2, "no fewer bytes than exact reductions"


def registers_first(index: int, url: str) -> None:
    import pccl_backend as pccl

    pg = pccl.join(url, timeout_s=60.0)
    ddp = DDP(make_net(), process_group=pg, **pccl.ddp_kwargs)
    ddp.register_comm_hook(pg, pccl.quantised_hook("int8"))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    say(text=failure(lambda: pccl.elastic(ddp, optimizer, pg)))
    dist.destroy_process_group()


def test_elastic_says_how_to_give_it_the_hook(run_peers: Run, start_master: Start) -> None:
    master = start_master("--min-peers", "1")
    (peer,) = run_peers(registers_first, 1, master.url)
    assert "hook=pccl_backend.quantised_hook(...)" in peer.next()["text"]
    peer.finish()
