"""Judges the demo from the workers' own records.

Each claim is checked, written to summary.txt and summary.json, and printed with the figures it
rests on. From the process that runs the demo only the record of the kill is used.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from typing import TYPE_CHECKING

from .picture import draw
from .seen import COLUMNS, Kill, Worker, headline, step_of

if TYPE_CHECKING:
    from .__main__ import Demo

LOSS_FALLS_TO = 0.9  # of what it was
COSTS_AT_MOST = 0.05  # of the fall that the run without faults has
SHOWN = 16  # digits of a hash


def judge(demo: Demo, twin: Demo) -> bool:
    """Writes summary and picture; returns whether every claim holds."""
    assert demo.kill is not None
    kill = demo.kill
    survivors = [w for w in demo.workers[:3] if w.number != kill.worker]
    newcomers = demo.workers[3:]
    members = [*survivors, *newcomers]
    seconds = time.monotonic() - demo.show.began
    claims: list[tuple[bool, str]] = [
        claim_killed_in_flight(kill, survivors),
        claim_same_processes(survivors),
        *[claim_no_gap(worker, demo.steps) for worker in members],
        *[claim_joined(worker) for worker in newcomers],
        claim_loss(survivors, twin),
        *claim_parity(members),
        claim_standstill(kill, survivors),
    ]
    held = all(holds for holds, _ in claims)
    lines = [folded("", headline(kill, survivors))]
    lines += [folded(f"{'holds ' if holds else 'FAILED'}  ", text) for holds, text in claims]
    lines.append(f"picture: {draw(demo, twin)}")
    took = f"; all of it took {seconds:.0f} s"
    lines.append(("everything holds" if held else "NOT everything holds") + took)
    text = "\n".join(lines)
    print(f"\n{text}")
    (demo.out / "summary.txt").write_text(text + "\n")
    summary = {"holds": held, "claims": [{"holds": h, "claim": t} for h, t in claims]}
    (demo.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return held


def folded(head: str, text: str) -> str:
    """Lines of 80 columns that end between words, and not within a number and its unit."""
    kept = re.sub(r"(\d) (s|bytes)\b", "\\1\u00a0\\2", text)  # a number and its unit
    indent = " " * len(head)
    lines = textwrap.fill(kept, COLUMNS, initial_indent=head, subsequent_indent=indent)
    return lines.replace("\u00a0", " ")


def claim_killed_in_flight(kill: Kill, survivors: list[Worker]) -> tuple[bool, str]:
    """Bytes had left, it was not committed, and the survivors did it again without the victim."""
    records = [step_of(worker, kill) for worker in survivors]
    numbers = [worker.number for worker in survivors]
    replayed = all(
        r
        and r["contributors"] == numbers
        and all(abs(share - 1 / len(numbers)) < 1e-6 for share in r["shares"])
        and r["epochs"][0] == kill.epoch
        and r["epochs"][1] != kill.epoch
        for r in records
    )
    epochs = sorted({r["epochs"][1] for r in records if r})
    return replayed and kill.bytes_sent > 0, (
        f"operation {kill.operation}: {kill.bytes_sent} bytes of it had left when worker "
        f"{kill.worker} was killed, and it was not committed in epoch {kill.epoch}; its result "
        f"came in epoch {', '.join(epochs)} from workers {numbers} alone"
    )


def claim_same_processes(survivors: list[Worker]) -> tuple[bool, str]:
    """The survivors were never restarted, and ended in good order."""
    pids = [{record["pid"] for record in worker.records} for worker in survivors]
    same = all(
        found == {worker.process.pid} and worker.process.returncode == 0 and worker.of("end")
        for found, worker in zip(pids, survivors, strict=True)
    )
    named = ", ".join(f"worker {w.number} is process {w.process.pid}" for w in survivors)
    return same, f"same processes from start to end, exit status 0: {named}"


def claim_no_gap(worker: Worker, steps: int) -> tuple[bool, str]:
    """The worker's step counter goes up by one each time, to the last step."""
    counted = [int(record["step"]) for record in worker.of("step")]
    whole = bool(counted) and counted == list(range(counted[0], steps + 1))
    span = f"{counted[0]} to {counted[-1]}" if counted else "none"
    return whole, f"worker {worker.number} did steps {span} without a gap"


def claim_joined(worker: Worker) -> tuple[bool, str]:
    """The newcomer got the state and contributed from its first step on."""
    boundary = next((b for b in worker.of("boundary") if b["admitted"]), {})
    steps = worker.of("step")
    took_part = bool(steps) and all(worker.number in s["contributors"] for s in steps)
    holds = bool(boundary) and took_part and steps[0]["step"] == boundary["revision"] + 1
    return bool(holds), (
        f"worker {worker.number} joined at step {boundary.get('revision')} in "
        f"{boundary.get('paused_s', 0):.2f} s at the door, received "
        f"{boundary.get('bytes_received', 0)} bytes, and contributed to all steps since"
    )


def claim_loss(survivors: list[Worker], twin: Demo) -> tuple[bool, str]:
    """The shared model's loss fell, as far as it does without faults."""
    losses = [float(record["loss"]) for record in survivors[0].of("shared")]
    undisturbed = [float(record["loss"]) for record in twin.workers[0].of("shared")]
    if not losses or not undisturbed:
        return False, "the loss fell: no record of it"
    first, last, other = losses[0], losses[-1], undisturbed[-1]
    holds = last < LOSS_FALLS_TO * first and last - other < COSTS_AT_MOST * (first - other)
    return holds, (
        f"the loss fell from {first:.3f} to {last:.3f}; without faults to {other:.3f} (of the "
        "shared model, on text that nobody trains on)"
    )


def claim_parity(members: list[Worker]) -> list[tuple[bool, str]]:
    """All hold the same bits at the end, and did after each step that they did together."""
    last = [worker.of("final")[-1]["hashes"] if worker.of("final") else {} for worker in members]
    claims = []
    for name in ("model", "outer", "outer_optimizer"):
        found = {hashes.get(name) for hashes in last}
        shown = ", ".join(str(digest)[:SHOWN] for digest in found)
        what = name.replace("_", " ")
        claims.append(
            (len(found) == 1 and None not in found, f"all members hold the same {what}: {shown}")
        )
    inner = {hashes.get("inner_optimizer") for hashes in last}
    claims.append((len(inner) == len(members), "their inner optimizers differ, as they should"))
    steps: dict[int, set[str]] = {}
    for worker in members:
        for record in worker.of("step"):
            hashes = record["hashes"]
            steps.setdefault(record["step"], set()).add(hashes["outer"] + hashes["outer_optimizer"])
    apart = sorted(step for step, found in steps.items() if len(found) > 1)
    but = f" but for {apart}" if apart else ""
    claims.append((not apart, f"and did after each of {len(steps)} steps{but}"))
    return claims


def claim_standstill(kill: Kill, survivors: list[Worker]) -> tuple[bool, str]:
    """How long the survivors stood still: from the SIGKILL to their result."""
    records = [step_of(worker, kill) for worker in survivors]
    if not all(records):
        return False, "the survivors stood still: no record of the step of the loss"
    waits = [record["times"]["reduced"] - kill.killed for record in records]
    held = kill.killed - kill.stopped
    shown = ", ".join(f"worker {w.number} {s:.2f} s" for w, s in zip(survivors, waits, strict=True))
    return max(waits) < 10.0, (
        f"from the kill to their result the survivors stood still: {shown} "
        f"(before it the victim was held for {held:.2f} s, to see that nobody had a commit)"
    )
