"""Checks, cases and their results: data, without processes.

A check has one subject and one or more cases. A case is one function of this package that runs in
fresh processes, one for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HOLD = "PCCL_STREAM_WAIT"  # set to 1 where a case is about streams that are held


@dataclass(frozen=True)
class Case:
    """One function, run by `ranks` processes at once.

    Attributes:
        function: "module:name", ".module" is below `pccl_backend.check`; called with a `Rank`.
        name: Tells it from the other cases of its check; may be empty.
        ranks: Number of processes.
        environment: Variables that its processes get beside the caller's.
        dies: The rank that ends itself by SIGKILL, None: all ends are in good order.
        master: Whether a `pccl-master` serves the ranks; they find its URL in their folder.
        limit_s: More than the usual limit, for what takes long.
    """

    function: str
    name: str = ""
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    dies: int | None = None
    master: bool = False
    limit_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it runs with streams that are held."""
        return self.environment.get(HOLD) == "1"


@dataclass(frozen=True)
class Check:
    """One subject of the report.

    Attributes:
        name: For its line, and for --only.
        cases: They run one after the other.
        needed: Where it fails, those after it are not run.
    """

    name: str
    cases: tuple[Case, ...]
    needed: bool = False


@dataclass
class Result:
    """The result of a case.

    Attributes:
        failures: Why it failed, one text for each cause; empty: it holds.
        unsafe: What speaks against holding streams, though nothing has failed.
        brief: A few words for the line of the check.
        notes: Figures for the report.
        logs: Last lines of its processes, of a case that failed.
    """

    check: str
    case: Case
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    brief: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Names it in a report."""
        return f"{self.check} ({self.case.name})" if self.case.name else self.check
