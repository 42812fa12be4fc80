"""The end of a replica whose own group is not pccl's.

The ranks of a replica are evicted as a whole. The engine ends the replica's own groups that are
pccl's. A group of another backend (gloo, NCCL) is aborted here, so that a thread that waits in one
of its collectives gets an error. If the program has not ended GRACE_S later, this module ends the
process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from . import _events
from ._config import NAME

GRACE_S = 30.0
EXIT_STATUS = 1

_log = logging.getLogger(NAME)
_end: threading.Timer | None = None


def guard(group: Any) -> None:
    """Sees to it that an eviction aborts the backends of `group` that are not pccl's."""
    global _end
    if _end is not None:  # it has joined again
        _end.cancel()
        _end = None
    if foreign_backends(group):
        _events.add("evicted", lambda change: _evicted(group, change.text))


def foreign_backends(group: Any) -> list[Any]:
    """The backends of a process group that are not pccl's."""
    backends = [group._get_backend(device) for device in group._device_types]
    return [backend for backend in backends if backend.name() != NAME]


def _evicted(group: Any, why: str) -> None:
    global _end
    message = f"this replica was evicted: {why}"
    _end = threading.Timer(GRACE_S, _end_process, [message])
    _end.daemon = True
    _end.start()
    for backend in foreign_backends(group):
        _log.warning("%s; its own group (%s) is aborted", message, backend.name())
        try:
            backend.abort()
        except Exception as error:  # the process ends in any case
            _log.warning("the group cannot be aborted: %s", error)


def _end_process(message: str) -> None:
    print(
        f"pccl: {message}; the program has not ended within {GRACE_S:.0f} s, so this process does",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_STATUS)
