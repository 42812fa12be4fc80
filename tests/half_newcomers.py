"""Newcomers that do half of what one has to do, in a few lines of the wire (PROTOCOL.md)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MAGIC = bytes.fromhex("897063636c0d0a1a")
NO_ROOT = {"present": False, "revision": 0, "digest": bytes(32)}
NOTHING = {
    **{"started": None, "started_members": [], "accepted": 0, "step": 0, "vote": 0},
    **{"root": NO_ROOT, "passed": 0, "pinned": [], "committed": {"below": [0, 0], "also": []}},
    **{"done": [], "failure": None, "flags": [], "issued": [0, 0], "calm": False},
    **{"leaving": False, "at_once": False},
}


def version() -> int:
    text = (ROOT / "csrc/base/protocol.h").read_text()
    found = re.search(r"kProtocolVersion = (\d+)", text)
    assert found
    return int(found[1])


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    code = next(i for i in range(4) if number < 1 << (8 << i))
    return bytes([major << 5 | 24 + code]) + number.to_bytes(1 << code, "big")


def cbor(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    return head(5, len(value)) + b"".join(cbor(k) + cbor(v) for k, v in value.items())


def frame(message: dict[str, Any]) -> bytes:
    payload = cbor(message)
    rest = struct.pack("<BBHII", 1, 0, 0, len(payload), 0)
    return struct.pack("<I", crc32c(rest)) + rest + payload


class HalfNewcomer:
    """Says to the master that it waits at the door, and stays alive there.

    Its own port accepts every connection and never speaks. `says`: what it tells the master of its
    links to these peers, which it does not make.
    """

    def __init__(self, master_port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._dialled: list[socket.socket] = []
        self._over = threading.Event()
        self._master = socket.create_connection(("127.0.0.1", master_port))
        self._heard = bytearray()
        key = os.urandom(32)
        self.peer = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        handle = {"peer": self.peer, "addresses": [address], "key": key}
        place = {"replica": f"{self.peer:016x}", "attempt": 0, "rank": 0, "size": 1}
        member = {"handle": handle, "place": place, "raises": False}
        self._master.sendall(MAGIC + struct.pack("<IB3x", version(), 1))
        self.say("hello", run="", member=member, report=NOTHING, at_door=True, door_root=NO_ROOT)
        self._threads = [
            threading.Thread(target=work) for work in (self._accept, self._listen, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def say(self, name: str, **fields: Any) -> None:
        self._master.sendall(frame({"m": name, **fields}))

    def heard(self, words: str) -> bool:
        return words.encode() in self._heard

    @property
    def dialled(self) -> int:
        return len(self._dialled)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._dialled.append(self._listening.accept()[0])

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while piece := self._master.recv(1 << 16):
                self._heard += piece

    def _beat(self) -> None:
        beat = {"issued": [0, 0], "op_overdue": True, "step_overdue": True, "fetched": 0}
        with contextlib.suppress(OSError):
            while not self._over.wait(0.2):
                self.say("heartbeat", **beat)

    def close(self) -> None:
        self._over.set()
        for one in (self._listening, self._master, *self._dialled):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listening, self._master, *self._dialled):
            one.close()


@contextlib.contextmanager
def half_newcomer(master_port: int) -> Iterator[HalfNewcomer]:
    made = HalfNewcomer(master_port)
    try:
        yield made
    finally:
        made.close()
