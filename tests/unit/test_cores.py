"""The threads of a process that is given no number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pccl_backend._cores import usable_cores, usual_threads


@pytest.mark.parametrize(
    ("cores", "processes", "threads"),
    [
        (1, "", 1),
        (2, "", 1),
        (4, "", 2),
        (64, "", 4),
        (96, "8", 4),
        (16, "4", 2),
        (16, "16", 1),
        (8, "0", 4),
        (8, "many", 4),
        (8, "9" * 5000, 4),
    ],
)
def test_half_of_the_cores_are_divided_among_the_processes_of_the_machine(
    cores: int, processes: str, threads: int
) -> None:
    assert usual_threads(cores, {"LOCAL_WORLD_SIZE": processes}) == threads


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def version_1(quota: str) -> dict[str, str]:
    place = "cpu,cpuacct/x/cpu.cfs_"
    return {f"{place}quota_us": quota, f"{place}period_us": "100000"}


@pytest.mark.parametrize(
    ("own", "texts", "cores"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "10000 100000", "a/cpu.max": "300000 100000"}, 1),
        ("12:pids:/x\n4:cpu,cpuacct:/x\n0::/\n", version_1("400000"), 4),
        ("4:cpu,cpuacct:/x\n", version_1("-1"), 64),
        ("nonsense\n\n0::\n", {"cpu.max": "much"}, 64),
    ],
)
def test_no_more_cores_count_than_the_control_groups_give_time_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, texts: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    files(tmp_path, {"own": own, **{f"groups/{name}": text for name, text in texts.items()}})
    assert usable_cores(tmp_path / "groups", tmp_path / "own") == cores


def test_without_control_groups_all_cores_count(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))
