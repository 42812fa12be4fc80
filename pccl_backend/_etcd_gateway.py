"""The JSON gateway that etcd serves on its client port (3.4 or newer): requests, TLS, users.

A request goes to one member of a cluster after the other until one answers. Its answer is bounded
in size and in time, whatever the other side sends. What the register is, _etcd.py knows.

No password and no token of etcd's stands in a text, a repr or an error of this module. Uses nothing
but the standard library and _core: `pccl-master` runs where torch is not installed.
"""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ._config import ETCD_PASSWORD, ETCD_SCHEMES, ETCD_TLS_SCHEME
from ._tokens import is_loopback

DEFAULT_PORT = 2379
REQUEST_TIMEOUT_S = 2.0  # from the connection to the end of the answer
ANSWER_BYTES_MAX = 16 << 20  # with the header; etcd itself takes values of 1.5 MiB
_log = logging.getLogger("pccl")

SAID_CHARACTERS_MAX = 300  # of an answer, in an error
PASSWORD_BYTES_MAX = 1024


class EtcdError(Exception):
    """No member of the cluster answered as it should; the text names each and what it said."""


class _StatusError(OSError):
    """An answer that says no: `code` is gRPC's, -1 where the answer has none."""

    def __init__(self, status: int, code: int, said: str) -> None:
        super().__init__(f"HTTP status {status}: {said}")
        self.code = code
        self.said = said

    @property
    def wants_login(self) -> bool:
        return self.code == _UNAUTHENTICATED or self.said in (
            "etcdserver: user name is empty",
            "etcdserver: revision of auth store is old",
        )


_PERMISSION_DENIED, _UNAUTHENTICATED = 7, 16  # of gRPC
_EMPTY_USER = "etcdserver: user name is empty"


# ------------------------------------------------------------------------------------ addresses


def parse_etcd(url: str) -> tuple[list[str], str]:
    """Splits `etcd://HOST[:PORT][,HOST[:PORT]…]/KEY`, or etcds://, into addresses and key.

    Raises:
        ValueError: `url` is not of that form.
    """
    scheme = next((scheme for scheme in ETCD_SCHEMES if url.startswith(scheme)), "")
    rest = url.removeprefix(scheme)
    if "://" in rest:
        raise ValueError(
            f"{url!r}: an address has no scheme of its own: {ETCD_TLS_SCHEME} speaks https to all "
            "addresses, etcd:// http"
        )
    hosts, slash, key = rest.partition("/")
    if not scheme or not hosts or not slash or not key:
        raise ValueError(f"{url!r} is not etcd://HOST:PORT[,HOST:PORT...]/KEY, or etcds://...")
    addresses = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"http://{host}")
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(f"{url!r}: {host!r} is not HOST:PORT") from None
        if not parts.hostname or parts.path or parts.username is not None:
            raise ValueError(f"{url!r}: {host!r} is not HOST:PORT")
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        addresses.append(f"{name}:{port}")
    return addresses, key


def host_of(address: str) -> str:
    """The host of HOST:PORT, without brackets."""
    return address.rpartition(":")[0].strip("[]")


# ----------------------------------------------------------------------- who speaks, and to whom


