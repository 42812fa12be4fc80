"""URLs of an etcd cluster, the flags that say how it is spoken to, and answers that are none."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority

from pccl_backend import _cli, _etcd_access
from pccl_backend._etcd import EtcdRegister
from pccl_backend._etcd_gateway import (
    ANSWER_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    Access,
    EtcdError,
    Gateway,
    Login,
    Tls,
    _login_text,
    _status_error,
    check_access,
    parse_etcd,
)

PASSWORD = "correct horse battery"
Answer = Callable[[socket.socket, bytes], None]


def test_a_url_names_the_members_of_the_cluster_and_a_key() -> None:
    expected = (["a:1", "b:2379", "[::1]:3"], "runs/x")
    assert parse_etcd("etcd://a:1,b,[::1]:3/runs/x") == expected
    assert parse_etcd("etcds://a:1,b,[::1]:3/runs/x") == expected


@pytest.mark.parametrize(
    "url",
    [
        *("etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///key", "etcd://a:x/k", "etcd://u@a/k"),
        *("etcds://a:1", "etcd://https://a:1/k", "etcds://https://a:1,http://b:1/k"),
    ],
)
def test_what_is_no_url_of_a_cluster_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"etcds?://"):
        parse_etcd(url)


def test_each_member_that_does_not_answer_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        register = EtcdRegister(f"etcd://{address}/k", lease_s=5, name="m")
        with pytest.raises(EtcdError, match=f"{address}: .*refused"):
            register.read()


def test_what_was_not_read_is_not_written() -> None:
    assert EtcdRegister("etcd://127.0.0.1:1/k", lease_s=5, name="m").write(b"x") is False


# ---------------------------------------------------------------------- what answers is no etcd


@pytest.fixture
def answers() -> Iterator[Callable[[Answer], str]]:
    """`answers(f)`: an address where f gets each connection and its request."""
    closing: list[socket.socket] = []

    def start(answer: Answer) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        closing.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    request = b""
                    while b"\r\n\r\n" not in request or not request.endswith(b"}"):
                        request += connection.recv(65536)
                    try:
                        answer(connection, request)
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in closing:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def refusal(address: str, access: Access | None = None) -> str:
    with pytest.raises(EtcdError) as raised:
        EtcdRegister(f"etcd://{address}/k", lease_s=5, name="m", access=access).read()
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def test_an_answer_without_end_is_cut_off_in_its_header_and_in_its_body(
    answers: Callable[[Answer], str],
) -> None:
    seen = []

    def endless(start: bytes) -> Answer:
        def answer(connection: socket.socket, request: bytes) -> None:
            connection.sendall(start)
            sent = 0
            try:
                while True:
                    sent += connection.send(b"a" * 65536)
            finally:
                seen.append(sent)

        return answer

    assert "more than" in refusal(answers(endless(b"HTTP/1.1 200 OK\r\n\r\n")))
    assert "no HTTP" in refusal(answers(endless(b"HTTP/1.1 200 OK\r\nX: ")))
    assert max(seen) < 2 * ANSWER_BYTES_MAX


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(
    answers: Callable[[Answer], str],
) -> None:
    pause = threading.Event()

    def drip(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            connection.sendall(b"a")
            pause.wait(0.05)

    began = time.monotonic()
    assert "timed out" in refusal(answers(drip))
    assert time.monotonic() - began < 4 * REQUEST_TIMEOUT_S


@pytest.mark.parametrize(
    "body", [b"[]", b'"x"', b"{", b"[" * 100_000, b'{"kvs": 3}', b'{"kvs": [{}]}', b"\xff\xfe"]
)
def test_an_answer_that_is_none_of_an_etcd_is_an_error(
    answers: Callable[[Answer], str], body: bytes
) -> None:
    address = answers(
        lambda connection, _: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body + b"\n")
    )
    with pytest.raises((EtcdError, ValueError, KeyError, TypeError)):
        EtcdRegister(f"etcd://{address}/k", lease_s=5, name="m").read()


def test_no_redirection_is_followed_and_no_echo_shows_the_password(
    answers: Callable[[Answer], str],
) -> None:
    asked = []

    def elsewhere(connection: socket.socket, request: bytes) -> None:
        asked.append(request)

    to = answers(elsewhere)
    access = Access(login=Login("u", password=PASSWORD))
    moved = f"HTTP/1.1 307 X\r\nLocation: http://{to}/v3/auth/authenticate\r\n\r\n".encode()
    assert "HTTP status 307" in refusal(answers(lambda c, _: c.sendall(moved)), access)
    assert not asked
    for status in (b"400 X", b"200 OK"):
        echo = b"HTTP/1.1 " + status + b"\r\n\r\n"
        text = refusal(answers(lambda c, r, echo=echo: c.sendall(echo + r)), access)  # type: ignore[misc]
        assert "not shown" in text


def test_a_login_shows_no_password(tmp_path: Path) -> None:
    login = Login("u", password=PASSWORD)
    assert PASSWORD not in f"{login} {login!r} {Access(login=login)}"
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(PASSWORD + "\n")
    assert Login("u", file=str(file)).password() == PASSWORD
    for wrong in (b"", b"\n", b"two\nlines\n", b"\xff\xfeabc\n", b"x" * 1025):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match="does not hold one line") as raised:
            Login("u", file=str(file))
        assert "abc" not in str(raised.value)
    file.chmod(0o644)
    with pytest.raises(ValueError, match="may be read or changed by other users"):
        Login("u", file=str(file))


# ------------------------------------------------------------------------------------ the flags


def access_of(*arguments: str) -> Access | None:
    return _etcd_access.of_arguments(_cli.build_parser().parse_args(arguments))


def test_wrong_words_about_etcd_are_refused_by_flag(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("own")
    other = authority.issue("other")
    text = tmp_path / "text"
    text.touch(0o600)
    text.write_text("x\n")
    tls = ("--state", "etcds://e:1/k")
    pair = ("--etcd-cert", str(own.certificate), "--etcd-key")
    for words, arguments in {
        "--etcd-ca: only with --state etcds://": ("--etcd-ca", "f", "--state", "etcd://e:1/k"),
        "--etcd-user: only with --state": ("--etcd-user", "u", "--state", "file"),
        "--lease: only with --state etcds://": ("--lease", "3", "--state", "none"),
        "--etcd-user: an empty name": (*tls, "--etcd-user", ""),
        "--etcd-cert: only with --etcd-key": (*tls, "--etcd-key", str(own.key)),
        "--etcd-ca: /none: No such file": (*tls, "--etcd-ca", "/none"),
        "holds no certificates in PEM": (*tls, "--etcd-ca", str(text)),
        "are not a certificate and its key": (*tls, *pair, str(text)),
        "key values mismatch": (*tls, *pair, str(other.key)),
        "needs the password of this user": (*tls, "--etcd-user", "u"),
        "only with --etcd-user": (*tls, "--etcd-password-file", str(text)),
        "password file /none cannot be opened": (
            *(*tls, "--etcd-user", "u"),
            *("--etcd-password-file", "/none"),
        ),
        "the password would go to e:1 in the clear": (
            *("--state", "etcd://127.0.0.1:1,e:1/k", "--etcd-user", "u"),
            *("--etcd-password-file", str(text)),
        ),
    }.items():
        with pytest.raises(ValueError, match="argument --") as raised:
            access_of(*arguments)
        assert words in str(raised.value), arguments
    own.key.chmod(0o644)
    with pytest.raises(ValueError, match=r"--etcd-key: .* may be read or changed by other users"):
        access_of(*tls, *pair, str(own.key))


def test_a_key_with_a_password_asks_nobody_for_it(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("own")
    os.system(  # noqa: S605
        f"openssl ec -aes128 -passout pass:x -in {own.key} -out {own.key}.new 2> /dev/null"
        f" && chmod 600 {own.key}.new"
    )
    with pytest.raises(ValueError, match="without a password"):
        Tls(certificate=str(own.certificate), key=f"{own.key}.new")


def test_the_password_of_the_variable_leaves_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PCCL_ETCD_PASSWORD", PASSWORD)
    access = access_of("--state", "etcd://127.0.0.1:1/k", "--etcd-user", "u")
    assert access is not None
    assert access.login is not None
    assert access.login.password() == PASSWORD
    assert "PCCL_ETCD_PASSWORD" not in os.environ
    monkeypatch.setenv("PCCL_ETCD_PASSWORD", PASSWORD)
    with pytest.raises(ValueError, match="PCCL_ETCD_PASSWORD: only with --etcd-user") as raised:
        access_of("--state", "etcd://127.0.0.1:1/k")
    assert PASSWORD not in str(raised.value)


def test_http_beyond_this_machine_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    access_of("--state", "etcd://127.0.0.1:1,[::1]:2,localhost:3/k")
    assert capsys.readouterr().err == ""
    access_of("--state", "etcd://127.0.0.1:1,e:2/k")
    warned = capsys.readouterr().err
    assert "over http at e:2: who is between can read the register and change it" in warned
    assert check_access(["e:1"], Access(tls=Tls())) == ""


def test_an_error_of_etcd_3_6_is_understood_as_one_of_3_4() -> None:
    old = {"error": "etcdserver: revision of auth store is old", "code": 3}
    new = {"message": "etcdserver: revision of auth store is old", "code": 3}
    for body in (old, new):
        error = _status_error(400, body, b"{}", shown=True, token="")
        assert (error.wants_login, error.code) == (True, 3), body
    refused = {"message": "etcdserver: authentication failed, invalid user ID or password"}
    error = _status_error(400, refused, b"{}", shown=False, token="")
    assert "the password is wrong" in _login_text(error, "u")
    stream = {"error": {"code": 16, "message": "etcdserver: invalid auth token"}}
    assert _status_error(200, stream, b"{}", shown=True, token="").wants_login


@pytest.mark.parametrize(
    "ends", [ssl.SSLEOFError(8, "EOF"), ssl.SSLZeroReturnError(6, "closed"), ConnectionResetError()]
)
def test_a_server_that_ends_the_handshake_may_speak_http(ends: Exception) -> None:
    text = Gateway(["e:1"], Access(tls=Tls()))._text(ends)
    assert "or it speaks http: then the URL begins with etcd://" in text


def test_files_that_do_not_go_together_leave_the_certificate_of_before_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    own, next_one = authority.issue("master"), authority.issue("next")
    tls = Tls(ca=str(authority.certificate), certificate=str(own.certificate), key=str(own.key))
    before = tls.context()
    next_one.key.replace(own.key)  # and the certificate not yet
    assert tls.context() is before
    assert tls.context() is before
    assert caplog.text.count("the certificate of before stays in use") == 1
    next_one.certificate.replace(own.certificate)
    assert tls.context() is not before
