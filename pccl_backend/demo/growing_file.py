"""A file that a process appends lines to, read while it writes."""

from __future__ import annotations

from pathlib import Path


class GrowingFile:
    """Of lines, which are read when they are whole; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
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
