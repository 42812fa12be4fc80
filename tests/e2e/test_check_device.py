"""`python -m pccl_backend.check --cuda` on the fake device: whole, and with faults in it.

What runs is what runs on a GPU, but for the device (tests/fake_device/check_device.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

from pccl_backend.check import cuda, plan, processes
from pccl_backend.check.__main__ import stream_wait, verdict
from pccl_backend.check.cases import Case, Result

sys.path.insert(0, str(ROOT / "tests" / "fake_device"))
import fake_device

LIMIT_S = 200.0  # a machine may be 20 times slower for a while
SOAK_S = 4.0
CHECKS = {check.name: check for check in plan.of_device(SOAK_S)}
PATH = [str(ROOT), str(ROOT / "tests" / "fake_device"), os.environ.get("PYTHONPATH", "")]


@pytest.fixture(scope="module", autouse=True)
def _built() -> Iterator[None]:
    fake_device.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(PATH))
        yield


def run(folder: Path, name: str, case: Case, limit_s: float = LIMIT_S) -> Result:
    return processes.run(name, case, folder / "case", limit_s=limit_s, device="check_device")


def case_of(check: str, name: str) -> Case:
    [found] = [case for case in CHECKS[check].cases if case.name == name]
    return found


def test_the_fifteen_checks_are_there() -> None:
    assert len(CHECKS) == 15
    held = [check.name for check in CHECKS.values() if any(case.holds for case in check.cases)]
    assert set(CHECKS) - set(held) == {"GPU"}


def test_a_check_of_a_device_holds_on_the_fake_one(tmp_path: Path) -> None:
    result = run(tmp_path, "first use", case_of("first use", "stream waits"))
    assert (result.failures, result.logs) == ([], [])


@pytest.mark.long
def test_all_checks_hold_on_the_fake_device() -> None:
    command = [sys.executable, "-m", "pccl_backend.check", "--cuda", "--device", "check_device"]
    command += ["--limit", str(LIMIT_S), "--soak", str(SOAK_S)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1500)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert [line.split()[0] for line in lines[:17]] == ["ok"] * 17
    assert max(len(line) for line in lines[:17]) <= 80
    assert lines[-1] == "stream wait: safe"
    assert lines[-2].startswith("everything holds")


@pytest.mark.long
def test_a_machine_without_a_gpu() -> None:
    command = [sys.executable, "-m", "pccl_backend.check", "--cuda", "--limit", str(LIMIT_S)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 1
    assert "torch sees no GPU here" in done.stdout
    assert "were not run" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["stream wait: unsafe", "  not all checks were run"]


# ------------------------------------------------------------------------------ the verdict


def result(check: str, name: str = "", failure: str = "", unsafe: str = "") -> Result:
    environment = {"PCCL_STREAM_WAIT": "1"} if "stream" in name else {}
    case = Case("none:none", name, environment=environment)
    texts = [failure] if failure else []
    return Result(check, case, failures=texts, unsafe=[unsafe] if unsafe else [])


@pytest.mark.parametrize(
    ("results", "all_were_run", "safe", "lines"),
    [
        ([result("order", "stream waits")], True, True, ["stream wait: safe"]),
        ([result("order", "CPU waits", "wrong")], True, True, ["stream wait: safe"]),
        (
            [result("order", "stream waits", "it hangs")],
            True,
            False,
            ["stream wait: unsafe", "  order (stream waits): it hangs"],
        ),
        (
            [result("GPU", unsafe="a display")],
            True,
            False,
            ["stream wait: unsafe", "  a display"],
        ),
        ([result("GPU")], False, False, ["stream wait: unsafe", "  not all checks were run"]),
    ],
)
def test_what_makes_the_verdict(
    results: list[Result], all_were_run: bool, safe: bool, lines: list[str]
) -> None:
    assert stream_wait(results, all_were_run=all_were_run) == (safe, lines)


def test_what_is_not_in_order_is_named_once() -> None:
    found = [result("order", "a", "x"), result("order", "b", "y"), result("ends"), result("soak")]
    assert verdict(found) == ["NOT in order: order"]


# ------------------------------------------------------------------------------ planted faults


Plant = tuple[str, str, str, str]  # the fault, the check, the name of its case, what the check says
FOUND_BY_WAITING: list[Plant] = [
    ("no hold", "streams", "stream waits", "rank 0 did not come to 'held-0'"),
    ("queue", "queue full", "stream waits", "rank 0 was still at work"),
    ("calls", "held calls", "stream waits", "ended after"),
    ("stuck", "first use", "stream waits", "has not returned from a call"),
    ("stuck", "copies", "stream waits", "rank 0 was still at work"),
]
FOUND_AT_ONCE: list[Plant] = [
    ("wrong", "GPU results", "CPU waits", "1 of 2000001 values are wrong; at 2000000 is"),
    ("context", "GPU results", "one GPU, CPU waits", "it has used [0, 1]"),
    ("unordered", "order", "CPU waits", "a reader behind wait(), round 0"),
    ("unordered", "order", "stream waits", "a reader behind wait(), round 0"),
    ("no hold", "order", "stream waits", "wait() held the CPU: no stream was held"),
    ("capture", "graphs", "stream waits", "the capture was spoiled"),
    ("busy", "ends", "killed, stream waits", "the stream was not free after the kill"),
    ("barrier", "torch calls", "device_id, CPU waits", "barrier() passed an open all_reduce"),
    ("alone", "trainers", "CPU waits", "DDP trains other weights than gloo"),
    ("leak", "memory", "CPU waits", "was not given back"),
    ("leak", "soak", "stream waits", "MiB more than after"),
]


def planted(folder: Path, plant: str, check: str, name: str, limit_s: float) -> Result:
    case = case_of(check, name)
    environment = {**case.environment, "CHECK_PLANT": plant}
    if plant == "no hold":
        environment["SLOW_RUNTIME"] = "0"
    changed = Case(case.function, name, environment=environment, ranks=case.ranks, dies=case.dies)
    return run(folder, check, changed, limit_s)


def expect_found(found: Result, expected: str) -> None:
    assert any(expected in failure for failure in found.failures), (found.failures, found.logs)


@pytest.mark.long
@pytest.mark.parametrize("fault", FOUND_AT_ONCE, ids="-".join)
def test_a_check_finds_what_is_planted(tmp_path: Path, fault: Plant) -> None:
    *asked, expected = fault
    expect_found(planted(tmp_path, *asked, LIMIT_S), expected)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Plant, Future[Result]]]:
    """All of these cases at once: each waits idly for a limit that shows its fault."""

    def begin(fault: Plant) -> Future[Result]:
        *asked, expected = fault
        # Without a fault these take 18 s beside each other, and 37 s on one core.
        limit_s = 90.0 if "still at work" in expected else LIMIT_S
        return pool.submit(planted, tmp_path_factory.mktemp("planted"), *asked, limit_s)

    with ThreadPoolExecutor(len(FOUND_BY_WAITING)) as pool:
        yield {fault: begin(fault) for fault in FOUND_BY_WAITING}


@pytest.mark.long
@pytest.mark.parametrize("fault", FOUND_BY_WAITING, ids="-".join)
def test_a_check_finds_what_is_planted_when_it_has_waited(
    waiting: dict[Plant, Future[Result]], fault: Plant
) -> None:
    expect_found(waiting[fault].result(), fault[-1])


def test_a_device_whose_kernels_are_ended_is_unsafe(tmp_path: Path) -> None:
    found = planted(tmp_path, "display", "GPU", "", LIMIT_S)
    assert (found.failures, found.unsafe) == ([], ["it drives a display"])


# ------------------------------------------------------------------------------ the real device


def public(device: type) -> set[str]:
    return {name for name in vars(device) if not name.startswith("_")}


def test_the_fake_device_has_the_shape_of_a_gpu() -> None:
    import check_device

    set_by_gpu = {"count", "index"}  # when a process has looked how many there are
    assert public(check_device.Device) - set_by_gpu == public(cuda.Device)


def test_what_is_asked_of_a_gpu_is_in_the_torch_that_is_here() -> None:
    import torch

    text = Path(cuda.__file__).read_text()
    names = set(re.findall(r"torch\.cuda\.(\w+)", text))
    assert len(names) > 10
    assert not [name for name in names if not hasattr(torch.cuda, name)]
