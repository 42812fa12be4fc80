"""The output of workers, and of `pccl-run` itself: to the console and into files.

A console that takes no bytes (Ctrl-S, a pipe without a reader) holds up the threads here, and the
worker that writes the stream, as it would without a launcher; never the thread that supervises.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16  # a longer one goes to the console in parts
TAIL_BYTES = 1 << 13
TAIL_LINES = 20
SAID_MAX = 1000  # lines that wait for a console that takes nothing; further ones are dropped
OUT, ERR = 1, 2  # descriptors; as flags, which --redirects and --tee add up, both are 3

Tail = Callable[[float], str]
"""Gives the last lines of a stream; waits for its end as many seconds at most."""


def write_all(descriptor: int, data: bytes) -> OSError | None:
    """Writes all of it; what it returns says why the rest is not written."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody has made the console non-blocking
            time.sleep(0.01)
        except OSError as error:
            return error
    return None


class Sink:
    """Where a pump copies to. What comes while a disk is full is lost, and what comes later not."""

    def __init__(self, descriptor: int) -> None:
        """Does not close the descriptor."""
        self._descriptor = descriptor
        self._lost = 0  # bytes
        self._is_gone = False

    def write(self, data: bytes) -> None:
        """Writes all of it, unless the reader is gone; never raises."""
        if self._is_gone or not data:
            return
        said = ""
        if self._lost:
            said = f"[pccl-run: up to {self._lost} bytes are lost: the disk was full]\n"
        error = write_all(self._descriptor, said.encode() + data)
        if error is None:
            self._lost = 0
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._lost += len(data)
        else:
            self._is_gone = True


class Teller:
    """Lines of the launcher's own, on stderr."""

    def __init__(self) -> None:
        """Starts the thread that writes."""
        self._lines: queue.Queue[bytes | None] = queue.Queue(SAID_MAX)
        self._thread = threading.Thread(target=self._run, name="pccl-run-log", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Writes one line, at once; may be called from any thread."""
        self._put(f"pccl-run: {text}\n".encode(errors="replace"))

    def show(self, text: str) -> None:
        """Text of a worker, unchanged."""
        self._put(text.rstrip("\n").encode(errors="replace") + b"\n")

    def close(self, timeout_s: float) -> None:
        """Waits until what was said is written, but not longer than that."""
        self._put(None)
        self._thread.join(timeout_s)

    def _put(self, line: bytes | None) -> None:
        with contextlib.suppress(queue.Full):  # nobody has read a thousand lines
            self._lines.put_nowait(line)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            write_all(ERR, line)


class Pump:
    """Copies a stream of a worker to the console, into a file, or both; remembers its end."""

    def __init__(
        self, source: int, *, console: int, prefix: str = "", file: Path | None = None
    ) -> None:
        """Starts the thread that copies.

        Args:
            source: Descriptor of a pipe; the pump closes it.
            console: Descriptor to copy to.
            prefix: Before each line on the console; empty: bytes are copied as they come.
            file: That gets all bytes as they are.
        """
        self._source, self._console = source, Sink(console)
        self._prefix = prefix.encode()
        _pumping[:] = [thread for thread in _pumping if thread.is_alive()]
        self._file = None if file is None else os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        self._tail = b""
        self._thread = threading.Thread(target=self._run, name="pccl-run-pump", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            if self._file is not None:
                os.close(self._file)
            raise
        _pumping.append(self._thread)

    def tail(self, timeout_s: float) -> str:
        """The last lines; waits until the stream has ended, but not longer than that."""
        self._thread.join(timeout_s)
        return last_lines(self._tail)

    def _run(self) -> None:
        rest = b""
        file = None if self._file is None else Sink(self._file)
        while chunk := os.read(self._source, CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if file is not None:
                file.write(chunk)
            if self._prefix:
                rest += chunk
                cut = len(rest) if len(rest) > LINE_BYTES_MAX else rest.rfind(b"\n") + 1
                chunk, rest = rest[:cut], rest[cut:]
            self._to_console(chunk)
        self._to_console(rest)
        os.close(self._source)
        if self._file is not None:
            os.close(self._file)

    def _to_console(self, data: bytes) -> None:
        if data and self._prefix:
            lines = data.removesuffix(b"\n").split(b"\n")
            data = b"".join(self._prefix + line + b"\n" for line in lines)
        self._console.write(data)


_pumping: list[threading.Thread] = []  # of all pumps, for the end of the launcher


def wait_for_streams(timeout_s: float) -> None:
    """Waits until all that workers have written is where it belongs, but not longer than that."""
    deadline = time.monotonic() + timeout_s
    for thread in _pumping:
        thread.join(max(0.0, deadline - time.monotonic()))


def last_lines(data: bytes) -> str:
    """The lines at the end of a stream that a person wants to see."""
    return "\n".join(data.decode(errors="replace").splitlines()[-TAIL_LINES:])


def tail_of(file: Path) -> str:
    """The last lines of a file."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return last_lines(opened.read(TAIL_BYTES))
    except OSError as error:
        return f"({file} cannot be read: {error.strerror})"


@dataclass(frozen=True)
class Streams:
    """Where stdout and stderr of a process go. stderr always passes by here, for its last lines.

    Attributes:
        redirects: Streams that go into files only.
        tees: Streams that go into files, and with a prefix to the console.
        folder: Of the files.
        prefix: Of lines that go to both.
    """

    redirects: int = 0
    tees: int = 0
    folder: Path = Path()
    prefix: str = ""

    def open(self, opened: contextlib.ExitStack) -> tuple[dict[int, int | None], dict[int, int]]:
        """What the process gets for each stream (None: the launcher's), and pipes to copy from.

        Args:
            opened: Closes, in this process, what the other one gets.
        """
        targets: dict[int, int | None] = {}
        sources: dict[int, int] = {}
        with contextlib.ExitStack() as undo:
            for stream in (OUT, ERR):
                if self.redirects & stream:
                    targets[stream] = opened.enter_context(self._file(stream).open("ab")).fileno()
                elif self.tees & stream or stream == ERR:
                    sources[stream], target = os.pipe()
                    undo.callback(os.close, sources[stream])
                    opened.callback(os.close, target)
                    targets[stream] = target
                else:
                    targets[stream] = None
            undo.pop_all()
        return targets, sources

    def copy(self, sources: Mapping[int, int]) -> Tail:
        """Copies from the pipes from now on; returns what gives the last lines of stderr.

        Raises:
            OSError: A file cannot be made.
            RuntimeError: There is no thread for it.
        """
        pumps: dict[int, Pump] = {}
        try:
            for stream, source in sources.items():
                pumps[stream] = self._pump(stream, source)
        except (OSError, RuntimeError):
            for stream in sources.keys() - pumps.keys():
                os.close(sources[stream])
            raise
        if ERR in pumps:
            return pumps[ERR].tail
        return lambda _: tail_of(self._file(ERR))

    def _pump(self, stream: int, source: int) -> Pump:
        if not self.tees & stream:
            return Pump(source, console=stream)
        return Pump(source, console=stream, prefix=self.prefix, file=self._file(stream))

    def _file(self, stream: int) -> Path:
        return self.folder / ("stdout.log" if stream == OUT else "stderr.log")
