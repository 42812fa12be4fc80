"""Signals that reach a process inside a call that waits: in the peer and in the test."""

import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from conftest import say, wait_until

# ------------------------------------------------------------------------------ in the peer


def waits(name: str, call: Callable[[], Any]) -> None:
    """Says so, then calls."""
    say(waits=name)
    call()


def interrupted(name: str, call: Callable[[], Any]) -> None:
    """Says whether the call returned or was interrupted."""
    try:
        waits(name, call)
        say(returned=name)
    except KeyboardInterrupt:
        say(interrupted=name)


def answer_signals() -> None:
    """SIGUSR1 says where the main thread is; SIGINT raises KeyboardInterrupt."""

    def handled(_: int, frame: Any) -> None:
        stack = traceback.extract_stack(frame)
        inside = any(f.name == waits.__name__ for f in stack)
        say(inside=inside, at=[[f.filename, f.name, f.lineno] for f in stack] + [frame.f_lasti])

    signal.signal(signal.SIGUSR1, handled)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells have it ignored


# ------------------------------------------------------------------------------ in the test


def wait_inside(peer: Any, name: str) -> None:
    """Until the peer waits in that call, and its signal handler has run meanwhile.

    It does when the handler finds it at one instruction three times in a row, with one stack: a
    call that still imports is often at one instruction of the importing, for another module.
    """
    peer.next(waits=name)
    seen: list[Any] = []

    def stands_still() -> bool:
        peer.signal(signal.SIGUSR1)
        seen.append(peer.next())
        last = seen[-3:]
        return len(last) == 3 and last[0]["inside"] and last[0] == last[1] == last[2]

    wait_until(stands_still)


def interrupt(peer: Any) -> float:
    """Ctrl-C; when."""
    peer.signal(signal.SIGINT)
    return time.monotonic()
