"""PCCL_PLAINTEXT: what somebody sees who sits between two ranks and passes on every byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import fixed_group, hear, say, wait_until
from taps import any_seen, taps

SECRET = b"a gradient that nobody else reads"


def sends_bytes(rank: int, world: int, meet: str) -> None:
    import torch

    dist = fixed_group(rank, world, meet)
    text = torch.tensor(list(SECRET * 10000), dtype=torch.uint8)
    for of in range(world):
        got = text.clone() if rank == of else torch.zeros_like(text)
        dist.broadcast(got, of)
        assert torch.equal(got, text)
        small = text[: len(SECRET)].clone() if rank == of else torch.zeros(33, dtype=torch.uint8)
        dist.broadcast(small, of)
        assert bytes(small.tolist()) == SECRET
    say(done=True)
    hear()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("plaintext", "encrypted"),
    [
        (("all", "all"), False),
        (("all", "loopback"), False),
        (("all", "none"), True),
        (("none", "none"), True),
    ],
)
def test_a_link_is_encrypted_if_one_end_wants_that(
    run_peers: Any, tmp_path: Path, plaintext: tuple[str, str], encrypted: bool
) -> None:
    with taps(2) as made:
        peers = []
        for rank, (tap, choice) in enumerate(zip(made, plaintext, strict=True)):
            env = tap.env | {"PCCL_PLAINTEXT": choice}
            peers += run_peers(sends_bytes, 1, 2, str(tmp_path / "meet"), env=env, first=rank)
        for peer in peers:
            peer.next(done=True)
        seen = [bytes(one) for tap in made for one in tap.seen]
        assert sum(len(one) for one in seen) > 4 * len(SECRET) * 10000 / 2
        assert any(SECRET in one for one in seen) != encrypted
        assert any_seen(SECRET * 10000, made) != encrypted
        for peer in peers:
            peer.tell("go on")
            peer.finish()


def makes_a_group(rank: int, world: int, meet: str) -> None:
    import torch

    try:
        dist = fixed_group(rank, world, meet)
    except Exception as error:  # what a user sees
        say(error=str(error), kind=type(error).__name__)
        return
    t = torch.ones(4)
    dist.all_reduce(t)
    say(sum=t[0].item())
    hear()
    dist.destroy_process_group()


def token_file(folder: Path, name: str, *tokens: str) -> str:
    """A file with these tokens, made anew."""
    from pccl_backend import _core

    path = folder / name
    for token in tokens:
        _core.new_token(str(path), token, [])
    return str(path)


def test_ranks_with_a_common_token_need_no_other_option_to_be_encrypted(
    run_peers: Any, tmp_path: Path
) -> None:
    both = token_file(tmp_path, "both", "bonn", "lisbon")
    second = tmp_path / "second"
    second.write_text(Path(both).read_text().splitlines()[0] + "\n")
    second.chmod(0o600)
    with taps(2) as made:
        peers = []
        for rank, (tap, path) in enumerate(zip(made, (both, str(second)), strict=True)):
            env = tap.env | {"PCCL_TOKEN_FILE": path}
            peers += run_peers(sends_bytes, 1, 2, str(tmp_path / "meet"), env=env, first=rank)
        for peer in peers:
            peer.next(done=True)
            peer.tell("go on")
            peer.finish()
        assert not any(SECRET in bytes(one) for tap in made for one in tap.seen)


def test_a_rank_without_the_token_makes_no_group_and_all_are_told(
    run_peers: Any, tmp_path: Path
) -> None:
    good = token_file(tmp_path, "good", "bonn")
    other = token_file(tmp_path, "other", "bonn")  # of the same name
    for name, path, texts in (
        ("none", "", ("rank 1 has no token", "rank 0 has a token")),
        ("other", other, ("the handle of rank 1 is sealed with none of the tokens",) * 2),
    ):
        meet = str(tmp_path / f"meet-{name}")
        peers = run_peers(makes_a_group, 1, 2, meet, env={"PCCL_TOKEN_FILE": good})
        peers += run_peers(makes_a_group, 1, 2, meet, env={"PCCL_TOKEN_FILE": path}, first=1)
        first, second = (peer.next()["error"] for peer in peers)
        assert texts[0] in first
        assert texts[1].replace("rank 1", "rank 0") in second
        secrets = [Path(file).read_text().split(":")[1] for file in (good, other)]
        for peer in peers:
            assert not any(secret in peer.log() for secret in secrets)
            peer.finish()


def entries(store: Path) -> Iterator[tuple[str, bytes]]:
    """What a FileStore has written: lengths of 4 bytes before each key and each value."""
    bytes_, at = store.read_bytes(), 0
    while at < len(bytes_):
        parts = []
        for _ in range(2):
            size = int.from_bytes(bytes_[at : at + 4], "little")
            parts.append(bytes_[at + 4 : at + 4 + size])
            at += 4 + size
        yield parts[0].decode(), parts[1]


def test_one_process_in_two_places_of_the_store_makes_no_group(
    run_peers: Any, tmp_path: Path
) -> None:
    import torch.distributed as dist

    meet = tmp_path / "meet"
    (rank,) = run_peers(makes_a_group, 1, 2, str(meet))
    own = wait_until(
        lambda: [
            entry for entry in (entries(meet) if meet.exists() else ()) if "/handle/0" in entry[0]
        ],
        what="the handle of rank 0",
    )
    key, handle = own[0]
    store = dist.FileStore(str(meet), 2)
    store.set(key.removeprefix("/").replace("/handle/0", "/handle/1"), handle)
    line = rank.next()
    assert "the store names one process as rank 0 and as rank 1" in line["error"]
    rank.finish()


def test_rank_0_says_once_that_ranks_beyond_this_machine_have_no_token(
    run_peers: Any, tmp_path: Path
) -> None:
    for case, (host, plaintext, lines) in enumerate(
        (
            ("127.0.0.1", "all", 0),
            ("192.0.2.7,127.0.0.1", "all", 1),
            ("192.0.2.7,127.0.0.1", "none", 1),
        )
    ):
        env = {"PCCL_ADVERTISE": host, "PCCL_PLAINTEXT": plaintext}
        peers = run_peers(makes_a_group, 2, 2, str(tmp_path / f"meet{case}"), env=env)
        for rank, peer in enumerate(peers):
            assert peer.next()["sum"] == 2
            peer.tell("go on")
            peer.finish()
            expected = lines if rank == 0 else 0
            assert peer.log().count("the ranks of this group have no token") == expected
            in_the_clear = expected if plaintext == "all" else 0
            assert peer.log().count("their data is not encrypted") == in_the_clear
