"""Leaving on a signal: what is refused, and what stays as it was."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

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
