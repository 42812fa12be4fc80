"""A training loop by hand and its tests: `pytest examples/testing` starts no process."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

import pccl_backend as pccl
from pccl_backend import testing

STEPS = 8


@dataclass
class Outcome:
    """The end of one member: its weight, the sizes it has seen, its last step."""

    weight: list[float]
    sizes: list[int]
    step: int


def train() -> Outcome:
    """Fits a line to points of which each member has its own."""
    dist.init_process_group("pccl", init_method="pccl://127.0.0.1:48148")
    group = pccl.group()
    weight = torch.zeros(2)
    state = {"step": 0, "weight": weight}  # shared by all members
    sizes = []
    while state["step"] < STEPS:
        if group.refresh(state).left:  # admits newcomers, makes `state` equal everywhere
            break
        sizes.append(group.size)
        x = torch.arange(4.0) + group.rank
        error = weight[0] * x + weight[1] - (2 * x + 1)
        gradient = torch.stack([(error * x).mean(), error.mean()])
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)  # replayed if a member is lost
        weight -= 0.05 * gradient
        state["step"] += 1
    dist.destroy_process_group()
    return Outcome(weight.tolist(), sizes, state["step"])


def test_all_members_end_with_the_same_weight() -> None:
    run = testing.simulate(train, members=3)
    assert [m.outcome for m in run] == ["ended"] * 3
    assert all(m.result == run[0].result for m in run)


@pytest.mark.parametrize("operation", [0, None], ids=["before its all_reduce", "at the boundary"])
@pytest.mark.parametrize("step", [1, 4, 7])
def test_the_others_go_on_when_a_member_is_lost(step: int, operation: int | None) -> None:
    loss = testing.Lose(member=1, step=step, operation=operation)
    run = testing.simulate(train, members=3, events=[loss])
    assert [m.outcome for m in run] == ["ended", "lost", "ended"]
    assert run[0].result == run[2].result
    assert run[0].result.step == STEPS
    assert set(run[0].result.sizes) == {3, 2} or step == 7


def test_a_newcomer_ends_with_the_weight_of_the_others() -> None:
    run = testing.simulate(train, members=2, events=[testing.Join(step=5)])
    assert run[0].result.sizes == [2, 2, 2, 2, 3, 3, 3, 3]
    assert run[2].result.sizes == [3, 3, 3, 3]
    assert run[2].result.weight == run[0].result.weight


def test_nobody_fails_when_a_member_leaves() -> None:
    run = testing.simulate(train, members=3, events=[testing.Leave(member=0, step=3)])
    assert [m.outcome for m in run] == ["left", "ended", "ended"]
    assert run[1].result == run[2].result
