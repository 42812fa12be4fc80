"""`python -m pccl_backend.check`: whole on this machine, and with faults that it must find."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, TORCH, wait_until

from pccl_backend.check import processes
from pccl_backend.check.cases import Case, Result

LIMIT_S = 150.0  # a machine may be 20 times slower for a while


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pccl_backend.check", "--limit", str(LIMIT_S), *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        timeout=600,
    )


@pytest.mark.long
def test_an_installation_that_is_in_order(tmp_path: Path) -> None:
    done = check("--report", str(tmp_path / "report"), RANK="3", PCCL_MASTER="pccl://127.0.0.1:1")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()[:7]
    assert [line.split()[0] for line in lines] == ["ok"] * 7
    assert max(len(line) for line in lines) <= 80
    assert re.search(r"elastic group +[\d.]+ s  one of 3 killed", lines[-1])
    assert "everything holds" in done.stdout.splitlines()[-1]
    report = (tmp_path / "report").read_text()
    assert report in done.stdout
    for name in ("torch: 2.", "built_for:", "cores:", "from_kill_to_result_s:", "open_files:"):
        assert name in report
    assert "Traceback" not in done.stdout + done.stderr


def test_a_name_that_torch_does_not_know_and_variables_that_cannot_be_read() -> None:
    done = check("--only", "build,ports", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    if TORCH < (2, 14):  # later it asks torch.distributed.backends when the name is used
        assert done.returncode == 1
        assert "torch does not know the name" in done.stdout
        assert "were not run" in done.stdout
    else:
        assert done.returncode == 0
    done = check("--only", "options", PCCL_PORTS="none")
    assert done.returncode == 1
    assert "PCCL_PORTS='none': expected two ports" in done.stdout
    done = check("--only", "options", PCCL_LOG_LEVL="debug")
    assert "PCCL_LOG_LEVEL was meant?" in done.stdout
    assert "NOT in order: options" in done.stdout.splitlines()[-1]
    assert check("--only", "nothing").returncode == 2


def test_a_reader_that_goes_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "pccl_backend.check", "--only", "options,ports"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    with running.stderr:
        assert running.stderr.read() == ""
    assert running.wait(LIMIT_S) == 1


def test_ports_that_are_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = check("--only", "ports", PCCL_PORTS=f"{port}-{port}")
    assert done.returncode == 1
    assert f"no free port: PCCL_PORTS={port}-{port}" in done.stdout


# ------------------------------------------------------------------------------ planted faults


def planted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, limit_s: float, **case: object
) -> Result:
    path = [str(ROOT), str(ROOT / "tests/e2e"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setattr(processes, "GRACE_SHARE", 2.0 / limit_s)
    made = Case(f"check_plants:{function}", **case)  # type: ignore[arg-type]
    return processes.run("planted", made, folder / "case", limit_s=limit_s, device="")


def left_behind() -> list[str]:
    every = psutil.Process().children(recursive=True)
    return [line for p in every if "pccl_backend.check" in (line := " ".join(p.cmdline()))]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("holds", ""),
        ("finds_something", "rank 1: the sky is green"),
        ("raises", "rank 0: ValueError: no such thing"),
        ("ends_early", "rank 0 has ended with status 3"),
        ("does_not_end", "rank 0 was done and has not ended within 2 s"),
        ("ends_badly", "rank 0 was done and has ended with status 5"),
        ("outlives_its_kill", "rank 1 was to end by SIGKILL; its status is 0"),
    ],
)
def test_what_a_process_of_a_check_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, expected: str
) -> None:
    dies = 1 if function == "outlives_its_kill" else None
    result = planted(tmp_path, monkeypatch, function, LIMIT_S, dies=dies)
    if expected:
        assert any(expected in failure for failure in result.failures), result.failures
    else:
        assert (result.failures, result.logs) == ([], [])
        assert (result.brief, result.notes) == ("fine", {"figure": 7})
    assert not left_behind()


def test_a_process_that_hangs_is_killed_and_its_stacks_are_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    result = planted(tmp_path, monkeypatch, "hangs", 8.0)
    assert time.monotonic() - began < 60
    assert "rank 0 was still at work; the limit is 8 s" in result.failures
    assert any("in hangs" in log for log in result.logs), result.logs
    assert not left_behind()


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "ranks", "expected"),
    [
        ("adds_wrong", 2, "all_reduce of 1000003: 1 of 1000003 values are wrong; at 999999 is"),
        ("sees_no_loss", 3, "all_reduce did not fail when rank 2 was killed"),
        ("goes_apart", 3, "the members hold different bits"),
    ],
)
def test_a_backend_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, ranks: int, expected: str
) -> None:
    elastic = function == "goes_apart"
    dies = 2 if ranks == 3 else None
    result = planted(
        tmp_path, monkeypatch, function, LIMIT_S, ranks=ranks, dies=dies, master=elastic
    )
    assert any(expected in failure for failure in result.failures), (result.failures, result.logs)


def test_the_number_of_a_process_that_has_ended_is_nobody_elses(tmp_path: Path) -> None:
    before = psutil.Process().children()
    process = processes.Process([sys.executable, "-c", ""], tmp_path / "log", dict(os.environ))
    try:
        wait_until(lambda: process.status() == 0)
        (left,) = set(psutil.Process().children()) - set(before)
        assert left.status() == psutil.STATUS_ZOMBIE, "a kill would meet another process"
    finally:
        assert process.kill()
    assert process.status() == 0
    assert process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_a_check_that_is_ended_and_no_folder_but_one_of_sigkill(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "pccl_backend.check", "--only", "elastic group"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=quiet, stderr=quiet) as started:
        family = psutil.Process(started.pid)
        wait_until(lambda: len(family.children(recursive=True)) >= 4)
        children = family.children(recursive=True)
        started.send_signal(number)
    assert len(list(tmp_path.glob("pccl-check-*"))) == (number == signal.SIGKILL)

    def lives(process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    try:
        wait_until(lambda: not any(map(lives, children)))
    finally:
        for process in filter(lives, children):
            process.kill()
