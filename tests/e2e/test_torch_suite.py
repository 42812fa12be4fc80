"""PyTorch's own distributed tests (out of the torch wheel) over pccl, at two ranks.

`scripts/torch_suite` runs them at all sizes; the runner and what gloo passes are in
tests/labs/torch_suite.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from carriers import CARRIERS
from conftest import ROOT

pytestmark = pytest.mark.long

SUITE = ROOT / "tests" / "labs" / "torch_suite"
IMPOSSIBLE = set(json.loads((SUITE / "ceiling.json").read_text())["dist_base"])

# Of sums in the default group, which PCCL_QUANTISE rounds; other groups are exact.
SUMS = "reduce.*sum|[Dd][Dd][Pp]|Parallel|no_sync|future|static_graph"
# They want gradients that are within 1e-5 of those of one process, or weights that come of these.
CLOSER_THAN_FLOAT16 = {
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
}


def run_suite(
    out: Path, world: int, *options: str | Path, carrier: str = "memory"
) -> tuple[dict[str, Any], str]:
    """The report of the runner, and what it has printed."""
    run = subprocess.run(
        [
            *(sys.executable, SUITE / "run_suite.py", "--backend", "pccl"),
            *("--world-size", str(world), *options, "--json", out),
        ],
        env={**os.environ, "PCCL_LOG_LEVEL": "warning", **CARRIERS[carrier]},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(out.read_text())["suites"][f"ws{world}"], run.stdout[-5000:]


def others(suite: dict[str, Any]) -> set[str]:
    """Those that have not passed."""
    return {name for name, test in suite["tests"].items() if test["status"] != "passed"}


@pytest.mark.parametrize("carrier", list(CARRIERS))
def test_what_gloo_passes_of_pytorchs_own_tests_pccl_passes(tmp_path: Path, carrier: str) -> None:
    baseline = ("--baseline", SUITE / "dist_base.gloo.json", "--only-baseline-passed")
    suite, text = run_suite(tmp_path / "report.json", 2, *baseline, carrier=carrier)
    assert others(suite) == IMPOSSIBLE, text
    assert suite["vs_baseline"]["baseline_passed"] == 90
    for name, test in suite["tests"].items():
        assert any("pccl" in group for group in test["groups"]), name


@pytest.mark.parametrize("carrier", list(CARRIERS))
def test_with_sums_as_float16_those_pass_that_bear_their_rounding(
    tmp_path: Path, carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCCL_QUANTISE", "float16")
    names = ("--filter", SUMS, "--exclude", "full_group")
    baseline = ("--baseline", SUITE / "dist_base.gloo.json", "--only-baseline-passed")
    suite, text = run_suite(tmp_path / "report.json", 2, *baseline, *names, carrier=carrier)
    assert others(suite) == IMPOSSIBLE | CLOSER_THAN_FLOAT16, text
    for name in CLOSER_THAN_FLOAT16:
        assert "are not close" in suite["tests"][name]["reason"], text
    assert len(suite["tests"]) == 20


def test_the_all_to_all_tests_that_torch_switches_off_for_gloo_pass(tmp_path: Path) -> None:
    names = ("--filter", "^test_all_to_all", "--exclude", "cuda|(all|split)_group$")  # of 8 ranks
    suite, text = run_suite(tmp_path / "report.json", 3, *names, "--unskip", "Only MPI supports")
    passed = [name for name, test in suite["tests"].items() if test["status"] == "passed"]
    assert passed == list(suite["tests"]), text
    assert len(passed) == 9
