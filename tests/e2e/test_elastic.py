"""Elastic runs of real processes: members are killed, stopped, leave and join; a master dies.

Each peer does what the test tells it, one word at a time, so that every fault strikes at a known
place of the program. Contributions have full mantissas and depend on (member, step, index): a
result that took one too many, one too few or one twice has other bits.
"""

import contextlib
import hashlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
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

    def train(self) -> dict[str, Any]:
        """One step of a program: a reduction that goes into the shared state."""
        step = self.state["step"]
        answer = {**self.issue(step=step, index=0), **self.wait()}
        self.state["w"] += self.tensor
        self.state["step"] += 1
        return answer

    def issue(self, *, step: int, index: int, kind: str = "all_reduce") -> dict[str, Any]:
        self.tensor = contribution(self.index, step, index)
        if kind == "all_reduce":
            self.work = dist.all_reduce(self.tensor, op=dist.ReduceOp.AVG, async_op=True)
        else:
            self.parts = [torch.full((COUNT,), -1.0) for _ in range(dist.get_world_size())]
            self.work = dist.all_gather(self.parts, self.tensor, async_op=True)
        operations = self.group.in_flight()  # it may have its outcome by now
        return {"operation": operations[-1]["op"] if operations else ""}

    def sent(self) -> dict[str, Any]:
        """Waits until bytes of the oldest operation in flight have left."""
        found = wait_until(lambda: [o for o in self.group.in_flight() if o["bytes_sent"] > 0])
        return {"bytes_sent": found[0]["bytes_sent"], "complete": found[0]["complete"]}

    def wait(self) -> dict[str, Any]:
        self.work.wait()
        return {"result": digest(self.tensor)}

    def look(self) -> dict[str, Any]:
        from pccl_backend import _c10d

        return {
            "rank": dist.get_rank(),
            "size": dist.get_world_size(),
            "ranks": dist.get_process_group_ranks(dist.group.WORLD),
            "epoch": self.group.epoch,
            "tensor": digest(self.tensor),
            "counters": dict(_c10d.extension().counters()),
        }

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
        pccl.join(url, timeout_s=60.0)
        self.group = pccl.group()
        return {"size": dist.get_world_size()}

    def put(self, key_bytes: int, value_bytes: int) -> dict[str, Any]:
        store = dist.distributed_c10d._get_default_store()
        store.set("k" * key_bytes, b"v" * value_bytes)
        return {"bytes": len(store.get("k" * key_bytes))}

    def leave(self) -> dict[str, Any]:
        self.group.leave()
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

    pccl.join(url, timeout_s=60.0)
    obey(Member(index))


def obey(self: Member) -> None:
    say(did="join", rank=dist.get_rank(), size=dist.get_world_size(), pid=os.getpid())
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


def test_a_member_killed_in_an_all_reduce_costs_the_others_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    victim, *survivors = peers[1], peers[0], peers[2]
    orphans = together([victim], "load")[0]["workers"]
    # The victim and one survivor are in it, and bytes have left the victim; the other is late.
    together([victim, survivors[0]], "issue", step=1, index=0)
    seen = together([victim], "sent")[0]
    assert seen["bytes_sent"] > 0
    assert not seen["complete"]
    before = together([survivors[0]], "look")[0]
    victim.kill()
    together([survivors[1]], "issue", step=1, index=0)
    results = together(survivors, "wait")
    # Its data-loader workers still live, with all they inherited, and held nobody up.
    assert all(Path(f"/proc/{pid}").exists() for pid in orphans)
    assert one(results, "result") == mean([0, 2], 1, 0)
    after = together(survivors, "look")
    assert one(after, "epoch") != before["epoch"]
    assert [line["size"] for line in after] == [3, 3]  # pinned until the boundary
    boundaries = together(survivors, "refresh")
    assert one(boundaries, "size") == 2
    assert sorted(line["rank"] for line in boundaries) == [0, 1]
    one(boundaries, "w")
    assert one(together(survivors, "look"), "ranks") == [0, 1]
    assert one(together(survivors, "train"), "result") == mean([0, 2], 0, 0)
    end(survivors)


