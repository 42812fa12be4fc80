"""Members of two emulated continents that came in turns (benchmarks/topology.py, small)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chaos.run import why_not

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "topology.py"


@pytest.mark.long
def test_a_boundary_adopts_the_ring_that_crosses_the_ocean_twice() -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kinds", "worst", "--mib", "2", "--calls", "5"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    assert row[0] == "worst"
    ring = [int(rank) for rank in row[1].split(",")]
    assert sorted(ring) == [0, 1, 2, 3, 4, 5]
    ends = zip(ring, [*ring[1:], ring[0]], strict=True)
    crossings = [(a, b) for a, b in ends if a % 2 != b % 2]
    assert sorted(crossings) == [(4, 1), (5, 0)]  # the fast pairs
    assert row[2] != "-"
