"""What tests share: real processes that talk to the test in lines, a master, conditions, ports.

`run_peers` starts processes that run a function of the test's module: forks of one that has
imported torch (`peer_server.py`), or, in a module with FRESH = True, fresh interpreters. A peer
tells the test what it sees with `say(...)`; the test lets it go on with `peer.tell(...)`, which
`hear()` returns. So tests wait for conditions, never for time. Run as a script, this file is such a
peer.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from peer_server import Server

ROOT = Path(__file__).resolve().parent.parent
# c10d's reconfigure came with torch 2.14; what needs it is run by scripts/torch_versions.
TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
collect_ignore_glob = [] if TORCH >= (2, 14) else ["*/test_reconfigure.py"]
PATIENCE_S = 150.0  # for what takes a second or two: a machine may be 20 times slower for a while

# A script starts `make test &` with Ctrl-C ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "") -> Any:
    """Returns the first true value of `condition`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what or condition}")
        pause.wait(0.005)


def peer_environment() -> dict[str, str]:
    """Of a process that runs functions of a test's file, or pccl's command."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def free_port() -> int:
    """A port that nobody listens on; for programs that cannot be given port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------ in a peer


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(r[1].rsplit(":", 1)[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}


def say(**line: Any) -> None:
    """In a peer: one line to the test. Also from a handler that interrupts another one."""
    assert sys.__stdout__ is not None
    left = (json.dumps(line) + "\n").encode()
    while left:
        left = left[os.write(sys.__stdout__.fileno(), left) :]


def hear() -> Any:
    """In a peer: waits for the next word of the test."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the test has ended")
    return json.loads(line)


def failure(call: Callable[[], Any]) -> str:
    """In a peer: what `call` raises, as one line; "" if it does not."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fixed_group(
    rank: int,
    world: int,
    meet: str,
    timeout_s: float = 120,
    backend: str = "pccl",
    **options: Any,
) -> Any:
    """In a peer: makes the default group, whose ranks meet in a file; returns torch.distributed."""
    import torch.distributed as dist

    store = dist.FileStore(meet, world)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timeout, **options
    )
    return dist


def common_store(rank: int, meet: str) -> Any:
    """In a peer: a store in the memory of rank 0, which writes its port to the file `meet`."""
    import torch.distributed as dist

    port_file = Path(meet)
    if rank > 0:
        wait_until(port_file.exists)
        return dist.TCPStore("127.0.0.1", int(port_file.read_text()))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    new = port_file.with_suffix(".new")
    new.write_text(str(store.port))
    new.rename(port_file)
    return store


def _threads() -> dict[str, str]:
    """Of this process but for the calling one: name and state, by number."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            found[task.name] = f"{rest.split()[0]} {name}"
    return found


def resources() -> dict[str, Any]:
    """In a peer: its memory, the names of its other threads, the number of its descriptors.

    Taken when they sleep: a thread that has not run yet has the name of who started it.
    """
    end = time.monotonic() + 5.0
    while time.monotonic() < end and any(not t.startswith("S ") for t in _threads().values()):
        time.sleep(0.01)
    status = Path("/proc/self/status").read_text()
    (resident,) = (x.split()[1] for x in status.splitlines() if x.startswith("VmRSS:"))
    threads = [thread.partition(" ")[2] for thread in _threads().values()]
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"kib": int(resident), "threads": sorted(threads), "descriptors": descriptors}


# ------------------------------------------------------------------------------ in the test


class Peer:
    """A process that runs a function of a test module."""

    def __init__(self, command: list[str], environment: dict[str, str], name: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._new: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.process = self._start(command, environment)
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)
        ]
        for reader in self._readers:
            reader.start()

    _tree = ROOT

    def _start(self, command: list[str], environment: dict[str, str]) -> Any:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._tree,
        )

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                self.errors.append(text)
                continue
            self.lines.append(line)
            self._new.put(line)
        self._new.put(None)

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def next(self, timeout_s: float = PATIENCE_S, **wanted: Any) -> dict[str, Any]:
        """The next line in which each of `wanted` has that value; fails if the peer ends before."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"{self.name} did not say {wanted} within {timeout_s} s\n{self.log()}")
            if line is None:
                self._new.put(None)
                pytest.fail(f"{self.name} ended without saying {wanted}\n{self.log()}")
            if all(line.get(key) == value for key, value in wanted.items()):
                return line

    def tell(self, word: Any) -> None:
        """Gives the peer the word that its `hear` waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word) + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end of the process."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def finish(self, timeout_s: float = PATIENCE_S, status: int | None = 0) -> list[dict[str, Any]]:
        """Waits for the end and checks the exit status (None: any); returns all lines."""
        try:
            got = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} did not end within {timeout_s} s\n{self.log()}")
        for reader in self._readers:
            reader.join(PATIENCE_S)
        if status is not None and got != status:
            pytest.fail(f"{self.name} ended with status {got}, expected {status}\n{self.log()}")
        return self.lines

    def log(self) -> str:
        """What it said and wrote, for messages of failed tests."""
        said = "\n".join(json.dumps(line) for line in self.lines[-20:])
        return f"--- {self.name} said\n{said}\n--- stderr\n{''.join(self.errors[-60:])}"

    def close(self) -> None:
        """Ends the process whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Master(Peer):
    """A `pccl-master` on a free port, with its state in a file; of the package in `tree`."""

    def __init__(
        self, folder: Path, arguments: list[str], port: int = 0, tree: Path = ROOT
    ) -> None:
        self._tree = tree
        self._port_file = folder / f"port-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "pccl_backend._cli", "--listen", f"127.0.0.1:{port}"]
        command += ["--port-file", str(self._port_file), *arguments]
        if port and "--state" not in arguments:  # a run of days ago may have had the port
            command += ["--state", str(folder / f"master-{port}")]
        super().__init__(command, dict(os.environ), "master")
        self.port = int(wait_until(self._opened, what=f"the master's port\n{self.log()}"))

    def _opened(self) -> str:
        if self.process.poll() is not None:
            pytest.fail(f"the master ended with status {self.process.poll()}\n{self.log()}")
        return self._port_file.read_text().strip() if self._port_file.exists() else ""

    @property
    def url(self) -> str:
        return f"pccl://127.0.0.1:{self.port}"


