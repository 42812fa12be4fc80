"""Connections of a long line that are cut, or swallow all data, cost an operation nothing but time
(benchmarks/lost_lanes.py, small)."""

from __future__ import annotations

import pytest
from small_benchmarks import last_row


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cut", "hole"])
def test_operations_go_on_without_connections_that_are_lost(kind: str) -> None:
    line = ["--rtt-ms", "40", "--no-bbr", "--mib", "32", "--calls", "20"]
    row, _ = last_row("lost_lanes", "--kinds", kind, *line, timeout_s=400)
    assert row[0] == kind
    if kind == "cut":
        assert int(row[2]) >= 3
    else:
        # Longer than what it takes to see that a connection is stuck; its time-out is 30 s.
        assert float(row[4]) < 25
