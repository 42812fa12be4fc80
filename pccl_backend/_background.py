"""A call in a thread of its own that Ctrl-C never loses from sight: the write of a checkpoint."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Background:
    """A call in a thread of its own, which does not keep the program from its end.

    The call has ended when its thread has. A thread that is inside torch while the interpreter
    ends, if only to free a tensor, aborts the process ("terminate called without an active
    exception").
    """

    def __init__(self, call: Callable[..., None], *arguments: Any) -> None:
        self._word: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        what = (self._word, self._errors, call, *arguments)
        self._thread = threading.Thread(
            target=self._run, args=what, name="pccl-checkpoint", daemon=True
        )
        self._thread.start()

    def __del__(self) -> None:
        """Ends the thread of a call that nobody knows of, since Ctrl-C came before."""
        if hasattr(self, "_word"):
            self._word.put(False)

    def begin(self) -> None:
        """Lets the call begin, which its owner knows by now; a second time it does nothing."""
        self._word.put(True)

    @property
    def error(self) -> BaseException | None:
        """What the call has raised."""
        return self._errors[0] if self._errors else None

    @staticmethod
    def _run(
        word: queue.SimpleQueue[bool],
        errors: list[BaseException],
        call: Callable[..., None],
        *arguments: Any,
    ) -> None:
        try:
            if word.get():
                call(*arguments)
        except BaseException as error:
            errors.append(error)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the call has ended, for which this waits so long at most."""
        self.begin()  # Ctrl-C may have come before
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
