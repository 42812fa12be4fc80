"""A member that leaves when it gets notice, started by torchrun (test_notice.py).

Arguments: the file that gets a line for each boundary, and one at the end.
"""

import json
import signal
import sys
import time

import torch
import torch.distributed as dist

import pccl_backend as pccl
from pccl_backend import _extension

pccl.leave_on(signal.SIGTERM)
dist.init_process_group("pccl")
group = pccl.group()
state = {"step": 0, "sum": torch.zeros(1000)}
with open(sys.argv[1], "w", buffering=1) as out:
    while True:
        boundary = group.refresh(state)
        counters = _extension.extension().counters()
        json.dump(
            {
                "rank": boundary.rank,
                "size": boundary.size,
                "left": boundary.left,
                "step": state["step"],
                "sum": state["sum"][0].item(),
                "disturbed": counters["ops_replayed"] + counters["ops_failed"],
            },
            out,
        )
        out.write("\n")
        if boundary.left:
            break
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        state["sum"] += ones
        state["step"] += 1
        time.sleep(0.02)
    dist.destroy_process_group()
    out.write('{"ended": true}\n')
