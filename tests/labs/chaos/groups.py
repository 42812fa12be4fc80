"""A group that some ranks make from the default one, and an operation in it.

The default group is the elastic one, or that of the ranks of a larger replica. A member that dies,
or is cut off, while the group is made or used ends it at the others. The run goes on; the other
ranks of its replica are evicted with it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from chaos import work

import pccl_backend as pccl


def meet(member: int, step: int) -> dict[str, Any]:
    """What is recorded of it: the ranks, the outcome, what came of the operation."""
    ranks = work.group_of(step, dist.get_world_size())
    if dist.get_rank() not in ranks:
        if ranks:
            dist.new_group(ranks)  # all ranks call it
        return {}
    result = torch.from_numpy(work.contribution(member, step, work.GROUP_INDEX, work.AMONG_SOME))
    made = None
    try:
        made = dist.new_group(ranks)
        dist.all_reduce(result, group=made)
        outcome = "done"
    except pccl.PeerLostError as error:
        outcome = type(error).__name__
    if made is not None:
        dist.destroy_process_group(made)
    return {"ranks": ranks, "outcome": outcome, "digest": work.digest(result.numpy())}
