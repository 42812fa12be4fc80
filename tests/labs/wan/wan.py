#!/usr/bin/env python3
"""A wide-area network between network namespaces of this machine; README.md tells how to use it.

    with Wan(hosts=4, rtt_ms=80, loss_pct=0.01, rate_mbit=1000) as wan:
        server = wan.popen(1, ["iperf3", "-s"])
        wan.run(2, ["iperf3", "-c", wan.address(1)])

This file makes and removes namespaces and talks to the forwarder (wan_forwarder.cpp), which owns
the hosts' interfaces and carries every packet.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PREFIX = "wanemu-"  # of all the namespaces that this tool makes, and ever removes
INTERFACE = "wan0"
ALL = "*"

PAIR_SETTINGS = {
    "delay_ms",
    "jitter_ms",
    "keep_order",
    "loss_pct",
    "burst_packets",
    "burst_loss_pct",
    "rate_mbit",
    "queue_ms",
    "queue_kib",
    "line",
    "duplicate_pct",
    "reorder_pct",
    "reorder_ms",
    "cut",
    "cut_port",
    "swallow_above",
    "forget_s",
}
HOST_SETTINGS = {
    "up_mbit",
    "up_queue_ms",
    "up_queue_kib",
    "down_mbit",
    "down_queue_ms",
    "down_queue_kib",
}

Group = int | Iterable[int]  # one host or several


class WanError(RuntimeError):
    """The network could not be built, or the forwarder refused a command."""


class Wan:
    """`hosts` network namespaces, numbered from 1, whose packets all go through one forwarder.

    Further keywords are settings for all pairs and hosts: PAIR_SETTINGS, HOST_SETTINGS, `rtt_ms`.
    `congestion_control` and `tcp_buffer_mib` (the limit of TCP's automatic buffer sizes) are set on
    every host; None leaves the machine's own.
    """

    def __init__(
        self,
        hosts: int = 2,
        *,
        name: str | None = None,
        mtu: int = 1500,
        offload: bool = True,
        seed: int = 1,
        memory_mib: int = 4096,
        congestion_control: str | None = None,
        tcp_buffer_mib: float | None = None,
        **settings: float,
    ) -> None:
        self.hosts = range(1, hosts + 1)
        self.name = name or secrets.token_hex(3)
        if not re.fullmatch(r"[a-z0-9]+", self.name):
            raise ValueError(f"name must be of lower-case letters and digits, not {self.name!r}")
        self.mtu = mtu
        self.offload = offload
        self.seed = seed
        self.memory_mib = memory_mib
        self.congestion_control = congestion_control
        self.tcp_buffer_mib = tcp_buffer_mib
        self.settings = settings
        self._forwarder: subprocess.Popen[bytes] | None = None  # if this process has started it

    # -- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Wan:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self, *, daemon: bool = False) -> None:
        """Builds the network.  It ends with down(), or, unless `daemon`, with this process."""
        program = build_forwarder()
        with contextlib.suppress(FileExistsError):
            state_folder().mkdir(mode=0o700)
        try:
            self._folder.mkdir()
        except FileExistsError:
            raise WanError(f"there is a network {self.name!r} already") from None
        try:
            for host in self.hosts:
                _ip("netns", "add", self.namespace(host))
            self._start_forwarder(program, daemon)
            for host in self.hosts:
                self._configure_host(host)
            _hasten_receivers()
            self._apply(ALL, ALL, False, self.settings)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends the forwarder and what still runs on the hosts, and removes the namespaces."""
        if self._forwarder:
            _end_processes([self._forwarder.pid])
            self._forwarder.communicate()
            self._forwarder = None
        _remove(self.name)

    @classmethod
    def attach(cls, name: str) -> Wan:
        """A network that is up already, made by another process."""
        try:
            state = json.loads((state_folder() / name / "state.json").read_text())
        except FileNotFoundError:
            raise WanError(f"there is no network {name!r}") from None
        return cls(state["hosts"], name=name)

    def _start_forwarder(self, program: Path, daemon: bool) -> None:
        command = [str(program), "--socket", str(self._socket), "--seed", str(self.seed)]
        command += ["--memory-mib", str(self.memory_mib)]
        for host in self.hosts:
            command += ["--namespace", self.namespace(host)]
        if not self.offload:
            command.append("--no-offload")
        if not daemon:
            # Should we crash, our end of the pipe closes, and the forwarder turns into "wan down".
            myself = str(Path(__file__).resolve())
            command += ["--then", sys.executable, myself, "--name", self.name, "down"]
        log = self._folder / "forwarder.log"
        with open(log, "wb") as log_file:
            self._forwarder = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
            )
        assert self._forwarder.stdout
        if self._forwarder.stdout.readline() != b"ready\n":
            raise WanError(log.read_text().strip())
        state = {"hosts": len(self.hosts), "forwarder": self._forwarder.pid}
        (self._folder / "state.json").write_text(json.dumps(state))

    def _configure_host(self, host: int) -> None:
        commands = [
            "link set lo up",
            # A deep queue to the forwarder: its rules are to drop packets, not its being slow.
            f"link set {INTERFACE} mtu {self.mtu} txqueuelen 10000 addrgenmode none up",
            f"addr add {self.address(host)}/24 dev {INTERFACE}",
        ]
        if Path("/proc/sys/net/ipv6").exists() and self.mtu >= 1280:
            commands.append(f"addr add {self.address6(host)}/112 dev {INTERFACE} nodad")
        _ip("-n", self.namespace(host), "-batch", "-", lines="\n".join(commands))

        # A connection must not inherit what an earlier one has seen.
        files = {"/proc/sys/net/ipv4/tcp_no_metrics_save": "1"}
        # The kernel receives for a host in a thread of its own, instead of in the forwarder.
        files[f"/sys/class/net/{INTERFACE}/threaded"] = "1"
        if self.congestion_control:
            files["/proc/sys/net/ipv4/tcp_congestion_control"] = self.congestion_control
        if self.tcp_buffer_mib:
            limit = int(self.tcp_buffer_mib * 2**20)
            files["/proc/sys/net/ipv4/tcp_rmem"] = f"4096 131072 {limit}"
            files["/proc/sys/net/ipv4/tcp_wmem"] = f"4096 16384 {limit}"
        script = "; ".join(f"echo {value} > {path}" for path, value in files.items())
        self.run(host, ["sh", "-ec", script], check=True)

    # -- hosts -------------------------------------------------------------------------------------

    def address(self, host: int) -> str:
        return f"10.77.0.{host}"

    def address6(self, host: int) -> str:
        return f"fd77::{host:x}"

    def namespace(self, host: int) -> str:
        return f"{PREFIX}{self.name}-{host}"

    def command(self, host: int, command: str | list[str]) -> list[str]:
        """The command line that runs `command` on a host."""
        words = shlex.split(command) if isinstance(command, str) else list(command)
        return ["ip", "netns", "exec", self.namespace(host), *words]

    def run(
        self, host: int, command: str | list[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """subprocess.run() on a host."""
        return subprocess.run(self.command(host, command), **options)

    def popen(self, host: int, command: str | list[str], **options: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen() on a host; its pid is the command's.  down() ends what still runs."""
        return subprocess.Popen(self.command(host, command), **options)

    # -- the network -------------------------------------------------------------------------------

    def set(
        self,
        source: int | str = ALL,
        target: int | str = ALL,
        *,
        both: bool = False,
        **settings: float,
    ) -> None:
        """Changes settings of the directed pair source -> target; with `both`, of both directions.

        `rtt_ms` sets half of it as the delay of each direction.  Host settings (HOST_SETTINGS)
        change the hosts named by `source`.

        Raises:
            TypeError: There is no such setting.
            WanError: There is no such host, or the value is negative.
        """
        self._apply(source, target, both, settings)

    def partition(self, group: Group, others: Group | None = None) -> None:
        """Drops silently all that goes between two groups of hosts (`others`: all the rest)."""
        self._set_cut(group, others, 1)

    def heal(self, group: Group | None = None, others: Group | None = None) -> None:
        """Ends the partition between two groups of hosts, or all partitions."""
        if group is None:
            self.set(ALL, ALL, cut=0)
        else:
            self._set_cut(group, others, 0)

    def stats(self) -> dict[str, Any]:
        """{"pairs": {(source, target): {...}}, "hosts": {host: {...}}, "forwarder": {...}}

        Counters are of MTU-sized segments, since the start; README.md explains them.  If `overrun`
        of a host is not 0, the forwarder was too slow and the emulation not faithful.
        """
        answer = self._control("stats")
        hosts = {entry.pop("host"): entry for entry in answer["hosts"]}
        for host, entry in hosts.items():
            link = _ip("-n", self.namespace(host), "-s", "-j", "link", "show", INTERFACE)
            entry["overrun"] = json.loads(link)[0]["stats64"]["tx"]["dropped"]
        pairs = {(entry.pop("from"), entry.pop("to")): entry for entry in answer["pairs"]}
        return {"pairs": pairs, "hosts": hosts, "forwarder": answer["forwarder"]}

    def _apply(
        self, source: int | str, target: int | str, both: bool, settings: Mapping[str, float]
    ) -> None:
        unknown = settings.keys() - PAIR_SETTINGS - HOST_SETTINGS - {"rtt_ms"}
        if unknown:
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        pair = {key: value for key, value in settings.items() if key in PAIR_SETTINGS}
        host = {key: value for key, value in settings.items() if key in HOST_SETTINGS}
        if "rtt_ms" in settings:
            pair["delay_ms"] = settings["rtt_ms"] / 2
            self._control("pair", target, source, delay_ms=pair["delay_ms"])
        if pair:
            self._control("pair", source, target, **pair)
            if both:
                self._control("pair", target, source, **pair)
        if host:
            self._control("host", source, **host)

    def _set_cut(self, group: Group, others: Group | None, cut: int) -> None:
        group = _members(group)
        others = [h for h in self.hosts if h not in group] if others is None else _members(others)
        for a in group:
            for b in others:
                self.set(a, b, both=True, cut=cut)

    # -- the forwarder -----------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return state_folder() / self.name

    @property
    def _socket(self) -> Path:
        return self._folder / "control"

    def _control(self, *words: object, **settings: float) -> Any:
        """Sends the forwarder a command and returns its answer."""
        assignments = [f"{key}={float(value)!r}" for key, value in settings.items()]
        line = " ".join([*map(str, words), *assignments])
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self._socket))
            except OSError as error:
                raise WanError(f"the forwarder of {self.name!r} does not answer: {error}") from None
            connection.sendall(line.encode() + b"\n")
            with connection.makefile() as reader:
                answer = reader.readline().strip()
        if answer.startswith("{"):
            return json.loads(answer)
        if answer != "ok":
            raise WanError(answer or "the forwarder gave no answer")
        return None


# -- what is not of one network --------------------------------------------------------------------


def state_folder() -> Path:
    """Where each network that is up has a folder by its name."""
    base = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
    return base / "wan-emulator"


def build_forwarder() -> Path:
    """Compiles wan_forwarder.cpp, once for each version of it, into the user's cache folder."""
    source = Path(__file__).resolve().with_name("wan_forwarder.cpp")
    files = [source, *sorted(source.parent.glob("*.h"))]
    content = b"".join(file.read_bytes() for file in files)
    version = hashlib.sha256(content).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "wan-emulator" / f"wan_forwarder-{version}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        command = [*compiler, "-std=c++17", "-O2", "-o", str(unfinished), str(source)]
        subprocess.run(command, check=True)
        unfinished.replace(program)  # at once, for others may be building it too
    return program


def networks() -> list[str]:
    """The names of the networks that are up."""
    if not state_folder().exists():
        return []
    return sorted(folder.name for folder in state_folder().iterdir() if _is_up(folder.name))


def cleanup(*, everything: bool = False) -> list[str]:
    """Removes networks without a forwarder (after a crash), or all; returns their names."""
    pattern = re.compile(rf"{PREFIX}([a-z0-9]+)-\d+")
    names = {match[1] for space in _namespaces() if (match := pattern.fullmatch(space))}
    if state_folder().exists():
        names |= {folder.name for folder in state_folder().iterdir()}
    removed = [name for name in sorted(names) if everything or not _is_up(name)]
    for name in removed:
        _remove(name)
    return removed


def _remove(name: str) -> None:
    """Ends the processes of a network, and removes its namespaces and its state."""
    forwarder = _forwarder_pid(name)
    pids = [forwarder] if forwarder else []
    mine = [space for space in _namespaces() if re.fullmatch(rf"{PREFIX}{name}-\d+", space)]
    for namespace in mine:
        with contextlib.suppress(WanError):  # another process may be removing it, too
            pids += map(int, _ip("netns", "pids", namespace).split())
    _end_processes(pids)
    for namespace in mine:
        with contextlib.suppress(WanError):
            _ip("netns", "del", namespace)
    shutil.rmtree(state_folder() / name, ignore_errors=True)


def _is_up(name: str) -> bool:
    return _forwarder_pid(name) is not None or _is_being_built(name)


def _forwarder_pid(name: str) -> int | None:
    """The process id of a network's forwarder, if it is alive."""
    try:
        state = json.loads((state_folder() / name / "state.json").read_text())
        pid = int(state["forwarder"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid if f"{PREFIX}{name}-1".encode() in command.split(b"\0") else None


def _is_being_built(name: str, patience_s: float = 60) -> bool:
    """Whether a network has a folder but no state yet, and not for long."""
    folder = state_folder() / name
    try:
        age_s = time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return False
    return age_s < patience_s and not (folder / "state.json").exists()


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]


def _hasten_receivers() -> None:
    """Lets the kernel threads that receive for hosts go before all ordinary processes."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "comm").read_text().startswith(f"napi/{INTERFACE}-"):
                os.sched_setscheduler(int(process.name), os.SCHED_RR, os.sched_param(1))


def _end_processes(pids: list[int], patience_s: float = 2) -> None:
    """Asks processes to end, and kills those that have not ended in time."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        deadline = time.monotonic() + patience_s
        while (pids := [pid for pid in pids if _is_running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not pids:
            return


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _ip(*words: str, lines: str | None = None) -> str:
    result = subprocess.run(["ip", *words], input=lines, capture_output=True, text=True)
    if result.returncode:
        raise WanError(f"ip {' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


def _members(group: Group) -> list[int]:
    return [group] if isinstance(group, int) else list(group)


# -- command line ----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _execute(options)
    except (WanError, TypeError, ValueError) as error:
        print(f"wan: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wan", description=(__doc__ or "").split(";")[0])
    parser.add_argument("-n", "--name", default="default", help="of the network: %(default)s")
    verbs = parser.add_subparsers(dest="verb", required=True)

    up = verbs.add_parser("up", help="build a network that stays until 'down'")
    up.add_argument("--hosts", type=int, default=2)
    up.add_argument("--mtu", type=int, default=1500)
    up.add_argument("--no-offload", action="store_true", help="each packet by itself: slow")
    up.add_argument("--seed", type=int, default=1)
    up.add_argument("--congestion-control")
    up.add_argument("--tcp-buffer-mib", type=float)
    up.add_argument("settings", nargs="*", metavar="name=value")

    execute = verbs.add_parser("exec", help="run a command on a host")
    execute.add_argument("host", type=int)
    execute.add_argument("command", nargs=argparse.REMAINDER)

    change = verbs.add_parser("set", help="change settings of the pair SOURCE -> TARGET")
    change.add_argument("--both", action="store_true", help="of TARGET -> SOURCE, too")
    change.add_argument("source", type=_parse_host, help="a host's number, or 'all'")
    change.add_argument("target", type=_parse_host)
    change.add_argument("settings", nargs="+", metavar="name=value")

    partition = verbs.add_parser("partition", help="drop all between two groups of hosts")
    partition.add_argument("group", type=_parse_group, help="numbers: 1,2")
    partition.add_argument("others", type=_parse_group, nargs="?", help="default: all the rest")

    heal = verbs.add_parser("heal", help="end the partition of two groups, or all")
    heal.add_argument("group", type=_parse_group, nargs="?")
    heal.add_argument("others", type=_parse_group, nargs="?")

    verbs.add_parser("stats", help="print all counters as JSON")
    verbs.add_parser("down", help="end the network and what runs on it")
    verbs.add_parser("list", help="print the names of the networks that are up")
    clean = verbs.add_parser("cleanup", help="remove what crashed networks have left")
    clean.add_argument("--all", action="store_true", help="remove networks that are up, too")
    return parser


def _execute(options: argparse.Namespace) -> None:
    if options.verb == "up":
        wan = Wan(
            options.hosts,
            name=options.name,
            mtu=options.mtu,
            offload=not options.no_offload,
            seed=options.seed,
            congestion_control=options.congestion_control,
            tcp_buffer_mib=options.tcp_buffer_mib,
        )
        wan.settings.update(_parse_settings(options.settings))
        wan.up(daemon=True)
    elif options.verb == "down":
        _remove(options.name)
    elif options.verb == "list":
        print(*networks(), sep="\n")
    elif options.verb == "cleanup":
        print(*cleanup(everything=options.all), sep="\n")
    else:
        _execute_on(Wan.attach(options.name), options)


def _execute_on(wan: Wan, options: argparse.Namespace) -> None:
    if options.verb == "exec":
        given = options.command
        line = wan.command(options.host, given[1:] if given[:1] == ["--"] else given)
        os.execvp(line[0], line)
    elif options.verb == "set":
        settings = _parse_settings(options.settings)
        wan._apply(options.source, options.target, options.both, settings)
    elif options.verb == "partition":
        wan.partition(options.group, options.others)
    elif options.verb == "heal":
        wan.heal(options.group, options.others)
    elif options.verb == "stats":
        stats = wan.stats()
        stats["pairs"] = {f"{a}->{b}": entry for (a, b), entry in stats["pairs"].items()}
        print(json.dumps(stats, indent=2))


def _parse_settings(words: list[str]) -> dict[str, float]:
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise WanError(f"expected name=value, not {word!r}")
        settings[key] = float(value)
    return settings


def _parse_host(word: str) -> int | str:
    return ALL if word in (ALL, "all") else int(word)


def _parse_group(word: str) -> list[int]:
    return [int(number) for number in word.split(",")]


if __name__ == "__main__":
    sys.exit(main())
