"""The workers as the demo sees them from outside, by records and status; and the kill."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .growing_file import GrowingFile
from .worker import Status

COLUMNS = 80  # of a terminal
READS = 100  # of a status that is just being written


@dataclass
class Worker:
    """A worker process, as seen from outside."""

    number: int
    process: subprocess.Popen[bytes]
    records_path: Path
    log_path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    _status: Status | None = None

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self._file = GrowingFile(self.records_path)

    def read(self) -> list[dict[str, Any]]:
        """The records that are new since the last call."""
        new = [json.loads(line) for line in self._file.new_lines()]
        self.records.extend(new)
        return new

    def of(self, what: str) -> list[dict[str, Any]]:
        """The worker's records of one kind."""
        return [record for record in self.records if record["what"] == what]

    @property
    def step(self) -> int:
        """Outer steps that it has done."""
        steps = self.of("step")
        return int(steps[-1]["step"]) if steps else 0

    def status(self) -> dict[str, Any] | None:
        """What it says about its operations in flight, now."""
        path = self.records_path.with_suffix(".status")
        if self._status is None and path.exists() and path.stat().st_size > 0:
            self._status = Status(path)
        for _ in range(READS):
            found: dict[str, Any] | None = None if self._status is None else self._status.read()
            if found is not None:
                return found
        return None


@dataclass
class Kill:
    """The kill, and the victim's status just before it."""

    worker: int
    operation: str
    bytes_sent: int
    epoch: str
    stopped: float
    killed: float


def step_of(worker: Worker, kill: Kill) -> dict[str, Any]:
    """The worker's record of the step in which the kill happened; empty if there is none."""
    number = int(kill.operation.partition(".")[0])
    return next((s for s in worker.of("step") if s["engine_step"] == number), {})


def headline(kill: Kill, survivors: list[Worker]) -> str:
    """A line about the kill, before which the victim was stopped, half way in its operation."""
    seconds = max(step_of(w, kill)["times"]["reduced"] - kill.killed for w in survivors)
    return (
        f"KILLED worker {kill.worker} half way through sending; the survivors redid the "
        f"reduction in {seconds:.2f} s"
    )
