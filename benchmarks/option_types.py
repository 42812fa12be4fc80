"""Types for the options of benchmarks, which refuse with a sentence what a benchmark cannot take.

`add_argument(..., type=whole(1))`: argparse prints what is wrong with the value and of which option
it is. A list is checked and stays a text, since a benchmark gives it to its ranks as it is.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """A whole number of `least` or more."""

    def read(text: str) -> int:
        if not _is_whole(text, least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return read


def wholes(least: int) -> Callable[[str], str]:
    """Whole numbers of `least` or more with commas between them, as in "4,65536"."""

    def read(text: str) -> str:
        if not all(_is_whole(part, least) for part in text.split(",")):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of whole numbers of {least} or more, as in 4,65536"
            )
        return text

    return read


def number(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """A finite number from `least` to `most`."""

    def read(text: str) -> float:
        value = _number(text)
        if not least <= value <= most:  # NaN fails too
            to = "" if most == math.inf else f" to {most:g}"
            more = " or more" if most == math.inf else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {least:g}{to}{more}")
        return value

    return read


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _is_whole(text: str, least: int) -> bool:
    return text.isascii() and text.isdigit() and int(text) >= least


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
