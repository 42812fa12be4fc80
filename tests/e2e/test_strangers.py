"""A run whose ports are known to everybody: strangers flood master and members, a member the store.

How fast the run goes meanwhile, next to the same strangers at a program that only accepts, is
measured on a large scale by benchmarks/load.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, ROOT, Peer, hear, listening_ports, say, wait_until
from elastic_members import Run, Start
from strangers import LANE, client_hello, lane_hello, opening
from token_files import command, copy_of, holding, new_token

FRESH = True  # a member's environment, memory and descriptors are its own

ADDRESSES = 100
UNPROVEN_MAX = 256  # connections of a port that are not proven
CONNECTIONS_S = {"silent": 100.0, "hello": 50.0, "channel": 50.0, "lane": 25.0}


def trains(index: int, url: str) -> None:
    """Steps until it is told to stop; says each. Member 0 floods the store when it is told to."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    group = pccl.group()
    words: list[str] = []
    threading.Thread(target=lambda: [words.append(hear()) for _ in range(2)], daemon=True).start()
    store = dist.distributed_c10d._get_default_store()
    state = {"step": 0, "w": torch.ones(1000)}
    refused = 0
    while True:
        boundary = group.refresh(state)
        tensor = torch.full((1000,), 1.0)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((1000,), float(boundary.size)))
        state["step"] += 1
        say(step=state["step"], size=boundary.size, t=time.monotonic(), refused=refused)
        if "flood the store" in words and refused == 0:
            for _ in range(16):
                try:
                    store.set(f"junk {os.urandom(8).hex()}", b"x" * (1 << 20))
                except ValueError:
                    refused += 1
        enough = torch.tensor([float("stop" in words)])
        dist.all_reduce(enough)
        if enough.item() > 0:
            break
    dist.destroy_process_group()


@contextlib.contextmanager
def strangers(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`tests/strangers.py`, whose stdin is closed at the end."""
    program = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "strangers.py"), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def used(pid: int) -> tuple[float, int]:
    """Resident MiB and descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


def attacks(master: int, lanes: list[tuple[int, int]]) -> str:
    """What strangers do to the port of a master and to those of its members."""
    shared: dict[str, Any] = {"hold_s": 60.0, "token": "a"}
    found = [
        {"kind": kind, "port": master, "rate": CONNECTIONS_S[kind], **shared}
        for kind in ("silent", "hello", "channel")
    ]
    for port, peer in lanes:
        for kind in ("silent", "lane"):
            rate = CONNECTIONS_S[kind]
            found.append({"kind": kind, "port": port, "acceptor": peer, "rate": rate, **shared})
    return json.dumps({"addresses": ADDRESSES, "attacks": found})


def say_to(port: int, said: bytes) -> None:
    """Waits until the other side has ended the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as one:
        one.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while one.recv(4096):
                pass


def steps_in_a_second(member: Peer, seconds: float) -> float:
    """From now on; a step is a line."""
    first = member.next()
    while True:
        line = member.next()
        if line["t"] - first["t"] >= seconds:
            return float((line["step"] - first["step"]) / (line["t"] - first["t"]))


@pytest.mark.long
def test_strangers_and_a_flooded_store_cost_no_member_its_place_and_a_newcomer_comes_in(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    tokens = tmp_path / "private" / "tokens"
    for name in ("a", "b"):
        new_token(tokens, name)
    master = start_master("--token-file", str(tokens), "--min-peers", "3")
    # Over TCP: through memory the steps beside the flood are twice as fast, those under it are not.
    env = {**holding(copy_of(tokens, "b")), "PCCL_INTERFACE": "lo", "PCCL_SHARED_MEMORY": "0"}
    members = run_peers(trains, 3, master.url, env=env)
    for member in members:
        member.next(size=3)
    status = command("--status", master.url, "--json", "--token-file", str(tokens))
    ids = {m["process"]: int(m["id"], 16) for m in json.loads(status.stdout)["members"]}
    ports = [listening_ports(member.pid) for member in members]
    lanes = [(port, ids[m.pid]) for m, (port,) in zip(members, ports, strict=True)]
    # With a key of small order anybody could compute the secret that its holder shares with others.
    port, peer_id = lanes[0]
    say_to(port, opening(LANE) + lane_hello(peer_id, bytes(32)) + client_hello(b"pccl1 lane"))
    refusal = 'cannot prove to be peer 66687aadf862bd77 (no key is known for "pccl1 lane")'
    wait_until(lambda: refusal in "".join(members[0].errors), what=members[0].log())

    before = {peer.pid: used(peer.pid) for peer in (master, *members)}

    with strangers("listen", "4") as dull:
        assert dull.stdout is not None
        accepting = json.loads(dull.stdout.readline())
        with strangers("flood", attacks(accepting[0], [(port, 1) for port in accepting[1:]])):
            beside = steps_in_a_second(members[1], 4.0)

    with strangers("flood", attacks(master.port, lanes)) as attackers:
        members[0].tell("flood the store")
        # Each port is full of strangers, which does not keep a process with a token out.
        for peer in (master, *members):
            wait_until(lambda pid=peer.pid: used(pid)[1] >= UNPROVEN_MAX, what=peer.log())
        attacked = 0.0
        for _ in range(4):  # other work of this machine may take its share of a few seconds
            attacked = max(attacked, steps_in_a_second(members[1], 4.0))
            if attacked > 0.5 * beside:
                break
        (newcomer,) = run_peers(trains, 1, master.url, env=env, first=3)
        newcomer.next(size=4)
        members[1].next(size=4)
        wait_until(lambda: members[0].lines[-1]["refused"] > 0, what="the quota of the store")
        for peer in (master, *members):
            mib, descriptors = used(peer.pid)
            # Of the master: 128 MiB of the store are one member's.
            assert mib < before[peer.pid][0] + (250 if peer is master else 100), peer.name
            assert descriptors < before[peer.pid][1] + UNPROVEN_MAX + 40, peer.name
        (report,) = (json.loads(attackers.communicate("", PATIENCE_S)[0]),)
    assert sum(attack["dialled"] for attack in report) > 1000
    assert all(attack["dialled"] > 50 for attack in report), report
    assert attacked > 0.5 * beside

    members[0].tell("stop")
    for peer in (*members, newcomer):
        peer.finish()
    said = "".join(master.errors)
    assert "lost:" not in said
    assert "evicted" not in said
