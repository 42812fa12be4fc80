"""The cores of this process, and the default of `PCCL_THREADS`. Loads without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

USUAL_THREADS_MAX = 4
CGROUPS = Path("/sys/fs/cgroup")  # of Linux
OWN_CGROUPS = Path("/proc/self/cgroup")


def usual_threads(cores: int | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Half of the cores, divided among the processes of a launcher on this machine; 1 to 4.

    Args:
        cores: Instead of `usable_cores()`.
        environment: Instead of `os.environ`; LOCAL_WORLD_SIZE says how many processes share them.
    """
    source = os.environ if environment is None else environment
    processes = source.get("LOCAL_WORLD_SIZE", "")
    known = processes.isascii() and processes.isdigit() and len(processes) < 10
    sharers = max(1, int(processes)) if known else 1
    there = usable_cores() if cores is None else cores
    return min(max(1, there // (2 * sharers)), USUAL_THREADS_MAX)


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Cores on which this process may run, no more than its control groups give it time for.

    Args:
        cgroups: Where the file systems of control groups are.
        own: Which ones this process is in, as /proc/self/cgroup says.
    """
    quotas = [math.ceil(quota) for quota in _quotas(cgroups, own)]
    return max(1, min([allowed_cores(), *quotas]))


def allowed_cores() -> int:
    """Cores on which the system lets this process run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Cores of each limit that holds for this process: `cpu.max`, or the two files of version 1."""
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers
        place = root / path.lstrip("/")
        for group in (place, *place.parents):
            if controllers:
                texts = [
                    _text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
                ]
            else:
                texts = _text(group / "cpu.max").split()
            if len(texts) == 2 and all(text.isdigit() and int(text) > 0 for text in texts):
                yield int(texts[0]) / int(texts[1])
            if group == root:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
