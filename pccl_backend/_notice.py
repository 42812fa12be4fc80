"""Leaving on a signal: a spot machine that is reclaimed gets notice before it is ended.

torchrun and pccl-run hand SIGTERM on to their workers and kill what is left of them after 30 s.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
import weakref
from typing import Any

from . import _extension, _rank_tables, _simulated
from ._config import NAME
from ._errors import GroupClosedError

GRACE_S = 25.0
LOOK_S = 0.1
HANDLER_S = 0.5  # a main thread that runs Python has run the handler by then

_log = logging.getLogger(NAME)


def leave_on(*signals: int, grace_s: float = GRACE_S) -> None:
    """Makes this process leave the run when one of these signals comes.

    The process leaves at its next boundary: `refresh` returns with `left` set, the program ends in
    good order, with status 0, and the other members repeat nothing. If no boundary has come within
    half of `grace_s`, the process leaves without one, provided that no member has issued an
    operation in this step (see `ElasticGroup.leave`; `ElasticGroup.left` is set then). If neither
    was possible within `grace_s`, the process aborts its group: its operations raise
    GroupClosedError, and the others see a loss. Further signals change nothing meanwhile. While the
    process is in no elastic group, the signal does what it did before this call.

    Call it in the main thread, before or after `join`. Python runs handlers of signals in that
    thread alone, and not while it waits in C++ (DDP's `backward` does): a thread of pccl's hears of
    the signal then, by `signal.set_wakeup_fd`, unless the program uses that itself.

    Args:
        signals: Usually `signal.SIGTERM`.
        grace_s: Seconds above 0; fewer than pass between the signal and the kill of this process
            (of a cloud or a scheduler).

    Raises:
        ValueError: No signal, one that cannot be handled, seconds of 0 or less, or another thread
            than the main one. Then no handler has changed.
    """
    if not signals:
        raise ValueError("no signal; expected leave_on(signal.SIGTERM)")
    if not 0.0 < grace_s < math.inf:
        raise ValueError(f"grace_s is {grace_s!r}; expected seconds above 0")
    if _simulated.group_here() is not None:
        return  # its threads get no signals: a Leave event of the test says when it leaves
    before: dict[int, Any] = {}

    def leave(number: int, frame: Any) -> None:
        if _goes(number, grace_s, time.monotonic()):
            return
        theirs = before[number]
        if callable(theirs):
            theirs(number, frame)
        elif theirs != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    try:
        for number in dict.fromkeys(signals):
            before[number] = signal.signal(number, leave)
    except (TypeError, ValueError, OSError) as error:
        for number, theirs in before.items():
            signal.signal(number, signal.SIG_DFL if theirs is None else theirs)
        raise ValueError(f"signals={signals!r}: {error}") from error
    _grace_s.update(dict.fromkeys(before, grace_s))
    _listen()


_grace_s: dict[int, float] = {}  # of each signal
_listens = False  # a thread of this process


def _listen() -> None:
    """Starts the thread that hears of signals, once."""
    global _listens
    if _listens:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    theirs = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if theirs != -1:
        signal.set_wakeup_fd(theirs)
        os.close(reader)
        os.close(writer)
        return
    _listens = True
    threading.Thread(target=_hear, args=(reader,), name="pccl-signals", daemon=True).start()


def _hear(reader: int) -> None:
    while True:
        try:
            numbers = os.read(reader, 64)
        except OSError:  # the program has closed all descriptors that it did not know
            return
        if not numbers:  # or the end of the pipe that is written to
            return
        came = time.monotonic()
        for number in numbers:
            if number not in _grace_s:
                continue
            time.sleep(HANDLER_S)
            _goes(number, _grace_s[number], came)


def _is_forked() -> None:
    """The pipe and the lock are the parent's: no signal of this process makes the parent leave."""
    global _going, _listens
    _going = threading.Lock()
    if _listens:
        _listens = False
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_is_forked)


def _member() -> Any:
    """The elastic group while this peer is in it, else None."""
    process_group = _rank_tables.elastic_group()
    if process_group is None:
        return None
    try:
        view = _extension.loaded().group_view()
    except GroupClosedError:  # the process is ending
        return None
    return None if view["left"] or view["evicted"] else process_group


_leaving_until = 0.0  # of time.monotonic(): until then this peer leaves, or has left and ends
_going = threading.Lock()  # held by the handler, or by the thread that hears of signals


def _goes(number: int, grace_s: float, came: float) -> bool:
    """Is this peer leaving, or does it from now on? False without a group to leave.

    Args:
        number: The signal.
        grace_s: Of that signal.
        came: When it came. What came while this peer was leaving begins nothing later.
    """
    if not _going.acquire(blocking=False):
        return True  # the other one sees to it
    try:
        leaves = came < _leaving_until
        return leaves or _go(signal.Signals(number).name, grace_s)
    finally:
        _going.release()


def _go(name: str, grace_s: float) -> bool:
    """Asks to leave; False without a group to leave.

    It runs in the signal's handler, which may have interrupted any code of this thread, also a log
    call.
    """
    global _leaving_until
    process_group = _member()
    if process_group is None:
        return False
    try:
        _extension.loaded().leave(False)
    except GroupClosedError:  # just now
        return False
    _leaving_until = time.monotonic() + grace_s
    # A weak reference: the thread that drops the last strong one runs torch's destructor. A thread
    # that does so while the interpreter ends kills the process (Python before 3.14).
    group = weakref.ref(process_group)
    watch = threading.Thread(target=_watch, args=(group, name, grace_s), daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        watch.start()
    return True


def _is_member(group: weakref.ref[Any]) -> bool:
    process_group = _member()
    return process_group is not None and process_group is group()


def _watch(group: weakref.ref[Any], name: str, grace_s: float) -> None:
    global _leaving_until
    _log.warning(
        "%s: this process leaves the run at its next boundary, or in %g s without one, once no "
        "call of its group is under way; if it cannot within %g s, it aborts its group, which the "
        "others see as a loss",
        name,
        grace_s / 2,
        grace_s,
    )
    end = time.monotonic() + grace_s
    asked = False
    while _is_member(group):
        if not asked and time.monotonic() >= end - grace_s / 2:
            asked = True
            with contextlib.suppress(GroupClosedError):  # just now
                _extension.loaded().leave(True)
        if time.monotonic() < end:
            time.sleep(LOOK_S)
            continue
        _log.error(
            "no boundary within %g s of %s: this process aborts its group, which the others see as "
            "a loss. The master was away; or refresh is called too seldom for this grace_s; or "
            "this process waits at a boundary to which the others do not come",
            grace_s,
            name,
        )
        # The main thread may have waited all the time: its handler runs now.
        _leaving_until = time.monotonic() + 2 * HANDLER_S
        if (process_group := group()) is not None:
            with contextlib.suppress(GroupClosedError):  # just now
                _extension.loaded().abort_run(
                    f"no boundary within {grace_s:g} s of {name} (grace_s of leave_on)"
                )
            process_group.abort()
        return
