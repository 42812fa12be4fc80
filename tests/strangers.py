"""Strangers without a token: floods of connections, hellos and half handshakes.

As a program, `strangers.py flood SPEC` opens connections at the given rates until its stdin ends,
and then says in one line of JSON what has become of them; `strangers.py listen N` is the other
side for comparisons: N ports of a program that accepts, and answers nothing.

A SPEC is JSON: `addresses` (the flood comes from 127.0.0.2 and up) and `attacks`, a list of

  kind     "silent", "hello", "channel" or "lane": what is sent, see `bytes_of`
  port     on 127.0.0.1
  rate     connections in a second
  hold_s   after so long the stranger closes a connection that is still open
  token    of "channel": the name of a token of the master; strangers may know names
  acceptor of "lane": the id of the peer that listens there
"""

from __future__ import annotations

import base64
import contextlib
import errno
import heapq
import itertools
import json
import os
import resource
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

MAGIC = bytes.fromhex("897063636c0d0a1a")
PROTOCOL = (Path(__file__).resolve().parents[1] / "csrc/base/protocol.h").read_text()
VERSION = int(PROTOCOL.partition("kProtocolVersion = ")[2].partition(";")[0])
CHANNEL, LANE = 1, 2
IP_BIND_ADDRESS_NO_PORT = 24
BURST = 64  # connections that are opened before the others are looked at again
TICK_S = 0.005


# ------------------------------------------------------------------------------ what they send


def opening(purpose: int) -> bytes:
    return MAGIC + struct.pack("<IB3x", VERSION, purpose)


def lane_hello(acceptor: int, key: bytes = b"") -> bytes:
    """Without `key`: with a public key whose private one nobody has."""
    return (key or os.urandom(32)) + struct.pack(
        "<QQB3xI", acceptor, int.from_bytes(os.urandom(8)), 0, 0
    )


