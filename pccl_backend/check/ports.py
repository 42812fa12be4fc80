"""Ports and addresses that peers and a master listen on."""

from __future__ import annotations

import errno
import resource
import socket

from .rank import CheckFailedError, Rank, demand

DESCRIPTORS = 1024  # a peer holds some for each other peer
FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


def ports(at: Rank) -> None:
    """A port of loopback takes a connection; PCCL_PORTS and PCCL_INTERFACE leave a free one."""
    from .._cli import DEFAULT_HOST, DEFAULT_PORT
    from .._config import Options, interface_host

    given = Options.from_environment()
    _connects("127.0.0.1")
    try:
        _connects("::1")
        ipv6 = "yes"
    except OSError as error:
        ipv6 = f"no ({error})"
    host = interface_host(given.interface) if given.interface else ""
    free = sum(_is_free(host, port) for port in _range(given.ports))
    what = f"PCCL_PORTS={given.ports[0]}-{given.ports[1]}" if given.ports else "any port"
    demand(free, f"no free port: {what} on {host or 'all addresses'}")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    demand(soft >= DESCRIPTORS, f"ulimit -n is {soft}: raise it to {DESCRIPTORS} or more")
    master = "free" if _is_free(DEFAULT_HOST, DEFAULT_PORT) else "taken (by a master?)"
    at.note(
        f"loopback is open, port {DEFAULT_PORT} of a master is {master}",
        ipv6_loopback=ipv6,
        listen_on=f"{what} on {host or 'all addresses'}",
        master_port=f"{DEFAULT_PORT}: {master}",
        open_files=soft,
        name_resolves_to=_own_addresses(),
    )


def _range(ports: tuple[int, int] | None) -> range:
    return range(1) if ports is None else range(ports[0], ports[1] + 1)


def _connects(host: str) -> None:
    """Listens, connects, and sends a byte. Raises OSError."""
    with socket.socket(FAMILIES[host]) as server, socket.socket(FAMILIES[host]) as client:
        server.settimeout(5.0)
        client.settimeout(5.0)
        server.bind((host, 0))
        server.listen()
        client.connect(server.getsockname()[:2])
        with server.accept()[0] as accepted:
            accepted.settimeout(5.0)
            accepted.sendall(b"x")
            if client.recv(1) != b"x":
                raise CheckFailedError(f"a connection on {host} gives other bytes back")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _own_addresses() -> str:
    """What other machines are told of this one by its name."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"nothing ({error})"
    return ", ".join(sorted({str(entry[4][0]) for entry in found}))
