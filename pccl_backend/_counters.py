"""The counters of the engine of this process."""

from __future__ import annotations

from . import _extension


def counters() -> dict[str, int]:
    """The counters of this process since its start, by name: sent, received, committed, replayed.

    Before the first group of the process all of them are 0.

    Returns:
        `bytes_sent`, `bytes_received` (payload of segments and control messages), `bytes_shared`
        (of the sent ones, those that went through shared memory), `bytes_relayed`
        (passed on between two members that cannot reach each other), `ops_committed`,
        `ops_replayed`, `ops_failed` (collectives), `epochs` (of the elastic group).
    """
    counted: dict[str, int] = _extension.library().counters()
    return counted