class ForkedPeer(Peer):
    """Of a server; what it is to do is the last word of its command."""

    def __init__(
        self, server: Server, command: list[str], environment: dict[str, str], name: str
    ) -> None:
        self._server = server
        super().__init__(command, environment, name)

    def _start(self, command: list[str], environment: dict[str, str]) -> Any:
        return self._server.start(json.loads(command[-1]), environment)


@pytest.fixture(scope="session")
def servers() -> Iterator[list[Server]]:
    """For even and odd peers; made when the first test asks for them."""
    made: list[Server] = []
    yield made
    for server in made:
        server.close()


@pytest.fixture
def run_peers(
    request: pytest.FixtureRequest, servers: list[Server]
) -> Iterator[Callable[..., list[Peer]]]:
    """`run_peers(function, count, *arguments, env=None)` starts peers; they end with the test.

    In each, `function(index, *arguments)` of the test's module runs in a process of its own.
    """
    started: list[Peer] = []
    is_fresh = getattr(request.module, "FRESH", False)

    def run(
        function: Callable[..., None],
        count: int,
        *arguments: Any,
        env: dict[str, str] | None = None,
        first: int = 0,
    ) -> list[Peer]:
        new = []
        for index in range(first, first + count):
            call = json.dumps([str(request.path), function.__name__, index, *arguments])
            environment = peer_environment() | (env or {})
            command, name = [sys.executable, __file__, call], f"peer {index}"
            if not is_fresh and not servers:
                servers.extend(Server(environment) for _ in range(2))
            if is_fresh or not servers[index % 2].can_fork(environment):
                new.append(Peer(command, environment, name))
            else:
                new.append(ForkedPeer(servers[index % 2], command, environment, name))
            started.append(new[-1])
        return new

    yield run
    for peer in started:
        peer.close()


@pytest.fixture
def start_master(tmp_path: Path) -> Iterator[Callable[..., Master]]:
    """`start_master(*arguments, port=0, tree=ROOT)`: a master; ends with the test."""
    started: list[Master] = []

    def start(*arguments: str, port: int = 0, tree: Path = ROOT) -> Master:
        started.append(Master(tmp_path, list(arguments), port, tree))
        return started[-1]

    yield start
    for master in started:
        master.close()


def be_peer(path: str, name: str, index: int, *arguments: Any) -> None:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    getattr(module, name)(index, *arguments)


if __name__ == "__main__":
    sys.stdout = sys.stderr  # only `say` writes lines for the test
    sys.modules["conftest"] = sys.modules["__main__"]
    be_peer(*json.loads(sys.argv[1]))
