"""Quantised all-reduces without a network: names, the hook, what a contribution becomes."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT

import pccl_backend as pccl
from pccl_backend import _C, _core, _quantised
from pccl_backend._config import EXACT, QUANTISATIONS, Options


def test_the_names_are_those_of_the_engine() -> None:
    text = (ROOT / "csrc" / "base" / "quantisation.h").read_text()
    body = text[text.index("quantisation_name") : text.index("kQuantisedBlock")]
    names = re.findall(r'return "(\w+)";', body)
    assert names == [EXACT, *QUANTISATIONS, "unknown"]


@pytest.mark.parametrize("name", ["int7", "INT 8", ""])
def test_a_wrong_name_is_refused_with_those_that_there_are(name: str) -> None:
    for call in (lambda: Options(quantise=name), lambda: pccl.quantised_hook(name)):
        with pytest.raises(ValueError, match=r"expected one of .*int8, .*float8_e5m2") as caught:
            call()
        assert f"quantise is {name!r}" in str(caught.value)
    with pytest.raises(ValueError, match="expected one of int8"):
        pccl.quantised_hook(EXACT)  # a hook that quantises nothing is none
    with pytest.raises(ValueError, match="expected one of none, int8"):
        _C.as_sent(torch.ones(3), "int7")


def test_a_name_is_taken_in_any_case() -> None:
    assert [_quantised.check_name(name) for name in ("INT8", "Int4")] == ["int8", "int4"]
    with pytest.raises(ValueError, match="quantise is 8; expected one of"):
        _quantised.check_name(8)


@pytest.mark.parametrize("quantise", ["int8", None])
def test_what_is_no_tensor_is_refused_by_the_name_of_its_argument(quantise: str | None) -> None:
    with pytest.raises(TypeError, match=r"tensor is a list; expected a torch\.Tensor"):
        pccl.all_reduce([torch.ones(3)], quantise=quantise)  # type: ignore[arg-type]


@pytest.mark.parametrize("error_feedback", [False, True])
def test_ddp_takes_the_hook(error_feedback: bool) -> None:
    hook = pccl.quantised_hook("int8", error_feedback=error_feedback)
    signature = inspect.signature(hook)
    assert list(signature.parameters) == ["group", "bucket"]
    assert all(p.annotation is inspect.Parameter.empty for p in signature.parameters.values())
    assert signature.return_annotation is inspect.Signature.empty


@pytest.mark.parametrize("name", QUANTISATIONS)
def test_a_contribution_arrives_near_to_what_it_was(name: str) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    before = tensor.clone()
    sent = _C.as_sent(tensor, name)
    assert torch.equal(tensor, before)
    most = tensor.abs().max().item()
    assert (sent - tensor).abs().max().item() <= 2 * most / 15
    assert torch.equal(_C.as_sent(tensor, EXACT), tensor)
    assert _C.as_sent(tensor.view(10, 100).t(), name).shape == (100, 10)


def test_a_schedule_codes_each_contribution_once_and_the_sum_once() -> None:
    values = 6 * 256
    args = {
        "kind": "all_reduce",
        "reduce": "avg",
        "rank": 1,
        "size": 3,
        "element_bytes": 4,
        "input_bytes": [4 * values],
        "output_bytes": [4 * values],
        "quantisation": "int8",
    }
    steps = _core.build_schedule(args)["steps"]
    coded = [s for s in steps if s["kind"] == "quantise"]
    assert sum(s["from"]["bytes"] for s in coded) == 4 * (values + values // 3)
    assert [s["finish"] for s in steps if s["kind"] == "add_dequantised"] == [False, True]
    sent = sum(s["from"]["bytes"] for s in steps if s["kind"] == "send")
    assert sent == 2 * (values + 8 * 6) * 2 // 3
    with pytest.raises(ValueError, match="no quantisation of this name"):
        _core.build_schedule({**args, "quantisation": "int7"})


def test_tensors_of_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="float32 tensor on the CPU"):
        _C.as_sent(torch.ones(3, dtype=torch.float64), "int8")


class Bucket:
    """A bucket of DDP, with these parameters and gradients; by default the only one."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        *gradients: torch.Tensor,
        index: int = 0,
        last: bool = True,
    ) -> None:
        self._parameters, self._buffer = parameters, torch.cat([g.flatten() for g in gradients])
        self._index, self._last = index, last

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def parameters(self) -> list[torch.nn.Parameter]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._buffer


def keep(taken: _quantised._Taken | None) -> None:
    assert taken is not None
    taken.keep()


