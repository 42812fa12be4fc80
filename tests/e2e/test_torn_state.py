"""A shared state is whole or unchanged, whatever dies while it is fetched: real processes.

A fetch stops at a chosen item until the test says what comes next, so each kill falls into it.
"""

import signal
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Peer, hear, say
from elastic_members import Member, Run, Start, answers, end, obey, one, tell, together

TENSORS = 5  # items 1 to 5; item 0 is the manifest
FLOATS = 2 << 20
REVISIONS = [9, 5, 3]
STOP_AT = 3


class Stops:
    """The extension, but a fetch stops before an item and says so, and what it does is told."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.stop_at = -1
        self.pulled: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def pull(self, source: str, digest: bytes, item: int, address: int, size: int) -> Any:
        if item == self.stop_at:
            self.stop_at = -1
            say(did="stop", item=item, source=source)
            if hear()["do"] == "raise":
                raise MemoryError
            say(did="goes")
        self.pulled.append(item)
        return self.module.pull(source, digest, item, address, size)

    def boundary_root(self, *arguments: Any) -> None:
        self.module.boundary_root(*arguments)
        # The store's answer comes after the master has heard the root.
        dist.distributed_c10d._get_default_store().set("heard", b"")
        say(did="root")

    def boundary_fetched(self, *arguments: Any) -> None:
        self.module.boundary_fetched(*arguments)
        dist.distributed_c10d._get_default_store().set("heard", b"")
        say(did="fetched")


class Holder(Member):
    """Holds a state of which every value names its maker."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.module = Stops(self.group._module)
        self.group._module = self.module
        self.make(maker=index)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))

    def make(self, *, maker: int) -> dict[str, Any]:
        self.state = {"step": REVISIONS[maker % 3], "plain": {"maker": [float(maker)]}}
        for i in range(TENSORS):
            self.state[f"t{i}"] = torch.full((FLOATS,), maker + i / 8)
        return {}

    def makers(self) -> list[float]:
        """Of all values of the state: one, or it is torn."""
        found = {float(self.state["plain"]["maker"][0])}
        for i in range(TENSORS):
            tensor = self.state[f"t{i}"] - i / 8
            found |= {tensor.min().item(), tensor.max().item()}
        return sorted(found)

    def cross(self, *, stop_at: int = -1, **options: Any) -> dict[str, Any]:
        """A boundary, and what is held afterwards."""
        self.module.stop_at, self.module.pulled = stop_at, []
        raised, size = "", 0
        try:
            size = self.group.refresh(self.state, **options).size
        except BaseException as error:
            raised = type(error).__name__
        held = {"makers": self.makers(), "revision": self.state["step"]}
        me = self.module.group_view()["self"]
        return {"raised": raised, "size": size, "me": me, "pulled": self.module.pulled, **held}


def holder(index: int, url: str) -> None:
    """Joins, then does what it is told until "end"."""
    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    obey(Holder(index))


def founders(run_peers: Run, start_master: Start, count: int) -> tuple[list[Peer], str]:
    master = start_master("--min-peers", str(count), "--evict-after", "60")
    peers = run_peers(holder, count, master.url)
    answers(peers, "join")
    return peers, master.url


def expect(lines: list[dict[str, Any]], maker: int, size: int) -> None:
    """Each holds the state of this maker, and nothing else."""
    assert one(lines, "raised") == ""
    assert one(lines, "size") == size
    assert one(lines, "makers") == [float(maker)]
    assert one(lines, "revision") == REVISIONS[maker % 3]


def go(peers: list[Peer]) -> None:
    tell(peers, "go")


def test_a_founder_whose_source_is_killed_keeps_its_own_state(
    run_peers: Run, start_master: Start
) -> None:
    (source, survivor), _ = founders(run_peers, start_master, 2)
    tell([source], "cross")
    tell([survivor], "cross", stop_at=STOP_AT)
    assert survivor.next(did="stop")["item"] == STOP_AT
    source.kill()
    go([survivor])
    expect(answers([survivor], "cross"), maker=1, size=1)
    end([survivor])


