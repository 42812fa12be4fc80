"""What masters say of themselves in their logs."""

from __future__ import annotations

from collections.abc import Iterable

# By which a master says that it is in charge, or not any more (csrc/master/run_server.cpp).
TAKES_OVER = ("this master holds the lease of the run",)
STANDS_BY = ("standing by:", "stands by")


def is_in_charge(lines: Iterable[str], before: bool | None = None) -> bool | None:
    """Is the master whose log these lines are in charge after them? `before`: before them."""
    for line in lines:
        if any(words in line for words in TAKES_OVER):
            before = True
        elif any(words in line for words in STANDS_BY):
            before = False
    return before
