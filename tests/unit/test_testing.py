"""Simulated elastic runs: what a program sees of losses, joins, leaves, states and messages."""

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pccl_backend as pccl
from pccl_backend import testing

pytestmark = pytest.mark.filterwarnings("ignore:.*find_unused_parameters.*")
URL = "pccl://nowhere:1"
STEPS = 6


def train() -> tuple[list[float], list[tuple[int, int]]]:
    """Elastic DDP, as in docs/how-to/elastic-ddp.md; its weights, and the size of each step."""
    pg = pccl.join(URL)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    model = DistributedDataParallel(net, process_group=pg, **pccl.ddp_kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = pccl.elastic(model, optimizer, pg)
    sizes = []
    while run.state["step"] < STEPS:
        sizes.append((run.state["step"], run.boundary.size))
        x = torch.arange(4.0) + run.boundary.rank
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.meet()
        if run.left:
            break
    return net.weight.detach().flatten().tolist(), sizes


def by_hand() -> list[Any]:
    """All-reduces and boundaries by hand; the sum of each step."""
    pg = pccl.join(URL)
    group = pccl.group(pg)
    state = {"step": 0, "w": torch.zeros(2)}
    group.refresh(state)
    sums = []
    while state["step"] < STEPS:
        t = torch.full((2,), float(10**group.rank))
        dist.all_reduce(t, group=pg)
        state["w"] += t
        state["step"] += 1
        sums.append(t[0].item())
        if group.refresh(state).left:
            break
    return sums


def test_all_members_of_a_run_without_events_end_with_the_same_weights() -> None:
    run = testing.simulate(train, members=3)
    assert [m.outcome for m in run] == ["ended"] * 3
    assert run[0].result == run[1].result == run[2].result


def test_a_run_is_the_same_every_time() -> None:
    events = [testing.Lose(member=1, step=3, operation=0), testing.Join(step=5)]
    first, second = (testing.simulate(train, members=3, events=events) for _ in range(2))
    assert [m.result for m in first] == [m.result for m in second]


def test_a_loss_is_replayed_among_the_survivors_and_nobody_sees_an_error() -> None:
    run = testing.simulate(by_hand, members=3, events=[testing.Lose(member=1, step=3, operation=0)])
    assert [m.outcome for m in run] == ["ended", "lost", "ended"]
    # Ranks keep their numbers until the boundary after the loss: 1 + 100, later 1 + 10.
    assert run[0].result == run[2].result == [111.0, 111.0, 101.0, 11.0, 11.0, 11.0]


def test_a_member_lost_at_the_boundary_has_contributed_to_its_step() -> None:
    run = testing.simulate(by_hand, members=3, events=[testing.Lose(member=2, step=2)])
    assert run[0].result == [111.0, 111.0, 11.0, 11.0, 11.0, 11.0]
    assert run[2].outcome == "lost"


def test_a_newcomer_holds_the_state_and_contributes_from_its_step_on() -> None:
    run = testing.simulate(train, members=2, events=[testing.Join(step=4)])
    assert [m.outcome for m in run] == ["ended"] * 3
    weights = [m.result[0] for m in run]
    assert weights[0] == weights[1] == weights[2]
    assert run[2].result[1] == [(3, 3), (4, 3), (5, 3)]
    assert run[0].result[1][2:4] == [(2, 2), (3, 3)]


def test_who_leaves_is_let_go_by_the_boundary_and_the_others_go_on() -> None:
    run = testing.simulate(by_hand, members=3, events=[testing.Leave(member=2, step=2)])
    assert [m.outcome for m in run] == ["ended", "ended", "left"]
    assert run[2].result == [111.0, 111.0]
    assert run[0].result == [111.0, 111.0, 11.0, 11.0, 11.0, 11.0]


def test_a_gather_after_a_loss_fails_at_every_survivor_until_the_boundary() -> None:
    def program() -> list[str]:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        group.refresh({})
        said = []
        for _ in range(3):
            t = torch.ones(1)
            try:
                dist.all_gather([torch.zeros(1) for _ in range(group.size)], t, group=pg)
                dist.all_reduce(t, group=pg)
                said.append(f"{t.item():g}")
            except pccl.PeerLostError as error:
                said.append(str(error).partition(":")[2].partition(";")[0].strip())
            group.refresh({})
        return said

    run = testing.simulate(program, members=3, events=[testing.Lose(member=0, step=2, operation=0)])
    assert run[1].result == run[2].result == ["3", "rank 0 was lost", "2"]


def test_states_of_other_shapes_are_refused_in_the_words_of_refresh() -> None:
    def program() -> None:
        group = pccl.group(pccl.join(URL))
        group.refresh({"step": 0, "w": torch.zeros(2 + group.rank)})

    first, second = testing.simulate(program)
    text = "state['w'] is float32 of shape (3,) here and float32 of shape (2,) in the run's shared"
    for member in (first, second):
        assert member.outcome == "failed"
        assert text in str(member.error)


def test_a_value_that_cannot_be_set_takes_the_whole_fetch_back() -> None:
    class Stubborn(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            if name == "name":
                raise RuntimeError("not to be set")
            super().__setitem__(name, value)

    def program() -> Any:
        group = pccl.group(pccl.join(URL))
        mine = group.rank
        state = Stubborn(step=1 - mine, w=torch.full((5,), float(mine)), name=f"of {mine}")
        try:
            group.refresh(state)
        except RuntimeError:
            return state["step"], state["w"].sum().item()
        return None

    assert testing.simulate(program)[1].result == (0, 5.0)


def test_states_that_differ_at_the_start_become_the_one_with_the_highest_revision() -> None:
    def program() -> tuple[int, float, str]:
        group = pccl.group(pccl.join(URL))
        mine = {0: 3, 1: 9, 2: 9}[group.rank]
        state = {"step": mine, "w": torch.full((5,), float(mine)), "name": f"of {mine}"}
        group.refresh(state)
        return state["step"], state["w"].sum().item(), state["name"]

    run = testing.simulate(program, members=3)
    assert [m.result for m in run] == [(9, 45.0, "of 9")] * 3


def test_states_are_compared_after_the_first_step_of_the_run_and_of_newcomers() -> None:
    def program() -> list[tuple[int, bool, int]]:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        state = {"step": 0, "w": torch.zeros(2)}
        boundary = group.refresh(state)
        seen = []
        for own in (1.0, 0.0, 0.0, 0.0, 0.0):  # what a program keeps for itself, in its first step
            dist.all_reduce(torch.ones(2), group=pg)
            state["w"] += own * boundary.rank
            state["step"] += 1
            boundary = group.refresh(state)
            seen.append((boundary.step, boundary.voted, boundary.bytes_received))
            if state["step"] == STEPS - 1:
                break
        return seen

    run = testing.simulate(program, members=2, events=[testing.Join(step=4)])
    founder, other, newcomer = (m.result for m in run)
    assert [voted for _, voted, _ in founder] == [True, False, True, True, False]
    assert {received for _, _, received in founder} == {0}
    assert [received > 0 for _, _, received in other] == [True, False, False, False, False]
    assert [(step, received > 0) for step, _, received in newcomer] == [(5, True), (6, False)]


def test_messages_arrive_by_sender_and_tag_in_their_order() -> None:
    def program() -> list[float]:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        group.refresh({})
        got = []
        if group.rank == 0:
            for value in (1.0, 2.0):
                dist.send(torch.tensor([value]), group_dst=1, group=pg, tag=3)
        else:
            for _ in range(2):
                t = torch.zeros(1)
                dist.recv(t, group_src=0, group=pg, tag=3)
                got.append(t.item())
        group.refresh({})
        return got

    run = testing.simulate(program, members=2)
    assert run[1].result == [1.0, 2.0]


def test_an_operation_before_the_first_boundary_of_a_newcomer_is_refused() -> None:
    def program() -> None:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        if group.step > 0:
            dist.all_reduce(torch.ones(1), group=pg)
        group.refresh({})
        group.refresh({})

    run = testing.simulate(program, members=2, events=[testing.Join(step=2)])
    assert [m.outcome for m in run] == ["ended", "ended", "failed"]
    assert isinstance(run[2].error, pccl.NotAdmittedError)


def test_a_run_in_which_nobody_can_go_on_says_where_each_member_waits() -> None:
    def program() -> None:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        group.refresh({})
        if group.rank == 0:
            group.refresh({})
        else:
            dist.all_reduce(torch.ones(1), group=pg)

    with pytest.raises(
        testing.SimulationError,
        match=r"member 0 waits for the boundary after step 1; member 1 waits for all_reduce 1\.0",
    ):
        testing.simulate(program, members=2)


def test_what_a_program_raises_is_in_its_member_and_a_loss_for_the_others() -> None:
    def program() -> float:
        pg = pccl.join(URL)
        group = pccl.group(pg)
        group.refresh({})
        if group.rank == 1:
            raise OSError("no disk")
        t = torch.ones(1)
        dist.all_reduce(t, group=pg)
        return t.item()

    run = testing.simulate(program, members=3)
    assert [m.outcome for m in run] == ["ended", "failed", "ended"]
    assert isinstance(run[1].error, OSError)
    assert run[0].result == 2.0


def test_the_default_group_of_torch_distributed_is_the_members_own() -> None:
    def program() -> tuple[int, int, float]:
        dist.init_process_group("pccl", init_method=URL)
        pccl.group().refresh({})
        t = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(t)
        dist.broadcast(t, src=1)
        answer = (dist.get_rank(), dist.get_world_size(), t.item())
        dist.destroy_process_group()
        return answer

    run = testing.simulate(program, members=3)
    assert [m.result for m in run] == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]
    assert not dist.is_initialized()


def test_members_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="members is 0"):
        testing.simulate(by_hand, members=0)


