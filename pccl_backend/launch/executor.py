"""Carries out the decisions of the supervisor: processes, signals, streams. Decides nothing itself.

One thread, the main one, starts all processes (the kernel ends a child when the *thread* that
started it ends), sleeps until a signal, a child's end, a notice or a deadline, tells the supervisor
and carries out its actions. No call here waits without a limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .._config import OF_TOKENS
from . import child, environment
from .arguments import Plan
from .output import ERR, OUT, Streams, Tail, Teller, wait_for_streams
from .spot import Watch
from .supervisor import (
    Asked,
    Ended,
    Event,
    Exit,
    RunEnded,
    Say,
    ShowErrors,
    Signal,
    Start,
    Supervisor,
    Tick,
    Unit,
)

TICK_S = 1.0  # the longest sleep
STREAM_END_S = 1.0  # a worker's streams end with it, unless it has left a child that holds them
LAST_WORDS_S = 2.0
REFOUND_AFTER_S = 5.0  # all members are of this host: when they have ended none comes back
NOT_STARTED = 126  # as of a shell that cannot execute a program


@dataclass
class Process:
    """A process of a unit."""

    unit: int
    rank: int
    attempt: int
    handle: subprocess.Popen[bytes]


def hold_port() -> socket.socket:
    """A bound socket, so that nobody else gets its port; a server of ours listens beside it.

    Linux lets two sockets with SO_REUSEADDR have one port while only one of them listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Executor:
    """The processes of one launcher; `run` is called once."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Starts nothing yet.

        Args:
            plan: What is wanted.
            folder: For files that are of no use afterwards.
        """
        self._plan, self._folder = plan, folder
        self._name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        workers = [Unit(f"worker {rank}") for rank in range(plan.processes)]
        if plan.replica:
            workers = [Unit("the replica", plan.processes)]
        self._units = [*workers, *([Unit("the master", serves=True)] if plan.standalone else [])]
        self._supervisor = Supervisor(self._units, plan.rules)
        self._url = plan.master or ""
        self._ports: dict[int, socket.socket] = {}  # by unit
        if plan.standalone:
            self._ports[len(workers)] = hold_port()
            self._url = f"pccl://127.0.0.1:{self._ports[len(workers)].getsockname()[1]}"
        self._note = folder / "run-ended"
        self._running: dict[int, Process] = {}  # by process id
        self._tails: dict[tuple[int, int], Tail] = {}  # of the last process of each rank
        self._events: deque[Event] = deque([Tick()])
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._logs: Path | None = None
        self._teller = Teller()
        self._status: int | None = None

    def run(self) -> int:
        """Supervises the units until all have ended; returns the launcher's status."""
        with self._woken_by_signals() as wake, selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            watch = self._watch()
            while self._status is None:
                while self._events and self._status is None:
                    self._tell(self._events.popleft())
                if self._status is None:
                    wait_s = self._supervisor.wake_s() - time.monotonic()
                    selector.select(max(0.0, min(wait_s, TICK_S)))
                    self._look(wake)
            if watch is not None:
                watch.close()
        for held in self._ports.values():
            held.close()
        wait_for_streams(STREAM_END_S)
        self._teller.close(LAST_WORDS_S)
        return self._status

    # ------------------------------------------------------------------------- what happens

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[int]:
        """A descriptor on which the numbers of signals can be read."""
        wake, self._wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        for number in (*self._plan.signals, signal.SIGCHLD):
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, lambda *_: None)  # SIGHUP under nohup stays ignored
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        yield wake
        signal.set_wakeup_fd(-1)
        for number in self._plan.signals:  # the status is known: a late signal must not change it
            signal.signal(number, signal.SIG_IGN)

    def _watch(self) -> Watch | None:
        if self._plan.spot is None:
            return None

        def notify(text: str) -> None:
            self._notices.put(text)
            with contextlib.suppress(BlockingIOError):  # it wakes up anyway
                os.write(self._wake, b"\0")

        return Watch(self._plan.spot, notify, self._teller.say)

    def _look(self, wake: int) -> None:
        """Makes events of what has come since the last look."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(wake, 4096):
                if number in self._plan.signals:
                    self._events.append(Asked(number, f"got {signal.Signals(number).name}"))
        while not self._notices.empty():
            self._events.append(Asked(signal.SIGTERM, self._notices.get_nowait()))
        self._reap()
        self._events.append(Tick())

    def _reap(self) -> None:
        """Takes the status of every child that has ended; also of those that others have left."""
        ended = []
        with contextlib.suppress(ChildProcessError):  # there is none at all
            while info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                process = self._running.pop(info.si_pid, None)
                if process is None:  # an orphan: this is process 1 of a container
                    os.waitpid(info.si_pid, 0)
                    continue
                if (info.si_code, info.si_status) != (os.CLD_EXITED, 0):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(info.si_pid, signal.SIGTERM)  # what the worker had started
                status = process.handle.wait()
                finished = environment.finished_note(
                    self._note, self._local(process.unit, process.rank), process.attempt
                ).exists()
                ended.append(Ended(process.unit, process.rank, process.attempt, status, finished))
        if ended and self._note.exists():
            self._events.append(RunEnded())
        self._events.extend(ended)

    # ------------------------------------------------------------------------- what is done

    def _tell(self, event: Event) -> None:
        for action in self._supervisor.step(event, time.monotonic()):
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Signal):
                self._signal(action)
            elif isinstance(action, Say):
                self._teller.say(action.text)
            elif isinstance(action, ShowErrors):
                self._teller.show(self._tails[action.unit, action.rank](STREAM_END_S))
            elif isinstance(action, Exit):
                self._status = action.status

    def _signal(self, action: Signal) -> None:
        for pid, process in self._running.items():
            if (process.unit, process.rank) == (action.unit, action.rank):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, action.number)  # not yet waited for, so the number is its own

    def _start(self, action: Start) -> None:
        index, attempt = action.unit, action.attempt
        unit = self._units[index]
        if self._plan.replica and not unit.serves:
            if index in self._ports:
                self._ports.pop(index).close()
            self._ports[index] = hold_port()
        for rank in range(unit.size):
            try:
                self._spawn(action, rank)
            except OSError as error:
                self._tails[index, rank] = lambda _, text=str(error): text  # type: ignore[misc]
                self._teller.say(f"{unit.name} cannot be started: {error}")
                self._events.append(Ended(index, rank, attempt, NOT_STARTED))

    def _local(self, index: int, rank: int) -> int:
        return rank if self._plan.replica else index

    def _spawn(self, action: Start, rank: int) -> None:
        index, attempt = action.unit, action.attempt
        local = self._local(index, rank)
        if self._units[index].serves:
            command, variables, streams = self._master(action), dict(os.environ), Streams()
        else:
            command, variables = self._plan.command, self._variables(index, local, attempt)
            streams = self._streams(local, attempt)
        with contextlib.ExitStack() as opened:
            targets, sources = streams.open(opened)
            try:
                handle = subprocess.Popen(
                    [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=targets[OUT],
                    stderr=targets[ERR],
                    env=variables,
                    start_new_session=True,  # Ctrl-C reaches the launcher only, which hands it on
                )
            except OSError:
                for source in sources.values():
                    os.close(source)
                raise
        try:
            self._tails[index, rank] = streams.copy(sources)
        except (OSError, RuntimeError) as error:  # no descriptor, no room for a file, no thread
            os.killpg(handle.pid, signal.SIGKILL)
            handle.wait()
            raise OSError(f"its streams cannot be copied: {error}") from error
        self._running[handle.pid] = Process(index, rank, attempt, handle)

    def _master(self, action: Start) -> tuple[str, ...]:
        """The command of the master of --standalone; its register lets it come back."""
        port = self._ports[action.unit].getsockname()[1]
        return (
            *(sys.executable, "-m", "pccl_backend._cli", "--listen", f"127.0.0.1:{port}"),
            *("--min-peers", str(action.clients), "--state", str(self._folder / "register")),
            *("--refound-after", str(REFOUND_AFTER_S)),
        )

    def _variables(self, index: int, local: int, attempt: int) -> dict[str, str]:
        # The master of --standalone is on loopback and takes no tokens.
        no = OF_TOKENS if self._plan.standalone else ()
        variables = environment.of_worker(
            {name: value for name, value in os.environ.items() if name not in no},
            url=self._url,
            note=self._note,
            rank=local,
            processes=self._plan.processes,
            attempt=attempt,
        )
        if not self._plan.replica:
            return variables
        port = self._ports[index].getsockname()[1]
        return environment.of_rank(variables, name=self._name, port=port)

    def _streams(self, local: int, attempt: int) -> Streams:
        redirects, tees = self._plan.redirects[local], self._plan.tees[local]
        if not redirects | tees:
            return Streams()
        if self._logs is None:
            base = self._plan.log_folder or Path(tempfile.gettempdir()) / "pccl-run"
            self._logs = base / self._name
            self._teller.say(f"logs are in {self._logs}")
        folder = self._logs / f"attempt_{attempt}" / str(local)
        folder.mkdir(parents=True, exist_ok=True)
        return Streams(redirects, tees, folder, f"[{local}]: ")


def run(plan: Plan) -> int:
    """Runs a launcher in this process, in its main thread; returns its status."""
    with tempfile.TemporaryDirectory(prefix="pccl-run-", ignore_cleanup_errors=True) as folder:
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # else systemd takes it for forgotten in ten days
                fcntl.flock(held, fcntl.LOCK_SH)
            return Executor(plan, Path(folder)).run()
        finally:
            os.close(held)
