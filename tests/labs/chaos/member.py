"""One member of the chaos test: `python -m chaos.member URL MEMBER FOLDER`.

Trains in the shape of a real program: a boundary, a few all_reduce (some in flight together), the
results into the state; beside them messages between neighbours, or from all to one, and now and
then a group of some ranks, made, used and destroyed. In a replica of several ranks these are
among its ranks, and each step has an operation of the replica's own group too, in flight beside the
others.
It writes down what it sees, each record before it goes on, so that what a killed member has
contributed is known: member-N.jsonl is the only evidence that the checker takes.
A file `stop` in the folder asks members to end; an operation makes all do it in the same step.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chaos import groups, work
from chaos.messages import Messages

import pccl_backend as pccl

EVICTED, FAILED, NO_MASTER, NOT_FORMED = 75, 70, 76, 74  # exit statuses
FORM_S = 60.0  # for the ranks of a replica to meet
VERIFY_EVERY = 16  # steps: a boundary that compares the state in any case
GRACE_S = 60.0
LATE_ONE_IN = 300  # steps: it evaluates, or saves; longer than the master bears silence
LATE_S = (0.5, 8.0)
REDUCE = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}


class Recorder:
    def __init__(self, folder: Path, member: int) -> None:
        self._file = (folder / f"member-{member}.jsonl").open("w", buffering=1)

    def say(self, what: str, **fields: Any) -> None:
        self._file.write(json.dumps({"what": what, "time": time.time(), **fields}) + "\n")


def shared(state: dict[str, Any]) -> dict[str, Any]:
    """The same memory as tensors."""
    tensors = {name: torch.from_numpy(state[name]) for name in ("w", "n")}
    return {**state, **tensors}


def step(group: pccl.ElasticGroup, state: dict[str, Any], member: int, stop: bool) -> list[Any]:
    """The operations of one step; returns what is recorded of each."""
    number = state["step"]
    chance = random.Random(1_000_000 * member + number)
    if chance.randrange(LATE_ONE_IN) == 0:
        time.sleep(chance.uniform(*LATE_S))
    ops = work.plan(number)
    results = [torch.empty(0)] * len(ops)
    epochs = [["", ""] for _ in ops]
    ways = [way()]
    for issued, waited in work.batches(number):
        works = {}
        for i in issued:
            given = work.contribution(member, number, i, ops[i], stop=stop)
            results[i] = torch.from_numpy(given)
            epochs[i][0] = group.epoch
            reduce = REDUCE[ops[i].reduce]
            works[i] = pccl.all_reduce(
                results[i], reduce, group, async_op=len(issued) > 1, quantise=ops[i].quantise
            )
        for i in waited:
            if works[i] is not None:
                works[i].wait()
            epochs[i][1] = group.epoch
            if way() not in ways:
                ways.append(way())
    records = []
    for i, op in enumerate(ops):
        result = results[i].numpy()
        work.apply(state, op, result)
        records.append(
            {
                "digest": work.digest(result),
                "slots": work.slots_of(result, op),
                "epochs": epochs[i],
                "ways": ways,
            }
        )
    return records


def way() -> dict[str, list[int]]:
    """How data go now: ranks in the order of the ring, the lines, and the sites of these ranks."""
    from pccl_backend import _extension

    view = _extension.extension().group_view()
    rank_of = {peer: rank for rank, peer in enumerate(view["numbering"])}
    ring = [rank_of[peer] for peer in view["ring"] if peer in rank_of]
    in_ring = zip(view["ring"], view["sites"], strict=False)  # there may be no sites
    sites = [site for peer, site in in_ring if peer in rank_of]
    return {"ring": ring, "lines": list(view["lines"]), "sites": sites}


class Siblings:
    """An operation among the ranks of this replica."""

    def __init__(self, member: int, step: int) -> None:
        op = work.AMONG_SIBLINGS
        self._result = torch.from_numpy(work.contribution(member, step, work.SIBLINGS_INDEX, op))
        self._work = dist.all_reduce(self._result, async_op=True)

    def digest(self) -> str:
        self._work.wait()
        return work.digest(self._result.numpy())


def agreed(stop: bool, ending: bool, several: bool) -> tuple[bool, bool]:
    """What any rank of this replica says: its ranks see the file, and their states, each alone."""
    if not several:
        return stop, ending
    flags = torch.tensor([int(stop), int(ending)])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags[0]), bool(flags[1])


def train(group: pccl.ElasticGroup, member: int, record: Recorder, stop_file: Path) -> None:
    state = work.new_state(member)
    several = group.process_group is not dist.group.WORLD
    admitted = False
    while True:
        view = shared(state)
        verify = admitted and state["step"] % VERIFY_EVERY == 0
        boundary = group.refresh(view, verify=verify)
        state |= {name: view[name] for name in ("step", "chain", "ending")}
        admitted = True
        stop, ending = agreed(stop_file.exists(), state["ending"], several)
        fields = {**vars(boundary), "engine_step": boundary.step, "step": state["step"]}
        record.say("boundary", **fields, digest=work.digest_of(state), stop=stop)
        if boundary.left or ending:
            break
        siblings = Siblings(member, state["step"]) if several else None
        messages = Messages(member, state["step"], elastic=not several)
        met = groups.meet(member, state["step"])
        ops = step(group, state, member, stop)
        more: dict[str, Any] = {"siblings": siblings.digest()} if siblings else {}
        more["messages"] = messages.outcomes()
        if met:
            more["group"] = met
        record.say("step", step=state["step"], ops=ops, counters=counters(), **more)
        state["step"] += 1
    what = "left" if boundary.left else "final"
    record.say(what, step=state["step"], digest=work.digest_of(state))


def place(text: str) -> pccl.Replica | None:
    if not text:
        return None
    name, rank, size = text.split(":")
    return pccl.Replica(name, int(rank), int(size))


def form(replica: pccl.Replica, folder: Path) -> None:
    """The fixed group of this replica, the default one."""
    dist.init_process_group(
        "pccl",
        init_method=f"file://{folder / replica.name}.meet",
        rank=replica.rank,
        world_size=replica.size,
        timeout=timedelta(seconds=FORM_S),
    )


def counters() -> dict[str, int]:
    from pccl_backend import _extension

    return dict(_extension.extension().counters())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("member", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replica", metavar="NAME:RANK:SIZE", default="")
    a = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    faulthandler.register(signal.SIGUSR1)  # the driver asks where a member hangs
    torch.set_num_threads(1)
    record = Recorder(a.folder, a.member)
    replica = place(a.replica)
    record.say(
        "start", replica=replica.name if replica else "", place=replica.rank if replica else 0
    )
    pccl.leave_on(signal.SIGTERM, grace_s=GRACE_S)
    try:
        if replica:
            form(replica, a.folder)
    except (pccl.PcclError, dist.DistError) as error:
        logging.exception("the replica cannot be formed")
        record.say("not formed", error=type(error).__name__, text=str(error))
        return NOT_FORMED
    try:
        group = pccl.group(pccl.join(a.url, replica=replica, timeout_s=600.0))
    except pccl.UnreachableError as error:
        record.say("no master", text=str(error))
        return NO_MASTER
    except pccl.EvictedError as error:
        record.say("evicted", text=str(error))
        return EVICTED
    record.say("joined", rank=group.rank, size=group.size)
    try:
        train(group, a.member, record, a.folder / "stop")
        if replica:
            dist.barrier()  # the ranks of a replica end together
    except pccl.EvictedError as error:
        record.say("evicted", text=str(error))
        return EVICTED
    except Exception as error:
        logging.exception("the member cannot go on")
        record.say("failed", error=type(error).__name__, text=str(error))
        return FAILED
    dist.destroy_process_group()
    record.say("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
