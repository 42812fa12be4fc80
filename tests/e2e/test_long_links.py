"""Lanes come to a link over a long line by themselves (benchmarks/long_links.py, small)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.run import why_not

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "long_links.py"


@pytest.mark.long
def test_a_long_line_gets_more_lanes_while_it_is_full() -> None:
    if reason := why_not():
        pytest.skip(reason)
    line = ["--rtt-ms", "40", "--loss-pct", "0.01", "--congestion", "reno"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *line, "--mib", "64", "--calls", "50", "--limit-s", "15"],
        env={**os.environ, "PCCL_LOG_LEVEL": "debug"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sends over 4 bulk lanes" in done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    assert row[:7] == ["1000", "64", "reno", "40", "0.01", "35.3", "pccl"]
    assert int(row[7]) >= 1
