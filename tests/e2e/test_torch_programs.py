"""What people build on torch.distributed, over gloo and over pccl, with the same outcome.

The programs are in the folder torch_programs: FSDP, DTensor, meshes, functional collectives, hooks,
checkpoints and more, on the models that come with torch's own tests. They run one after another in
one set of processes for each backend, and for an elastic group; each has a test of its own here.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from carriers import CARRIERS
from conftest import ROOT, TORCH, Master, Peer

pytestmark = pytest.mark.long
PROGRAMS = Path(__file__).resolve().parent / "torch_programs"
DEADLINE_S = 600.0  # for all programs of a cast; a minute where two cores are idle


# What a torch cannot do with gloo either, or, in the first case, only with gloo.
IMPOSSIBLE = set()
if torch.backends.cuda.is_built() and not torch.cuda.is_available():
    IMPOSSIBLE.add("saving.sharded_tensors")  # asks the first device of the backend but the CPU
if TORCH < (2, 13):
    IMPOSSIBLE |= {"shards.experts", "grids.experts_on_a_grid"}  # its models have none
FUNCTIONAL = ["calls.functional_collectives", "calls.dtensor_redistribute"]


def programs(module: str) -> list[str]:
    """The names of a module's programs, without importing it."""
    names = [
        f"{module}.{node.name}"
        for node in ast.parse((PROGRAMS / f"{module}.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        if {"exact", "close"} & {ast.unparse(mark) for mark in node.decorator_list}
    ]
    return [name for name in names if name not in IMPOSSIBLE]


BOTH = [name for module in ("calls", "replicas", "shards", "saving") for name in programs(module)]
OURS = programs("beyond")
GRID = programs("grids")
# Up to torch 2.12 its wrapper does not pass these on, whatever the backend.
CHECKED = [*programs("detail"), *(FUNCTIONAL if TORCH >= (2, 13) else [])]
# With TORCH_DISTRIBUTED_DEBUG=DETAIL the constructor of DDP crashes over gloo, in torch 2.13.
NOT_GLOO = ["replicas.ddp_options", "shards.fsdp2"]


class Cast:
    """The ranks of one backend and what they leave. The casts of a play run side by side."""

    def __init__(self, backend: str, size: int, names: list[str], folder: Path, **env: str) -> None:
        self.size = size
        self.folder = folder
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            **env,
        }
        command = [sys.executable, str(PROGRAMS / "worker.py"), backend, str(size), str(folder)]
        self.worker = Peer([*command, *names], environment, backend)

    def outcomes(self, name: str) -> list[Any]:
        """What each rank has returned; fails where one has not."""
        files = [self.folder / f"{name}.{rank}" for rank in range(self.size)]
        if not all(file.exists() for file in files):
            pytest.fail(f"{name} has not come to its end\n{self.worker.log()}")
        return [torch.load(file, weights_only=True) for file in files]


Play = dict[str, Cast]
Plays = Callable[..., Play]


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Plays:
    """`plays(size, {cast: names}, **env)`: run once for all tests that ask for it.

    A cast is "gloo", or pccl by a carrier, or "elastic": pccl with a master.
    """
    ended: dict[Any, Play] = {}

    def play(size: int, names: dict[str, list[str]], **env: str) -> Play:
        key = (size, *env)
        if key in ended:
            return ended[key]
        casts = ended[key] = {}  # whatever comes: no test waits for it a second time
        with contextlib.ExitStack() as stack:
            for cast, its_names in names.items():
                folder = tmp_path_factory.mktemp(cast)
                settings = env | CARRIERS.get(cast, {})
                if cast == "elastic":
                    master = Master(folder, ["--min-peers", str(size)])
                    stack.callback(master.close)
                    settings["PCCL_MASTER"] = master.url
                backend = "gloo" if cast == "gloo" else "pccl"
                casts[cast] = Cast(backend, size, its_names, folder, **settings)
                stack.callback(casts[cast].worker.close)
            for cast in casts.values():
                cast.worker.finish(DEADLINE_S, status=None)
        return casts

    return play


def compare(name: str, ours: Cast, theirs: Cast) -> None:
    pairs = zip(ours.outcomes(name), theirs.outcomes(name), strict=True)
    for rank, (our, their) in enumerate(pairs):
        same(f"rank {rank}", our["values"], their["values"], their["exact"])


def same(where: str, ours: Any, theirs: Any, exact: bool) -> None:
    """Of one shape, type and value; floats within the rounding of some steps unless `exact`."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        options = {"rtol": 0.0, "atol": 0.0} if exact else tolerance(ours.dtype)
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, msg=lambda text: f"{where}: {text}", **options
        )
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            same(f"{where}, {key}", ours[key], theirs[key], exact)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            same(f"{where}, {i}", *pair, exact)
    else:
        assert ours == theirs, where


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    if not dtype.is_floating_point:
        return {"rtol": 0.0, "atol": 0.0}
    return {"rtol": 1e-4, "atol": 1e-5}


# ------------------------------------------------------------------------------------------- tests


def pair(plays: Plays) -> Play:
    return plays(
        2, {"gloo": BOTH, "memory": BOTH + OURS, "TCP": BOTH, "TLS": BOTH, "elastic": BOTH}
    )


def grid(plays: Plays) -> Play:
    return plays(4, {"gloo": GRID, "memory": GRID})


def checked(plays: Plays) -> Play:
    names = {"gloo": CHECKED, "memory": CHECKED + NOT_GLOO}
    return plays(2, names, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.parametrize("carrier", list(CARRIERS))
@pytest.mark.parametrize("name", BOTH)
def test_two_ranks_see_what_they_see_with_gloo(name: str, carrier: str, plays: Plays) -> None:
    compare(name, pair(plays)[carrier], pair(plays)["gloo"])


@pytest.mark.parametrize("name", BOTH)
def test_two_members_of_an_elastic_group_see_it_too(name: str, plays: Plays) -> None:
    compare(name, pair(plays)["elastic"], pair(plays)["gloo"])


@pytest.mark.parametrize("name", OURS)
def test_what_gloo_refuses_comes_out_right(name: str, plays: Plays) -> None:
    outcomes = pair(plays)["memory"].outcomes(name)  # the program itself has compared
    assert len(outcomes) == 2


@pytest.mark.parametrize("name", GRID)
def test_four_ranks_in_a_grid_see_what_they_see_with_gloo(name: str, plays: Plays) -> None:
    compare(name, grid(plays)["memory"], grid(plays)["gloo"])


@pytest.mark.parametrize("name", CHECKED)
def test_under_torchs_own_checks_ranks_see_what_they_see_with_gloo(name: str, plays: Plays) -> None:
    compare(name, checked(plays)["memory"], checked(plays)["gloo"])


@pytest.mark.parametrize("name", NOT_GLOO)
def test_under_torchs_own_checks_models_see_what_they_see_without(name: str, plays: Plays) -> None:
    compare(name, checked(plays)["memory"], pair(plays)["gloo"])


def test_every_rank_ends_well(plays: Plays) -> None:
    for casts in (pair(plays), grid(plays), checked(plays)):
        for cast in casts.values():
            assert cast.worker.process.returncode == 0, cast.worker.log()


def test_every_module_of_programs_is_run() -> None:
    found = {path.stem for path in PROGRAMS.glob("*.py")} - {"common", "worker"}
    assert found == {name.partition(".")[0] for name in BOTH + OURS + GRID + CHECKED}