def test_founders_with_three_states_agree_when_the_source_is_killed(
    run_peers: Run, start_master: Start
) -> None:
    (source, *survivors), _ = founders(run_peers, start_master, 3)
    tell([source], "cross")
    tell(survivors, "cross", stop_at=STOP_AT)
    for peer in survivors:
        peer.next(did="stop")
    source.kill()
    go(survivors)
    expect(answers(survivors, "cross"), maker=1, size=2)
    end(survivors)


def test_who_has_the_state_of_a_source_that_was_killed_hands_it_on(
    run_peers: Run, start_master: Start
) -> None:
    (source, first, second), _ = founders(run_peers, start_master, 3)
    tell([source, second], "cross")
    tell([first], "cross", stop_at=STOP_AT)
    first.next(did="stop")
    second.next(did="fetched")
    source.kill()
    go([first])
    lines = answers([first, second], "cross")
    expect(lines, maker=0, size=2)
    pulled = lines[0]["pulled"]
    assert [pulled.count(item) for item in range(1, STOP_AT)] == [1] * (STOP_AT - 1), pulled
    end([first, second])


def test_a_diverged_member_goes_on_fetching_from_another_source(
    run_peers: Run, start_master: Start
) -> None:
    peers, _ = founders(run_peers, start_master, 3)
    lines = together(peers, "cross")
    expect(lines, maker=0, size=3)
    *sources, diverged = peers
    together([diverged], "make", maker=2)
    tell(sources, "cross", verify=True)
    tell([diverged], "cross", verify=True, stop_at=STOP_AT)
    used = diverged.next(did="stop")["source"]
    by_id = {line["me"]: peer for line, peer in zip(lines, peers, strict=True)}
    by_id[used].kill()
    go([diverged])
    left = [peer for peer in peers if peer is not by_id[used]]
    after = answers(left, "cross")
    expect(after, maker=0, size=2)
    assert after[-1]["pulled"].count(1) == 1, after[-1]["pulled"]
    end(left)


def test_a_newcomer_goes_on_fetching_from_another_source(
    run_peers: Run, start_master: Start
) -> None:
    members, url = founders(run_peers, start_master, 2)
    lines = together(members, "cross")
    (newcomer,) = run_peers(holder, 1, url, first=2)
    answers([newcomer], "join")
    tell([newcomer], "cross", stop_at=STOP_AT)
    newcomer.next(did="root")
    tell(members, "cross", verify=True)
    used = newcomer.next(did="stop")["source"]
    by_id = {line["me"]: peer for line, peer in zip(lines, members, strict=True)}
    by_id[used].kill()
    go([newcomer])
    left = [*(peer for peer in members if peer is not by_id[used]), newcomer]
    after = answers(left, "cross")
    # A loss may be numbered one boundary later.
    assert one(after, "raised") == ""
    assert one(after, "makers") == [0.0]
    assert after[-1]["pulled"].count(1) == 1, after[-1]["pulled"]
    expect(together(left, "cross", verify=True), maker=0, size=2)
    end(left)


@pytest.mark.parametrize("cause", ["SIGINT", "SIGTERM", "raise"])
def test_who_is_interrupted_keeps_its_own_state_and_may_go_on(
    run_peers: Run, start_master: Start, cause: str
) -> None:
    (source, fetcher), _ = founders(run_peers, start_master, 2)
    tell([source], "cross")
    tell([fetcher], "cross", stop_at=STOP_AT)
    fetcher.next(did="stop")
    if cause == "raise":
        tell([fetcher], "raise")
    else:
        source.signal(signal.SIGSTOP)  # the next pull would wait for long
        go([fetcher])
        fetcher.next(did="goes")
        fetcher.signal(signal.Signals[cause])
    (line,) = answers([fetcher], "cross")
    raised = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "SystemExit", "raise": "MemoryError"}
    assert line["raised"] == raised[cause]
    assert line["makers"] == [1.0]
    assert line["revision"] == REVISIONS[1]
    source.signal(signal.SIGCONT)
    tell([fetcher], "cross")
    expect(answers([source, fetcher], "cross"), maker=0, size=2)
    end([source, fetcher])
