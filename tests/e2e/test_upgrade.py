"""A run whose master and members are replaced one by one by those of another package version."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Peer, wait_until
from elastic_members import Run, Start, answers, end, mean, member, one, tell, together, train_until

from pccl_backend import __version__

NEXT = "99.1.0"


def next_package(folder: Path) -> Path:
    """A tree with this package under another version. (Fields of a later one: codec_test.cpp.)"""
    package = folder / "pccl_backend"
    package.mkdir()
    for path in (ROOT / "pccl_backend").iterdir():
        if path.suffix == ".py":
            shutil.copy(path, package)
        elif path.suffix == ".so":
            (package / path.name).symlink_to(path)
    version = package / "_version.py"
    version.write_text(version.read_text().replace(__version__, NEXT))
    return folder


def says(peer: Peer, words: str) -> None:
    wait_until(lambda: words in "".join(peer.errors), what=f"{words!r} in\n{peer.log()}")


def replaced(old: list[Peer], new: Peer) -> list[Peer]:
    """The newcomer is admitted, then the first of the members leaves."""
    new.next(did="join")
    tell([new], "refresh")
    train_until(old, 3)
    answers([new], "refresh")
    leaver, members = old[0], [*old, new]
    together([leaver], "leave")
    while True:
        together(members, "train")
        lines = together(members, "refresh")
        if lines[0]["left"]:
            break
    assert [line["size"] for line in lines[1:]] == [2, 2]
    one(lines[1:], "w")
    end([leaver])
    return members[1:]


@pytest.mark.long
def test_master_and_members_are_replaced_by_a_newer_package_and_the_master_by_the_old_one_again(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    tree = next_package(tmp_path)
    state = ["--state", str(tmp_path / "register")]
    master = start_master("--min-peers", "2", *state)
    members = run_peers(member, 2, master.url)
    answers(members, "join")
    together(members, "refresh")
    together(members, "train")

    master.signal(15)
    master.finish()
    together(members, "issue", step=7, index=0)  # it gets its outcome from the next master
    newer = start_master("--min-peers", "2", *state, port=master.port, tree=tree)
    assert one(together(members, "wait"), "result") == mean([0, 1], 7, 0)
    for peer in members:
        says(peer, f"the master runs pccl {NEXT}, this process {__version__}")
    says(newer, f"runs pccl {__version__}, this master {NEXT}")

    path = os.pathsep.join([str(tree), str(ROOT)])
    for index in (2, 3):
        (new,) = run_peers(member, 1, master.url, first=index, env={"PYTHONPATH": path})
        members = replaced(members, new)
    step = one(together(members, "refresh"), "state")
    assert one(together(members, "train"), "result") == mean([2, 3], step, 0)

    newer.signal(15)
    newer.finish()
    older = start_master("--min-peers", "2", *state, port=master.port)
    # What is in flight as the epoch of this master begins may run again (docs/how-to/upgrade.md).
    wait_until(lambda: {line["epoch"] for line in together(members, "look")} == {"3.1"})
    assert one(together(members, "train"), "result") == mean([2, 3], step + 1, 0)
    for peer in members:
        says(peer, f"the master runs pccl {__version__}, this process {NEXT}")
    says(older, f"runs pccl {NEXT}, this master {__version__}")
    assert {line["counters"]["ops_replayed"] for line in together(members, "look")} == {0}
    end(members)
