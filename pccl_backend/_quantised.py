"""All-reduces whose values are sent as fewer bits: of one call, and of DDP's gradients.

A whole group is set by `Options(quantise=...)`. Decides nothing about the wire: the kinds and their
bounds are in csrc/base/quantisation.h.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.weak import WeakTensorKeyDictionary

from . import _extension, _simulated
from ._config import EXACT, NAME, QUANTISATIONS
from ._group import ElasticGroup

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


def all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | ElasticGroup | None = None,
    async_op: bool = False,
    *,
    quantise: str | None = None,
) -> dist.Work | None:
    """`torch.distributed.all_reduce` whose values are sent as fewer bits.

    Each contribution is quantised once, whatever the number of members, and the sum once. Where
    members stand at several sites, each site's sum is quantised, and of more than two sites then
    the sum of these. All members end with the same bits. All of them pass the same `quantise`.

    Args:
        tensor: A float32 tensor; it becomes the sum or the average.
        op: SUM or AVG.
        group: A group of pccl; None: the default group.
        async_op: Return a Work at once.
        quantise: "int8", "int8_zero_point", "int4", "float16", "bfloat16", "float8_e4m3" or
            "float8_e5m2"; "none": exact, also in a group that quantises. None: as the group is set.

    Returns:
        The Work if `async_op`, else None; None also at a rank that is not in the group.

    Raises:
        TypeError: `tensor` is something else than a tensor.
        ValueError: There is no such name, or this call cannot be quantised. Nothing was sent.
        MismatchError: Another member has called it with another `quantise`.
    """
    return _all_reduce(tensor, op, group, async_op, quantise)


def _all_reduce(
    tensor: torch.Tensor,
    op: Any,
    group: Any,
    async_op: bool,
    quantise: str | None,
    sum_error: torch.Tensor | None = None,
) -> dist.Work | None:
    """`all_reduce`; `sum_error` as `quantise_next_call` takes it."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is a {type(tensor).__name__}; expected a torch.Tensor")
    target: Any = group.process_group if isinstance(group, ElasticGroup) else group
    if quantise is None or distributed_c10d._rank_not_in_group(target):
        return _reduce(tensor, op, target, async_op)
    quantise = check_name(quantise, EXACT)
    if quantise != EXACT:
        _check_call(tensor, op)
    _check_group(target, tensor.device)
    if _simulated.group_here() is not None:
        return _reduce(tensor, op, target, async_op)
    module = _extension.extension()
    try:
        module.quantise_next_call(quantise, sum_error)
        return _reduce(tensor, op, target, async_op)
    finally:
        module.quantise_next_call(None, None)


