"""Connections of a long line that are cut, or swallow all data, cost an operation nothing but time
(benchmarks/lost_lanes.py, small)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chaos.run import why_not

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "lost_lanes.py"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cut", "hole"])
def test_operations_go_on_without_connections_that_are_lost(kind: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    line = ["--rtt-ms", "40", "--no-bbr", "--mib", "32", "--calls", "20"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kinds", kind, *line],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    assert row[0] == kind
    if kind == "cut":
        assert int(row[2]) >= 3
    else:
        # Longer than what it takes to see that a connection is stuck; its time-out is 30 s.
        assert float(row[4]) < 25
