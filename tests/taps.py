"""Somebody who sits between two processes, passes on every byte, and keeps a copy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Tap:
    """Listens at 127.0.0.2:port, passes every byte on to 127.0.0.1:port, and keeps a copy."""

    def __init__(self) -> None:
        self.seen: list[bytearray] = []
        self._listening = socket.create_server(("127.0.0.2", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def env(self) -> dict[str, str]:
        """Of a member whose links to others are to go through the tap."""
        return {
            "PCCL_INTERFACE": "127.0.0.1",
            "PCCL_ADVERTISE": "127.0.0.2",
            "PCCL_PORTS": f"{self.port}-{self.port}",
            "PCCL_SHARED_MEMORY": "0",  # what goes through it no third process sees
        }

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return  # closed
            there = socket.socket()
            self._open += [here, there]
            if there.connect_ex(("127.0.0.1", self.port)) != 0:
                here.close()
                continue
            for reads, writes in ((here, there), (there, here)):
                self._threads.append(threading.Thread(target=self._pass, args=(reads, writes)))
                self._threads[-1].start()

    def _pass(self, reads: socket.socket, writes: socket.socket) -> None:
        seen = bytearray()
        self.seen.append(seen)
        with contextlib.suppress(OSError):  # an end is gone
            while piece := reads.recv(1 << 16):
                seen += piece
                writes.sendall(piece)
            writes.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for one in (self._listening, *self._open):
            one.close()


@contextlib.contextmanager
def taps(count: int) -> Iterator[list[Tap]]:
    made = [Tap() for _ in range(count)]
    try:
        yield made
    finally:
        for tap in made:
            tap.close()


def any_seen(plain: bytes, made: list[Tap]) -> bool:
    """Has a tap seen 64 bytes in a row of `plain`, of eight places all over it?

    Fewer bytes would be found by chance: four, in 40 MB of noise, once in a hundred times.
    """
    last = len(plain) - 64
    places = [last * eighth // 7 for eighth in range(8)]
    return any(
        plain[at : at + 64] in bytes_ for tap in made for bytes_ in tap.seen for at in places
    )
