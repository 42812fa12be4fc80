"""A program as its users write it, over gloo and over pccl; scripts/programs runs all of them."""

import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAMS = ROOT / "tests" / "labs" / "programs"


@pytest.mark.long
def test_ddp_ends_with_the_bits_that_gloo_gives() -> None:
    run = subprocess.run(
        [sys.executable, PROGRAMS / "run.py", "ddp", "--timeout", "90"],
        capture_output=True,
        text=True,
        timeout=1200,  # more than all of its deadlines together: it ends what it has started
    )
    assert run.returncode == 0, run.stdout + run.stderr[-8000:]


def test_a_programs_backend_is_all_that_names_us() -> None:
    for script in PROGRAMS.glob("*.py"):
        assert "pccl_backend" not in script.read_text(), script.name