def test_a_kill_between_two_operations_costs_the_others_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    assert len({line["result"] for line in together(peers, "train")}) == 1
    peers[0].kill()
    survivors = peers[1:]
    assert one(together(survivors, "refresh"), "step") >= 2
    results = together(survivors, "train")
    assert one(results, "result") == mean([1, 2], 1, 0)
    end(survivors)


def test_a_newcomer_holds_the_state_bit_for_bit_and_contributes(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    members = run_peers(member, 2, master.url)
    answers(members, "join")
    together(members, "refresh")
    together(members, "train")
    (newcomer,) = run_peers(member, 1, master.url, first=2)
    welcome = answers([newcomer], "join")[0]
    assert (welcome["rank"], welcome["size"]) == (2, 3)  # provisional
    together([newcomer], "issue", step=0, index=0)
    tell([newcomer], "wait")
    answers([newcomer], "wait", error="NotAdmittedError")
    tell([newcomer], "refresh")
    lines, steps = train_until(members, size=3)
    admitted = answers([newcomer], "refresh")[0]
    assert admitted["admitted"]
    assert admitted["bytes_received"] >= 4 * COUNT
    assert admitted["rank"] == 2
    everybody = [*members, newcomer]
    assert one([*lines, admitted], "w")
    assert one([*lines, admitted], "state") == steps + 1
    assert one([*lines, admitted], "step") > 1
    assert sorted(line["rank"] for line in together(everybody, "look")) == [0, 1, 2]
    assert one(together(everybody, "look"), "ranks") == [0, 1, 2]
    one(together(everybody, "train"), "result")
    last = together(everybody, "refresh", verify=True)
    assert one(last, "voted")
    one(last, "w")
    assert [line["bytes_received"] for line in last] == [0, 0, 0]
    end(everybody)


def test_who_leaves_costs_nobody_anything(run_peers: Run, start_master: Start) -> None:
    peers = found(run_peers, start_master, 3)
    together([peers[1]], "leave")
    together(peers, "train")
    lines = together(peers, "refresh")
    assert [line["left"] for line in lines] == [False, True, False]
    end([peers[1]])
    members = [peers[0], peers[2]]
    assert one([lines[0], lines[2]], "size") == 2
    assert one(together(members, "train"), "result") == mean([0, 2], 1, 0)
    for line in together(members, "look"):
        assert line["counters"]["ops_replayed"] == 0
        assert line["counters"]["ops_failed"] == 0
    end(members)


def test_a_master_that_is_killed_and_started_again_goes_on_with_the_run(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    state = ["--state", str(tmp_path / "register")]
    master = start_master("--min-peers", "2", *state)
    peers = run_peers(member, 2, master.url)
    pids = [line["pid"] for line in answers(peers, "join")]
    together(peers, "refresh")
    together(peers, "train")
    master.kill()
    together(peers, "issue", step=7, index=0)  # no commit without a master: it is held
    again = start_master("--min-peers", "2", *state, port=master.port)
    assert again.port == master.port
    assert one(together(peers, "wait"), "result") == mean([0, 1], 7, 0)
    lines = together(peers, "refresh", verify=True)
    assert one(lines, "size") == 2
    one(lines, "w")
    assert one(together(peers, "train"), "result") == mean([0, 1], 1, 0)
    assert [peer.pid for peer in peers] == pids
    end(peers)


def test_a_stopped_member_is_evicted_and_says_so_when_it_wakes_up(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3, "--heartbeat", "0.2", "--evict-after", "1")
    sleeper, survivors = peers[2], peers[:2]
    sleeper.signal(signal.SIGSTOP)
    together(survivors, "issue", step=1, index=0)
    assert one(together(survivors, "wait"), "result") == mean([0, 1], 1, 0)
    assert one(together(survivors, "refresh"), "size") == 2
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "refresh")
    answers([sleeper], "refresh", error="EvictedError")
    assert one(together(survivors, "train"), "result") == mean([0, 1], 0, 0)
    end(survivors)
    end([sleeper])


def test_what_the_store_does_not_take_raises_at_the_caller_and_nothing_is_lost(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 2)
    for key_bytes, value_bytes in ((5000, 1), (10, 65 << 20)):
        tell(peers, "put", key_bytes=key_bytes, value_bytes=value_bytes)
        answers(peers, "put", error="ValueError")
    assert one(together(peers, "put", key_bytes=4000, value_bytes=1 << 20), "bytes") == 1 << 20
    one(together(peers, "train"), "result")
    end(peers)


def test_who_was_evicted_may_come_back_as_a_newcomer(run_peers: Run, start_master: Start) -> None:
    master = start_master("--min-peers", "2", "--heartbeat", "0.2", "--evict-after", "1")
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    sleeper, survivor = peers
    sleeper.signal(signal.SIGSTOP)
    together([survivor], "train")
    assert together([survivor], "refresh")[0]["size"] == 1
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "refresh")
    answers([sleeper], "refresh", error="EvictedError")
    assert together([sleeper], "rejoin", url=master.url)[0]["size"] == 2
    tell([sleeper], "refresh")
    lines, _ = train_until([survivor], size=2)
    lines += answers([sleeper], "refresh")
    assert lines[1]["admitted"]
    one(lines, "w")
    one(together(peers, "train"), "result")
    end(peers)


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(r[1].rsplit(":", 1)[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}


def test_with_too_few_members_a_run_holds_whatever_knocks_until_another_one_joins(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2", "--hold-below", "2")
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    survivor = peers[0]
    peers[1].kill()
    together([survivor], "train")  # what is in flight finishes first
    tell([survivor], "refresh")
    words = "the run holds at its boundary: 1 of the 2 replicas that it needs"
    wait_until(lambda: words in "".join(master.errors), what="the master holds")
    (newcomer,) = run_peers(member, 1, master.url, first=2)
    answers([newcomer], "join")
    idle = []
    for peer in (survivor, newcomer):
        ports = listening_ports(peer.pid)
        assert ports
        for port in ports:
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), bytes(100), b"\xff" * 8):
                client = socket.create_connection(("127.0.0.1", port))
                idle.append(client)  # half a handshake, and then nothing
                with contextlib.suppress(ConnectionError):
                    client.sendall(garbage)
    tell([newcomer], "refresh")
    lines = answers([survivor, newcomer], "refresh")
    assert one(lines, "size") == 2
    one(lines, "w")
    assert one(together([survivor, newcomer], "train"), "result") == mean(
        [0, 2], lines[0]["state"], 0
    )
    for peer in (survivor, newcomer):
        assert "refused a connection from 127.0.0.1" in "".join(peer.errors)
    for client in idle:
        client.close()
    end([survivor, newcomer])


