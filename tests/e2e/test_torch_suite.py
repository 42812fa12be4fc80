"""PyTorch's own distributed tests (out of the torch wheel) over pccl, at two ranks.

`scripts/torch_suite` runs them at all sizes; the runner and what gloo passes are in
tests/torch_suite.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

SUITE = ROOT / "tests" / "torch_suite"


def test_what_gloo_passes_of_pytorchs_own_tests_pccl_passes(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    run = subprocess.run(
        [
            *(sys.executable, SUITE / "run_suite.py", "--backend", "pccl", "--world-size", "2"),
            *("--baseline", SUITE / "dist_base.gloo.json", "--only-baseline-passed"),
            *("--json", out),
        ],
        env={**os.environ, "PCCL_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    suite = json.loads(out.read_text())["suites"]["ws2"]
    impossible = json.loads((SUITE / "ceiling.json").read_text())["dist_base"]
    others = {name for name, test in suite["tests"].items() if test["status"] != "passed"}
    assert others == set(impossible), run.stdout[-5000:]
    assert suite["vs_baseline"]["baseline_passed"] == 90
    for name, test in suite["tests"].items():
        assert any("pccl" in group for group in test["groups"]), name
