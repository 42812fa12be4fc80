"""A worker of test_launcher.py: an elastic program that goes on until it is asked to leave.

With the argument "replica" it is one rank of a replica, whose own group is that of the launcher.
With "fail" it always fails at its second step, with "late" after it has finished the run. With
"finish" worker 1 dies once, and worker 0 finishes the run alone, before 1 is back.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import pccl_backend as pccl

ME = {
    "pid": os.getpid(),
    "local": int(os.environ["LOCAL_RANK"]),
    "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
}


def say(**line: object) -> None:
    os.write(1, (json.dumps(ME | line) + "\n").encode())


def main() -> None:
    is_replica = "replica" in sys.argv
    pccl.leave_on(signal.SIGTERM)
    dist.init_process_group("pccl")
    pg = pccl.join(replica="torchrun") if is_replica else None
    group = pccl.group(pg)
    state = {"step": 0}
    boundary = group.refresh(state)
    while not boundary.left:
        if "fail" in sys.argv and state["step"] == 1:
            sys.exit("this program is wrong")
        if "late" in sys.argv and state["step"] > 5:
            group.finish()
            sys.exit(3)
        if "finish" in sys.argv and state["step"] > 5:
            if ME["local"] == 1:
                os._exit(1)
            if boundary.size == 1:
                group.finish()
                break
        tensor = torch.ones(100)
        if is_replica:
            dist.all_reduce(tensor)  # of the replica
        dist.all_reduce(tensor, group=pg)
        state["step"] += 1
        say(step=state["step"], size=boundary.size, sum=tensor[0].item())
        time.sleep(0.02)
        boundary = group.refresh(state)
    say(left=True)
    if is_replica:
        dist.barrier()  # ranks of a replica end together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
