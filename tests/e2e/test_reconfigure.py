"""c10d's reconfigure (torch 2.14 on) in real processes; scripts/torch_versions runs it."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from conftest import hear, say

SOON_S = 10.0  # what does not wait for a time-out of 60 s


def _group(timeout_s: float = 60.0) -> Any:
    import torch.distributed as dist

    dist.init_process_group(
        "pccl",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=timeout_s),
        enable_reconfigure=True,
    )
    return dist


def obeys(rank: int, timeout_s: float = 60.0) -> None:
    """Does what the test says: [word, ...]; says what came of it."""
    import torch

    dist = _group(timeout_s)
    hooks: list[str] = []
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.register_abort_hook(7, lambda: hooks.append("called"))
    # From torch 2.15 on: torch's flight recorder would write its trace when a rank is lost.
    assert not getattr(backend, "supports_abort_hooks", False)
    say(handle=dist._get_reconfigure_handle(), supports=dist._supports_reconfigure())
    while True:
        word, *arguments = hear()
        began = time.monotonic()
        answer: dict[str, Any] = {}
        try:
            if word == "configure":
                uuid, handles, kind = arguments
                chosen = handles if kind == "list" else set(handles)
                dist._reconfigure(uuid=uuid, handles=chosen).wait()
                answer = {"rank": dist.get_rank(), "size": dist.get_world_size()}
            elif word == "sum":
                t = torch.tensor([float(2**rank)])
                dist.all_reduce(t)
                answer = {"sum": t.item()}
            elif word == "abort":
                dist.group.WORLD.abort()
                answer = {"aborted": True}
            elif word == "hooks":
                answer = {"hooks": len(hooks)}
            elif word == "end":
                dist.destroy_process_group()
                return
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        say(took_s=time.monotonic() - began, **answer)


def _start(run_peers: Any, count: int) -> tuple[list[Any], list[str]]:
    peers = run_peers(obeys, count)
    lines = [peer.next(supports=True) for peer in peers]
    return peers, [line["handle"] for line in lines]


def _all(peers: list[Any], *words: Any) -> list[dict[str, Any]]:
    for peer in peers:
        peer.tell(list(words))
    return [peer.next() for peer in peers]


def test_a_life_of_configurations(run_peers: Any, tmp_path: Path) -> None:
    peers, handles = _start(run_peers, 3)
    (before,) = _all(peers[:1], "sum")
    assert "call reconfigure" in before["text"]  # no members yet

    made = _all(peers[:2], "configure", 1, handles[:2], "list")
    assert [(m["rank"], m["size"]) for m in made] == [(0, 2), (1, 2)]
    assert [a["sum"] for a in _all(peers[:2], "sum")] == [3.0, 3.0]

    # A reused uuid is refused, and the group that is there stays.
    for answer in _all(peers[:2], "configure", 1, handles[:2], "list"):
        assert answer["error"] == "RuntimeError"
        assert "uuid 1 was already used" in answer["text"]
        assert answer["took_s"] < SOON_S
    assert [a["sum"] for a in _all(peers[:2], "sum")] == [3.0, 3.0]
    # So are handles without this process, with one twice, and what is no handle.
    for wrong, words in (
        ([handles[1]], "not among"),
        ([handles[0], handles[1], handles[1]], "twice"),
        ([handles[0], "tcp://nowhere"], "not a handle"),
        ([handles[0], handles[1][:-30]], "not a handle"),
    ):
        (answer,) = _all(peers[:1], "configure", 99, wrong, "list")
        assert words in answer["text"], answer
    assert [a["sum"] for a in _all(peers[:2], "sum")] == [3.0, 3.0]

    # Another order; then somebody joins late, and the backend chooses the order.
    made = _all(peers[:2], "configure", 2, handles[1::-1], "list")
    assert [m["rank"] for m in made] == [1, 0]
    made = _all(peers, "configure", 3, handles, "set")
    assert sorted(m["rank"] for m in made) == [0, 1, 2]
    assert [a["sum"] for a in _all(peers, "sum")] == [7.0] * 3

    # Split into disjoint groups with one uuid, and merge.
    for peer, members in (
        (peers[0], handles[:1]),
        (peers[1], handles[1:]),
        (peers[2], handles[1:]),
    ):
        peer.tell(["configure", 4, members, "list"])
    assert [peer.next()["size"] for peer in peers] == [1, 2, 2]
    assert [a["sum"] for a in _all(peers, "sum")] == [1.0, 6.0, 6.0]
    assert [m["size"] for m in _all(peers, "configure", 5, handles, "list")] == [3, 3, 3]
    assert [a["sum"] for a in _all(peers, "sum")] == [7.0] * 3

    # abort fails it everywhere at once, calls the hook, and does not stand in the way of the next.
    peers[1].tell(["sum"])
    peers[2].tell(["sum"])
    (aborted,) = _all(peers[:1], "abort")
    assert aborted["aborted"]
    for peer in peers[1:]:
        line = peer.next()
        assert "rank 0" in line["text"]
        assert "abort" in line["text"]
    assert _all(peers[:1], "hooks")[0]["hooks"] == 1
    assert [m["size"] for m in _all(peers, "configure", 6, handles, "list")] == [3, 3, 3]
    assert [a["sum"] for a in _all(peers, "sum")] == [7.0] * 3

    # One is killed: it is named, hooks are called, and the survivors form the next.
    for peer in peers[:2]:
        peer.tell(["sum"])
    peers[2].kill()
    for peer in peers[:2]:
        assert "rank 2" in peer.next()["text"]
    for peer in peers[:2]:
        while _all([peer], "hooks")[0]["hooks"] < 1:
            pass
    assert [m["size"] for m in _all(peers[:2], "configure", 7, handles[:2], "list")] == [2, 2]
    assert [a["sum"] for a in _all(peers[:2], "sum")] == [3.0, 3.0]
    for peer in peers[:2]:
        peer.tell(["end"])
        peer.finish()


def test_who_waits_for_one_that_has_given_up_hears_of_it_at_once(
    run_peers: Any, tmp_path: Path
) -> None:
    peers, handles = _start(run_peers, 3)
    peers[2].kill()
    # Both are to form a group with one that is gone: who notices first tells the other.
    for peer in peers[:2]:
        peer.tell(["configure", 1, handles, "list"])
    for peer in peers[:2]:
        line = peer.next()
        assert "rank 2" in line["text"]
        assert line["took_s"] < SOON_S
    # One waits in a configuration that the other has left for another one.
    peers[0].tell(["configure", 2, handles[:2], "list"])
    (alone,) = _all(peers[1:2], "configure", 3, handles[1:2], "list")
    assert alone["size"] == 1
    (after,) = _all(peers[1:2], "configure", 2, handles[:2], "list")
    assert after["size"] == 2
    assert peers[0].next()["size"] == 2
    peers[0].tell(["configure", 4, handles[:2], "list"])
    (aborted,) = _all(peers[1:2], "abort")
    assert aborted["aborted"]
    made = _all(peers[1:2], "configure", 4, handles[:2], "list")
    assert made[0]["size"] == 2
    assert peers[0].next()["size"] == 2
