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


TENSORS_MB = 10 * (4 << 20) / 1e6
TWO_SITES = ["--sites", "2", "--common", "--rtt-ms", "40"]
TWO_HOSTS = ["--per-host", "2", "--rtt-ms", "0.2"]
# What rank 0 sends of each tensor to its partner far away, and to its neighbour.
CALLS = {
    "all_reduce": ([], 0.5, 1.0),
    # A quarter of the bytes, and what comes from far to its neighbour, too.
    "int8": (["--quantise", "int8"], 0.129, 0.387),
    # Its own part, or the sum of its site for its partner, and two parts.
    "all_gather": (["--call", "all_gather"], 0.25, 0.5),
    "reduce_scatter": (["--call", "reduce_scatter"], 0.25, 0.5),
}


def sent_mb(kind: str, where: list[str], what: list[str]) -> list[float]:
    """What rank 0 of four has sent to each other rank, the least first."""
    line = ["--world", "4", *where, "--kinds", kind, "--sizes", str(4 << 20), "--calls", "9"]
    row, _ = last_row("few_steps", *line, *what)
    return sorted(float(megabytes) for megabytes in row[4].split())


@pytest.mark.long
@pytest.mark.parametrize("where", [TWO_SITES, TWO_HOSTS], ids=["sites", "hosts"])
@pytest.mark.parametrize("call", list(CALLS))
def test_ranks_at_two_sites_cross_the_line_between_them_once(call: str, where: list[str]) -> None:
    what, far, near = CALLS[call]
    sent = sent_mb("fixed", where, what)
    assert sent[0] < 0.05, sent
    assert 0.98 * far < sent[1] / TENSORS_MB < 1.08 * far, sent
    assert 0.98 * near < sent[2] / TENSORS_MB < 1.08 * near, sent


@pytest.mark.long
@pytest.mark.parametrize("call", list(CALLS))
def test_members_on_two_hosts_know_that_in_a_run_too(call: str) -> None:
    what, far, near = CALLS[call]
    sent = sent_mb("pccl", TWO_HOSTS, what)  # and, as a run does, bytes that measure the links
    assert 0.98 * far < sent[1] / TENSORS_MB, sent
    assert 0.98 * near < sent[2] / TENSORS_MB, sent
