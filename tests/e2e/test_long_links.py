"""Lanes come to a link over a long line by themselves (benchmarks/long_links.py, small)."""

from __future__ import annotations

import pytest
from small_benchmarks import last_row


@pytest.mark.long
def test_a_long_line_gets_more_lanes_while_it_is_full() -> None:
    line = ["--rtt-ms", "40", "--loss-pct", "0.01", "--congestion", "reno"]
    small = ["--mib", "64", "--calls", "50", "--limit-s", "15"]
    row, log = last_row("long_links", *line, *small, PCCL_LOG_LEVEL="debug")
    assert "sends over 4 bulk lanes" in log
    assert row[:7] == ["1000", "64", "reno", "40", "0.01", "35.3", "pccl"]
    assert int(row[7]) >= 1