def test_groups_made_from_the_elastic_one_are_made_anew_after_a_change(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(member, 3, master.url)
    ranks = {line["rank"]: peer for peer, line in zip(peers, answers(peers, "join"), strict=True)}
    together(peers, "refresh")
    inside = [ranks[0], ranks[2]]
    numbers = [peers.index(peer) for peer in inside]
    lines = together(peers, "subgroup", ranks=[0, 2], step=3)
    results = [line for line, peer in zip(lines, peers, strict=True) if peer in inside]
    assert one(results, "result") == mean(sorted(numbers), 3, 0)
    ranks[0].kill()
    survivors = [peer for peer in peers if peer is not ranks[0]]
    together(survivors, "train")
    together(survivors, "refresh")
    (newcomer,) = run_peers(member, 1, master.url, first=3)
    answers([newcomer], "join")
    tell([newcomer], "refresh")
    train_until(survivors, size=3)
    answers([newcomer], "refresh")
    everybody = [*survivors, newcomer]
    lines = together(everybody, "subgroup", ranks=[0, 1, 2], step=4)
    one(lines, "result")
    assert [line["members"] for line in lines] == [[0, 1, 2]] * 3
    assert sorted(line["inside"] for line in lines) == [0, 1, 2]
    end(everybody)


def test_an_all_gather_that_loses_a_member_fails_at_every_survivor_and_changes_nothing(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3)
    victim, survivors = peers[2], peers[:2]
    together([victim, survivors[0]], "issue", step=1, index=0, kind="all_gather")
    together([victim], "sent")
    victim.kill()
    tell([survivors[1]], "issue", step=1, index=0, kind="all_gather")
    late = survivors[1].next(did="issue")
    assert late["error"] in ("", "PeerLostError"), late
    waiting = survivors if late["error"] == "" else survivors[:1]
    tell(waiting, "wait")
    answers(waiting, "wait", error="PeerLostError")
    assert all(line["untouched"] for line in together(survivors, "parts_untouched"))
    # The step has failed for all alike, until the boundary.
    for peer in survivors:
        tell([peer], "train")
    answers(survivors, "train", error="PeerLostError")
    assert one(together(survivors, "refresh"), "size") == 2
    assert one(together(survivors, "train"), "result") == mean([0, 1], 0, 0)
    end(survivors)


def test_all_members_but_one_may_go(run_peers: Run, start_master: Start) -> None:
    peers = found(run_peers, start_master, 2)
    peers[0].kill()
    assert together([peers[1]], "refresh")[0]["size"] == 1
    assert together([peers[1]], "train")[0]["result"] == mean([1], 0, 0)
    end([peers[1]])


# ------------------------------------------------------------------------------ no changed line


def plain_program(index: int) -> None:
    """Knows nothing of pccl but the name; no boundary."""
    dist.init_process_group("pccl", rank=index, world_size=3)
    say(did="join", rank=dist.get_rank(), size=dist.get_world_size())
    while True:
        word = hear()
        if word["do"] == "end":
            break
        try:
            tensor = contribution(index, word["step"], 0)
            if word["do"] == "reduce":
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            elif word["do"] == "gather":
                parts = [torch.empty(COUNT) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, tensor)
            elif word["do"] == "resume":
                import pccl_backend as pccl

                pccl.group().resume()
        except RuntimeError as error:
            say(did=word["do"], error=type(error).__name__, text=str(error))
            continue
        ranks = dist.get_process_group_ranks(dist.group.WORLD)
        size = dist.get_world_size()
        say(did=word["do"], error="", result=digest(tensor), size=size, ranks=ranks)
    dist.destroy_process_group()


def test_pccl_master_alone_makes_an_unchanged_program_elastic(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(plain_program, 3, env={"PCCL_MASTER": master.url})
    ranks = [line["rank"] for line in answers(peers, "join")]
    assert sorted(ranks) == [0, 1, 2]
    one(together(peers, "reduce", step=1), "result")
    peers[1].kill()
    survivors = [peers[0], peers[2]]
    lines = together(survivors, "reduce", step=2)
    assert one(lines, "result") == mean([0, 2], 2, 0)
    assert one(lines, "size") == 2  # where there is no boundary: at the return
    assert one(lines, "ranks") == [0, 1]
    assert len(one(together(survivors, "gather", step=3), "ranks")) == 2
    end(survivors)


def test_resume_is_the_place_to_go_on_for_a_program_without_boundaries(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(plain_program, 3, env={"PCCL_MASTER": master.url})
    answers(peers, "join")
    one(together(peers, "gather", step=1), "size")
    peers[0].kill()
    survivors = peers[1:]
    tell(survivors, "gather", step=2)
    answers(survivors, "gather", error="PeerLostError")
    assert one(together(survivors, "resume", step=0), "size") == 2
    assert one(together(survivors, "reduce", step=4), "result") == mean([1, 2], 4, 0)
    end(survivors)


# ------------------------------------------------------------------------------ clear errors


def refused(index: int, url: str) -> None:
    import pccl_backend as pccl

    try:
        pccl.join(url, timeout_s=20.0, options=pccl.Options(connect_timeout_s=1.0))
    except (RuntimeError, ValueError) as error:
        say(did="join", error=type(error).__name__, text=str(error))


def test_the_wrong_run_and_a_dead_address_are_clear_errors(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "1", "--run", "right")
    (wrong,) = run_peers(refused, 1, f"{master.url}/wrong")
    line = wrong.next(did="join")
    assert line["error"] == "RefusedError", line
    assert "wrong" in line["text"]
    wrong.finish()
    port = master.port
    master.kill()
    (nobody,) = run_peers(refused, 1, f"pccl://127.0.0.1:{port}")
    line = nobody.next(did="join")
    assert line["error"] == "UnreachableError", line
    assert str(port) in line["text"]
    nobody.finish()
