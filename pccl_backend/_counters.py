"""What the engine of this process has counted."""

from __future__ import annotations

from . import _extension


def counters() -> dict[str, int]:
    """What this process has sent, received, committed and replayed since its start, by name.

    Before the first group of the process all of them are 0.

    Returns:
        `bytes_sent`, `bytes_received` (payload of segments and control messages), `bytes_relayed`
        (passed on between two members that cannot reach each other), `ops_committed`,
        `ops_replayed`, `ops_failed` (collectives), `epochs` (of the elastic group).
    """
    counted: dict[str, int] = _extension.library().counters()
    return counted
