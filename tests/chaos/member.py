"""One member of the chaos test: `python -m chaos.member URL MEMBER FOLDER`.

Trains in the shape of a real program: a boundary, a few all_reduce (some in flight together), the
results into the state. It writes down what it sees, each record before it goes on, so that what a
killed member has contributed is known: member-N.jsonl is the only evidence that the checker takes.
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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chaos import work

import pccl_backend as pccl

EVICTED, FAILED, NO_MASTER = 75, 70, 76  # exit statuses
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
    for issued, waited in work.batches(number):
        works = {}
        for i in issued:
            given = work.contribution(member, number, i, ops[i], stop=stop)
            results[i] = torch.from_numpy(given)
            epochs[i][0] = group.epoch
            reduce = REDUCE[ops[i].reduce]
            works[i] = dist.all_reduce(results[i], op=reduce, async_op=len(issued) > 1)
        for i in waited:
            if works[i] is not None:
                works[i].wait()
            epochs[i][1] = group.epoch
    records = []
    for i, op in enumerate(ops):
        result = results[i].numpy()
        work.apply(state, op, result)
        records.append(
            {
                "digest": work.digest(result),
                "slots": work.slots_of(result, op),
                "epochs": epochs[i],
            }
        )
    return records


def train(group: pccl.ElasticGroup, member: int, record: Recorder, stop_file: Path) -> None:
    state = work.new_state(member)
    admitted = False
    while True:
        view = shared(state)
        verify = admitted and state["step"] % VERIFY_EVERY == 0
        boundary = group.refresh(view, verify=verify)
        state |= {name: view[name] for name in ("step", "chain", "ending")}
        admitted = True
        stop = stop_file.exists()
        fields = {**vars(boundary), "engine_step": boundary.step, "step": state["step"]}
        record.say("boundary", **fields, digest=work.digest_of(state), stop=stop)
        if boundary.left or state["ending"]:
            break
        ops = step(group, state, member, stop)
        record.say("step", step=state["step"], ops=ops, counters=counters())
        state["step"] += 1
    what = "left" if boundary.left else "final"
    record.say(what, step=state["step"], digest=work.digest_of(state))


def counters() -> dict[str, int]:
    from pccl_backend import _c10d

    return dict(_c10d.extension().counters())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("member", type=int)
    parser.add_argument("folder", type=Path)
    a = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    faulthandler.register(signal.SIGUSR1)  # the driver asks where a member hangs
    torch.set_num_threads(1)
    record = Recorder(a.folder, a.member)
    record.say("start")
    pccl.leave_on(signal.SIGTERM, grace_s=GRACE_S)
    try:
        pccl.join(a.url, timeout_s=600.0)
    except pccl.UnreachableError as error:
        record.say("no master", text=str(error))
        return NO_MASTER
    record.say("joined", rank=dist.get_rank(), size=dist.get_world_size())
    try:
        train(pccl.group(), a.member, record, a.folder / "stop")
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
