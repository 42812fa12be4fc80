"""Values of JSON that a file or another process has written, checked to be what is expected."""

from __future__ import annotations

from typing import Any


def list_in(value: Any, count: int | None = None) -> list[Any]:
    """A list, of `count` values if that is given.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"a list of {'any' if count is None else count} values is missing")
    return value


def text_in(value: Any) -> str:
    """A text.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, str):
        raise ValueError("a text is missing")
    return value


def count_in(value: Any) -> int:
    """A number of at most 63 bits.

    Raises:
        ValueError: It is none, or below zero.
    """
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is no number of bytes or elements")
    return value
