"""Core dumps, which hold the keys of a process: whether there are some, and what is in them."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from conftest import Peer, hear, say
from elastic_members import Run, Start
from token_files import copy_of, holding, new_token, secrets_of

FRESH = True  # a member's environment and memory are its own

PATTERN = Path("/proc/sys/kernel/core_pattern")
pytestmark = pytest.mark.skipif(
    not PATTERN.exists() or PATTERN.read_text().strip() != "core",
    reason="this system does not write core dumps into the folder of the process",
)


def crashes(index: int, url: str, folder: str) -> None:
    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    pccl.group().refresh({"step": 0})
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[1:] * 2)
    say(limit=resource.getrlimit(resource.RLIMIT_CORE)[0])
    hear()
    os.abort()


def dumps(folder: Path) -> list[Path]:
    return list(folder.glob("core*"))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    new_token(file, "a")
    return file


def abort(peer: Peer) -> None:
    if peer.next()["limit"] == 0:
        pytest.skip("the hard limit of core dumps is 0")
    peer.tell("abort")
    peer.finish(status=-signal.SIGABRT)


@pytest.mark.long
def test_a_worker_that_forbids_them_leaves_no_core_dump(
    run_peers: Run, start_master: Start, tokens: Path, tmp_path: Path
) -> None:
    master = start_master("--token-file", str(tokens), "--min-peers", "1")
    env = holding(copy_of(tokens, "a"))
    folders = [tmp_path / name for name in ("open", "shut")]
    for folder, option in zip(folders, ({}, {"PCCL_CORE_DUMPS": "0"}), strict=True):
        folder.mkdir()
        (peer,) = run_peers(crashes, 1, master.url, str(folder), env=env | option)
        abort(peer)
    held, none = map(dumps, folders)
    assert none == []
    assert len(held) == 1  # else this test would show nothing
    content = held[0].read_bytes()
    held[0].unlink()
    # What the page says of a worker that allows them: its keys are in there.
    assert any(secret in content for secret in secrets_of(tokens)[:3])


@pytest.mark.parametrize("allowed", [False, True])
def test_a_master_with_tokens_writes_none_unless_it_is_asked_to(
    start_master: Start,
    tokens: Path,
    tmp_path: Path,
    allowed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = ["--core-dumps"] if allowed else []
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("the hard limit of core dumps is 0")
    master = start_master("--token-file", str(tokens), *more)
    resource.prlimit(master.pid, resource.RLIMIT_CORE, (hard, hard))
    folder = tmp_path / "of-master"
    folder.mkdir()
    before = set(dumps(Path(f"/proc/{master.pid}/cwd").resolve()))
    where = Path(f"/proc/{master.pid}/cwd").resolve()
    master.signal(signal.SIGABRT)
    master.finish(status=-signal.SIGABRT)
    made = set(dumps(where)) - before
    for file in made:
        file.unlink()
    assert bool(made) == allowed
