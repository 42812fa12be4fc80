"""Two masters of one run that take tokens, over an etcd that asks them who they are, by TLS."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import Authority
from conftest import Master, Peer, wait_until
from elastic_members import (
    Run,
    Start,
    answers,
    contribution,
    end,
    member,
    one,
    tell,
    together,
    train_until,
)
from etcd_cluster import Etcd
from standby import role, says, train
from taps import any_seen, taps
from token_files import copy_of, cut, holding, new_token, refused, secrets_of

FRESH = True  # a member's environment and memory are its own
PASSWORD = "correct horse battery"
Begin = Callable[..., Master]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def etcd(tmp_path: Path, authority: Authority) -> Iterator[Etcd]:
    cluster = Etcd(tmp_path, 1, authority=authority)
    cluster.make_users("pccl", PASSWORD, "pccl/")
    yield cluster
    cluster.close()


@pytest.fixture
def tokens(tmp_path: Path) -> list[Path]:
    """Of each of two masters: a file with the tokens a and b, and the same key."""
    files = [tmp_path / name / "tokens" for name in ("one", "two")]
    for name in ("a", "b"):
        new_token(files[0], name)
    shutil.copytree(files[0].parent, files[1].parent)
    return files


@pytest.fixture
def flags(etcd: Etcd, authority: Authority, tmp_path: Path) -> tuple[str, ...]:
    own = authority.issue("master")
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text(PASSWORD + "\n")
    return (
        *("--state", etcd.state, "--lease", "2", "--evict-after", "4", "--min-peers", "3"),
        *("--etcd-ca", str(authority.certificate)),
        *("--etcd-cert", str(own.certificate), "--etcd-key", str(own.key)),
        *("--etcd-user", "pccl", "--etcd-password-file", str(password)),
    )


@pytest.mark.long
def test_members_go_on_encrypted_under_the_standby_and_the_revoked_stay_out_at_both(
    etcd: Etcd, tokens: list[Path], flags: tuple[str, ...], start_master: Start, run_peers: Run
) -> None:
    def start(file: Path, port: int = 0) -> Master:
        return start_master("--token-file", str(file), *flags, port=port)

    with ThreadPoolExecutor() as pool:  # both up at the first start: one of them is in charge
        masters = list(pool.map(start, tokens))
    wait_until(lambda: sorted(map(role, masters)) == ["in charge", "stands by"], what="their roles")
    if role(masters[0]) == "stands by":
        masters.reverse()
        tokens = tokens[::-1]
    a, b = masters
    url = f"pccl://127.0.0.1:{a.port},127.0.0.1:{b.port}"
    with taps(2) as made:
        kept: list[Peer] = []
        for index, tap in enumerate(made):
            env = tap.env | holding(copy_of(tokens[0], "a"))
            kept += run_peers(member, 1, url, first=index, env=env)
        (gone,) = run_peers(member, 1, url, first=2, env=holding(copy_of(tokens[0], "b")))
        everybody = [*kept, gone]
        answers(everybody, "join")
        together(everybody, "refresh")
        train(everybody)

        # The master in charge dies in an operation; its standby has the same tokens.
        tell(kept, "issue", step=9, index=0)
        answers(kept, "issue")
        a.kill()
        says(b, "incarnation")
        tell([gone], "issue", step=9, index=0)
        answers([gone], "issue")
        one(together(everybody, "wait"), "result")
        one(together(everybody, "refresh"), "w")
        train(everybody)

        # The standby revokes a token; the other master, whose file still has it, comes back.
        cut(tokens[1], "b")
        b.signal(signal.SIGHUP)
        says(b, "revoked: b")
        tell([gone], "train")
        gone.next(did="train", error="EvictedError")
        train_until(kept, 2)
        again = start(tokens[0], port=a.port)
        assert "b:" in tokens[0].read_text()
        says(again, "standing by")
        b.kill()
        says(again, "incarnation")
        train_until(kept, 2)
        (late,) = run_peers(refused, 1, url, first=3, env=holding(copy_of(tokens[0], "b")))
        assert 'the token "b" has been revoked' in late.next(raised="RefusedError")["text"]
        end(kept)

        bytes_seen = sum(len(one) for tap in made for one in tap.seen)
    assert bytes_seen > 4 * contribution(0, 9, 0).nbytes  # their data did go through the taps
    for index in (0, 1):
        plain = contribution(index, 9, 0).numpy().tobytes()
        assert not any_seen(plain, made)
    text = "".join(line for m in (a, b, again) for line in m.errors).encode()
    stored = b"".join(
        path.read_bytes() for path in (etcd.folder / "etcd-0").rglob("*") if path.is_file()
    )
    assert PASSWORD.encode() not in text
    for secret in secrets_of(tokens[0]):
        assert secret not in text
        assert secret not in stored


def test_the_password_of_the_variable_is_in_no_output_and_in_no_environment(
    etcd: Etcd,
    flags: tuple[str, ...],
    start_master: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PCCL_ETCD_PASSWORD", PASSWORD)
    master = start_master(*flags[:-2], "--log-level", "debug")
    says(master, "holds the lease")
    proc = Path(f"/proc/{master.pid}")
    assert PASSWORD.encode() not in (proc / "environ").read_bytes()
    assert PASSWORD.encode() not in (proc / "cmdline").read_bytes()
    etcd.signal(signal.SIGTERM)  # what it says of an etcd that is away
    says(master, "no etcd answered")
    master.kill()
    assert PASSWORD not in "".join(master.errors)


def test_a_wrong_password_is_named_in_the_log_of_the_master(
    flags: tuple[str, ...], start_master: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCCL_ETCD_PASSWORD", "not that one")
    master = start_master(*flags[:-2])
    says(master, "refuses the user 'pccl': no such user, or the password is wrong")
    assert "not that one" not in "".join(master.errors)