def quantised_hook(quantise: str, *, error_feedback: bool = False) -> Hook:
    """A communication hook for DDP that averages the gradients by quantised all-reduces.

    `model.register_comm_hook(group, pccl_backend.quantised_hook("int8"))`; the group is the
    model's, None the default group. With `pccl_backend.elastic` the hook is given to that:
    `elastic(model, optimizer, hook=pccl_backend.quantised_hook("int8"))`.

    Args:
        quantise: As in `all_reduce`; the same at all members.
        error_feedback: Add to each gradient what quantisation took from it the last time: each
            member what was taken from its own contribution, and, where it made the codes of a sum,
            from that sum. This takes the memory of the gradients once more (three times while they
            are reduced), and their quantisation once more, on the CPU.

    Returns:
        The hook. It raises ValueError for gradients that are not float32. Its attribute `failure`
        is the error of a reduction of this backward that failed, with its own class: torch makes a
        RuntimeError of what a callback of a future raises.
    """
    quantise = check_name(quantise)
    feedback = _Feedback(quantise) if error_feedback else None

    def hook(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            hook.failure = None  # type: ignore[attr-defined]  # of the backward before
        buffer: torch.Tensor = bucket.buffer()
        _check_call(buffer, dist.ReduceOp.AVG)
        taken = None if feedback is None else feedback.add(bucket, _size(group))
        sum_error = None if taken is None else taken.from_sums
        work = _all_reduce(buffer, dist.ReduceOp.AVG, group, True, quantise, sum_error)
        assert work is not None

        def reduced(future: Any) -> torch.Tensor:
            try:
                future.value()
            except Exception as error:
                hook.failure = error  # type: ignore[attr-defined]
                raise
            if taken is not None:
                taken.keep()
            return buffer

        done: torch.futures.Future[torch.Tensor] = work.get_future().then(reduced)
        return done

    hook.failure = None  # type: ignore[attr-defined]
    hook.__annotations__.clear()  # DDP wants types here or nothing, and these are texts
    return hook


class _Backward:
    """What quantisation has taken in one backward: kept when all its buckets are reduced."""

    def __init__(self) -> None:
        self.buckets = 0
        self.last_seen = False
        self.taken: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def is_whole(self) -> bool:
        """Is every bucket reduced?"""
        return self.last_seen and len(self.taken) == self.buckets


class _Taken:
    """What quantisation takes from a bucket.

    Attributes:
        from_sums: From the averages of which this member makes the codes, on the CPU; known when
            the bucket is reduced.
    """

    def __init__(
        self,
        feedback: _Feedback,
        parameters: list[torch.Tensor],
        own: torch.Tensor,
        size: int,
    ) -> None:
        """`own`: from this member's contribution, one of `size`."""
        self._feedback, self._backward = feedback, feedback.backward
        self._parameters, self._own, self._size = parameters, own, size
        self.from_sums: torch.Tensor | None = None
        if size > 1:
            self.from_sums = torch.zeros(own.numel(), dtype=torch.float32, device="cpu")

    def keep(self) -> None:
        """The bucket is reduced. Of what this member adds, the next average has 1 / size."""
        if self.from_sums is not None:
            self._own += self.from_sums.mul_(self._size).to(self._own.device)
        self._own.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # a lost block is lost
        parts = torch.split(self._own, [parameter.numel() for parameter in self._parameters])
        backward = self._backward
        backward.taken.append(list(zip(self._parameters, parts, strict=True)))
        if backward.is_whole():
            self._feedback.keep(itertools.chain.from_iterable(backward.taken))


class _Feedback:
    """What quantisation took from each gradient, by parameter: DDP makes its buckets anew."""

    def __init__(self, quantise: str) -> None:
        self._quantise = quantise
        self._taken: Any = WeakTensorKeyDictionary()
        self._size = 0  # of the group, when that was taken
        self.backward = _Backward()

    def add(self, bucket: Any, size: int) -> _Taken | None:
        """Adds what was taken to the bucket; what is taken now is kept when that is said.

        If a reduction of this backward fails, all keep their old values: the step is not taken. If
        the number of members changes, feedback begins anew: an average has another part then of
        what a member adds.
        """
        if _simulated.group_here() is not None:
            return None
        if bucket.index() == 0:
            self.backward = _Backward()
        if size != self._size:
            self._taken, self._size = WeakTensorKeyDictionary(), size
        self.backward.buckets += 1
        self.backward.last_seen = bucket.is_last()
        buffer: torch.Tensor = bucket.buffer()
        parameters = bucket.parameters()
        with torch.no_grad():
            offset = 0
            for parameter in parameters:
                taken = self._taken.get(parameter)
                if taken is not None:
                    buffer[offset : offset + parameter.numel()].add_(taken)
                offset += parameter.numel()
            if size == 1:  # nothing is rounded
                return _Taken(self, parameters, torch.zeros_like(buffer), size)
            sent = _extension.extension().as_sent(buffer.cpu(), self._quantise)
            own = buffer - sent.to(buffer.device)
            return _Taken(self, parameters, own, size)

    def keep(self, taken: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Of a backward of which all is reduced."""
        for parameter, part in taken:
            self._taken[parameter] = part


def _reduce(tensor: torch.Tensor, op: Any, group: Any, async_op: bool) -> dist.Work | None:
    work: dist.Work | None = dist.all_reduce(tensor, op=op, group=group, async_op=async_op)
    return work


def check_name(quantise: object, *others: str) -> str:
    """The name in small letters, as the engine has it; ValueError where there is no such one."""
    names = (*QUANTISATIONS, *others)
    name = quantise.lower() if isinstance(quantise, str) else ""
    if name not in names:
        raise ValueError(f"quantise is {quantise!r}; expected one of {', '.join(names)}")
    return name


def _check_call(tensor: torch.Tensor, op: Any) -> None:
    if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
        kind = "dense" if tensor.layout == torch.strided else "sparse"
        raise ValueError(
            f"tensor is a {kind} one of {tensor.dtype}; expected a dense one of torch.float32 for "
            "a quantised all_reduce (quantise='none' reduces exactly)"
        )
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(
            f"op is {op!r}; expected ReduceOp.SUM or ReduceOp.AVG for a quantised all_reduce "
            "(quantise='none' reduces exactly)"
        )


def _check_group(group: Any, device: torch.device) -> None:
    backends = str(dist.get_backend(group)).split(",")
    names = [part.rpartition(":")[2] for part in backends if part.partition(":")[0] == device.type]
    if (names or backends) != [NAME]:
        raise ValueError(
            f"group has the backend {','.join(backends)!r}; expected {NAME!r} for tensors on "
            f"{device.type}: no other backend quantises"
        )
    target = dist.group.WORLD if group is None else group
    if target in distributed_c10d._world.pg_coalesce_state:
        raise ValueError(
            "quantise is given inside of a coalescing manager; expected a call outside of it, or "
            "a group with Options(quantise=...)"
        )


def _size(group: Any) -> int:
    return dist.get_world_size(group.process_group if isinstance(group, ElasticGroup) else group)
