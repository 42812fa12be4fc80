"""Options of a process, of which the PCCL_* variables are defaults: their names and types.

Precedence: argument, then variable, then default; resolved once, when the first group is made.
Wrong values raise ValueError with the name, the value and what was expected. Loads without torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import ipaddress
import math
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ._cores import usual_threads
from ._version import __version__

NAME = "pccl"  # of the backend; _register.py has its own, since it loads nothing
SCHEME = "pccl://"
ETCD_TLS_SCHEME = "etcds://"
ETCD_SCHEMES = ("etcd://", ETCD_TLS_SCHEME)
RUN_NAME_BYTES_MAX = 128  # of replicas too
RUN_NAME = f"1 to {RUN_NAME_BYTES_MAX} letters of ASCII, digits, '-', '_' and '.'"  # is_run_name
NAME_BYTES_MAX = 64
MASTERS_MAX = 16
REPLICA_SIZE_MAX = 4096
IPV6_ADDRESSES = Path("/proc/net/if_inet6")  # of Linux: all of this machine
SECONDS_MAX = 365.0 * 24 * 3600
MAX_RATE_LEAST = 1 << 20  # with less, members of a run would give each other up
MAX_RATE_MOST = 10**12
THREADS_MAX = 64
BYTES_MOST = (1 << 63) - 1
BYTE_UNITS = {
    **{"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9},
    **{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
}
RATE_UNITS = {**BYTE_UNITS, "kbit": 125, "Mbit": 125_000, "Gbit": 125_000_000}
ON_LOSS = ("retry", "raise")
PLAINTEXT = ("none", "loopback", "all")
EXACT = "none"  # the name of no quantisation
QUANTISATIONS = (
    *("int8", "int8_zero_point", "int4"),
    *("float16", "bfloat16", "float8_e4m3", "float8_e5m2"),
)
TOKEN = "PCCL_TOKEN"  # a secret, and so no option
ETCD_PASSWORD = "PCCL_ETCD_PASSWORD"  # pccl-master's; a secret too
OF_TOKENS = (TOKEN, "PCCL_TOKEN_FILE")  # of no use at a master of one's own on loopback
OF_LAUNCHER = "PCCL_RUN_"  # variables between pccl-run and its workers begin so
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
_NAMES = {  # field of Options -> the names that it takes, in any case
    "log_level": LOG_LEVELS,
    "on_loss": ON_LOSS,
    "plaintext": PLAINTEXT,
    "quantise": (EXACT, *QUANTISATIONS),
}


@dataclass(frozen=True)
class Target:
    """What `pccl://HOST:PORT[,HOST:PORT...][/RUN]` names.

    Attributes:
        masters: "host:port" or "[v6]:port", in the order in which they are tried.
        run: Name of the run that this process wants to join; empty: the run of that master.
    """

    masters: tuple[str, ...]
    run: str = ""


@dataclass(frozen=True)
class Replica:
    """The copy of the model to which a process belongs, and its place in that copy.

    The ranks r of all replicas are peer group r: collectives of the elastic group and the exchange
    of shared state run within a peer group. A replica is admitted when all its ranks wait at the
    door. When one of its ranks is lost, the whole replica is.

    Attributes:
        name: Name of the replica, the same at all its ranks; each replica of a run has its own.
        rank: Rank of this process in its replica.
        size: Number of ranks of a replica; the same for all replicas of a run.
        attempt: How often this replica was started before. The master prefers a newer attempt to an
            older one of the same name, which it evicts.
    """

    name: str
    rank: int
    size: int
    attempt: int = 0

    def __post_init__(self) -> None:
        """Refuses what is no place."""
        if not self.name or len(self.name.encode()) > RUN_NAME_BYTES_MAX:
            raise _wrong("name", self.name, f"1 to {RUN_NAME_BYTES_MAX} bytes")
        if not 0 <= self.rank < self.size <= REPLICA_SIZE_MAX:
            raise _wrong(
                "rank",
                self.rank,
                f"0 to size - 1, size (is {self.size}) at most {REPLICA_SIZE_MAX}",
            )
        if self.attempt < 0:
            raise _wrong("attempt", self.attempt, "0 or more")

    @classmethod
    def from_torchrun(cls, environment: Mapping[str, str] | None = None) -> Replica:
        """The replica of a torchrun's workers: its --rdzv-id, restart count, rank and size.

        Raises:
            ValueError: A variable of torchrun's is missing.
        """
        source = os.environ if environment is None else environment
        names = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
        missing = [name for name in names if not source.get(name)]
        if missing:
            raise ValueError(
                f"replica='torchrun': {', '.join(missing)} not set; expected a process that "
                "torchrun or pccl-run --replica has started, or a Replica"
            )
        run, *numbers = (source[name] for name in names)
        return cls(run, *(int(number) for number in numbers))


@dataclass(frozen=True)
class Options:
    """Options of pccl in this process; a field with its default value has that of its variable.

    A field that takes one of several names takes them in any case, as its variable does.

    Attributes:
        name: Of this process, in the log lines and errors of all; None: its host and process id.
            PCCL_NAME.
        master: `pccl://HOST:PORT[,...][/RUN]`; makes the default group elastic. PCCL_MASTER.
        join_url: `pccl://...` for a `join` that is given none; changes no default group.
            PCCL_JOIN_URL.
        token_file: File with the tokens of this process, by which a master lets it in; its lines
            are made by `pccl-master --new-token`. PCCL_TOKEN_FILE; without a file PCCL_TOKEN may
            hold one line, and is taken out of the environment.
        advertise: Hosts under which other peers reach this one, best first. PCCL_ADVERTISE.
        interface: Listen on this network interface, or address, only. PCCL_INTERFACE.
        ports: First and last port to listen on. PCCL_PORTS=a-b.
        log_level: debug, info, warning, error or off. PCCL_LOG_LEVEL.
        connect_timeout_s: Seconds within which a master or a peer has to be reached; None: 60 for a
            master, which may be started after its workers, 10 for a peer. PCCL_CONNECT_TIMEOUT_S.
        hold_timeout_s: Seconds for which an elastic group waits for a lost master to come back.
            PCCL_HOLD_TIMEOUT_S.
        tcp_user_timeout_s: A connection is closed when bytes were sent on it and not acknowledged
            for so many seconds. PCCL_TCP_USER_TIMEOUT_S.
        silence_timeout_s: Fixed groups: a rank that others wait for is lost when its process has
            given no sign of life for so many seconds (it is stopped, for example). A process that
            is merely late gives signs of life. PCCL_SILENCE_TIMEOUT_S.
        stall_timeout_s: Elastic groups: when all members have called an operation and none of its
            data has moved for so many seconds, pccl replaces the link to the peer whose data is
            missing; after as many seconds again that peer is lost. PCCL_STALL_TIMEOUT_S.
        goodbye_timeout_s: A process that ends sends what other ranks still need from it as long as
            bytes move, 30 minutes (or this time, if it is longer) at most; a link over which
            nothing has moved for so many seconds is closed. PCCL_GOODBYE_TIMEOUT_S.
        preimage_bytes: Bytes for the copies from which tensors are restored after a loss.
            PCCL_PREIMAGE_BYTES, which takes units: 500MB, 2GiB.
        step_timeout_s: Seconds after which `refresh` evicts the members that have not come; None:
            no limit. PCCL_STEP_TIMEOUT_S.
        on_loss: What happens to an operation of the elastic group that a loss interrupts; the same
            at all members. "retry": it is replayed among the survivors if its kind allows that.
            "raise": it fails at all survivors, and so does every later one until the next
            boundary. PCCL_ON_LOSS.
        stream_wait: `wait()` of an operation on device tensors holds the caller's stream and
            returns at once; otherwise `wait()` holds the CPU until the outcome, as gloo's does.
            PCCL_STREAM_WAIT=1.
        plaintext: Links whose data is not encrypted, once both processes have proven which peers
            they are: none, loopback (both ends at loopback addresses) or all. A link is encrypted
            if one of its two processes wants that. None: all in a process without a token, none in
            a process with one. PCCL_PLAINTEXT.
        shared_memory: Whether data between processes of one machine and one user goes through
            memory that only the two of them have, in place of TCP and of its encryption. Both have
            to want that. PCCL_SHARED_MEMORY=0.
        bbr: Whether connections over long lines (a round trip of 5 ms and more) use BBR where the
            system lets this process have it. False: what the system has for all connections.
            PCCL_BBR=0.
        threads: Threads that move, encrypt, quantise and add up the data of large operations, 1 to
            64; the engine's thread is one of them. Results do not depend on it. None: half of the
            cores that this process has time for, divided among the processes of torchrun or
            pccl-run on this machine, 1 at least and 4 at most. PCCL_THREADS.
        max_rate: Bytes a second that this process sends over the network at most, to all peers
            together, at least 1048576. Bytes that go through shared memory, and bytes to the
            master, do not count. None or 0: no cap. PCCL_MAX_RATE, which takes units: 10MB, 10MiB,
            80Mbit.
        objects: Whether torch's object collectives (`broadcast_object_list` and the like), which
            unpickle what other members send, may be called on groups of pccl. PCCL_OBJECTS=0.
        quantise: The fewer bits as which the group that is made with these options sends the values
            of its all-reduces, if they are sums or averages of float32 values; the same at all
            members: "int8", "int8_zero_point", "int4", "float16", "bfloat16", "float8_e4m3" or
            "float8_e5m2". None: the values are sent as they are. The only option that differs
            between groups. PCCL_QUANTISE, of the default group and of the group of `join`.
        core_dumps: Whether the system may write the memory of this process, which has its keys,
            into a file when it crashes, and let other processes of its user read that memory.
            Linux only. PCCL_CORE_DUMPS=0.
    """

    name: str | None = None
    master: str | None = None
    join_url: str | None = None
    token_file: str | None = None
    advertise: tuple[str, ...] = ()
    interface: str | None = None
    ports: tuple[int, int] | None = None
    log_level: str | None = None
    connect_timeout_s: float | None = None
    hold_timeout_s: float = 1800.0
    tcp_user_timeout_s: float = 30.0
    silence_timeout_s: float = 30.0
    stall_timeout_s: float = 15.0
    goodbye_timeout_s: float = 5.0
    preimage_bytes: int = 1 << 30
    step_timeout_s: float | None = None
    on_loss: str = "retry"
    stream_wait: bool = False
    plaintext: str | None = None
    shared_memory: bool = True
    bbr: bool = True
    threads: int | None = None
    max_rate: int | None = None
    objects: bool = True
    core_dumps: bool = True
    quantise: str | None = None

    def __post_init__(self) -> None:
        """Refuses values that cannot work, whoever gave them."""
        for name, names in _NAMES.items():
            value = getattr(self, name)
            if value is None and name != "on_loss":
                continue
            if not isinstance(value, str) or value.lower() not in names:
                raise _wrong(name, value, f"one of {', '.join(names)}")
            object.__setattr__(self, name, value.lower())
        for name in ("stream_wait", "shared_memory", "bbr", "objects", "core_dumps"):
            if not isinstance(value := getattr(self, name), bool):
                raise _wrong(name, value, "True or False")
        if self.name is not None and not _is_name(self.name):
            raise _wrong("name", self.name, f"1 to {NAME_BYTES_MAX} bytes of characters to print")
        if self.master is not None:
            parse_url(self.master, name="master")
        if self.join_url is not None:
            parse_url(self.join_url, name="join_url")
        if isinstance(self.advertise, str):  # its letters would be hosts
            raise _wrong("advertise", self.advertise, "a tuple of hosts or addresses")
        if self.ports is not None and not _are_ports(self.ports):
            raise _wrong("ports", self.ports, "two ports 1..65535, the first not above the last")
        for name in (
            "hold_timeout_s",
            "tcp_user_timeout_s",
            "silence_timeout_s",
            "stall_timeout_s",
            "goodbye_timeout_s",
        ):
            _check_seconds(name, getattr(self, name))
        for name in ("connect_timeout_s", "step_timeout_s"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name))
        if not _is_whole(self.preimage_bytes, 0, BYTES_MOST):
            expected = f"a whole number of bytes, 0 to {BYTES_MOST}"
            raise _wrong("preimage_bytes", self.preimage_bytes, expected)
        if self.threads is not None and not _is_whole(self.threads, 1, THREADS_MAX):
            raise _wrong("threads", self.threads, f"a whole number, 1 to {THREADS_MAX}")
        if self.max_rate is not None and not _is_rate(self.max_rate):
            rates = f"bytes a second, {MAX_RATE_LEAST} (1MiB) to {MAX_RATE_MOST}"
            raise _wrong("max_rate", self.max_rate, f"0 (no cap), or a whole number of {rates}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Options:
        """The options that the PCCL_* variables give.

        Args:
            environment: Instead of `os.environ`.

        Raises:
            ValueError: A variable is wrong; the text names it, its value and what was expected.
        """
        source = os.environ if environment is None else environment
        given: dict[str, Any] = {}
        for field, (variable, read) in _VARIABLES.items():
            text = source.get(variable, "")
            if text == "":
                continue
            try:
                given[field] = read(text)
                cls(**{field: given[field]})
            except ValueError as error:
                raise ValueError(f"{variable}={text!r}: {error}") from None
        return cls(**given)

    def with_environment(self, environment: Mapping[str, str] | None = None) -> Options:
        """These options; a field that has its default value is taken from its PCCL_* variable.

        Args:
            environment: Instead of `os.environ`.

        Raises:
            ValueError: As `from_environment`, also where the variable is not needed.
        """
        variables = Options.from_environment(environment)
        of_variables = {
            field.name: getattr(variables, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) == field.default
        }
        return dataclasses.replace(self, **of_variables)

    def join_target(self) -> Target:
        """The run that a `join` without a URL means. Raises ValueError where none is named."""
        if self.join_url is not None:
            return parse_url(self.join_url, name="join_url")
        if self.master is not None:
            return parse_url(self.master, name="master")
        raise ValueError(
            "url is None, and neither PCCL_JOIN_URL nor PCCL_MASTER is set; expected "
            "pccl://HOST:PORT[,HOST:PORT...][/RUN], or a program that pccl-run has started"
        )

    def to_engine(self) -> dict[str, Any]:
        """Fields of csrc/engine/options.h, for `_C.configure_engine`."""
        host = "" if self.interface is None else interface_host(self.interface)
        advertise = list(self.advertise) or ([host] if host else [])
        first, last = self.ports or (0, 0)
        return {
            "package": __version__,
            "name": self.name or f"{_cut_name(socket.gethostname(), 48)}/{os.getpid()}",
            "host": _cut_name(socket.gethostname(), NAME_BYTES_MAX),
            "advertise": advertise,
            "listen_hosts": [host] if host else [],
            "port_first": first,
            "port_last": last,
            "connect_timeout_ms": _milliseconds(self.connect_timeout_s or 10),
            "master_timeout_ms": _milliseconds(self.connect_timeout_s or 60),
            "hold_timeout_ms": _milliseconds(self.hold_timeout_s),
            "tcp_user_timeout_ms": _milliseconds(self.tcp_user_timeout_s),
            "silence_timeout_ms": _milliseconds(self.silence_timeout_s),
            "stall_timeout_ms": _milliseconds(self.stall_timeout_s),
            "goodbye_timeout_ms": _milliseconds(self.goodbye_timeout_s),
            "token_file": self.token_file or "",
            "preimage_bytes_max": self.preimage_bytes,
            "plaintext": self.plaintext or "",
            "shared_memory": self.shared_memory,
            "bbr": self.bbr,
            "threads": self.threads or usual_threads(),
            "max_rate": self.max_rate or 0,
        }


def unread_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A text for each variable whose name begins with PCCL_ and that is not an option.

    Args:
        environment: Instead of `os.environ`.
    """
    source = os.environ if environment is None else environment
    known = [TOKEN, *(variable for variable, _ in _VARIABLES.values())]
    texts = []
    for name in sorted(set(source) - set(known)):
        if not name.startswith("PCCL_") or name.startswith(OF_LAUNCHER):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; {near[0]} was meant?" if near else ""
        texts.append(f"the variable {name} is set, and pccl reads none of that name{meant}")
    return texts


