"""The tools of a case's function, in one process of the case."""

from __future__ import annotations

import datetime
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .processes import answer_of

HEAR_S = 40.0
POLL_S = 0.002


class CheckFailedError(Exception):
    """Something is not as it must be; the text is for a report."""


def demand(holds: Any, text: str) -> None:
    """Raises CheckFailedError with `text` unless `holds`."""
    if not holds:
        raise CheckFailedError(text)


class Rank:
    """What a function of a case works with.

    Attributes:
        rank: Of this process.
        size: Number of the case's processes.
        folder: Theirs.
    """

    def __init__(self, rank: int, size: int, folder: Path, device: str) -> None:
        """`device` names the module that knows the device; empty: none is used."""
        self.rank, self.size, self.folder = rank, size, folder
        self._device = device
        self._made: Any = None
        self.answer: dict[str, Any] = {"notes": {}, "unsafe": [], "brief": "", "error": ""}

    def note(self, brief: str = "", /, **notes: Any) -> None:
        """A few words for the check's line, and figures for the report."""
        self.answer["brief"] = brief or self.answer["brief"]
        self.answer["notes"].update(notes)

    def unsafe(self, reason: str) -> None:
        """Something that has not failed here, and speaks against holding streams."""
        self.answer["unsafe"].append(reason)

    def finish(self) -> None:
        """Writes the answer: what is left for this process is to end."""
        path = answer_of(self.folder, self.rank)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.answer, default=str))
        new.rename(path)

    def tell(self, word: str) -> None:
        """A word to all other ranks."""
        (self.folder / f"word-{self.rank}-{word}").touch()

    def hear(self, rank: int, word: str, *, limit_s: float = HEAR_S) -> None:
        """Waits until that rank has told this word."""
        path = self.folder / f"word-{rank}-{word}"
        self.until(path.exists, f"rank {rank} did not come to {word!r}", limit_s=limit_s)

    def until(self, condition: Callable[[], Any], text: str, *, limit_s: float = HEAR_S) -> None:
        """Waits for a condition; fails with `text`."""
        deadline = time.monotonic() + limit_s
        while not condition():
            demand(time.monotonic() < deadline, f"{text} within {limit_s:.0f} s")
            time.sleep(POLL_S)

    @property
    def device(self) -> Any:
        """The device of this rank (cuda.py)."""
        if self._made is None:
            self._made = importlib.import_module(self._device).Device(self.rank)
        return self._made

    def group(self, backend: str = "pccl", *, timeout_s: float = 60.0, **options: Any) -> Any:
        """Makes the default group of the case's ranks; returns `torch.distributed`."""
        dist: Any = importlib.import_module("torch.distributed")
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(self.folder / f"meet-{backend}"), self.size),
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=timeout_s),
            **options,
        )
        return dist
