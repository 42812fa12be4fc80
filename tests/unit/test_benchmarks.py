"""Benchmarks refuse wrong options with a sentence, and a table is replaced by a whole run alone."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

NAMES = [
    *(
        "all_reduce",
        "beside_bulk",
        "collectives",
        "elastic_step",
        "encrypted",
        "few_steps",
        "fleet",
    ),
    *("load", "long_links", "lost_lanes", "quantised", "recovery", "topology"),
]


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "option", "wrong", "sentence"),
    [
        ("few_steps", "--rate-mbit", "0", "'0' is not a number above 0"),
        ("few_steps", "--sizes", "16MiB", "'16MiB' is not a list of whole numbers of 4 or more"),
        ("few_steps", "--quantise", "foo", "invalid choice: 'foo'"),
        ("few_steps", "--rtt-ms", "-5", "'-5' is not a number of 0 or more"),
        ("few_steps", "--world", "1", "'1' is not a whole number of 2 or more"),
        ("few_steps", "--calls", "0", "'0' is not a whole number of 1 or more"),
        ("all_reduce", "--rounds", "0", "'0' is not a whole number of 1 or more"),
        ("all_reduce", "--sizes", "4,", "'4,' is not a list of whole numbers of 4 or more"),
        ("all_reduce", "--seconds", "nan", "'nan' is not a number above 0"),
        ("long_links", "--loss-pct", "101", "'101' is not a number of 0 to 100"),
        ("lost_lanes", "--kinds", "half", "invalid choice: 'half'"),
        ("beside_bulk", "--rtt-ms", "0", "'0' is not a number above 0"),
        ("fleet", "--reclaims", "inf", "'inf' is not a number above 0"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    option: str,
    wrong: str,
    sentence: str,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", [name, f"{option}={wrong}"])
    module = importlib.import_module(name)
    given = (module.__doc__, {}) if name == "all_reduce" else ()
    with pytest.raises(SystemExit) as ended:
        module.arguments(*given)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {option}: {sentence}" in said, said


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_benchmark_begins_with_its_own_question(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    text = (ROOT / "benchmarks" / f"{name}.py").read_text()
    question = text.removeprefix('"""').split("\n", maxsplit=1)[0]
    assert question in done.stdout


def test_the_help_of_the_plots_draws_nothing() -> None:
    done = run("plots", "--help")
    assert done.returncode == 0, done.stderr
    assert "drawn" not in done.stdout
    assert run("plots", "--no-such-option").returncode == 2


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """scripts/bench beside a benchmark of three lines, whose table of before is there."""
    for folder in ("scripts", "benchmarks/results", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    program = "import sys\nif __name__ == '__main__':\n    print('| row |')\n"
    program += "    sys.exit(len(sys.argv) > 1)\n"
    (tmp_path / "benchmarks" / "small.py").write_text(program)
    (tmp_path / "benchmarks" / "results" / "small.md").write_text("of before\n")
    return Path(shutil.copy(ROOT / "scripts" / "bench", tmp_path / "scripts" / "bench"))


@pytest.mark.parametrize(
    ("arguments", "status", "kept"),
    [
        (["small"], 0, False),
        (["small", "fails"], 1, True),
        (["small", "--help"], 1, True),
        (["small", "x", "-h"], 1, True),
        (["smal"], 2, True),
        ([], 1, True),
    ],
)
def test_a_table_is_replaced_by_a_run_that_has_succeeded(
    bench: Path, arguments: list[str], status: int, kept: bool
) -> None:
    done = subprocess.run(
        [str(bench), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    results = bench.parents[1] / "benchmarks" / "results"
    assert [path.name for path in results.iterdir()] == ["small.md"]
    written = (results / "small.md").read_text()
    assert written == "of before\n" if kept else written.endswith("\n| row |\n")
    if arguments in (["smal"], []):
        assert "names: small" in done.stderr