class Tls:
    """Whom an etcd has to be, and the certificate that it is shown.

    The files are read again when they change: certificates that are renewed in place need no
    restart.
    """

    def __init__(self, *, ca: str = "", certificate: str = "", key: str = "") -> None:
        """Reads the files.

        Args:
            ca: File with the certificates of the authorities; "": those of this machine.
            certificate: File with the certificate that this master shows; "": it shows none.
            key: File with the key of that certificate.

        Raises:
            ValueError: A file is not what it has to be; the text names the flag.
        """
        self._ca, self._certificate, self._key = ca, certificate, key
        self._seen: tuple[tuple[int, int], ...] = ()
        self._lock = threading.Lock()
        self._said = ""  # about files that are read again and are not what they have to be
        self._made, self._seen = self._renewed()

    def context(self) -> ssl.SSLContext:
        """For one connection.

        Files that are no certificate and key together, as while only one of them is new, leave the
        certificate of before in use; the log says so once.
        """
        with self._lock:
            try:
                self._made, self._seen = self._renewed()
                self._said = ""
            except ValueError as error:
                if self._said != str(error):
                    _log.warning("%s; the certificate of before stays in use", error)
                self._said = str(error)
            return self._made

    def _renewed(self) -> tuple[ssl.SSLContext, tuple[tuple[int, int], ...]]:
        seen = tuple(
            self._stamp(flag, file)
            for flag, file in (
                ("--etcd-ca", self._ca),
                ("--etcd-cert", self._certificate),
                ("--etcd-key", self._key),
            )
            if file
        )
        if seen and seen == self._seen:
            return self._made, seen
        return self._read(), seen

    @staticmethod
    def _stamp(flag: str, file: str) -> tuple[int, int]:
        try:
            seen = os.stat(file)
        except OSError as error:
            raise ValueError(f"argument {flag}: {file}: {error.strerror}") from None
        return seen.st_mtime_ns, seen.st_ino

    def _read(self) -> ssl.SSLContext:
        # Verifies certificate and name; writes no keys to SSLKEYLOGFILE, as the defaults would.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca:
            try:
                context.load_verify_locations(self._ca)
            except OSError as error:
                raise ValueError(
                    f"argument --etcd-ca: {self._ca} holds no certificates in PEM ({_why(error)})"
                ) from None
        else:
            context.load_default_certs()
        if not self._certificate:
            return context
        private_file("the key file", self._key, flag="--etcd-key")
        try:
            # Without a function for the password OpenSSL would ask the terminal for one.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except OSError as error:
            raise ValueError(
                f"argument --etcd-cert: {self._certificate} and {self._key} are not a certificate "
                f"and its key in PEM, without a password ({_why(error)})"
            ) from None
        return context


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error.strerror or error).lower().replace("_", " ")


def private_file(what: str, file: str, *, flag: str) -> bytes:
    """The content of a file that holds a secret. Raises ValueError, as for a token file."""
    from pccl_backend import _core

    try:
        return _core.private_content(what, file)
    except ValueError as error:
        raise ValueError(f"argument {flag}: {error}") from None


class Login:
    """A user of etcd's, and the password or the file in which it lies. No repr shows it."""

    __slots__ = ("_file", "_password", "user")

    def __init__(self, user: str, *, file: str = "", password: str = "") -> None:
        """Looks at the password.

        Args:
            user: The name.
            file: Where the password lies; it is read at each login, and not kept.
            password: The password, where there is no file.

        Raises:
            ValueError: There is no password, or none that can be used.
        """
        self.user = user
        self._file = file
        self._password = password
        self.password()

    def __repr__(self) -> str:
        """Without the password."""
        return f"Login({self.user!r})"

    def password(self) -> str:
        """The password. Raises ValueError, which does not show it."""
        text = self._password
        named = f"the variable {ETCD_PASSWORD}"
        if self._file:
            named = f"the password file {self._file}"
            content = private_file("the password file", self._file, flag="--etcd-password-file")
            text = content.decode(errors="replace").removesuffix("\n").removesuffix("\r")
            text = "" if "\N{REPLACEMENT CHARACTER}" in text else text
        if not text or not text.isprintable() or len(text.encode()) > PASSWORD_BYTES_MAX:
            raise ValueError(
                f"{named} does not hold one line of 1 to {PASSWORD_BYTES_MAX} bytes, the password"
            )
        return text


@dataclass(frozen=True)
class Access:
    """How a cluster is spoken to: in the clear or by TLS, as nobody or as a user."""

    tls: Tls | None = field(default=None, repr=False)
    login: Login | None = None


def check_access(addresses: list[str], access: Access) -> str:
    """What to warn of before the first request; "": nothing.

    Raises:
        ValueError: A password would travel in the clear.
    """
    far = [address for address in addresses if not is_loopback(host_of(address))]
    if access.tls is not None or not far:
        return ""
    if access.login is not None:
        raise ValueError(
            f"argument --etcd-user: the password would go to {far[0]} in the clear: "
            f"{ETCD_TLS_SCHEME} speaks https"
        )
    return (
        f"etcd is spoken to over http at {', '.join(far)}: who is between can read the register "
        f"and change it, and with it the run. {ETCD_TLS_SCHEME} speaks https"
    )


