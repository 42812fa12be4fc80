"""Processes of a test on the hosts of an emulated network (tests/labs/wan)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import conftest
from conftest import Peer, hear, peer_environment, say, wait_until

PORT = 48163


class Hosts:
    """Closes all that it has started when `stack` ends."""

    def __init__(self, stack: ExitStack, wan: Any) -> None:
        self._stack = stack
        self.wan = wan

    def master(self, host: int, peers: int, address: str = "") -> str:
        """Starts one that founds a run of so many, at the host's IPv4 address; its URL."""
        listen = f"{address or self.wan.address(host)}:{PORT}"
        command = ["-m", "pccl_backend._cli", "--insecure", "--state", "none"]
        self._start(host, [*command, "--min-peers", str(peers), "--listen", listen], "master")
        return f"pccl://{listen}"

    def peer(self, host: int, file: str, function: str, *arguments: Any, **variables: str) -> Peer:
        """Calls a function of a test's file in a process of its own."""
        call = json.dumps([file, function, *arguments])
        return self._start(host, [conftest.__file__, call], f"peer of host {host}", **variables)

    def status(self, host: int, url: str) -> dict[str, Any]:
        """What the master on that host answers; {} without an answer."""
        command = [sys.executable, "-m", "pccl_backend._cli", "--status", url, "--json"]
        said = self.wan.run(
            host, command, capture_output=True, text=True, env=peer_environment(), timeout=30
        )
        found: dict[str, Any] = json.loads(said.stdout) if said.returncode == 0 else {}
        return found

    def wait_for(self, host: int, url: str, count: int) -> None:
        """Until so many have come to the master on that host. Ranks follow the order of arrival."""

        def have_come() -> bool:
            status = self.status(host, url)
            return len(status.get("members", ())) + len(status.get("door", ())) >= count

        wait_until(have_come, what=f"{count} peers at {url}")

    def _start(self, host: int, command: list[str], name: str, **variables: str) -> Peer:
        with_these = peer_environment() | variables
        peer = Peer(self.wan.command(host, [sys.executable, *command]), with_these, name)
        self._stack.callback(peer.close)
        return peer


def steps_of_member(url: str) -> Iterator[Any]:
    """Joins a run and says `ready`; for each word but "end" a boundary, then the process group.

    Called in a peer's process: a loop over it is the body of a member's steps.
    """
    import torch.distributed as dist

    import pccl_backend as pccl

    pg = pccl.join(url, timeout_s=60.0)
    group = pccl.group(pg)
    state = pccl.SharedState(step=0)
    say(ready=True)
    while hear() != "end":
        group.refresh(state)
        state["step"] += 1
        yield pg
    group.leave()
    dist.destroy_process_group()
