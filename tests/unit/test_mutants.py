"""The faults in tests/sim/engine/mutants can be planted into the engine; scripts/sim walks them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import ROOT

MUTANTS = ROOT / "tests" / "sim" / "engine" / "mutants"
FEWEST = 15


def check(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MUTANTS / "walk", "--check", *names], capture_output=True, text=True, timeout=60
    )


def test_all_of_them_apply_to_the_sources() -> None:
    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(list(MUTANTS.glob("*.patch")))
    assert count >= FEWEST
    assert done.stdout.strip() == f"{count} mutants apply"


def test_one_that_is_not_there_is_an_error() -> None:
    done = check("nowhere")
    assert done.returncode != 0
    assert "there is no" in done.stdout


def test_one_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    lines = ["--- a/scripts/sim", "+++ b/scripts/sim", "@@ -1 +1 @@", "-not there", "+there", ""]
    (tmp_path / "wrong.patch").write_text("\n".join(lines))
    done = check(os.path.relpath(tmp_path / "wrong", MUTANTS))
    assert done.returncode != 0
    assert "does not apply" in done.stdout