# ------------------------------------------------------------------------------------- requests


class Gateway:
    """Requests to the members of a cluster. Calls may come from any thread."""

    def __init__(self, addresses: list[str], access: Access) -> None:
        """Connects to nothing yet."""
        self._addresses = addresses
        self._access = access
        self._lock = threading.Lock()
        self._next = 0  # in the list of addresses: the one that answered last
        self._tokens: dict[str, str] = {}  # address -> what etcd gave this master at its login

    def call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request, to each member of the cluster in turn until one answers.

        Raises:
            EtcdError: None did.
        """
        with self._lock:
            first = self._next
        said = []
        for i in range(len(self._addresses)):
            at = (first + i) % len(self._addresses)
            try:
                answer = self._ask(self._addresses[at], method, body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                said.append(f"{self._addresses[at]}: {self._text(error)}")
                continue
            with self._lock:
                self._next = at
            return answer
        raise EtcdError(f"no etcd answered ({'; '.join(said)})")

    def _ask(self, address: str, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """As a user, if there is one: logs in at first, and once more if etcd says so."""
        login = self._access.login
        if login is None:
            return self._post(address, method, body)
        with self._lock:
            token = self._tokens.get(address, "")
        if token:
            try:
                return self._post(address, method, body, token)
            except _StatusError as error:
                if not error.wants_login:  # else the token has expired, or the users have changed
                    raise
        token = self._log_in(address, login)
        with self._lock:
            self._tokens[address] = token
        return self._post(address, method, body, token)

    def _log_in(self, address: str, login: Login) -> str:
        try:
            answer = self._post(
                address,
                "auth/authenticate",
                {"name": login.user, "password": login.password()},
                is_login=True,
            )
        except _StatusError as error:
            raise OSError(_login_text(error, login.user)) from None
        token = answer.get("token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ValueError("answered a login without a token, and so is no etcd")
        return token

    def _post(
        self,
        address: str,
        method: str,
        body: dict[str, Any],
        token: str = "",
        *,
        is_login: bool = False,
    ) -> dict[str, Any]:
        """One request and its answer. That to a login is not shown: it may hold the request."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if token:
            headers["Authorization"] = token
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        connection = http.client.HTTPConnection(host, int(port))
        began = time.monotonic()
        deadline = began + REQUEST_TIMEOUT_S
        bounded = None
        try:
            bounded = self._connect(host, int(port), deadline)
            connection.sock = bounded
            connection.request("POST", f"/v3/{method}", json.dumps(body).encode(), headers)
            response = connection.getresponse()
            # keepalive is a stream of answers: the first is the one that was asked for
            line = response.readline(ANSWER_BYTES_MAX)
            status = response.status
        except TimeoutError:
            raise OSError(f"timed out (after {time.monotonic() - began:.1f} s)") from None
        finally:
            if bounded is not None:
                bounded.end()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if status != http.HTTPStatus.OK or (isinstance(answer, dict) and "error" in answer):
            raise _status_error(status, answer, line, shown=not is_login, token=token)
        if not isinstance(answer, dict):
            raise ValueError(f"answered {_cut(line, shown=not is_login, token=token)}, no etcd")
        return answer

    def _connect(self, host: str, port: int, deadline: float) -> _Bounded:
        tls = self._access.tls
        context = tls.context() if tls is not None else None
        plain = socket.create_connection((host, port), timeout=REQUEST_TIMEOUT_S)
        try:
            if context is None:
                return _Bounded(plain, deadline)
            plain.settimeout(max(0.001, deadline - time.monotonic()))
            return _Bounded(context.wrap_socket(plain, server_hostname=host), deadline)
        except BaseException:
            plain.close()
            raise

    def _text(self, error: Exception) -> str:
        """What went wrong, for people."""
        ends = (http.client.BadStatusLine, ssl.SSLEOFError, ssl.SSLZeroReturnError)
        is_cut = isinstance(error, ends)
        is_cut |= isinstance(error, (ConnectionResetError, BrokenPipeError))
        is_cut |= getattr(error, "reason", "") == "UNEXPECTED_EOF_WHILE_READING"
        if is_cut and self._access.tls is not None:
            return (
                "ended the connection in the TLS handshake: it wants another certificate than "
                "--etcd-cert has, or it speaks http: then the URL begins with etcd://"
            )
        if isinstance(error, ssl.SSLError):
            return _tls_text(error)
        if is_cut:
            return (
                "closed the connection, or answered no HTTP: if it speaks https, the URL begins "
                f"with {ETCD_TLS_SCHEME}"
            )
        is_denied = isinstance(error, _StatusError) and error.code == _PERMISSION_DENIED
        if self._access.login is None and (is_denied or getattr(error, "said", "") == _EMPTY_USER):
            return "asks for a user: --etcd-user and --etcd-password-file name one"
        if isinstance(error, _StatusError) and is_denied:
            return f"{error.said}: the user needs READWRITE for KEY and KEY/holder"
        if isinstance(error, http.client.HTTPException):
            return f"answered no HTTP ({type(error).__name__})"
        return str(error)


