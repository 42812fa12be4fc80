"""The register in a real etcd that asks who one is: by TLS, with certificates, with a user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from etcd_cluster import Etcd

from pccl_backend._etcd import EtcdRegister
from pccl_backend._etcd_gateway import Access, EtcdError, Login, Tls

PASSWORD = "correct horse battery"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def etcd(tmp_path: Path, authority: Authority) -> Iterator[Etcd]:
    """One that asks for certificates; it has no users."""
    cluster = Etcd(tmp_path, 1, authority=authority)
    yield cluster
    cluster.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Etcd]:
    cluster = Etcd(tmp_path, 1)
    yield cluster
    cluster.close()


def tls_of(authority: Authority, name: str = "master") -> Tls:
    own = authority.issue(name)
    return Tls(ca=str(authority.certificate), certificate=str(own.certificate), key=str(own.key))


def register(etcd: Etcd, access: Access, state: str = "") -> EtcdRegister:
    return EtcdRegister(state or etcd.state, lease_s=5, name="m", access=access)


def refusal(etcd: Etcd, access: Access, state: str = "") -> str:
    with pytest.raises(EtcdError) as raised:
        register(etcd, access, state).read()
    assert PASSWORD not in str(raised.value)
    return str(raised.value)


def use(held: EtcdRegister) -> None:
    """All that a master asks of it."""
    held.read()
    assert held.hold()
    assert held.hold()  # keeps the lease alive
    assert held.write(b"one")
    assert held.read() == b"one"
    assert held.write(b"two")
    assert held.release()


def test_a_register_is_kept_by_tls_with_a_certificate(etcd: Etcd, authority: Authority) -> None:
    use(register(etcd, Access(tls=tls_of(authority))))


def test_an_etcd_that_is_not_the_right_one_or_a_master_that_is_not_is_refused_by_name(
    etcd: Etcd, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other")
    ca = str(authority.certificate)
    assert "its certificate is of no authority of --etcd-ca" in refusal(
        etcd, Access(tls=Tls(ca=str(other.certificate)))
    )
    assert "its certificate is of no authority" in refusal(etcd, Access(tls=Tls()))
    another = "it wants another certificate than --etcd-cert has"
    assert another in refusal(etcd, Access(tls=Tls(ca=ca)))
    own = other.issue("stranger")
    assert another in refusal(
        etcd, Access(tls=Tls(ca=ca, certificate=str(own.certificate), key=str(own.key)))
    )
    by_name = etcd.state.replace("127.0.0.1", "localhost")
    assert "its certificate is not for this name" in refusal(
        etcd, Access(tls=tls_of(authority)), by_name
    )
    in_the_clear = etcd.state.replace("etcds://", "etcd://")
    assert "the URL begins with etcds://" in refusal(etcd, Access(), in_the_clear)


@pytest.mark.parametrize(
    ("when", "words"),
    [({"days": -1}, "has expired"), ({"begins": "20990101000000Z"}, "is not valid yet")],
)
def test_a_certificate_of_another_time_is_named(
    tmp_path: Path, authority: Authority, when: dict[str, Any], words: str
) -> None:
    etcd = Etcd(tmp_path, 1, authority=authority, server=authority.issue("other", **when))
    try:
        text = refusal(etcd, Access(tls=tls_of(authority)))
        assert f"its certificate {words}; or a clock is wrong" in text
    finally:
        etcd.close()


def test_an_etcd_without_tls_is_no_etcd_of_etcds(plain: Etcd) -> None:
    by_tls = plain.state.replace("etcd://", "etcds://")
    assert "the URL begins with etcd://" in refusal(plain, Access(tls=Tls()), by_tls)


def test_certificates_that_are_renewed_in_place_are_used_at_once(
    etcd: Etcd, authority: Authority, tmp_path: Path
) -> None:
    own = Authority(tmp_path / "other").issue("master")
    held = register(
        etcd,
        Access(
            tls=Tls(
                ca=str(authority.certificate), certificate=str(own.certificate), key=str(own.key)
            )
        ),
    )
    with pytest.raises(EtcdError):
        held.read()
    renewed = authority.issue("master")
    renewed.key.replace(own.key)
    renewed.certificate.replace(own.certificate)
    use(held)


def test_a_master_is_a_user_whose_logins_may_end_at_any_time(
    etcd: Etcd, authority: Authority
) -> None:
    etcd.make_users("pccl", PASSWORD, "pccl/")
    tls = tls_of(authority)
    held = register(etcd, Access(tls=tls, login=Login("pccl", password=PASSWORD)))
    use(held)
    etcd.restart()  # it knows none of the logins of before
    use(held)
    etcd.ask("auth/user/changepw", {"name": "pccl", "password": "x"}, login=("root", "of root"))
    with pytest.raises(EtcdError, match="refuses the user 'pccl': no such user, or the password"):
        held.read()
    etcd.ask(
        "auth/user/changepw", {"name": "pccl", "password": PASSWORD}, login=("root", "of root")
    )
    use(held)
    assert "asks for a user: --etcd-user" in refusal(etcd, Access(tls=tls))
    denied = refusal(
        etcd,
        Access(tls=tls, login=Login("pccl", password=PASSWORD)),
        etcd.state.replace("/pccl/test", "/other"),
    )
    assert re.search("permission denied.*READWRITE", denied)


def test_a_user_at_an_etcd_that_asks_nobody_is_an_error(plain: Etcd) -> None:
    login = Login("pccl", password=PASSWORD)
    assert "has no users" in refusal(plain, Access(login=login))