@contextlib.contextmanager
def token() -> Iterator[str]:
    """The line of PCCL_TOKEN ("": none) for one call of an extension, which overwrites its memory.

    The variable is not set afterwards.

    Raises:
        ValueError: It holds what no token holds; the text does not show it.
    """
    try:
        line = os.environ.get(TOKEN, "")
        if not line.isascii():  # an extension's error would show its arguments
            raise ValueError(f"{TOKEN} is not name:secret:master[@RUN,...]")
        yield line
    finally:
        os.environ.pop(TOKEN, None)


def take_etcd_password() -> str:
    """The value of PCCL_ETCD_PASSWORD ("": none), which is not set afterwards.

    No child inherits it, and /proc/PID/environ shows it no more.
    """
    password = os.environ.get(ETCD_PASSWORD, "")
    if password:
        from pccl_backend import _core

        _core.wipe_variable(ETCD_PASSWORD)
    os.environ.pop(ETCD_PASSWORD, None)
    return password


def launches_block(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the launch of a kernel returns only when the kernel has ended (CUDA, ROCm)."""
    source = os.environ if environment is None else environment
    names = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
    return any(source.get(name, "0") not in ("", "0") for name in names)


def parse_url(url: str, *, name: str = "url") -> Target:
    """Reads `pccl://HOST:PORT[,HOST:PORT...][/RUN]`; the scheme may be missing.

    A query, as torch's rendezvous appends it (`?rank=0&world_size=1`), is dropped.

    Raises:
        ValueError: Which part is wrong, and what was expected.
    """
    expected = "pccl://HOST:PORT[,HOST:PORT...][/RUN], an IPv6 address in brackets"
    if "://" in url and not url.startswith(SCHEME):
        raise _wrong(name, url, expected)
    text = url.removeprefix(SCHEME).partition("?")[0].partition("#")[0]
    hosts, _, run = text.partition("/")
    masters = tuple(_check_address(part, url, name, expected) for part in hosts.split(","))
    if len(masters) > MASTERS_MAX:
        raise _wrong(name, url, f"at most {MASTERS_MAX} masters")
    run = run.removesuffix("/")
    if run and not is_run_name(run):
        raise _wrong(
            name, url, f"behind the '/' the run's name as pccl-master --run has it, {RUN_NAME}"
        )
    return Target(masters, run)


def is_run_name(text: str) -> bool:
    """Whether a run may have this name, which stands in URLs, file names and log lines as it is."""
    return len(text) <= RUN_NAME_BYTES_MAX and re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None


def interface_host(interface: str) -> str:
    """The address of a network interface; an address is returned as it is.

    Where an interface has addresses of both kinds, the IPv4 one, unless it is one of a single link.

    Raises:
        ValueError: There is no such interface, or it has no address.
    """
    try:
        return str(ipaddress.ip_address(interface.strip("[]")))
    except ValueError:
        pass
    try:
        import fcntl  # not on Windows

        request = struct.pack("256s", interface.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        host = socket.inet_ntoa(answer[20:24])
    except (ImportError, OSError) as error:
        if host := _ipv6_host(interface):
            return host
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise _wrong(
            f"interface ({VARIABLES['interface']})",
            interface,
            f"an address, or an interface that has one among {names}",
        ) from error
    alone = ipaddress.IPv4Address(host).is_link_local
    return (alone and _ipv6_host(interface)) or host


def _ipv6_host(interface: str) -> str:
    """Of those of an interface that others can use the one that lasts longest; "" if none."""
    temporary, failed, deprecated, tentative = 0x01, 0x08, 0x20, 0x40  # IFA_F_* of linux/if_addr.h
    found = []
    with contextlib.suppress(OSError):
        for line in IPV6_ADDRESSES.read_text().splitlines():
            digits, _, _, scope, text, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            flags = int(text, 16)
            if name == interface and not address.is_link_local and not flags & (failed | tentative):
                worse = (flags & deprecated, flags & temporary, int(scope, 16))
                found.append((worse, str(address)))
    return min(found)[1] if found else ""


def _check_address(part: str, url: str, name: str, expected: str) -> str:
    host, colon, port = part.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or (":" in host and not bracketed):
        raise _wrong(name, url, expected)
    if bracketed:
        try:
            ipaddress.IPv6Address(host[1:-1].partition("%")[0])
        except ValueError:
            raise _wrong(name, url, expected) from None
    if not host.isprintable() or any(c.isspace() or c in "[]@" for c in host.strip("[]")):
        raise _wrong(name, url, expected)
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        raise _wrong(name, url, "a port 1..65535 after each host")
    return f"{host}:{int(port)}"


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and len(text.encode()) <= NAME_BYTES_MAX


def _cut_name(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {value!r}; expected {expected}")


def _check_seconds(name: str, value: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0.0 < value <= SECONDS_MAX):  # NaN fails too
        raise _wrong(name, value, "a number of seconds above 0, at most a year")


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _read_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number of seconds") from None


def _read_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("expected a whole number")
    return int(text)


def _read_bytes(text: str) -> int:
    """Bytes of a text such as "1073741824", "1.5 GiB" or "500MB"."""
    return _read_quantity(text, BYTE_UNITS, "a number of bytes")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_ports(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return all(_is_whole(port, 1, 65535) for port in value) and value[0] <= value[1]


def _is_rate(value: object) -> bool:
    return _is_whole(value, 0, 0) or _is_whole(value, MAX_RATE_LEAST, MAX_RATE_MOST)


def _read_rate(text: str) -> int:
    """Bytes a second of a text such as "10MB", "1.5 MiB/s" or "80Mbit"."""
    return _read_quantity(text.removesuffix("/s"), RATE_UNITS, "bytes a second")


def _read_quantity(text: str, units: Mapping[str, int], what: str) -> int:
    """A number and a unit, rounded up; exact, since a float has 53 bits alone."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text)
    if match is None or match[2] not in units or len(match[1]) > 20:
        names = ", ".join(unit for unit in units if unit)
        raise ValueError(f"expected {what}, or a number with one of {names}")
    return math.ceil(Fraction(match[1]) * units[match[2]])


def _read_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _read_ports(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise ValueError("expected two ports, a-b")
    return int(first), int(last)


def _read_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(part.strip() for part in text.split(","))
    if any(not host or any(c.isspace() for c in host) for host in hosts):
        raise ValueError("expected hosts or addresses, with commas between them")
    return hosts


_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("PCCL_NAME", str),
    "master": ("PCCL_MASTER", str),
    "join_url": ("PCCL_JOIN_URL", str),
    "token_file": ("PCCL_TOKEN_FILE", str),
    "advertise": ("PCCL_ADVERTISE", _read_hosts),
    "interface": ("PCCL_INTERFACE", str),
    "ports": ("PCCL_PORTS", _read_ports),
    "log_level": ("PCCL_LOG_LEVEL", str),
    "connect_timeout_s": ("PCCL_CONNECT_TIMEOUT_S", _read_seconds),
    "hold_timeout_s": ("PCCL_HOLD_TIMEOUT_S", _read_seconds),
    "tcp_user_timeout_s": ("PCCL_TCP_USER_TIMEOUT_S", _read_seconds),
    "silence_timeout_s": ("PCCL_SILENCE_TIMEOUT_S", _read_seconds),
    "stall_timeout_s": ("PCCL_STALL_TIMEOUT_S", _read_seconds),
    "goodbye_timeout_s": ("PCCL_GOODBYE_TIMEOUT_S", _read_seconds),
    "preimage_bytes": ("PCCL_PREIMAGE_BYTES", _read_bytes),
    "step_timeout_s": ("PCCL_STEP_TIMEOUT_S", _read_seconds),
    "on_loss": ("PCCL_ON_LOSS", str),
    "stream_wait": ("PCCL_STREAM_WAIT", _read_switch),
    "plaintext": ("PCCL_PLAINTEXT", str),
    "shared_memory": ("PCCL_SHARED_MEMORY", _read_switch),
    "bbr": ("PCCL_BBR", _read_switch),
    "threads": ("PCCL_THREADS", _read_number),
    "max_rate": ("PCCL_MAX_RATE", _read_rate),
    "objects": ("PCCL_OBJECTS", _read_switch),
    "core_dumps": ("PCCL_CORE_DUMPS", _read_switch),
    "quantise": ("PCCL_QUANTISE", str),
}

VARIABLES = {field: variable for field, (variable, _) in _VARIABLES.items()}
"""Field of Options -> its variable; a test holds it against the fields and the documents."""

assert set(VARIABLES) == {field.name for field in dataclasses.fields(Options)}