class _Bounded:
    """A connected socket, as http.client uses one, that takes an answer up to its limits."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        self._socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._socket, self._deadline))

    def close(self) -> None:
        """Of http.client, which says it as soon as the header is read."""

    def end(self) -> None:
        self._socket.close()


class _BoundedReader(io.RawIOBase):
    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._left = ANSWER_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        got = self._socket.recv_into(buffer)
        self._left -= got
        if self._left < 0:
            raise OSError(f"answered with more than {ANSWER_BYTES_MAX >> 20} MiB")
        return got


# ---------------------------------------------------------------------------------------- texts


def _cut(line: bytes, *, shown: bool, token: str) -> str:
    """What was answered, as far as an error shows it."""
    if not shown:
        return "(not shown)"
    text = line.decode(errors="replace").strip()
    if token:
        text = text.replace(token, "…")
    return text[:SAID_CHARACTERS_MAX]


def _status_error(
    status: int, answer: object, line: bytes, *, shown: bool, token: str
) -> _StatusError:
    found = answer if isinstance(answer, dict) else {}
    inner = found.get("error", found.get("message"))  # etcd 3.6 has no "error" outside streams
    if isinstance(inner, dict):  # of a stream
        found = {"error": inner.get("message"), "code": inner.get("grpc_code", inner.get("code"))}
        inner = found["error"]
    code = found.get("code")
    said = _cut(line, shown=shown, token=token)
    if isinstance(inner, str) and (shown or inner in _OF_LOGIN):
        said = _cut(inner.encode(), shown=True, token=token)
    return _StatusError(status, code if isinstance(code, int) else -1, said)


_OF_LOGIN = {
    "etcdserver: authentication failed, invalid user ID or password": (
        "refuses the user {user!r}: no such user, or the password is wrong"
    ),
    "etcdserver: authentication is not enabled": (
        "has no users, and so asks nobody who it is: switch its authentication on, or leave "
        "--etcd-user out"
    ),
}


def _login_text(error: _StatusError, user: str) -> str:
    known = _OF_LOGIN.get(error.said)
    return f"the login of {user!r} failed: {error}" if known is None else known.format(user=user)


_OF_CERTIFICATES = {  # OpenSSL's X509_V_ERR_*
    9: "its certificate is not valid yet; or a clock is wrong",
    10: "its certificate has expired; or a clock is wrong",
    18: "its certificate is of no authority of --etcd-ca",
    19: "its certificate is of no authority of --etcd-ca",
    20: "its certificate is of no authority of --etcd-ca",
    21: "its certificate is of no authority of --etcd-ca",
    62: "its certificate is not for this name",
    64: "its certificate is not for this address",
}


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _OF_CERTIFICATES.get(error.verify_code, "its certificate is not good")
        return f"{known} ({error.verify_message})"
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "speaks no TLS: if it speaks http, the URL begins with etcd://"
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return (
            f"ended the TLS handshake ({alert}): it wants another certificate than --etcd-cert has"
        )
    return f"TLS failed: {reason.lower().replace('_', ' ') or error}"
