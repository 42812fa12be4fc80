"""Members of two emulated continents that came in turns (benchmarks/topology.py, small)."""

from __future__ import annotations

import pytest
from small_benchmarks import last_row


@pytest.mark.long
def test_a_boundary_adopts_the_ring_that_crosses_the_ocean_twice() -> None:
    # Slow lines: an emulator that is held up for a while drops less of them.
    small = ["--kinds", "worst", "--mib", "1", "--slower", "4", "--calls", "3", "--limit-s", "480"]
    row, _ = last_row("topology", *small, timeout_s=600)
    assert row[0] == "worst"
    ring = [int(rank) for rank in row[1].split(",")]
    assert sorted(ring) == [0, 1, 2, 3, 4, 5]
    ends = zip(ring, [*ring[1:], ring[0]], strict=True)
    crossings = [(a, b) for a, b in ends if a % 2 != b % 2]
    assert len(crossings) == 2, ring  # of six; where the emulator is held up, not the fast pairs
    assert row[2] != "-"
