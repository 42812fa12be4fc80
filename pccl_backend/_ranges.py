"""Ascending numbers as ranges. Loads without torch."""

from __future__ import annotations

Range = list[int]
"""First number and count."""


def ranges(numbers: list[int]) -> list[Range]:
    """The ranges of neighbouring numbers in an ascending list."""
    found: list[Range] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found
