"""Signals are the program's: what its callbacks start inherits its mask, and faults reach it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import fixed_group, hear, say, wait_until

CALLING = {"pccl-events", "pccl-log", "pccl-release", "pccl-complete"}  # functions of the program
MASK = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


def blocked() -> dict[str, list[int]]:
    """The signals that threads of this process block, by the names of the threads."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            fields = dict(
                line.split(":\t", 1) for line in (thread / "status").read_text().splitlines()
            )
            mask = int(fields["SigBlk"], 16)
            found[fields["Name"]] = [n for n in range(1, 65) if mask >> (n - 1) & 1]
    return found


def own_mask() -> list[int]:
    """The signals that the calling thread blocks."""
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def starts_a_process_in_a_callback(rank: int, world: int, meet: str) -> None:
    import torch

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # the program's own wish
    dist = fixed_group(rank, world, meet)
    dist.barrier()
    if rank == 1:
        hear()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    future = work.get_future()
    inherited = future.then(
        lambda _: (
            subprocess.run(
                [sys.executable, "-c", MASK], capture_output=True, text=True, check=True
            ).stdout
        )
    )
    say(called=True)
    say(inherited=json.loads(inherited.wait()), own=own_mask(), blocked=blocked())
    dist.barrier()


def test_masks_of_threads_and_of_what_callbacks_start(run_peers: Any, tmp_path: Path) -> None:
    peers = run_peers(starts_a_process_in_a_callback, 2, 2, str(tmp_path / "meet"))
    peers[0].next(called=True)
    peers[1].tell("go")
    line = peers[0].next()
    assert signal.SIGUSR2 in line["own"]
    assert line["inherited"] == line["own"]
    engine = set(line["blocked"]["pccl-engine"])
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= engine
    assert not {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT} & engine


def joins_with_a_blocked_signal(_: int, url: str) -> None:
    import pccl_backend as pccl

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    pccl.join(url)
    say(own=own_mask())
    say(blocked=wait_until(lambda: "pccl-events" in blocked() and blocked()))
    hear()


def test_masks_of_the_threads_of_hooks_and_of_the_log(run_peers: Any, start_master: Any) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(joins_with_a_blocked_signal, 2, master.url)
    own = [peer.next()["own"] for peer in peers]
    peers[1].signal(signal.SIGKILL)  # an event for the other one
    masks = peers[0].next()["blocked"]
    peers[0].tell("end")
    calling = {name: mask for name, mask in masks.items() if name in CALLING}
    assert "pccl-events" in calling
    assert all(mask == own[0] for mask in calling.values()), calling
