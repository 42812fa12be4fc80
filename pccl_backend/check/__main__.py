"""The command `python -m pccl_backend.check`: is this installation in order?

One line for each check, then a report. The exit status is 0 if everything holds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from . import plan, processes
from .cases import Check, Result
from .report import line, report

LIMIT_S = 60.0


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m pccl_backend.check",
        description="Tests this installation of pccl: the build, ports, a fixed group and an "
        "elastic one that loses a member, on this machine. Some 30 seconds. Exit status 0 if "
        "everything holds.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--only", metavar="NAME[,NAME...]", default="", help="these checks (default: all)")
    add(
        "--limit",
        metavar="SECONDS",
        type=float,
        default=LIMIT_S,
        help=f"for each part of a check; what still runs is killed (default: {LIMIT_S:.0f})",
    )
    add("--report", metavar="FILE", type=Path, help="writes the report there too")
    return parser


def chosen(checks: tuple[Check, ...], only: str) -> list[Check]:
    """Those that are named, or all. Raises ValueError."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {check.name for check in checks}
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no check; expected some of {', '.join(sorted(known))}")
    return [check for check in checks if not names or check.name in names]


def run(checks: list[Check], folder: Path, limit_s: float) -> tuple[list[str], list[Result]]:
    """Runs the checks, with a line for each."""
    lines: list[str] = []
    results: list[Result] = []
    for check in checks:
        of_check = []
        for case in check.cases:
            place = folder / f"{len(results)}"
            of_check.append(processes.run(check.name, case, place, limit_s=limit_s, device=""))
            results.append(of_check[-1])
        lines.append(line(check.name, of_check))
        print(lines[-1], flush=True)
        if check.needed and any(result.failures for result in of_check):
            lines.append("the checks after this one were not run: they need it")
            print(lines[-1])
            break
    return lines, results


def verdict(results: list[Result]) -> list[str]:
    """The last lines."""
    failed = sorted({result.check for result in results if result.failures})
    seconds = sum(result.seconds for result in results)
    if failed:
        return [f"NOT in order: {', '.join(failed)}"]
    return [f"everything holds ({seconds:.0f} s)"]


def main(argv: list[str] | None = None) -> int:
    """Runs the checks; returns the exit status."""
    parser = build_parser()
    a = parser.parse_args(argv)
    try:
        checks = chosen(plan.PLAIN, a.only)
    except ValueError as error:
        parser.error(f"argument --only: {error}")
    folder = Path(tempfile.mkdtemp(prefix="pccl-check-"))
    try:
        lines, results = run(checks, folder, a.limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    end = verdict(results)
    text = report(lines, results, end)
    if a.report is not None:
        a.report.write_text(text + "\n")
    print(f"\nreport, to paste into an issue:\n{text}\n")
    print("\n".join(end))
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
