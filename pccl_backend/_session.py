"""The state of the elastic group that outlives a call: the conversation at a boundary, the events.

Used by the code that makes groups and by the code of the calls, so that each of the two can end a
conversation that the other one has begun.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from . import _events, _extension, _rank_tables


@dataclass
class Talk:
    """The conversation with the engine at a boundary, which outlives a call that was interrupted.

    After Ctrl-C, or an error in the caller's state, the peer still stands at the boundary: the next
    call goes on with the question that was not answered.

    Attributes:
        is_open: The peer stands at the boundary.
        before: `group_view()` when the peer came to the boundary.
        unanswered: The question of the engine that was not answered.
        adopts: The engine was asked whether a state may be replaced, has not refused, and has not
            yet been told whether the state was replaced.
        fetched: Parts of the state that were fetched and checked, for the next call.
        revision: Revision of the state at the last `refresh`; None: there was no state.
        had_state: There was one at the `refresh` before.
        left: The boundary at which this peer has left the run.
        replica_size: Ranks of this peer's replica.
    """

    is_open: bool = False
    before: dict[str, Any] = field(default_factory=dict)
    unanswered: dict[str, Any] | None = None
    adopts: bool = False
    fetched: Any = None
    revision: int | None = None
    had_state: bool = False
    left: Any = None
    replica_size: int = 1

    def end(self) -> None:
        """The boundary is over."""
        self.is_open, self.unanswered, self.adopts, self.fetched = False, None, False, None


talk = Talk()


def watch(module: Any) -> None:
    """A new elastic group: boundary and hooks of one that is gone are forgotten."""
    talk.end()
    talk.revision = talk.left = None
    talk.replica_size = 1
    _events.forget()
    module.set_event_sink(on_event)


def on_event(event: dict[str, Any]) -> None:
    """Follows a change of membership (the engine logs it), on the extension's own thread."""
    if event.get("what") == "epoch":
        with contextlib.suppress(RuntimeError):  # the interpreter, or the group, is going down
            _rank_tables.sync_tables(_extension.extension())
    _events.tell(event)
