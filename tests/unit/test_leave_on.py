"""Leaving on a signal: what is refused, and what stays as it was."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pccl_backend import _notice
from pccl_backend._notice import leave_on


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("signals", "options", "text"),
    [
        ((), {}, "no signal"),
        ((signal.SIGTERM,), {"grace_s": 0.0}, "grace_s is 0.0"),
        ((signal.SIGTERM,), {"grace_s": float("nan")}, "grace_s is nan"),
        ((signal.SIGTERM, signal.SIGKILL), {}, "signals="),
    ],
)
def test_what_cannot_work_is_refused_and_changes_no_handler(
    signals: tuple[int, ...], options: dict[str, Any], text: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the text is compared below
        leave_on(*signals, **options)
    assert text in str(raised.value)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_cannot_install_it() -> None:
    errors: list[str] = []

    def install() -> None:
        try:
            leave_on(signal.SIGUSR1)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]


def test_without_a_group_the_handler_before_is_called() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    leave_on(signal.SIGUSR1, signal.SIGUSR1)  # twice is as once
    signal.raise_signal(signal.SIGUSR1)
    assert calls == [signal.SIGUSR1]


def test_a_signal_of_a_forked_child_is_none_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    time.sleep(2 * _notice.HANDLER_S)  # the thread has heard of the signals before
    heard: list[int] = []
    monkeypatch.setattr(_notice, "_goes", lambda number, *_: heard.append(number) or True)
    monkeypatch.setattr(_notice, "HANDLER_S", 0.0)
    leave_on(signal.SIGUSR1)
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGUSR1)
        os._exit(len(heard))  # that of its own handler
    assert os.waitpid(child, 0)[1] == 1 << 8
    time.sleep(0.5)
    assert heard == []
    signal.raise_signal(signal.SIGUSR1)
    deadline = time.monotonic() + 60
    while len(heard) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heard == [signal.SIGUSR1, signal.SIGUSR1]  # by the handler, and by the thread


def test_the_thread_gives_way_to_a_program_that_hears_of_signals_itself() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ours = signal.set_wakeup_fd(writer)
    listened = _notice._listens
    try:
        _notice._listens = False
        leave_on(signal.SIGUSR1)
        assert not _notice._listens
        assert signal.set_wakeup_fd(writer) == writer
    finally:
        _notice._listens = listened
        signal.set_wakeup_fd(ours)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(("leaves_for_s", "begun"), [(0.1, []), (-0.1, ["SIGTERM", "SIGTERM"])])
def test_a_signal_that_came_while_the_process_was_leaving_begins_nothing_later(
    monkeypatch: pytest.MonkeyPatch, leaves_for_s: float, begun: list[str]
) -> None:
    names: list[str] = []
    monkeypatch.setattr(_notice, "_go", lambda name, grace_s: names.append(name) or True)
    monkeypatch.setattr(_notice, "_grace_s", {signal.SIGTERM: 1.0})
    monkeypatch.setattr(_notice, "HANDLER_S", 2 * abs(leaves_for_s))
    monkeypatch.setattr(_notice, "_leaving_until", time.monotonic() + leaves_for_s)
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM, signal.SIGTERM]))  # the launcher's, and the group's
    os.close(writer)
    _notice._hear(reader)  # ends with the pipe
    os.close(reader)
    assert names == begun
