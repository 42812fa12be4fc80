"""Over long lines small all-reduces take few steps (benchmarks/few_steps.py, small)."""

from __future__ import annotations

import pytest
from small_benchmarks import last_row


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pccl", "fixed"])
def test_members_that_are_far_from_each_other_send_straight_to_all_others(kind: str) -> None:
    line = ["--world", "3", "--rtt-ms", "20", "--kinds", kind]
    row, _ = last_row("few_steps", *line, "--sizes", "65536", "--calls", "9")
    assert row[:3] == ["3", "20", "65536"]
    # A ring would have sent 0.87 to one of them and messages to the other.
    for megabytes in row[4].split():
        assert 0.65 < float(megabytes) < 0.75, row


@pytest.mark.long
def test_ranks_at_two_sites_cross_the_line_between_them_once() -> None:
    line = ["--world", "4", "--sites", "2", "--rtt-ms", "40", "--kinds", "fixed"]
    row, _ = last_row("few_steps", *line, "--sizes", "1048576", "--calls", "9")
    # Of ten tensors rank 0 has sent two halves to its neighbour, and one to its partner far away.
    nothing, far, near = sorted(float(megabytes) for megabytes in row[4].split())
    assert nothing < 0.05, row
    assert 5.2 < far < 5.7, row
    assert 10.4 < near < 11.2, row