def test_the_example_passes_its_own_tests() -> None:
    examples = Path(__file__).resolve().parents[2] / "examples" / "testing"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(examples)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=examples, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_a_run_is_finished_where_all_say_so() -> None:
    def program() -> Any:
        group = pccl.group(pccl.join(URL))
        boundary = group.refresh({"step": 0})
        while boundary.step < 3:
            dist.all_reduce(torch.ones(1), group=group.process_group)
            boundary = group.refresh({"step": boundary.step})
        end = group.finish()
        with pytest.raises(pccl.GroupClosedError):
            group.refresh({"step": 4})
        return end.finished, end.size, end.writer

    run = testing.simulate(program, members=3, events=[testing.Lose(member=0, step=2)])
    assert [m.result for m in run[1:]] == [(True, 2, True), (True, 2, False)]


def quantises() -> list[float]:
    """A call and a hook; a simulated run reduces exactly."""
    pg = pccl.join(URL)
    t = torch.tensor([0.123456, float(pccl.group(pg).rank)])
    pccl.all_reduce(t, group=pg, quantise="int4")
    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    model = DistributedDataParallel(net, process_group=pg, **pccl.ddp_kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    hook = pccl.quantised_hook("int8", error_feedback=True)
    pccl.elastic(model, optimizer, pg, hook=hook)
    model(torch.tensor([0.3, 1.0])).sum().backward()
    assert net.weight.grad is not None
    return [*t.tolist(), *net.weight.grad.flatten().tolist()]


def test_a_quantised_call_and_hook_reduce_exactly_in_a_simulated_run() -> None:
    members = testing.simulate(quantises)
    for member in members:
        assert member.error is None, member.error
        assert member.result == pytest.approx([0.246912, 1.0, 0.3, 1.0], abs=1e-6)


def test_a_mean_of_truth_values_raises_at_its_caller() -> None:
    def program() -> int:
        pg = pccl.join(URL)
        pccl.group(pg).refresh({})
        truths = torch.ones(2, dtype=torch.bool)
        with pytest.raises(ValueError, match="cannot reduce Bool tensors with avg"):
            dist.all_reduce(truths, op=dist.ReduceOp.AVG, group=pg)
        dist.all_reduce(truths, op=dist.ReduceOp.MAX, group=pg)
        return int(truths.sum())

    assert [member.result for member in testing.simulate(program, members=2)] == [2, 2]


def test_finish_after_a_leave_is_the_boundary_of_the_leave_and_else_the_end() -> None:
    def program() -> tuple[bool, bool]:
        group = pccl.group(pccl.join(URL))
        while not (boundary := group.refresh({"step": 0})).left and boundary.step < 3:
            dist.barrier()
        end = group.finish()
        return end.left, end.finished

    run = testing.simulate(program, members=3, events=[testing.Leave(member=1, step=1)])
    assert [m.outcome for m in run] == ["ended", "left", "ended"]
    assert [m.result for m in run] == [(False, True), (True, False), (False, True)]


@pytest.mark.parametrize(
    "event",
    [
        testing.Lose(member=7, step=2),
        testing.Lose(member=1, step=2, operation=50),
        testing.Lose(member=1, step=200),
        testing.Leave(member=9, step=1),
        testing.Join(step=99),
    ],
)
def test_an_event_that_does_not_happen_fails_the_test(event: testing.Event) -> None:
    def program() -> None:
        group = pccl.group(pccl.join(URL))
        for step in range(4):
            group.refresh({"step": step})
            dist.barrier()

    with pytest.raises(testing.SimulationError, match=re.escape(repr(event))):
        testing.simulate(program, members=3, events=[event])


def scheduled(shared: bool, late: bool) -> float:
    """Trains with a warm-up, in the state or not, made before `elastic` or after it."""
    pg = pccl.join("pccl://127.0.0.1:48148")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=pg, **pccl.ddp_kwargs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def warm_up() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)

    scheduler = None if late else warm_up()
    run = pccl.elastic(model, optimizer, pg, state={"scheduler": scheduler} if shared else None)
    scheduler = scheduler or warm_up()
    while run.state["step"] < 8:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.meet()
    return float(model.module.weight.sum())


