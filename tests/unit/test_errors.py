"""Every code of csrc/base/error.h has a class, and every class is in the tree of the docstring."""

import pickle
import re

import torch.distributed as dist
from conftest import ROOT

import pccl_backend
from pccl_backend import _errors


def test_every_error_code_has_a_class() -> None:
    text = (ROOT / "csrc" / "base" / "error.h").read_text()
    codes = re.findall(r"^  X\((\w+), \d+,", text, re.MULTILINE)
    assert set(codes) == set(_errors.BY_CODE)


def test_failures_of_the_backend_are_dist_backend_errors_and_wrong_arguments_value_errors() -> None:
    for code, kind in _errors.BY_CODE.items():
        parent = ValueError if code == "invalid" else dist.DistBackendError
        assert issubclass(kind, parent), code
    assert issubclass(_errors.PcclError, RuntimeError)


def test_the_docstring_is_the_tree() -> None:
    assert _errors.__doc__ is not None
    named = set(re.findall(r"^ +(\w+Error)\b", _errors.__doc__, re.MULTILINE))
    classes = {
        n for n, v in vars(_errors).items() if isinstance(v, type) and n != "DistBackendError"
    }
    assert classes <= named
    assert classes <= set(pccl_backend.__all__)


def test_the_public_names_are_all_there() -> None:
    for name in pccl_backend.__all__:
        assert getattr(pccl_backend, name) is not None
    assert set(pccl_backend.__all__) <= set(dir(pccl_backend))


def test_completion_offers_what_is_public() -> None:
    assert {n for n in dir(pccl_backend) if not n.startswith("__")} == set(pccl_backend.__all__) - {
        "__version__"
    }


def test_a_traceback_names_an_error_as_a_program_does() -> None:
    assert f"{_errors.PeerLostError}" == "<class 'pccl_backend.PeerLostError'>"
    assert pickle.loads(pickle.dumps(_errors.PeerLostError("gone"))).args == ("gone",)