def test_feedback_follows_the_parameter_into_another_bucket() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
    gradient = torch.tensor([0.0, 0.3, 1.0, 0.62])
    feedback = _quantised._Feedback("int4")
    first = Bucket([a, b], gradient, -gradient)
    keep(feedback.add(first, 2))
    taken = torch.cat([gradient, -gradient]) - _C.as_sent(first.buffer(), "int4")
    assert taken.abs().max() > 0
    second = Bucket([b], torch.zeros(4))
    feedback.add(second, 2)
    assert torch.equal(second.buffer(), taken[4:])
    third = Bucket([b], torch.zeros(4))
    feedback.add(third, 2)  # the second reduction was not kept, as one that failed
    assert torch.equal(third.buffer(), taken[4:])


def test_feedback_of_a_backward_is_kept_as_a_whole_or_not_at_all() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
    gradient = torch.tensor([0.0, 0.3, 1.0, 0.62])
    feedback = _quantised._Feedback("int4")

    def of_next_step() -> list[torch.Tensor]:
        buckets = [Bucket([p], torch.zeros(4), index=i) for i, p in enumerate((a, b))]
        return [(feedback.add(bucket, 2), bucket.buffer())[1] for bucket in buckets]

    first = Bucket([a], gradient, last=False)
    second = Bucket([b], -gradient, index=1)
    keep(feedback.add(first, 2))
    feedback.add(second, 2)  # its reduction fails
    assert not torch.cat(of_next_step()).any()
    taken = [feedback.add(Bucket([a], gradient, last=False), 2)]
    taken.append(feedback.add(Bucket([b], -gradient, index=1), 2))
    for one in reversed(taken):  # in whatever order they are reduced
        keep(one)
    assert all(part.any() for part in of_next_step())


def test_feedback_begins_anew_when_the_number_of_members_changes() -> None:
    a = torch.nn.Parameter(torch.zeros(4))
    gradient = torch.tensor([0.0, 0.3, 1.0, 0.62])
    for size in (1, 3):
        feedback = _quantised._Feedback("int4")
        keep(feedback.add(Bucket([a], gradient), 2))
        other = Bucket([a], torch.zeros(4))
        keep(feedback.add(other, size))
        assert not other.buffer().any()
        after = Bucket([a], torch.zeros(4))
        feedback.add(after, 2)
        assert not after.buffer().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_feedback_is_float32_whatever_the_program_makes_by_default(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        bucket = Bucket([torch.nn.Parameter(torch.zeros(2))], torch.ones(2, dtype=torch.float32))
        taken = _quantised._Feedback("int8").add(bucket, 2)
    finally:
        torch.set_default_dtype(before)
    assert taken is not None
    assert taken.from_sums is not None
    assert taken.from_sums.dtype == torch.float32


def test_feedback_keeps_nothing_where_nothing_is_rounded_or_a_block_is_lost() -> None:
    a = torch.nn.Parameter(torch.zeros(2))
    feedback = _quantised._Feedback("int8")
    alone = Bucket([a], torch.tensor([0.1, 0.7]))
    keep(feedback.add(alone, 1))
    assert torch.equal(alone.buffer(), torch.tensor([0.1, 0.7]))
    keep(feedback.add(Bucket([a], torch.tensor([math.nan, 0.7])), 2))
    after = Bucket([a], torch.tensor([0.1, 0.7]))
    feedback.add(after, 2)
    assert torch.equal(after.buffer(), torch.tensor([0.1, 0.7]))


def test_feedback_brings_back_what_the_codes_of_sums_took_with_the_weight_of_one_member() -> None:
    a = torch.nn.Parameter(torch.zeros(4))
    feedback = _quantised._Feedback("int4")
    taken = feedback.add(Bucket([a], torch.zeros(4)), 3)
    assert taken is not None
    assert taken.from_sums is not None
    taken.from_sums += torch.tensor([0.0, 0.5, math.nan, -1.0])  # as the reduction writes there
    keep(taken)
    after = Bucket([a], torch.zeros(4))
    feedback.add(after, 3)
    assert torch.equal(after.buffer(), torch.tensor([0.0, 1.5, 0.0, -3.0]))


def test_groups_of_other_backends_are_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="group has the backend 'gloo'"):
            pccl.all_reduce(torch.ones(3), quantise="int8")
        tensor = torch.ones(3)
        pccl.all_reduce(tensor)
        assert torch.equal(tensor, torch.ones(3))
    finally:
        dist.destroy_process_group()
