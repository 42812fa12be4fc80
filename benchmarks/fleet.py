"""A spot fleet in time lapse: 50 machines, 2 reclaimed an hour, 8 hours. What of it is training?

Simulated, with constants that benchmarks/recovery.py measures (give yours as arguments); reclaims
are a Poisson process, a replacement comes after a fixed time. Three jobs meet the same reclaims:

  elastic              the others go on after `--recovery` and `--vote`, keep the step, and stand
                       still for `--still` when the replacement is admitted
  restart, fewer       all processes start again from the last checkpoint with the machines that
                       are left, and once more when the replacement is there
  restart, all needed  the same, but nobody trains until the replacement is there

Checkpoints come at the interval that is best for such a job, sqrt(2 x writing x time between two
reclaims): Young, "A first order approximation to the optimum checkpoint interval" (1974).

Useful is time of machines in steps that count; lost are steps that were done and thrown away.

    python benchmarks/fleet.py
    python benchmarks/fleet.py --reclaims 10 --checkpoint-every 600
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass

from option_types import above_zero, number, whole


@dataclass
class Job:
    """What a job made of the hours, in machine-seconds but for `restarts`."""

    useful: float = 0.0
    lost: float = 0.0
    restarts: int = 0  # of processes that had not been reclaimed


@dataclass(order=True)
class Event:
    """A machine goes, or its replacement is there."""

    at_s: float
    change: int  # of the number of machines


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = p.add_argument
    add("--machines", type=whole(1), default=50)
    add("--reclaims", type=above_zero, default=2.0, help="an hour, of the whole fleet (default 2)")
    add("--hours", type=above_zero, default=8.0)
    add("--replacement", type=number(), default=300.0, help="seconds until one is there (300)")
    add("--recovery", type=number(), default=0.15, help="seconds after a loss (0.15)")
    add("--vote", type=number(), default=1.0, help="seconds of the boundary after a loss (1)")
    add("--admission", type=number(), default=15.0, help="seconds from start to first step (15)")
    add("--still", type=number(), default=5.0, help="seconds that the others stand still (5)")
    add("--restart", type=number(), default=120.0, help="seconds until all train again (120)")
    add("--checkpoint-every", type=number(), default=0.0, help="seconds (0: Young's optimum)")
    add("--checkpoint", type=above_zero, default=20.0, help="seconds that writing one takes (20)")
    add("--runs", type=whole(1), default=200, help="of which the mean is taken (200)")
    add("--seed", type=int, default=1)
    return p.parse_args()


def fleet(a: argparse.Namespace, chance: random.Random) -> list[Event]:
    """When machines go and come, within the hours."""
    events = []
    at_s = chance.expovariate(a.reclaims / 3600)
    while at_s < a.hours * 3600:
        events.append(Event(at_s, -1))
        events.append(Event(at_s + a.replacement, +1))
        at_s += chance.expovariate(a.reclaims / 3600)
    return sorted(event for event in events if event.at_s < a.hours * 3600)


def elastic(a: argparse.Namespace, events: list[Event]) -> Job:
    """Pauses, never goes back; a newcomer trains when it has been admitted."""
    job = Job()
    size, at_s, pause_s = a.machines, 0.0, 0.0
    arrivals = [Event(e.at_s + a.admission, +1) for e in events if e.change > 0]
    changes = sorted([*(e for e in events if e.change < 0), *arrivals])
    for event in [*changes, Event(a.hours * 3600, 0)]:
        span = max(0.0, min(event.at_s, a.hours * 3600) - at_s)
        job.useful += size * max(0.0, span - pause_s)
        pause_s = max(0.0, pause_s - span)
        at_s, size = max(at_s, event.at_s), size + event.change
        pause_s += a.recovery + a.vote if event.change < 0 else a.still
    return job


def restarting(a: argparse.Namespace, events: list[Event], all_needed: bool) -> Job:
    """Goes back to the last checkpoint at each loss; stops in good order for a newcomer."""
    job = Job()
    size = a.machines
    ready_s = 0.0  # from then on it trains
    every = a.checkpoint_every + a.checkpoint
    for event in [*events, Event(a.hours * 3600, 0)]:
        trained_s = max(0.0, event.at_s - ready_s)
        running = size == a.machines or not all_needed
        if running:
            checkpoints, since = divmod(trained_s, every)
            kept = checkpoints * a.checkpoint_every
            if event.change < 0:
                job.lost += size * min(since, a.checkpoint_every)
            else:
                kept += min(since, a.checkpoint_every)  # it writes one before it stops
            job.useful += size * kept
        if event.change == 0:
            break
        size += event.change
        if running or size == a.machines:
            job.restarts += size if event.change < 0 else size - 1
            ready_s = event.at_s + a.restart + (a.checkpoint if event.change > 0 else 0.0)
    return job


def main() -> None:
    """Simulates and prints the table."""
    a = arguments()
    a.checkpoint_every = a.checkpoint_every or math.sqrt(2 * a.checkpoint * 3600 / a.reclaims)
    jobs: dict[str, list[Job]] = {}
    reclaimed = []
    for run in range(a.runs):
        events = fleet(a, random.Random(a.seed * 1_000_003 + run))
        reclaimed.append(sum(e.change < 0 for e in events))
        jobs.setdefault("elastic", []).append(elastic(a, events))
        jobs.setdefault("restart, fewer", []).append(restarting(a, events, all_needed=False))
        jobs.setdefault("restart, all needed", []).append(restarting(a, events, all_needed=True))
    print(
        f"{a.machines} machines, {a.hours:g} hours, {statistics.mean(reclaimed):.1f} reclaimed "
        f"(mean of {a.runs} runs), checkpoints every {a.checkpoint_every:.0f} s\n"
    )
    print("| job | useful machine-hours | of all | thrown away | processes started again |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in jobs.items():
        useful = statistics.mean(job.useful for job in found) / 3600
        lost = statistics.mean(job.lost for job in found) / 3600
        restarts = statistics.mean(job.restarts for job in found)
        share = useful / (a.machines * a.hours)
        print(f"| {name} | {useful:.1f} | {share:.1%} | {lost:.1f} | {restarts:.0f} |")


if __name__ == "__main__":
    main()
