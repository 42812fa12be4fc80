"""What programs write line by line, read while they write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# By which a master says that it is in charge, or not any more (csrc/master/run_server.cpp).
TAKES_OVER = ("this master holds the lease of the run",)
STANDS_BY = ("standing by:", "stands by")


class GrowingFile:
    """A file that a process appends lines to; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """The whole lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


def is_in_charge(lines: Iterable[str], before: bool | None = None) -> bool | None:
    """Is the master whose log these lines are in charge after them? `before`: before them."""
    for line in lines:
        if any(words in line for words in TAKES_OVER):
            before = True
        elif any(words in line for words in STANDS_BY):
            before = False
    return before
