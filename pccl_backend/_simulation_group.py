"""The groups of a simulated member: a process group for torch, and its ElasticGroup.

The process group takes the calls of torch.distributed, DDP among them, and gives each to the
member's Run (_simulation.py). Sums are made in the order of the ranks, in float32 for the short
floating types; their last bits may differ from those of the engine, which adds along a ring.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.hooks import RemovableHandle

from . import _events, _simulated
from ._errors import MismatchError
from ._group import Boundary, ElasticGroup
from ._rank_tables import LiveRanks
from ._simulation_members import Member, Operation

Tensors = list[torch.Tensor]


_Work: Any = distributed_c10d.Work
_Group: Any = dist.ProcessGroup  # its calls have overloads, of which a program's reach one


class SimulatedWork(_Work):  # type: ignore[misc]
    """The Work of a simulated operation."""

    def __init__(self, outcome: Callable[[], Any], result: Any, done: Callable[[], bool]) -> None:
        """Takes the function that waits for the outcome, or raises its error."""
        super().__init__()
        self._outcome, self._result, self._done = outcome, result, done
        self._source = -1

    def wait(self, timeout: Any = None) -> bool:
        """Returns with the outcome."""
        source = self._outcome()
        self._source = source if isinstance(source, int) else -1
        return True

    def is_completed(self) -> bool:
        """Whether the operation has its outcome."""
        return self._done()

    def source_rank(self) -> int:
        """The rank that sent what a receive took."""
        return self._source

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is done: nobody but the member itself could complete a later one."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        try:
            self._outcome()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self._result)
        return future


class SimulatedProcessGroup(_Group):  # type: ignore[misc]
    """The elastic process group of a simulated member."""

    def __init__(self, member: Member) -> None:
        """Takes a run and a member of it."""
        super().__init__(0, 1)
        self.member = member

    def getBackendName(self) -> str:
        """The name that the real group gives."""
        return "pccl"

    def rank(self) -> int:
        """The number, which is pinned between two boundaries."""
        return self.member.run.rank_of(self.member)

    def size(self) -> int:
        """The number, which is pinned between two boundaries."""
        return self.member.run.size_for(self.member)

    getRank, getSize = rank, size

    def abort(self) -> None:
        """The member is gone, a loss for the others."""
        self.member.run.lose(self.member)

    shutdown = abort

    # -------------------------------------------------------------------------- collectives

    def _call(
        self,
        kind: str,
        same: tuple[Any, ...],
        run: Callable[[dict[int, Any]], None],
        post: Any,
        opts: Any,
        *,
        root: int = -1,
        result: Any = None,
    ) -> SimulatedWork:
        member = self.member
        is_async = bool(getattr(opts, "asyncOp", True))
        operation = Operation(kind, same, run, root)
        posted = member.run.post(member, operation, post, is_async=is_async)
        return SimulatedWork(
            lambda: member.run.outcome(member, posted), result, lambda: posted.done
        )

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Sum, mean and the like over those who contribute."""
        op = _reduction(opts, tensors)

        def run(posts: dict[int, Any]) -> None:
            for parts in zip(*posts.values(), strict=True):
                total = _reduce(parts, op)
                _write(parts, [total] * len(parts))

        return self._call("all_reduce", (*_like(tensors), op), run, tensors, opts, result=tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        """Copies from opts.rootRank to all."""
        root = int(opts.rootRank)

        def run(posts: dict[int, Any]) -> None:
            for rank, mine in posts.items():
                if rank != root:
                    _write(mine, posts[root])

        same = (*_like(tensors), root)
        return self._call("broadcast", same, run, tensors, opts, root=root, result=tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reduces at opts.rootRank."""
        root, op = int(opts.rootRank), _reduction(opts, tensors)

        def run(posts: dict[int, Any]) -> None:
            _write(posts[root], [_reduce(parts, op) for parts in zip(*posts.values(), strict=True)])

        same = (*_like(tensors), op, root)
        return self._call("reduce", same, run, tensors, opts, root=root, result=tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """The tensors of all ranks, as a list."""

        def run(posts: dict[int, Any]) -> None:
            for out, _ in posts.values():
                for rank, (_, given) in posts.items():
                    _write([out[0][rank]], given)

        return self._call("all_gather", (), run, (outputs, inputs), opts, result=outputs)

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        def run(posts: dict[int, Any]) -> None:
            whole = torch.cat([part.reshape(-1) for _, (_, part) in sorted(posts.items())])
            for out, _ in posts.values():
                _write([out], [whole])

        return self._call("all_gather", _like([given]), run, (output, given), opts, result=[output])

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Any:
        """Brings the tensors of all to opts.rootRank, as a list."""
        root = int(opts.rootRank)

        def run(posts: dict[int, Any]) -> None:
            for rank, (_, given) in posts.items():
                _write([posts[root][0][0][rank]], given)

        return self._call("gather", (root,), run, (outputs, inputs), opts, result=outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:
        """Gives each rank its tensor of the list at opts.rootRank."""
        root = int(opts.rootRank)

        def run(posts: dict[int, Any]) -> None:
            for rank, (out, _) in posts.items():
                _write(out, [posts[root][1][0][rank]])

        post = (outputs, inputs)
        return self._call("scatter", (root,), run, post, opts, root=root, result=outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:
        """Gives part r of the sum to rank r."""
        op = _reduction(opts, outputs)

        def run(posts: dict[int, Any]) -> None:
            for rank, (out, _) in posts.items():
                _write(out, [_reduce([given[0][rank] for _, given in posts.values()], op)])

        return self._call("reduce_scatter", (op,), run, (outputs, inputs), opts, result=outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Any:
        op, size = _reduction(opts, [output]), self.size()

        def run(posts: dict[int, Any]) -> None:
            whole = _reduce([part for _, part in posts.values()], op).reshape(size, -1)
            for rank, (out, _) in posts.items():
                _write([out], [whole[rank]])

        same = (*_like([given]), op)
        return self._call("reduce_scatter", same, run, (output, given), opts, result=[output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Gives part r of rank s to rank r, as its part s."""

        def run(posts: dict[int, Any]) -> None:
            for rank, (out, _) in posts.items():
                _write(out, [posts[r][1][rank] for r in sorted(posts)])

        return self._call("all_to_all", (), run, (outputs, inputs), opts, result=outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Gives rows of one tensor to rows of another; empty sizes mean equal ones."""
        size = self.size()

        def split(tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
            return list(torch.split(tensor, list(sizes) or tensor.shape[0] // size))

        return self.alltoall(split(output, output_sizes), split(given, input_sizes), opts)

    def barrier(self, opts: Any = None) -> Any:
        """Returns when all have come."""
        return self._call("barrier", (), lambda posts: None, None, opts)

    # -------------------------------------------------------------------------- point-to-point

    def send(self, tensors: Tensors, to: int, tag: int) -> Any:
        """Sends to one rank; ends when the receive has ended."""
        run = self.member.run
        message = run.send(self.member, to, tag, tensors[0])
        return SimulatedWork(lambda: run.wait_for_send(message), tensors, lambda: message.done)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Any:
        """Receives from one rank."""
        return self._receive(tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """Receives from whichever rank sends first."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> Any:
        outcome: list[int] = []

        def wait() -> int:
            if not outcome:
                outcome.append(self.member.run.receive(self.member, source, tag, tensors[0]))
            return outcome[0]

        return SimulatedWork(wait, tensors, lambda: bool(outcome))


class SimulatedGroup(ElasticGroup):
    """The ElasticGroup of a simulated member."""

    def __init__(self, member: Member) -> None:
        """Takes a run and a member of it."""
        self._member = member
        self.process_group = SimulatedProcessGroup(member)
        _enter_tables(self.process_group)

    @property
    def rank(self) -> int:
        """The number, which is pinned between two boundaries."""
        return self._member.run.rank_of(self._member)

    @property
    def size(self) -> int:
        """The number, which is pinned between two boundaries."""
        return self._member.run.size_for(self._member)

    @property
    def epoch(self) -> str:
        """Number of the newest epoch."""
        return f"1.{self._member.run.epoch}"

    @property
    def step(self) -> int:
        """Number of the step between the last boundary and the next."""
        return self._member.run.step

    @property
    def left(self) -> bool:
        """Whether this member has left."""
        return self._member.told_left

    def in_flight(self) -> list[dict[str, Any]]:
        """Operations without an outcome."""
        return [
            {"op": f"{self.step}.{index}", "kind": operation.kind}
            for index, operation in sorted(self._member.run.operations.items())
            if self._member in operation.posts and not operation.done
        ]

    def _contributors(self) -> tuple[int, ...]:
        run = self._member.run
        contributed = run.contributed
        if contributed is None:
            return ()
        return tuple(rank for rank, m in enumerate(run.numbering) if m in contributed)

    def refresh(
        self,
        state: MutableMapping[str, Any] | None = None,
        *,
        verify: bool = False,
        timeout_s: float | None = None,
    ) -> Boundary:
        """Does what ElasticGroup.refresh does, without `timeout_s`: standing still is an error."""
        return self._member.run.boundary(self._member, state, verify=verify)

    def resume(self, *, timeout_s: float | None = None) -> Boundary:
        """Does what ElasticGroup.resume does."""
        return self._member.run.boundary(self._member, None, verify=True, admits=False)

    def finish(self, *, timeout_s: float | None = None) -> Boundary:
        """Does what ElasticGroup.finish does."""
        if self._member.left_at is not None:
            return self._member.left_at
        run = self._member.run
        boundary = run.boundary(self._member, None, verify=True, admits=False, finishes=True)
        if not (boundary.finished or boundary.left):
            raise MismatchError("the run is not finished: other members called refresh")
        return boundary

    def leave(self, *, at_once: bool = True) -> None:
        """The next boundary lets this member go."""
        self._member.wants_to_leave = True

    def on(self, what: str, function: _events.Hook) -> RemovableHandle:
        """Calls `function(change)` in the thread that brings the change about."""
        if what not in _events.HOOKS:
            raise ValueError(f"what is {what!r}; expected one of {', '.join(_events.HOOKS)}")
        hooks = self._member.hooks.setdefault(what, OrderedDict())
        handle = RemovableHandle(hooks)
        hooks[handle.id] = function
        return handle


# ------------------------------------------------------------------------------ c10d's tables


class _World(type(distributed_c10d._world)):  # type: ignore[misc]
    """c10d's tables, in which the default group of a simulated member is its own."""

    @property
    def default_pg(self) -> Any:
        """The default group of the thread that asks."""
        here = _simulated.group_here()
        return self._default_pg if here is None else here.process_group

    @default_pg.setter
    def default_pg(self, value: Any) -> None:
        self._default_pg = value


@contextlib.contextmanager
def simulated_c10d(members: Sequence[Member]) -> Iterator[None]:
    """While it lasts torch.distributed serves simulated members too, also those that come later."""
    world: Any = distributed_c10d._world
    plain = type(world)
    initialize, destroy = dist.init_process_group, dist.destroy_process_group

    def init_process_group(*arguments: Any, **options: Any) -> None:
        if _simulated.group_here() is None:
            initialize(*arguments, **options)

    def destroy_process_group(group: Any = None) -> None:
        if _simulated.group_here() is None:  # a member's groups end with the run
            destroy(group)

    world.__class__ = _World
    dist.init_process_group = init_process_group
    dist.destroy_process_group = destroy_process_group
    try:
        yield
    finally:
        dist.init_process_group, dist.destroy_process_group = initialize, destroy
        world.__class__ = plain
        for member in members:
            for table in (world.pg_map, world.pg_names, world.pg_group_ranks):
                table.pop(member.group.process_group, None)


def _enter_tables(pg: SimulatedProcessGroup) -> None:
    world = distributed_c10d._world
    world.pg_map[pg] = ("pccl", None)  # type: ignore[assignment]
    world.pg_names[pg] = f"simulated-{pg.member.number}"  # type: ignore[assignment]
    ranks = LiveRanks(pg.size, lambda size: {rank: rank for rank in range(size)})
    world.pg_group_ranks[pg] = ranks


# ------------------------------------------------------------------------------ arithmetic

_REDUCTIONS: dict[str, Any] = {
    "SUM": torch.sum,
    "AVG": torch.sum,
    "PRODUCT": torch.prod,
    "MIN": torch.amin,
    "MAX": torch.amax,
}
_BITWISE: dict[str, Any] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _reduction(opts: Any, tensors: Tensors) -> str:
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    if op == dist.ReduceOp.AVG and any(tensor.dtype == torch.bool for tensor in tensors):
        raise ValueError("cannot reduce Bool tensors with avg")
    for name in (*_REDUCTIONS, *_BITWISE):
        if op == getattr(dist.ReduceOp, name):
            return name
    raise ValueError(f"the reduction {op} is not simulated")


def _reduce(parts: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    if op in _BITWISE:
        total = parts[0].clone()
        for part in parts[1:]:
            total = _BITWISE[op](total, part)
        return total
    kind = parts[0].dtype
    short = kind in (torch.float16, torch.bfloat16)
    stacked = torch.stack([p.detach().to(torch.float32) if short else p.detach() for p in parts])
    total = _REDUCTIONS[op](stacked, 0)
    if op == "AVG":
        total = (
            total / len(parts)
            if kind.is_floating_point or kind.is_complex
            else (torch.div(total, len(parts), rounding_mode="trunc"))
        )
    return total.to(kind)


def _write(to: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(to, values, strict=True):
            target.copy_(value.reshape(target.shape))


def _like(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The values of a call that must be equal at all ranks."""
    return tuple((str(t.dtype), t.numel()) for t in tensors)
