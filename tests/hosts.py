"""Processes of a test on the hosts of an emulated network (tests/labs/wan)."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import conftest
from conftest import Peer, wait_until

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

    def wait_for(self, host: int, url: str, count: int) -> None:
        """Until so many have come to the master on that host. Ranks follow the order of arrival."""
        command = [sys.executable, "-m", "pccl_backend._cli", "--status", url, "--json"]

        def have_come() -> bool:
            said = self.wan.run(
                host, command, capture_output=True, text=True, env=environment(), timeout=30
            )
            status = json.loads(said.stdout) if said.returncode == 0 else {}
            return len(status.get("members", ())) + len(status.get("door", ())) >= count

        wait_until(have_come, what=f"{count} peers at {url}")

    def _start(self, host: int, command: list[str], name: str, **variables: str) -> Peer:
        with_these = environment() | variables
        peer = Peer(self.wan.command(host, [sys.executable, *command]), with_these, name)
        self._stack.callback(peer.close)
        return peer


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(conftest.ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
