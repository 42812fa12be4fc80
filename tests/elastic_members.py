"""Members of an elastic run that do what a test tells them, one word at a time.

So every fault strikes at a known place of the program. Contributions have full mantissas and depend
on (member, step, index): a result that took one too many, one too few or one twice has other bits.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Master, Peer, hear, say, wait_until

COUNT = 1_000_003  # float32 elements: several segments, not divisible
Run = Callable[..., list[Peer]]
Start = Callable[..., Master]


def contribution(member: int, step: int, index: int, count: int = COUNT) -> torch.Tensor:
    random = torch.Generator().manual_seed(1_000_000 * member + 1000 * step + index)
    return torch.randn(count, generator=random)


def mean(members: list[int], step: int, index: int) -> str:
    """Digest of the mean over one or two members: there is one order of adding two numbers."""
    assert len(members) <= 2
    total = contribution(members[0], step, index)
    if len(members) == 2:
        total += contribution(members[1], step, index)
    return digest(total / len(members))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


# ------------------------------------------------------------------------------ in the peers


class Member:
    """What a peer can be told to do; each answer says what came of it."""

    def __init__(self, index: int) -> None:
        import pccl_backend as pccl

        self.index = index
        self.group = pccl.group()
        self.pg = self.group.process_group
        self.heard: list[str] = []
        for what in ("joined", "left", "evicted", "master_lost", "master_back"):
            self.group.on(what, lambda change: self.heard.append(change.what))
        self.state: dict[str, Any] = {
            "step": 0,
            "w": contribution(index, 0, 0),
            "plain": {"made by": index, "list": [1.5, None, b"\x00"]},
        }
        self.tensor = torch.empty(0)
        self.work: Any = None
        self.loader: Any = None

    def refresh(self, **options: Any) -> dict[str, Any]:
        boundary = self.group.refresh(self.state, **options)
        return {**vars(boundary), "w": digest(self.state["w"]), "state": self.state["step"]}

    def resume(self) -> dict[str, Any]:
        return vars(self.group.resume())

    def train(self, *, drift: float = 0.0) -> dict[str, Any]:
        """One step of a program: a reduction that goes into the shared state.

        `drift` is what this program adds by a state of its own, which it does not share.
        """
        step = self.state["step"]
        answer = {**self.issue(step=step, index=0), **self.wait()}
        self.state["w"] += self.tensor + drift
        self.state["step"] += 1
        return answer

    def issue(self, *, step: int, index: int, kind: str = "all_reduce") -> dict[str, Any]:
        self.tensor = contribution(self.index, step, index)
        if kind == "all_reduce":
            self.work = dist.all_reduce(
                self.tensor, op=dist.ReduceOp.AVG, group=self.pg, async_op=True
            )
        elif kind == "all_to_all":  # every pair of members
            self.tensor = self.tensor[: COUNT - COUNT % dist.get_world_size(self.pg)]
            given = self.tensor.clone()
            self.work = dist.all_to_all_single(self.tensor, given, group=self.pg, async_op=True)
        else:
            self.parts = [torch.full((COUNT,), -1.0) for _ in range(dist.get_world_size(self.pg))]
            self.work = dist.all_gather(self.parts, self.tensor, self.pg, async_op=True)
        operations = self.group.in_flight()  # it may have its outcome by now
        return {"operation": operations[-1]["op"] if operations else ""}

    def issue_all(self, *, step: int, kinds: list[str]) -> dict[str, Any]:
        """Several operations in flight, each on a tensor of its own."""
        self.kinds = kinds
        self.tensors = [contribution(self.index, step, index) for index in range(len(kinds))]
        size = dist.get_world_size(self.pg)
        calls: dict[str, Callable[[torch.Tensor], Any]] = {
            "all_reduce": lambda t: dist.all_reduce(
                t, op=dist.ReduceOp.AVG, group=self.pg, async_op=True
            ),
            "broadcast": lambda t: dist.broadcast(
                t, group=self.pg, group_src=size - 1, async_op=True
            ),
            "all_gather": lambda t: dist.all_gather(
                [torch.empty(COUNT) for _ in range(size)], t, self.pg, async_op=True
            ),
            "barrier": lambda t: dist.barrier(self.pg, async_op=True),
        }
        self.works: list[Any] = []
        errors = []
        for kind, tensor in zip(kinds, self.tensors, strict=True):
            try:
                self.works.append(calls[kind](tensor))
            except RuntimeError as error:  # what has failed for good by now
                errors.append(str(error))
                self.works.append(None)
        return {"raised": errors}

    def outcomes(self, *, step: int) -> dict[str, Any]:
        """Of each: the digest of its tensor, or "failed" and its tensor is as it was."""
        seen = []
        for index, (work, tensor) in enumerate(zip(self.works, self.tensors, strict=True)):
            try:
                if work is None:
                    raise RuntimeError("raised at the call")
                work.wait()
                seen.append("done" if self.kinds[index] == "barrier" else digest(tensor))
            except RuntimeError as error:
                as_it_was = torch.equal(tensor, contribution(self.index, step, index))
                lost = type(error).__name__ == "PeerLostError" and "lost: rank 1 (" in str(error)
                seen.append("failed" if as_it_was and (lost or work is None) else str(error))
        return {"seen": seen}

    def sent(self) -> dict[str, Any]:
        """Waits until bytes of the oldest operation in flight have left."""
        found = wait_until(lambda: [o for o in self.group.in_flight() if o["bytes_sent"] > 0])
        return {"bytes_sent": found[0]["bytes_sent"], "complete": found[0]["complete"]}

    def wait(self) -> dict[str, Any]:
        self.work.wait()
        return {"result": digest(self.tensor)}

    def look(self) -> dict[str, Any]:
        from pccl_backend import _extension

        return {
            "rank": dist.get_rank(self.pg),
            "size": dist.get_world_size(self.pg),
            "ranks": dist.get_process_group_ranks(self.pg),
            "epoch": self.group.epoch,
            "tensor": digest(self.tensor),
            "counters": dict(_extension.extension().counters()),
        }

    def hear_of(self, *, what: str) -> dict[str, Any]:
        """Waits until a hook has told of it."""
        wait_until(lambda: what in self.heard, what=f"{what} among {self.heard}")
        return {"heard": self.heard}

    def parts_untouched(self) -> dict[str, Any]:
        return {"untouched": all(bool((part == -1.0).all()) for part in self.parts)}

    def subgroup(self, *, ranks: list[int], step: int) -> dict[str, Any]:
        """Makes a group of some ranks, and reduces in it."""
        group = dist.new_group(ranks)
        tensor = contribution(self.index, step, 0)
        if dist.get_rank() in ranks:
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
            members = dist.get_process_group_ranks(group)
            return {"result": digest(tensor), "members": members, "inside": dist.get_rank(group)}
        return {"result": "", "members": [], "inside": -1}

    def rejoin(self, *, url: str) -> dict[str, Any]:
        """Comes back as a newcomer, in the same process."""
        import pccl_backend as pccl

        dist.destroy_process_group()
        pccl.join(url, timeout_s=120.0)
        self.group = pccl.group()
        self.pg = self.group.process_group
        return {"size": dist.get_world_size(self.pg)}

    def alone(self) -> dict[str, Any]:
        """Ends the elastic group, and makes one of this process alone, without a master."""
        dist.destroy_process_group()
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return {"sum": tensor.item()}

    def put(self, key_bytes: int, value_bytes: int) -> dict[str, Any]:
        store = dist.distributed_c10d._get_default_store()
        store.set("k" * key_bytes, b"v" * value_bytes)
        return {"bytes": len(store.get("k" * key_bytes))}

    def leave(self, *, at_once: bool = False) -> dict[str, Any]:
        self.group.leave(at_once=at_once)
        return {}

    def gone(self) -> dict[str, Any]:
        """Waits until it has left, without a boundary."""
        wait_until(lambda: self.group.left, what="its wish to take effect")
        return {}

    def load(self) -> dict[str, Any]:
        """Starts data-loader workers, forked from this process with all it has open."""
        data = torch.utils.data.TensorDataset(torch.arange(1000.0))
        self.loader = iter(
            torch.utils.data.DataLoader(
                data, batch_size=4, num_workers=2, multiprocessing_context="fork"
            )
        )
        next(self.loader)
        return {"workers": [worker.pid for worker in self.loader._workers]}


def member(index: int, url: str) -> None:
    """Joins, then does what it is told until "end"."""
    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    obey(Member(index))


def obey(self: Member) -> None:
    say(did="join", rank=dist.get_rank(self.pg), size=dist.get_world_size(self.pg), pid=os.getpid())
    while True:
        word = hear()
        if word["do"] == "end":
            break
        do, options = word["do"], {k: v for k, v in word.items() if k != "do"}
        try:
            answer = getattr(self, do)(**options)
            say(did=do, error="", **answer)
        except (RuntimeError, ValueError) as error:
            say(did=do, error=type(error).__name__, text=str(error))
    if self.loader is not None:
        self.loader._shutdown_workers()
    dist.destroy_process_group()
    say(did="end")


# ------------------------------------------------------------------------------ in the test


def ask(master: Master, *arguments: str) -> str:
    command = [sys.executable, "-m", "pccl_backend._cli", "--status", master.url, *arguments]

    def answer() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if "ask again" in done.stderr:  # ten questions in a second
            return ""
        assert done.returncode == 0, done.stderr
        return done.stdout

    return wait_until(answer, what="an answer")


def status(master: Master) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(master, "--json"))
    return found


def tell(peers: list[Peer], do: str, **options: Any) -> None:
    for peer in peers:
        peer.tell({"do": do, **options})


def answers(peers: list[Peer], did: str, error: str = "") -> list[dict[str, Any]]:
    lines = [peer.next(did=did) for peer in peers]
    for peer, line in zip(peers, lines, strict=True):
        if did not in ("join", "end") and line["error"] != error:
            pytest.fail(f"{peer.name}: {line}, expected error {error!r}\n{peer.log()}")
    return lines


def together(peers: list[Peer], do: str, **options: Any) -> list[dict[str, Any]]:
    """Tells all, then hears all."""
    tell(peers, do, **options)
    return answers(peers, do)


def end(peers: list[Peer]) -> None:
    tell(peers, "end")
    for peer in peers:
        peer.finish()


def one(values: list[dict[str, Any]], name: str) -> Any:
    """The value that all answers agree on."""
    found = {str(value[name]) for value in values}
    assert len(found) == 1, (name, values)
    return values[0][name]


def train_until(members: list[Peer], size: int) -> tuple[list[dict[str, Any]], int]:
    """Steps until a boundary admits who waits: that boundary's lines, and how many went by."""
    steps = 0
    while one(lines := together(members, "refresh"), "size") != size:
        together(members, "train")  # no step of the members is disturbed
        steps += 1
    return lines, steps


def found(run_peers: Run, start_master: Start, count: int, *arguments: str) -> list[Peer]:
    """A run of `count` members that have passed their first boundary."""
    master = start_master("--min-peers", str(count), *arguments)
    peers = run_peers(member, count, master.url)
    lines = answers(peers, "join")
    assert sorted(line["rank"] for line in lines) == list(range(count))
    assert one(lines, "size") == count
    first = together(peers, "refresh")
    assert one(first, "voted")
    one(first, "w")
    return peers
