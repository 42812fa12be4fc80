"""The ranks of a benchmark on emulated hosts: each is the benchmark's own file, with --rank."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LIMIT_S = 900.0

Ranks = list[subprocess.Popen[str]]


def run_ranks(
    wan: Any,
    world: int,
    file: str,
    options: Sequence[object],
    variables: Mapping[str, str],
    *,
    meet: str | None = None,
    per_host: int = 1,
    beside: Callable[[Ranks], None] = lambda _: None,
) -> list[str]:
    """Runs `per_host` ranks on each of the first hosts, and returns what each has printed.

    Each gets --rank, --meet (a file that is not there yet, unless `meet` says where else) and
    `options`. `beside` is called while they run. A rank that fails is an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks: Ranks = []
        try:
            for rank in range(world):
                host = rank // per_host + 1
                command = [sys.executable, file, "--rank", str(rank)]
                command += ["--meet", meet or f"{folder}/meet", *map(str, options)]
                env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wan0"}
                env |= {"PCCL_INTERFACE": wan.address(host), **variables}
                env.setdefault("PCCL_LOG_LEVEL", "error")
                command = wan.command(host, command)
                ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
            beside(ranks)
            said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        except subprocess.TimeoutExpired as error:
            ended = {rank: process.poll() for rank, process in enumerate(ranks)}
            raise SystemExit(f"not within {LIMIT_S:.0f} s; exit status by rank: {ended}") from error
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    failed = {rank: process.returncode for rank, process in enumerate(ranks) if process.returncode}
    assert not failed, f"these ranks have ended with this status: {failed}"
    return said
