"""A shared state is whole or unchanged, whatever dies while it is fetched: real processes.

A fetch stops at a chosen item until the test says what comes next, so each kill falls into it.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Peer, hear, say
from elastic_members import Member, Run, Start, answers, end, obey, one, tell, together

TENSORS = 5  # items 1 to 5; item 0 is the manifest
FLOATS = 2 << 20
LARGE = 48 << 20  # of the last item, where a test needs it
REVISIONS = [9, 5, 3]
STOP_AT = 3


class Stops:
    """The extension, but a fetch stops before an item and says so, and what it does is told."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.stop_at = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def StateFetch(self) -> Any:
        return StopsBefore(self)

    def boundary_root(self, *arguments: Any) -> None:
        self.module.boundary_root(*arguments)
        # The store's answer comes after the master has heard the root.
        dist.distributed_c10d._get_default_store().set("heard", b"")
        say(did="root")

    def boundary_fetched(self, *arguments: Any) -> None:
        self.module.boundary_fetched(*arguments)
        dist.distributed_c10d._get_default_store().set("heard", b"")
        say(did="fetched")


class StopsBefore:
    """A StateFetch: the items before that at which it stops are fetched by a call of their own."""

    def __init__(self, stops: Stops) -> None:
        self.stops = stops
        self.real = stops.module.StateFetch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run(self, root: bytes, sources: list[str], items: list[Any]) -> bool:
        stop_at = self.stops.stop_at
        if not any(item == stop_at for item, *_ in items):
            return bool(self.real.run(root, sources, items))
        if not self.real.run(root, sources, [one for one in items if one[0] < stop_at]):
            return False
        self.stops.stop_at = -1
        say(did="stop", item=stop_at, source=sources[0])
        word = hear()
        if word["do"] == "starve":
            return bool(starved(lambda: self.real.run(root, sources, items)))
        if word["do"] == "kill":
            Thread(target=self.kill, args=(word["pid"], word["after"]), daemon=True).start()
        say(did="goes")
        return bool(self.real.run(root, sources, items))

    def kill(self, pid: int, after: int) -> None:
        """Kills a process when so many bytes more have come here."""
        counters = self.stops.module.counters
        before = counters()["bytes_received"]
        while counters()["bytes_received"] < before + after:
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
        say(did="killed", bytes=counters()["bytes_received"] - before)


def starved(call: Any) -> Any:
    """What `call` returns, where this process can get no more memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), before[1]))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Holder(Member):
    """Holds a state of which every value names its maker."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.module = Stops(self.group._module)
        self.group._module = self.module
        self.make(maker=index)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))

    def make(self, *, maker: int, floats: int = FLOATS) -> dict[str, Any]:
        self.state = {"step": REVISIONS[maker % 3], "plain": {"maker": [float(maker)]}}
        for i in range(TENSORS):
            count = floats if i == TENSORS - 1 else FLOATS
            self.state[f"t{i}"] = torch.full((count,), maker + i / 8)
        return {}

    def who(self) -> dict[str, Any]:
        return {"me": self.module.group_view()["self"]}

    def makers(self) -> list[float]:
        """Of all values of the state: one, or it is torn."""
        found = {float(self.state["plain"]["maker"][0])}
        for i in range(TENSORS):
            tensor = self.state[f"t{i}"] - i / 8
            found |= {tensor.min().item(), tensor.max().item()}
        return sorted(found)

    def cross(self, *, stop_at: int = -1, **options: Any) -> dict[str, Any]:
        """A boundary, and what is held afterwards."""
        self.module.stop_at = stop_at
        raised, size, tensors = "", 0, 0.0
        try:
            boundary = self.group.refresh(self.state, **options)
            size, tensors = boundary.size, boundary.bytes_received // (4 * FLOATS)
        except BaseException as error:
            raised = type(error).__name__
        held = {"makers": self.makers(), "revision": self.state["step"]}
        me = self.module.group_view()["self"]
        return {"raised": raised, "size": size, "me": me, "tensors": tensors, **held}


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
    assert one(lines, "tensors") == TENSORS, "none comes twice"
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
    assert after[-1]["tensors"] == TENSORS, "none comes twice"
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
    assert after[-1]["tensors"] == TENSORS, "none comes twice"
    expect(together(left, "cross", verify=True), maker=0, size=2)
    end(left)


@pytest.mark.parametrize("cause", ["SIGINT", "SIGTERM", "starve"])
def test_who_is_interrupted_keeps_its_own_state_and_may_go_on(
    run_peers: Run, start_master: Start, cause: str
) -> None:
    (source, fetcher), _ = founders(run_peers, start_master, 2)
    for maker, peer in enumerate((source, fetcher)):
        together([peer], "make", maker=maker, floats=LARGE)
    tell([source], "cross")
    tell([fetcher], "cross", stop_at=STOP_AT)
    fetcher.next(did="stop")
    if cause == "starve":
        tell([fetcher], "starve")
    else:
        source.signal(signal.SIGSTOP)  # the next pull would wait for long
        go([fetcher])
        fetcher.next(did="goes")
        fetcher.signal(signal.Signals[cause])
    (line,) = answers([fetcher], "cross")
    raised = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "SystemExit", "starve": "NoMemoryError"}
    assert line["raised"] == raised[cause]
    assert line["makers"] == [1.0]
    assert line["revision"] == REVISIONS[1]
    source.signal(signal.SIGCONT)
    tell([fetcher], "cross")
    lines = answers([source, fetcher], "cross")
    expect(lines, maker=0, size=2)
    assert lines[1]["tensors"] == TENSORS - 1 + LARGE // FLOATS, "none comes twice"
    end([source, fetcher])


@pytest.mark.parametrize("others", [0, 1])
def test_of_a_tensor_whose_source_is_killed_in_the_middle_nothing_stays(
    run_peers: Run, start_master: Start, others: int
) -> None:
    peers, _ = founders(run_peers, start_master, 2 + others)
    *sources, fetcher = peers
    together(sources, "make", maker=0, floats=LARGE)
    together([fetcher], "make", maker=1, floats=LARGE)
    by_id = {line["me"]: peer for line, peer in zip(together(sources, "who"), sources, strict=True)}
    tell(sources, "cross")
    tell([fetcher], "cross", stop_at=TENSORS)
    used = by_id[fetcher.next(did="stop")["source"]]
    tell([fetcher], "kill", pid=used.pid, after=LARGE)
    assert fetcher.next(did="killed")["bytes"] < 4 * LARGE
    left = [peer for peer in peers if peer is not used]
    expect(answers(left, "cross"), maker=0 if others else 1, size=1 + others)
    end(left)
