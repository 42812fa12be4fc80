"""What the checker of the chaos test has found, and the records that it judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
Records = dict[int, list[Record]]  # of each member, in its own order

CONTRADICTIONS_MAX = 20


@dataclass
class Verdict:
    """What was found. `contradictions` is empty if everything holds."""

    contradictions: list[str] = field(default_factory=list)
    steps: int = 0
    operations: int = 0
    with_fewer: int = 0  # operations in which not all members of the step are
    messages: int = 0  # received
    messages_failed: int = 0  # receives that were lost or timed out
    groups: int = 0  # members that have used a group of some ranks
    groups_failed: int = 0  # to which it has failed
    members: int = 0
    final: str = ""

    def say(self, text: str) -> None:
        if len(self.contradictions) < CONTRADICTIONS_MAX:
            self.contradictions.append(text)
