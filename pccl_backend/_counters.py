"""The counters of the engine of this process."""

from __future__ import annotations

from typing import Any

from . import _extension


def counters() -> dict[str, int]:
    """The counters of this process since its start, by name: sent, received, committed, replayed.

    Before the first group of the process all of them are 0.

    Returns:
        `bytes_sent`, `bytes_received` (payload of segments and control messages), `bytes_shared`
        (of the sent ones, those that went through shared memory), `bytes_relayed`
        (passed on between two members that cannot reach each other), `ops_committed`,
        `ops_replayed`, `ops_failed` (collectives), `epochs` (of the elastic group), `rate_held_ms`
        (milliseconds in which data waited because of `max_rate`), and `ops_by_` with the name of
        an algorithm, `ops_by_ring` for example (those of `ops_committed` that went this way).

    Raises:
        OperationTimeoutError: The engine's thread was busy for 30 s.
        EngineError: A bug has stopped the engine.
        GroupClosedError: The engine is being shut down.
    """
    counted: dict[str, int] = _extension.library().counters()
    return counted


def links() -> list[dict[str, Any]]:
    """The links of this process that are up and go straight to their peers, one dict for each.

    Returns:
        `peer` (as logs name the process), `carrier` ("TCP", "TCP, encrypted", "shared memory", "a
        unix socket"), `bytes_sent` and `bytes_received` (payload since the link came up),
        `bytes_resent` (that TCP has sent again), `lanes` (open connections, also those that carry
        nothing now), `lanes_lost` (connections that the link has lost and gone on without),
        `round_trip_s` (the shortest of the last minutes that TCP has seen, in
        seconds; 0.0: not known), `bbr` (whether its connections use BBR), `limit` (bytes a second
        to which the link has last held itself because its line carries no more; 0: none),
        `by_lane` (a dict for each connection, the one for small messages first: `bytes_sent`,
        `bytes_resent`, `rate` in bytes a second as TCP has last measured it, `round_trip_s`).

    Raises:
        OperationTimeoutError: The engine's thread was busy for 30 s.
        EngineError: A bug has stopped the engine.
        GroupClosedError: The engine is being shut down.
    """
    views: list[dict[str, Any]] = _extension.library().links()
    return views
