"""URLs of an etcd cluster, and an answer that is none."""

from __future__ import annotations

import socket

import pytest

from pccl_backend._etcd import EtcdError, EtcdRegister, parse_etcd


def test_a_url_names_the_members_of_the_cluster_and_a_key() -> None:
    assert parse_etcd("etcd://a:1,b,[::1]:3/runs/x") == (["a:1", "b:2379", "[::1]:3"], "runs/x")


@pytest.mark.parametrize(
    "url", ["etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///key", "etcd://a:x/k", "etcd://u@a/k"]
)
def test_what_is_no_url_of_a_cluster_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match="etcd://"):
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
