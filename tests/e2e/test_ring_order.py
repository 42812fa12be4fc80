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
    # Slow lines: an emulator that is held up for a while drops less of them.
    small = ["--kinds", "worst", "--mib", "1", "--slower", "4", "--calls", "3", "--limit-s", "480"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *small],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    assert row[0] == "worst"
    ring = [int(rank) for rank in row[1].split(",")]
    assert sorted(ring) == [0, 1, 2, 3, 4, 5]
    ends = zip(ring, [*ring[1:], ring[0]], strict=True)
    crossings = [(a, b) for a, b in ends if a % 2 != b % 2]
    assert len(crossings) == 2, ring  # of six; where the emulator is held up, not the fast pairs
    assert row[2] != "-"
