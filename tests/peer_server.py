"""Peers by fork: a process imports torch once, and forks the peers that tests start.

Importing torch takes longer than most tests. Two such processes take turns, so that peers of one
test have different seeds for their hashes, as fresh interpreters have. What depends on how an
interpreter starts is not for them: a test module says so by FRESH, and `can_fork` sees it from the
environment. A server has one thread, no group and no extension of ours; it must stay so.

Run as a script, this file is such a process.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

# Read when a group is made, or by the test, and not by an import; but one of them is.
LATE = ("PCCL_", "GLOO_", "PYTEST_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
EARLY = "PCCL_MASTER"
PRELOADED = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.utils.data",
    "conftest",
)
MESSAGE_BYTES_MAX = 1 << 17
ANSWER_S = 120.0


class Forked:
    """A peer that was forked, as a subprocess.Popen shows it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.has_ended = threading.Event()
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.has_ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"peer {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """In the test: one process that forks."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                pass_fds=[theirs.fileno()],
            )
        self._started: queue.SimpleQueue[Forked | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def can_fork(self, environment: dict[str, str]) -> bool:
        """Would a fresh interpreter in this environment be like a fork of this one?"""
        mine = self._environment
        changed = {n for n in mine.keys() | environment.keys() if mine.get(n) != environment.get(n)}
        return all(name.startswith(LATE) and name != EARLY for name in changed)

    def start(self, call: list[Any], environment: dict[str, str]) -> Forked:
        """A child that calls `conftest.be_peer(*call)`, with pipes as subprocess.Popen makes."""
        ours, theirs = [], []
        for writes in (True, False, False):
            reading, writing = os.pipe()
            theirs.append(reading if writes else writing)
            ours.append(os.fdopen(writing if writes else reading, "w" if writes else "r"))
        message = json.dumps([call, environment]).encode()
        socket.send_fds(self._channel, [message], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        peer = self._started.get(timeout=ANSWER_S)
        if peer is None:
            raise RuntimeError("the process that forks peers has ended: see its stderr")
        peer.stdin, peer.stdout, peer.stderr = ours
        return peer

    def _read(self) -> None:
        peers: dict[int, Forked] = {}
        while text := self._channel.recv(MESSAGE_BYTES_MAX):
            what, pid, status = json.loads(text)
            if what == "started":
                peers[pid] = Forked(pid)
                self._started.put(peers[pid])
            else:
                peer = peers.pop(pid)
                peer.returncode = status
                peer.has_ended.set()
        self._started.put(None)

    def close(self) -> None:
        """Its peers end with it."""
        self._channel.shutdown(socket.SHUT_WR)
        self._process.wait(ANSWER_S)
        self._reader.join(ANSWER_S)
        self._channel.close()


# ------------------------------------------------------------------------------ in the server


def serve(channel: socket.socket) -> Callable[[], None] | None:
    """Forks until the test closes the channel. In a child it returns what the peer has to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads in a process that forks"
    with selectors.DefaultSelector() as waiting:
        waiting.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    _, status = os.waitpid(key.data, 0)
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    _tell(channel, "ended", key.data, os.waitstatus_to_exitcode(status))
                    continue
                message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 3)
                children = {k.fd: k.data for k in waiting.get_map().values() if k.data is not None}
                if not message:
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                pid = os.fork()
                if pid == 0:
                    for descriptor in children:
                        os.close(descriptor)
                    channel.close()
                    return _become(*json.loads(message), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                _tell(channel, "started", pid)


def _tell(channel: socket.socket, what: str, pid: int, status: int = 0) -> None:
    channel.send(json.dumps([what, pid, status]).encode())


def _become(call: list[Any], environment: dict[str, str], pipes: list[int]) -> Callable[[], None]:
    """In the child: what a fresh interpreter would have."""
    import conftest

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(pipes):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [conftest.__file__, json.dumps(call)]
    sys.stdout = sys.stderr
    return lambda: conftest.be_peer(*call)


if __name__ == "__main__":
    be_peer = serve(socket.socket(fileno=int(sys.argv[1])))
    if be_peer is not None:  # outside of what the server holds
        be_peer()
