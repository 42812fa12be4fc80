"""What the members of the chaos test send to each other beside the collectives of a step.

Members send in the elastic group, and the ranks of a larger replica among themselves, in the
replica's own group: the default one of their processes in both cases. Each call that fails is
written down and left at that, but for an eviction, which ends the member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from chaos import work

import pccl_backend as pccl

TIMEOUT = timedelta(seconds=4)  # for a message that nobody meets in its epoch


@dataclass
class Posted:
    peer: int  # rank; of a receive from anybody -1
    tensor: torch.Tensor
    wait: Callable[[], Any]  # of a receive from anybody: the rank
    receives: bool
    alone: bool = True  # it fails or succeeds without others


@contextmanager
def short_timeout(group: Any) -> Iterator[None]:
    backend = group._get_backend(torch.device("cpu"))
    usual = backend.options._timeout
    backend.set_timeout(TIMEOUT)
    try:
        yield
    finally:
        backend.set_timeout(usual)


class Messages:
    """Posts those of a step; `outcomes` waits for them."""

    def __init__(self, member: int, step: int, *, elastic: bool) -> None:
        """`elastic`: the default group is the elastic one."""
        self._group = dist.group.WORLD
        self._step = step
        self._plan = work.exchange(step)
        self._posted: list[Posted] = []
        rank, size = dist.get_rank(), dist.get_world_size()
        if size < 2:
            return
        payloads = [
            torch.from_numpy(work.message(member, step, i)) for i in range(self._plan.messages)
        ]
        with short_timeout(self._group) if elastic else nullcontext():
            if self._plan.how == "any":
                self._from_anybody(rank, size, payloads)
            elif self._plan.how == "one by one":
                self._one_by_one(rank, size, payloads)
            else:
                self._in_a_ring(rank, size, payloads)

    def _empty(self) -> torch.Tensor:
        return torch.full((self._plan.count,), -1.0)

    def _from_anybody(self, rank: int, size: int, payloads: list[torch.Tensor]) -> None:
        if rank > 0:
            return self._add_sends(0, payloads)
        for _ in range((size - 1) * len(payloads)):
            into = self._empty()
            posted = dist.irecv(into, src=None, group=self._group, tag=self._step)
            assert posted is not None
            self._posted.append(Posted(-1, into, self._waited_for(posted), True))
        return None

    @staticmethod
    def _waited_for(posted: Any) -> Callable[[], Any]:
        def wait() -> int:
            posted.wait()
            return int(posted._source_rank())

        return wait

    def _add_sends(self, to: int, payloads: list[torch.Tensor]) -> None:
        for tensor in payloads:
            posted = dist.isend(tensor, to, group=self._group, tag=self._step)
            assert posted is not None
            self._posted.append(Posted(to, tensor, posted.wait, False))

    def _in_a_ring(self, rank: int, size: int, payloads: list[torch.Tensor]) -> None:
        to, source = (rank + 1) % size, (rank - 1) % size
        arrivals = [self._empty() for _ in payloads]
        if self._plan.how == "isend":
            self._add_sends(to, payloads)
            for tensor in arrivals:
                posted = dist.irecv(tensor, source, group=self._group, tag=self._step)
                assert posted is not None
                self._posted.append(Posted(source, tensor, posted.wait, True))
            return
        sends = [dist.P2POp(dist.isend, t, to, self._group, self._step) for t in payloads]
        receives = [dist.P2POp(dist.irecv, t, source, self._group, self._step) for t in arrivals]
        works = dist.batch_isend_irecv(receives + sends)
        alone = len(works) > 1  # or one work for all calls
        for i, op in enumerate(receives + sends):
            wait = works[i if alone else 0].wait
            peer = source if op.op is dist.irecv else to
            self._posted.append(Posted(peer, op.tensor, wait, op.op is dist.irecv, alone))

    def _one_by_one(self, rank: int, size: int, payloads: list[torch.Tensor]) -> None:
        """With calls that wait: the first rank sends first, the others receive first."""
        to, source = (rank + 1) % size, (rank - 1) % size
        for tensor in payloads:
            into = self._empty()
            calls = [
                Posted(source, into, self._receiving(into, source), True),
                Posted(to, tensor, self._sending(tensor, to), False),
            ]
            for posted in calls if rank > 0 else calls[::-1]:
                outcome = self._outcome(posted)  # now
                self._posted.append(Posted(posted.peer, posted.tensor, outcome, posted.receives))

    def _receiving(self, into: torch.Tensor, source: int) -> Callable[[], Any]:
        return lambda: dist.recv(into, source, group=self._group, tag=self._step) and None

    def _sending(self, tensor: torch.Tensor, to: int) -> Callable[[], Any]:
        return lambda: dist.send(tensor, to, group=self._group, tag=self._step)

    @staticmethod
    def _outcome(posted: Posted) -> Callable[[], Any]:
        try:
            posted.wait()
        except (pccl.PeerLostError, pccl.OperationTimeoutError, pccl.MismatchError) as error:
            failure = error

            def again() -> None:
                raise failure

            return again
        return lambda: None

    def outcomes(self) -> dict[str, Any]:
        """Receives with what they have got, and sends with whether they were received."""
        got, sent = [], []
        for posted in self._posted:
            peer = posted.peer
            try:
                source = posted.wait()
                outcome = "done"
            except (pccl.PeerLostError, pccl.OperationTimeoutError, pccl.MismatchError) as error:
                outcome = type(error).__name__
            if not posted.receives:
                sent.append({"to": peer, "outcome": outcome})
                continue
            if outcome == "done" and peer < 0:
                peer = source
            torn = outcome != "done" and posted.alone and bool((posted.tensor != -1.0).any())
            digest = work.digest(posted.tensor.numpy())
            got.append({"from": peer, "outcome": outcome, "digest": digest, "torn": torn})
        return {"got": got, "sent": sent}
