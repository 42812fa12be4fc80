"""The reductions of csrc/kernels against torch, through `_core`; tests/cpp/kernels has the bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pccl_backend import _core

FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
FLOATS["float64"] = torch.float64
INTEGERS = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint32": np.uint32,
    "int32": np.int32,
    "uint64": np.uint64,
    "int64": np.int64,
}
COUNT = 1003


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


def any_floats(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random bits: all exponents, infinities, denormals and NaN."""
    width = torch.empty(0, dtype=dtype).element_size()
    bits = np.random.default_rng(seed).integers(0, 256, COUNT * width, dtype=np.uint8)
    return torch.from_numpy(bits).view(dtype)


def reduce_floats(a: torch.Tensor, b: torch.Tensor, dtype: str, op: str) -> torch.Tensor:
    to = torch.empty_like(a)
    _core.reduce_into(as_bytes(to), as_bytes(a), as_bytes(b), dtype, op)
    return to


@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize(
    ("op", "same"),
    [
        ("sum", torch.add),
        ("avg", torch.add),
        ("product", torch.mul),
        ("min", torch.minimum),
        ("max", torch.maximum),
    ],
)
def test_floats_are_reduced_as_torch_does(dtype: str, op: str, same: torch.Tensor) -> None:
    a, b = any_floats(FLOATS[dtype], 1), any_floats(FLOATS[dtype], 2)
    result, wanted = reduce_floats(a, b, dtype, op), same(a, b)
    assert torch.equal(result.isnan(), wanted.isnan())
    assert torch.equal(result.nan_to_num(nan=0.0), wanted.nan_to_num(nan=0.0))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    ("op", "same"),
    [("sum", torch.add), ("product", torch.mul), ("min", torch.minimum), ("max", torch.maximum)],
)
def test_every_pair_of_float8_is_reduced_in_float32_and_rounded_once(
    name: str, op: str, same: Callable[..., torch.Tensor]
) -> None:
    dtype = getattr(torch, name)
    every = torch.arange(256, dtype=torch.uint8)
    a, b = every.repeat_interleave(256).view(dtype), every.repeat(256).view(dtype)
    exact = same(a.float(), b.float())
    if name == "float8_e4m3fn":  # has no infinity, and torch's versions differ in what comes then
        exact = exact.clamp(-448.0, 448.0)
    result, wanted = reduce_floats(a, b, name, op).float(), exact.to(dtype).float()
    assert torch.equal(result.isnan(), wanted.isnan())
    assert torch.equal(result.nan_to_num(nan=0.0), wanted.nan_to_num(nan=0.0))
    mean = a.clone()
    _core.finish_average(as_bytes(mean), name, 3)
    thirds = a.float().div(3).to(dtype).float()
    assert torch.equal(mean.float().nan_to_num(nan=-1.0), thirds.nan_to_num(nan=-1.0))


@pytest.mark.parametrize("dtype", list(INTEGERS))
@pytest.mark.parametrize(
    ("op", "same"),
    [
        ("sum", np.add),
        ("avg", np.add),
        ("product", np.multiply),
        ("min", np.minimum),
        ("max", np.maximum),
        ("band", np.bitwise_and),
        ("bor", np.bitwise_or),
        ("bxor", np.bitwise_xor),
    ],
)
def test_integers_are_exact_and_wrap(dtype: str, op: str, same: np.ufunc) -> None:
    kind = INTEGERS[dtype]
    info, generator = np.iinfo(kind), np.random.default_rng(3)
    a, b = (generator.integers(info.min, info.max, COUNT, kind, endpoint=True) for _ in range(2))
    to = np.empty_like(a)
    _core.reduce_into(to, a, b, dtype, op)
    assert np.array_equal(to, same(a, b))


def test_bool_is_logical() -> None:
    a, b = np.array([0, 0, 1, 1], dtype=np.bool_), np.array([0, 1, 0, 1], dtype=np.bool_)
    wanted = {"sum": a | b, "max": a | b, "bor": a | b, "product": a & b, "min": a & b}
    wanted |= {"band": a & b, "bxor": a ^ b}
    for op, values in wanted.items():
        to = np.empty_like(a)
        _core.reduce_into(to, a, b, "bool", op)
        assert np.array_equal(to, values), op


@pytest.mark.parametrize(("dtype", "kind"), [("complex64", np.complex64), ("complex128", complex)])
def test_complex_numbers_are_added_and_multiplied(dtype: str, kind: type) -> None:
    generator = np.random.default_rng(4)
    a, b = ((generator.normal(size=99) + 1j * generator.normal(size=99)).astype(kind) for _ in "ab")
    to = np.empty_like(a)
    _core.reduce_into(to, a, b, dtype, "sum")
    assert np.array_equal(to, a + b)
    _core.reduce_into(to, a, b, dtype, "product")
    assert np.allclose(to, a * b)
    _core.finish_average(a, dtype, 4)
    _core.reduce_into(to, a, a, dtype, "avg")
    assert np.array_equal(to, a + a)


@pytest.mark.parametrize("dtype", list(FLOATS))
def test_an_average_of_floats_is_divided_in_float32_at_least(dtype: str) -> None:
    a = any_floats(FLOATS[dtype], 5)
    wanted = (a.double() if dtype == "float64" else a.float()).div(3).to(FLOATS[dtype])
    _core.finish_average(as_bytes(a), dtype, 3)
    assert torch.equal(a.isnan(), wanted.isnan())
    assert torch.equal(a.nan_to_num(nan=0.0), wanted.nan_to_num(nan=0.0))


@pytest.mark.parametrize("dtype", list(INTEGERS))
def test_an_average_of_integers_is_cut_toward_zero(dtype: str) -> None:
    info = np.iinfo(INTEGERS[dtype])
    start = [0, 1, 2, 3, 7, info.max, info.min, max(-7, info.min)]
    a = np.array(start, dtype=INTEGERS[dtype])
    _core.finish_average(a, dtype, 3)
    assert a.tolist() == [v // 3 if v >= 0 else -(-v // 3) for v in start]


def test_what_cannot_be_reduced_is_refused_by_name() -> None:
    a = np.zeros(4, dtype=np.float32)
    with pytest.raises(ValueError, match="bool cannot be reduced by avg"):
        _core.reduce_into(np.empty(2), np.zeros(2), np.zeros(2), "bool", "avg")
    with pytest.raises(ValueError, match="float32 cannot be reduced by band"):
        _core.reduce_into(a, a, a, "float32", "band")
    with pytest.raises(ValueError, match="no dtype of this name"):
        _core.reducible("float12", "sum")
    with pytest.raises(ValueError, match="different sizes"):
        _core.reduce_into(a, a[:2], a, "float32", "sum")
    with pytest.raises(ValueError, match="holds no whole float64"):
        _core.reduce_into(a[:1], a[:1], a[:1], "float64", "sum")
    with pytest.raises(ValueError, match="at least 1"):
        _core.finish_average(a, "float32", 0)
    read_only = np.zeros(4, dtype=np.float32)
    read_only.setflags(write=False)
    with pytest.raises((BufferError, ValueError)):
        _core.reduce_into(read_only, a, a, "float32", "sum")


def test_a_master_option_that_does_not_exist_or_fit_is_named() -> None:
    with pytest.raises(ValueError, match="min_pears"):
        _core.run_master({}, [({"min_pears": 2}, None)])
    with pytest.raises(ValueError, match="port: wrong value 70000"):
        _core.run_master({"port": 70000}, [])