@pytest.mark.parametrize("late", [False, True])
def test_a_scheduler_that_is_not_shared_is_named_once(
    late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = testing.simulate(lambda: scheduled(False, late), members=1, events=[testing.Join(step=5)])
    assert run[0].result != run[1].result
    told = [line for line in caplog.messages if "AdamW has a learning rate scheduler" in line]
    assert len(told) == len(run)


def test_a_scheduler_that_is_shared_makes_no_line(caplog: pytest.LogCaptureFixture) -> None:
    run = testing.simulate(lambda: scheduled(True, False), members=1, events=[testing.Join(step=5)])
    assert run[0].result == run[1].result
    assert "learning rate scheduler" not in caplog.text


def with_zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns

    pg = pccl.join("pccl://127.0.0.1:48148")
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=pg, **pccl.ddp_kwargs)
    parts = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=pg, lr=0.1)
    pccl.elastic(model, parts, pg)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_an_optimizer_that_ranks_divide_is_refused() -> None:
    run = testing.simulate(with_zero, members=2)
    for member in run:
        assert "a lost one takes its part along" in str(member.error)


def test_a_second_model_of_a_group_is_refused_until_the_first_run_is_closed() -> None:
    def program() -> None:
        pg = pccl.join(URL)

        def run() -> pccl.ElasticRun:
            model = DistributedDataParallel(nn.Linear(2, 1), process_group=pg, **pccl.ddp_kwargs)
            models.append(model)
            return pccl.elastic(model, torch.optim.SGD(model.parameters(), lr=1.0), pg)

        models: list[nn.Module] = []
        first = run()
        with pytest.raises(ValueError, match="for another model of this group"):
            run()
        first.close()
        run()

    for member in testing.simulate(program):
        assert member.error is None, member.error


