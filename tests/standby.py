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
    from chaos.lines import is_in_charge  # the peers import this module, and have no tests/labs

    lead = is_in_charge("".join(master.errors).splitlines())
    return "" if lead is None else "in charge" if lead else "stands by"