def client_hello(identity: bytes) -> bytes:
    """A TLS 1.3 ClientHello that names a pre-shared key, and does not prove to hold it."""

    def extension(number: int, body: bytes) -> bytes:
        return struct.pack(">HH", number, len(body)) + body

    share = struct.pack(">HH", 0x001D, 32) + os.urandom(32)
    offered = struct.pack(">H", len(identity)) + identity + bytes(4)
    binders = bytes([32]) + os.urandom(32)
    extensions = b"".join(
        (
            extension(0x002B, b"\x02\x03\x04"),  # TLS 1.3
            extension(0x000A, b"\x00\x02\x00\x1d"),  # X25519
            extension(0x0033, struct.pack(">H", len(share)) + share),
            extension(0x002D, b"\x01\x01"),  # psk_dhe_ke
            extension(
                0x0029,
                struct.pack(">H", len(offered)) + offered + struct.pack(">H", 33) + binders,
            ),
        )
    )
    body = b"\x03\x03" + os.urandom(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message


def bytes_of(attack: dict[str, Any], number: int) -> bytes:
    """What the stranger sends on its `number`th connection, all at once.

    silent   nothing
    hello    an opening, and what would be a hello of a master without tokens
    channel  an opening, and a TLS handshake with a master that names a token of it
    lane     an opening, and a handshake with a peer under the name of an invented one

    Every second handshake stops in the middle of its first message.
    """
    kind = attack["kind"]
    if kind == "silent":
        return b""
    if kind == "hello":
        return opening(CHANNEL) + os.urandom(400)
    if kind == "channel":
        key = base64.b64encode(os.urandom(32)).decode()
        start, tls = opening(CHANNEL), client_hello(f"pccl1 {attack['token']} {key} ".encode())
    else:
        start, tls = opening(LANE) + lane_hello(attack["acceptor"]), client_hello(b"pccl1 lane")
    return start + (tls if number % 2 else tls[: len(tls) // 2])


# ------------------------------------------------------------------------------ a flood


def allow_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Flood:
    """The connections of one process of strangers."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._attacks: list[dict[str, Any]] = spec["attacks"]
        self._sources = itertools.cycle([f"127.0.0.{2 + i}" for i in range(spec["addresses"])])
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._ends: list[tuple[float, int, socket.socket]] = []
        self._numbers = [0] * len(self._attacks)
        self._counts = [dict.fromkeys(("refused", "closed", "held"), 0) for _ in self._attacks]
        self._seconds = 0.0

    def run(self, stopped: threading.Event) -> None:
        began = time.monotonic()
        while not stopped.is_set():
            now = time.monotonic()
            self._seconds = now - began
            for which, attack in enumerate(self._attacks):
                due = int(self._seconds * attack["rate"]) - self._numbers[which]
                for _ in range(min(due, BURST)):
                    self._dial(which, now)
            while self._ends and self._ends[0][0] <= now:
                _, fd, one = heapq.heappop(self._ends)
                if fd in self._open and self._open[fd][0] is one:
                    self._end(fd, "held")
            for fd, _ in self._poll.poll(TICK_S, 4 * BURST):
                self._ready(fd)

    def report(self) -> list[dict[str, Any]]:
        """Of each attack: its connections in so many seconds, and how they ended."""
        still = [0] * len(self._attacks)
        for _, which in self._open.values():
            still[which] += 1
        return [
            {"kind": a["kind"], "seconds": self._seconds, "dialled": n, **counts, "open": open_}
            for a, n, counts, open_ in zip(
                self._attacks, self._numbers, self._counts, still, strict=True
            )
        ]

    def _dial(self, which: int, now: float) -> None:
        self._numbers[which] += 1
        attack = self._attacks[which]
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        one.bind((next(self._sources), 0))
        one.connect_ex(("127.0.0.1", attack["port"]))
        self._open[one.fileno()] = (one, which)
        heapq.heappush(self._ends, (now + attack["hold_s"], one.fileno(), one))
        self._poll.register(one.fileno(), select.EPOLLOUT)

    def _ready(self, fd: int) -> None:
        one, which = self._open[fd]
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
            return self._end(fd, "refused")
        try:
            if not one.recv(4096):
                self._end(fd, "closed")
        except BlockingIOError:  # it has just been connected
            self._poll.modify(fd, select.EPOLLIN)
            with contextlib.suppress(OSError):
                one.send(bytes_of(self._attacks[which], self._numbers[which]))
        except OSError:
            self._end(fd, "closed")
        return None

    def _end(self, fd: int, how: str) -> None:
        one, which = self._open.pop(fd)
        self._counts[which][how] += 1
        one.close()


def flood(spec: dict[str, Any]) -> None:
    allow_descriptors()
    stopped = threading.Event()
    strangers = Flood(spec)
    worker = threading.Thread(target=strangers.run, args=(stopped,))
    worker.start()
    sys.stdin.read()
    stopped.set()
    worker.join()
    print(json.dumps(strangers.report()), flush=True)


# ------------------------------------------------------------------------------ the other side


def listen(count: int) -> None:
    """Accepts on `count` ports and answers nothing; what comes to the last one is read."""
    allow_descriptors()
    poll = select.epoll()
    listening = {}
    for _ in range(count):
        server = socket.create_server(("127.0.0.1", 0), backlog=4096)
        server.setblocking(False)
        listening[server.fileno()] = server
        poll.register(server.fileno(), select.EPOLLIN)
    sink = list(listening)[-1]
    accepted: dict[int, tuple[socket.socket, bool]] = {}
    print(json.dumps([server.getsockname()[1] for server in listening.values()]), flush=True)
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == sys.stdin.fileno():
                return
            if fd in listening:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(BURST):
                        one, _ = listening[fd].accept()
                        accepted[one.fileno()] = (one, fd == sink)
                        # Told of the end of a connection, and of bytes at the sink only.
                        told = select.EPOLLIN if fd == sink else select.EPOLLRDHUP
                        poll.register(one.fileno(), told)
                continue
            one, is_sink = accepted[fd]
            ended = not is_sink
            with contextlib.suppress(OSError):
                ended = ended or not one.recv(1 << 20)
            if ended:
                del accepted[fd]
                one.close()


if __name__ == "__main__":
    if sys.argv[1] == "flood":
        flood(json.loads(sys.argv[2]))
    else:
        listen(int(sys.argv[2]))
