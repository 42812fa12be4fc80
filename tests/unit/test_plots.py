"""The pictures of docs/benchmarks.md are those of the tables in benchmarks/results."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_pictures_are_of_the_newest_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    drawn = importlib.import_module("plots").drawn()
    assert {path.name for path in drawn} == {"long-lines.svg", "grid.svg", "few-steps.svg"}
    for path, picture in drawn.items():
        assert path.read_text() == picture, f"{path}: run python benchmarks/plots.py"
        assert "nan" not in picture
    shown = (ROOT / "docs" / "benchmarks.md").read_text()
    assert all(f"images/{path.name}" in shown for path in drawn)
