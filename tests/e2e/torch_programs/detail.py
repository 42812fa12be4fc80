"""Programs for TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps each group and checks its calls."""

from typing import Any

import torch
import torch.distributed as dist
from common import Here, exact


@exact
def the_groups_are_wrapped(here: Here) -> Any:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    backend = here.group._get_backend(torch.device("cpu"))
    assert isinstance(backend, torch._C._distributed_c10d._ProcessGroupWrapper)
    numbers = []
    for count in range(3):
        numbers.append(backend._get_sequence_number_for_group())
        for _ in range(count):
            dist.all_reduce(torch.ones(2))
    wrapped = backend.wrapped_pg
    return type(wrapped).__name__ != type(backend).__name__, [n - numbers[0] for n in numbers]


@exact
def ranks_that_differ_are_told(here: Here) -> Any:
    """Shapes, operations and types that differ raise at every rank; then the group goes on."""
    calls = [
        lambda: dist.all_reduce(torch.ones(3 + here.rank)),
        lambda: dist.all_reduce(torch.ones(3)) if here.rank else dist.broadcast(torch.ones(3), 0),
        lambda: dist.all_reduce(torch.ones(3, dtype=[torch.float32, torch.int64][here.rank])),
    ]
    raised = []
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            raised.append([type(error).__name__, "Detected mismatch" in str(error)])
    t = torch.ones(2, dtype=torch.int64)
    dist.all_reduce(t)
    return raised, t
