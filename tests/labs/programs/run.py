"""Runs the programs of this folder, each over gloo and then over pccl, and compares their reports.

scripts/programs calls it, and the test of those that need torch only. Both runs of a program must
report the same, to the last bit: with two ranks a sum has one order. What a program has saved it
must find again, on whatever number of ranks. No process outlives its deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BACKENDS = ("gloo", "pccl")
GRACE_S = 40.0  # torchrun kills its ranks 30 s after it has asked them to end


@dataclass(frozen=True)
class Run:
    """One call of torchrun."""

    script: str
    ranks: int = 2
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """Runs in one folder, one after another, and the packages whose versions matter."""

    packages: tuple[str, ...]
    runs: tuple[Run, ...]


PROGRAMS = {
    "ddp": Program(("torch",), (Run("ddp.py"),)),
    "fsdp2": Program(("torch",), (Run("fsdp2.py"),)),
    "checkpoint": Program(
        ("torch",),
        (Run("checkpoint.py"), Run("checkpoint.py", ranks=1, flags=("--load",))),
    ),
    "accelerate": Program(("accelerate",), (Run("accelerate_train.py"),)),
    "trainer": Program(("transformers", "accelerate"), (Run("trainer.py"),)),
    "lightning_ddp": Program(("lightning",), (Run("lightning_ddp.py"),)),
    "lightning_fsdp2": Program(("lightning",), (Run("lightning_fsdp2.py"),)),
}


class Failed(Exception):
    """A program did not end as it should; the text says how, with the end of what it wrote."""


def torchrun(run: Run, backend: str, folder: Path, timeout_s: float) -> dict[str, Any]:
    """What rank 0 of the program reported."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(run.ranks), str(HERE / run.script), backend]
    command += ["--folder", str(folder), *run.flags]
    environment = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "PCCL_LOG_LEVEL": "warning",
        **os.environ,
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
        log.seek(0)
        lines = log.read().splitlines()
    tail = "\n".join(lines[-60:])
    if status is None:
        raise Failed(f"did not end within {timeout_s:.0f} s\n{tail}")
    if status != 0:
        raise Failed(f"ended with status {status}\n{tail}")
    reports = [json.loads(line) for line in lines if line.startswith('{"program"')]
    if len(reports) != 1:
        raise Failed(f"reported {len(reports)} times\n{tail}")
    return reports[0]


def end(process: subprocess.Popen[str]) -> None:
    """Ends torchrun, which then ends its ranks: they are in sessions of their own."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def outcomes(program: Program, backend: str, timeout_s: float) -> list[dict[str, Any]]:
    """The reports of a program's runs over one backend."""
    reports = []
    with tempfile.TemporaryDirectory(prefix="pccl-programs-") as folder:
        for run in program.runs:
            report = torchrun(run, backend, Path(folder), timeout_s)
            if report.pop("backend") != backend:
                raise Failed(f"ran over another backend than {backend}: {report}")
            if report.pop("ranks") != run.ranks:
                raise Failed(f"ran on another number of ranks than {run.ranks}: {report}")
            reports.append(report)
    if any(report["digests"] != reports[0]["digests"] for report in reports):
        raise Failed("loaded other weights than it saved:\n" + "\n".join(map(str, reports)))
    return reports


def compare(name: str, timeout_s: float) -> tuple[str, str]:
    """A row of the table, and what went wrong, or nothing."""
    program = PROGRAMS[name]
    got, took, wrong = [], [], ""
    for backend in BACKENDS:
        began = time.monotonic()
        try:
            got.append(outcomes(program, backend, timeout_s))
            took.append(f"{time.monotonic() - began:.1f} s")
        except Failed as failure:
            wrong += f"== {name} over {backend} {failure}\n"
            took.append("failed")
    if not wrong and got[0] != got[1]:
        wrong = f"== {name} differs\n{got[0]}\n{got[1]}\n"
    packages = ", ".join(f"{package} {version(package)}" for package in program.packages)
    same = "no" if wrong else "yes"
    return f"{name:16} {packages:38} {took[0]:>9} {took[1]:>9}  {same}", wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a run")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PROGRAMS)
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    print(f"{'program':16} {'of':38} {'gloo':>9} {'pccl':>9}  same", flush=True)
    failures = []
    for name in arguments.names or PROGRAMS:
        row, wrong = compare(name, arguments.timeout)
        print(row, flush=True)
        if wrong:
            failures.append(wrong)
    print(*failures, sep="\n", file=sys.stderr, end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
