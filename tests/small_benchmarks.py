"""Benchmarks on emulated hosts, run small: what they print is what a test looks at."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT


def last_row(
    name: str, *options: str, timeout_s: float = 240, **variables: str
) -> tuple[list[str], str]:
    """The cells of the last row that benchmarks/NAME.py prints, and what it logs.

    Skips the test where no network can be emulated.
    """
    from chaos.run import why_not

    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    return row, done.stderr
