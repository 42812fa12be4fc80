"""What tests of several masters ask of them, and of the members of their run."""

from __future__ import annotations

from conftest import PATIENCE_S, Master, Peer, wait_until
from elastic_members import one, together


def says(peer: Peer, words: str, timeout_s: float = PATIENCE_S) -> None:
    wait_until(
        lambda: words in "".join(peer.errors),
        timeout_s,
        f"{peer.name} says {words!r}\n{peer.log()}",
    )


def train(peers: list[Peer], steps: int = 2) -> None:
    for _ in range(steps):
        one(together(peers, "train"), "result")
        one(together(peers, "refresh"), "w")


def role(master: Master) -> str:
    """What a master has said last about itself."""
    text = "".join(master.errors)
    said = {
        "in charge": text.rfind("this master holds the lease"),
        "stands by": max(text.rfind("standing by"), text.rfind("stands by")),
    }
    return max(said, key=lambda what: said[what]) if max(said.values()) >= 0 else ""