class Both(nn.Module):
    """A generator and its critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, *, learns: str) -> torch.Tensor:
        made = self.generator(x)
        scores: torch.Tensor = self.critic(made.detach() if learns == "critic" else made)
        return scores


def adversaries() -> list[Any]:
    pg = pccl.join(URL)
    model = DistributedDataParallel(Both(), process_group=pg, **pccl.ddp_kwargs)
    both = model.module
    critic = torch.optim.SGD(both.critic.parameters(), lr=0.1)
    generator = torch.optim.SGD(both.generator.parameters(), lr=0.1)
    run = pccl.elastic(model, [critic, generator], pg)
    while run.state["step"] < 6:
        x = torch.full((4, 2), float(run.state["step"] + run.boundary.rank))
        for learns, optimizer, sign in (("critic", critic, 1.0), ("generator", generator, -1.0)):
            optimizer.zero_grad()
            (sign * model(x, learns=learns).mean()).backward()
            optimizer.step()
        run.meet()
    run.finish()
    return [p.tolist() for p in model.parameters()]


def test_two_models_in_one_module_train_with_an_optimizer_each() -> None:
    events = [testing.Lose(member=1, step=2, operation=2), testing.Join(step=4)]
    run = testing.simulate(adversaries, members=2, events=events)
    assert [m.outcome for m in run] == ["ended", "lost", "ended"], [m.error for m in run]
    assert run[0].result == run[2].result


def test_a_model_that_was_dropped_or_closed_is_gone_and_another_may_follow() -> None:
    def program() -> None:
        pg = pccl.join(URL)
        for closes in (True, False, False):
            model = DistributedDataParallel(nn.Linear(2, 1), process_group=pg, **pccl.ddp_kwargs)
            run = pccl.elastic(model, torch.optim.SGD(model.parameters(), lr=1.0), pg)
            model(torch.ones(2)).sum().backward()
            if closes:
                run.close()
            models.append(weakref.ref(model))
            del model, run

    models: list[weakref.ref[nn.Module]] = []
    for member in testing.simulate(program):
        assert member.error is None, member.error
    gc.collect()
    assert [model() for model in models] == [None] * 6


def test_the_error_of_a_program_is_not_hidden_by_an_event_that_did_not_happen() -> None:
    def program() -> None:
        group = pccl.group(pccl.join(URL))
        group.refresh({"step": 0})
        raise AssertionError("of the program")

    run = testing.simulate(program, events=[testing.Lose(member=1, step=6)])
    assert [m.outcome for m in run] == ["failed", "failed"]
