"""What the checks print: a line for each, then a report that can be pasted into an issue."""

from __future__ import annotations

import textwrap

from .cases import Result

WIDTH = 80
NAME = 15


def line(name: str, results: list[Result]) -> str:
    """The line of a check."""
    failures = [failure for result in results for failure in result.failures]
    brief = failures[0] if failures else next((r.brief for r in results if r.brief), "")
    seconds = sum(result.seconds for result in results)
    head = f"{'FAILED' if failures else 'ok':6s} {name:{NAME}s} {seconds:5.1f} s  "
    return head + textwrap.shorten(brief, WIDTH - len(head), placeholder=" …")


def report(lines: list[str], results: list[Result], verdict: list[str]) -> str:
    """Lines, figures of every case, causes and logs of those that failed, verdict: Markdown."""
    text = ["```", "pccl_backend.check", *lines, "", *verdict, ""]
    for result in results:
        text.append(f"{result.title}: {result.seconds:.1f} s")
        text += [f"  {name}: {value}" for name, value in result.notes.items()]
        text += [f"  unsafe: {reason}" for reason in result.unsafe]
        text += [f"  FAILED: {failure}" for failure in result.failures]
        text += [textwrap.indent(log, "    ") for log in result.logs]
    return "\n".join([*text, "```"])
