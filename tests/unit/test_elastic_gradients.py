"""ElasticRun: what a hook has reduced, gradients of a newcomer, loops without boundaries."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_elastic_run import FakeGroup, Loop
from test_state import Sources, agree, hasher

from pccl_backend._state import Exchange


class Bucket:
    """The second bucket of a DDP, which queues nothing in a backward."""

    def __init__(self) -> None:
        self.gradients = torch.ones(3)

    def index(self) -> int:
        return 1

    def buffer(self) -> torch.Tensor:
        return self.gradients


@pytest.mark.parametrize(
    ("value_of", "found"),
    [
        (lambda buffer: 2.0 * buffer, [2.0, 2.0, 2.0]),  # a tensor of its own
        (lambda buffer: [buffer.mul_(3.0)], [3.0, 3.0, 3.0]),  # as the future of a Work has it
        (lambda _: None, None),
        (lambda _: torch.ones(2), None),
        (lambda _: [], None),
    ],
)
def test_the_value_of_a_hooks_future_is_the_reduced_bucket(
    value_of: Callable[[torch.Tensor], Any], found: list[float] | None
) -> None:
    def hook(_: Any, bucket: Any) -> torch.futures.Future[Any]:
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(value_of(bucket.buffer()))
        return done

    loop, bucket = Loop(FakeGroup()), Bucket()
    loop.run._hook = hook
    reduced = loop.run._average(bucket).wait()
    if found is None:
        assert "expected a tensor of 3 elements, the reduced bucket" in str(loop.run._error)
        assert reduced is bucket.gradients
    else:
        assert (reduced.tolist(), loop.run._error) == (found, None)


def test_a_loop_that_passes_no_boundary_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(FakeGroup())
    for _ in range(2):
        loop.step()
    loop.run.meet()
    loop.model.eval()  # with frozen statistics
    for _ in range(3):
        loop.step()
        loop.run.meet()
    assert not caplog.records
    for _ in range(3):
        loop.step()
    (record,) = caplog.records
    assert "no boundary was passed since they stepped" in record.getMessage()


def test_a_newcomer_has_a_gradient_where_the_members_have_one() -> None:
    theirs, mine = Loop(FakeGroup()), Loop(FakeGroup())

    def receive() -> None:
        offer = Exchange(theirs.run.state, hasher).snapshot()
        shared = Exchange(mine.run.state, hasher, Sources(a=offer))
        assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest

    theirs.step()
    theirs.optimizer.zero_grad(set_to_none=False)  # AdamW, say, decays what has one
    theirs.model.bias.grad = None
    receive()
    assert mine.model.weight.grad is not None
    assert mine.model.weight.grad.tolist() == [[0.0, 0.0]]
    assert mine.model.bias.grad is None
    theirs.optimizer.zero_grad()
    receive()
    assert mine.model.weight.grad is None
