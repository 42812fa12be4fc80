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
@pytest.mark.parametrize(
    ("what", "far", "near"),
    [
        # Of each tensor rank 0 sends one half to its partner at the other host and two to its mate;
        ([], 0.5, 1.0),
        # its own part, or the sum of its host for its partner, and two parts.
        (["--call", "all_gather"], 0.25, 0.5),
        (["--call", "reduce_scatter"], 0.25, 0.5),
    ],
    ids=["all_reduce", "all_gather", "reduce_scatter"],
)
@pytest.mark.parametrize("kind", ["pccl", "fixed"])
def test_hosts_with_several_ranks_cross_the_line_between_them_once(
    kind: str, what: list[str], far: float, near: float
) -> None:
    line = ["--world", "4", "--per-host", "2", "--rtt-ms", "0.2", "--kinds", kind]
    row, _ = last_row("few_steps", *line, "--sizes", str(4 << 20), "--calls", "9", *what)
    tensors = 10 * (4 << 20) / 1e6
    nothing, sent_far, sent_near = sorted(float(megabytes) for megabytes in row[4].split())
    assert 0.98 * far < sent_far / tensors, row
    assert 0.98 * near < sent_near / tensors, row
    if kind == "fixed":  # members of a run also measure their links
        assert nothing < 0.05, row
        assert sent_far / tensors < 1.08 * far, row
        assert sent_near / tensors < 1.08 * near, row


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "far", "near"),
    [
        # Of each tensor rank 0 sends one half to its partner far away and two to its neighbour;
        ([], 0.5, 1.0),
        # a quarter of the bytes, and what comes from far to its neighbour, too;
        (["--quantise", "int8"], 0.129, 0.387),
        # its own part, or the sum of its site for its partner, and two parts.
        (["--call", "all_gather"], 0.25, 0.5),
        (["--call", "reduce_scatter"], 0.25, 0.5),
    ],
    ids=["all_reduce", "int8", "all_gather", "reduce_scatter"],
)
def test_ranks_at_two_sites_cross_the_line_between_them_once(
    what: list[str], far: float, near: float
) -> None:
    line = ["--world", "4", "--sites", "2", "--common", "--rtt-ms", "40", "--kinds", "fixed"]
    row, _ = last_row("few_steps", *line, "--sizes", str(4 << 20), "--calls", "9", *what)
    tensors = 10 * (4 << 20) / 1e6
    nothing, sent_far, sent_near = sorted(float(megabytes) for megabytes in row[4].split())
    assert nothing < 0.05, row
    assert 0.98 * far < sent_far / tensors < 1.08 * far, row
    assert 0.98 * near < sent_near / tensors < 1.08 * near, row
