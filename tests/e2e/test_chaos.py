"""Short chaos runs: real processes over an emulated WAN; `scripts/chaos` is the long one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.run import NO_NAMESPACES, why_not
from conftest import ROOT

pytestmark = pytest.mark.long

MINUTES = 0.4
PROCESSES = ["kill", "leave", "join", "master-kill", "master-stop"]
LINKS = ["cut", "stop", "kill", "oneway", "leave"]
LIMIT_S = 400.0


def chaos(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "labs")])
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        cwd=ROOT,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends its processes and removes its network
        out, err = process.communicate()
        pytest.fail(f"it did not end within {LIMIT_S} s\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(
    ("seed", "replica_size", "only", "carrier"),
    [
        (1, 1, PROCESSES, "memory"),
        (2, 1, LINKS, "TLS"),
        (3, 2, PROCESSES, "TCP"),
        (4, 2, LINKS, "memory"),
        (5, 1, LINKS, "TCP"),
        (6, 1, PROCESSES, "TLS"),
    ],
    ids=[
        "processes",
        "links-encrypted",
        "processes-replicas-no-memory",
        "links-replicas",
        "links-no-memory",
        "processes-encrypted",
    ],
)
def test_all_bits_are_those_of_the_reference_whatever_is_done_to(
    seed: int, replica_size: int, only: list[str], carrier: str, tmp_path: Path
) -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"no network can be emulated here: {reason}")
    arguments = ["--seed", str(seed), "--minutes", str(MINUTES), "--out", str(tmp_path / "out")]
    arguments += ["--replica-size", str(replica_size), "--evict-after", "3"]
    arguments += ["--carrier", carrier]
    done = chaos(*arguments, "--only", *only)
    print(done.stdout)
    if done.returncode == NO_NAMESPACES:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["holds"]
    assert summary["scenarios"] >= 1
    assert summary["steps"] > 10
    assert summary["messages"] > 10
    assert summary["groups"] >= 1
    assert summary["final"]


def test_where_no_namespaces_can_be_made_it_says_so_and_ends_with_a_status_of_its_own(
    tmp_path: Path,
) -> None:
    missing = "no-such-compiler"
    done = chaos("--out", str(tmp_path / "out"), environment={"CXX": missing, "PATH": "/nowhere"})
    assert done.returncode == NO_NAMESPACES
    assert "no network can be emulated here" in done.stderr
    assert shutil.which(missing) is None
    assert len(done.stderr.splitlines()) == 1
