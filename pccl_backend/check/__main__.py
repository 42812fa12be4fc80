"""The command `python -m pccl_backend.check`: is this installation in order?

One line for each check, then a report. The exit status is 0 if everything holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import plan, processes
from .cases import Check, Result
from .report import line, report

LIMIT_S = 60.0
SOAK_S = 600.0


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m pccl_backend.check",
        description="Tests this installation of pccl: the build, ports, a fixed group and an "
        "elastic one that loses a member, on this machine. Some 30 seconds. With --cuda: GPUs, "
        "and whether PCCL_STREAM_WAIT=1 is safe there. Exit status 0 if everything holds.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--cuda", action="store_true", help="test the GPUs too: 5 minutes, and a soak")
    add(
        "--soak",
        metavar="SECONDS",
        type=float,
        default=SOAK_S,
        help=f"with --cuda: how long the last check takes (default: {SOAK_S:.0f})",
    )
    add("--device", default="pccl_backend.check.cuda", help=argparse.SUPPRESS)  # for tests
    add("--only", metavar="NAME[,NAME...]", default="", help="run these checks (default: all)")
    add(
        "--limit",
        metavar="SECONDS",
        type=float,
        default=LIMIT_S,
        help=f"a part of a check that takes longer is killed (default: {LIMIT_S:.0f})",
    )
    add("--report", metavar="FILE", type=Path, help="write the report to this file too")
    return parser


def chosen(checks: tuple[Check, ...], only: str) -> list[Check]:
    """The checks that are named, or all. Raises ValueError."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {check.name for check in checks}
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no check; expected some of {', '.join(sorted(known))}")
    return [check for check in checks if not names or check.name in names]


def run(
    checks: list[Check], folder: Path, limit_s: float, device: str
) -> tuple[list[str], list[Result]]:
    """Runs the checks, with a line for each."""
    lines: list[str] = []
    results: list[Result] = []
    for check in checks:
        of_check = []
        for case in check.cases:
            place = folder / f"{len(results)}"
            of_check.append(processes.run(check.name, case, place, limit_s=limit_s, device=device))
            results.append(of_check[-1])
        lines.append(line(check.name, of_check))
        print(lines[-1], flush=True)
        if check.needed and any(result.failures for result in of_check):
            lines.append("the checks after this one were not run: they need it")
            print(lines[-1])
            break
    return lines, results


def verdict(results: list[Result]) -> list[str]:
    """Whether all is in order."""
    failed = list(dict.fromkeys(result.check for result in results if result.failures))
    if failed:
        return [f"NOT in order: {', '.join(failed)}"]
    return [f"everything holds ({sum(result.seconds for result in results):.0f} s)"]


def stream_wait(results: list[Result], *, all_were_run: bool) -> tuple[bool, list[str]]:
    """Whether streams may be held on this device, and the lines that say so."""
    reasons = [reason for result in results for reason in result.unsafe]
    reasons += [
        f"{result.title}: {result.failures[0]}"
        for result in results
        if result.failures and result.case.holds
    ]
    if reasons:
        return False, ["stream wait: unsafe", *(f"  {reason}" for reason in reasons)]
    if not all_were_run:
        return False, ["stream wait: unsafe", "  not all checks were run"]
    return True, ["stream wait: safe"]


def main(argv: list[str] | None = None) -> int:
    """Runs the checks; returns the exit status."""
    parser = build_parser()
    a = parser.parse_args(argv)
    plain, needed = plan.PLAIN, tuple(check for check in plan.PLAIN if check.needed)
    every = (*needed, *plan.of_device(a.soak)) if a.cuda else plain
    try:
        checks = chosen(every, a.only)
    except ValueError as error:
        parser.error(f"argument --only: {error}")
    folder = Path(tempfile.mkdtemp(prefix="pccl-check-"))
    try:
        lines, results = run(checks, folder, a.limit, a.device)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    end, good = verdict(results), not any(result.failures for result in results)
    if a.cuda:
        were_run = {result.check for result in results}
        all_were_run = were_run == {check.name for check in every}
        safe, said = stream_wait(results, all_were_run=all_were_run)
        good, end = good and safe, [*end, *said]
    text = report(lines, results, end)
    if a.report is not None:
        a.report.write_text(text + "\n")
    print(f"\nreport, to paste into an issue:\n{text}\n")
    print("\n".join(end))
    return 0 if good else 1


def command() -> int:
    """Runs `main`, and ends without a traceback if the reader of the output is gone (`| head`)."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # its folder goes
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes at its end once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(command())
