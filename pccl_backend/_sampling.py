"""Decides which samples each member gets in each step, and which are given again: pure bookkeeping.

The samples of all passes form one endless stream: position q is the sample `q % per_pass` of pass
`q // per_pass`, in that pass's order. A step takes the next positions of the stream, returned ones
first. At the boundary it is known which ranks contributed: their positions have counted, those of
other ranks are returned to the stream. So each position counts once, however often members are
lost, and every step has the full batch: the last step of a pass takes its rest from the next pass.
The state is a few numbers, the same at all members. No network, no loader, no clock.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ._ranges import Range, ranges

ORDERS_KEPT = 2  # permutations in memory: of the pass that ends and of the next one


class Orders:
    """The order of the samples in each pass: a function of seed and pass."""

    def __init__(self, samples: int, *, shuffle: bool) -> None:
        """Takes the number of samples of the data set, and the seed."""
        self._samples = samples
        self._shuffle = shuffle
        self._kept: dict[tuple[int, int], torch.Tensor] = {}

    def index(self, seed: int, pass_number: int, place: int) -> int:
        """The sample at a place of a pass."""
        if not self._shuffle:
            return place
        key = (seed, pass_number)
        if key not in self._kept:
            while len(self._kept) >= ORDERS_KEPT:
                del self._kept[min(self._kept, key=lambda k: k[1])]
            digest = hashlib.sha256(f"{seed} {pass_number}".encode()).digest()
            random = torch.Generator("cpu").manual_seed(
                int.from_bytes(digest[:8], "big", signed=True)
            )
            self._kept[key] = torch.randperm(self._samples, generator=random, device="cpu")
        return int(self._kept[key][place])


class Deal:
    """The samples of a run: those that have counted, are given out, and come next.

    Attributes:
        seed: Of the orders of all passes.
        cursor: First position that was never given out.
        returned: Positions that were given out and did not count, as ranges in order.
        given: Of the step in progress: members, micro-batches of each, samples of a micro-batch.
        counted: Samples that counted in all steps so far.
        counted_last: Samples that counted in the last step.
        steps: Steps that have ended, whether samples have counted in them or not.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Takes the size of the data set; `share` (r, S): the places r, r + S, ... of each pass.

        Raises:
            ValueError: A number is out of range; the text names it.
        """
        rank, shares = share
        for name, value in (("batch", batch), ("global_batch", global_batch)):
            if value is not None and not (type(value) is int and value > 0):
                raise ValueError(f"{name} is {value!r}; expected a number of samples above 0")
        if not (type(rank) is int and type(shares) is int and 0 <= rank < shares):
            raise ValueError(f"share is {share!r}; expected (r, S) with 0 <= r < S")
        if samples < shares:
            raise ValueError(f"{samples} samples for {shares} shares; expected one each at least")
        self._fixed = {
            "samples": samples,
            "batch": batch,
            "global_batch": global_batch,
            "shuffle": shuffle,
            "shares": shares,
        }
        self._orders = Orders(samples, shuffle=shuffle)
        self._batch, self._global_batch = batch, global_batch
        self._share, self._shares = rank, shares
        self.per_pass = samples // shares
        self.seed = seed
        self.cursor = 0
        self.returned: list[Range] = []  # as the shared state holds them
        self.given: Range | None = None
        self.counted = 0
        self.counted_last = 0
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain values, the same at all members of a peer group."""
        return {
            **self._fixed,
            "seed": self.seed,
            "cursor": self.cursor,
            "returned": [list(r) for r in self.returned],
            "given": None if self.given is None else list(self.given),
            "counted": self.counted,
            "counted_last": self.counted_last,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the state of another member, or of a checkpoint.

        Raises:
            ValueError: It is of other data, or of other batches. Nothing has changed.
        """
        for name, mine in self._fixed.items():
            if state.get(name) != mine:
                raise ValueError(
                    f"the sampler of the run has {name}={state.get(name)!r} and this one {mine!r}; "
                    "expected the same at all members, and in a run that goes on from a checkpoint"
                )
        self.seed = state["seed"]
        self.cursor = state["cursor"]
        self.returned = [list(r) for r in state["returned"]]
        self.given = None if state["given"] is None else list(state["given"])
        self.counted = state["counted"]
        self.counted_last = state["counted_last"]
        self.steps = state["steps"]

    def sizes(self, members: int) -> tuple[int, int]:
        """Micro-batches of a member in a step, and samples of one.

        All micro-batches have one size, so that a mean over micro-batches and members weighs each
        sample alike. Together they have at most `global_batch` samples; the difference is smaller
        than the number of micro-batches. If there are more members than `global_batch`, each member
        gets one sample.
        """
        if self._global_batch is None:
            return 1, self._batch
        micro_batches = -(-self._global_batch // (members * self._batch))
        return micro_batches, max(1, self._global_batch // (members * micro_batches))

    @property
    def pass_number(self) -> int:
        """Passes of which every sample has counted."""
        first = self.returned[0][0] if self.returned else self.cursor
        return first // self.per_pass

    @property
    def samples(self) -> int:
        """Samples of the step in progress, at all members; 0 between two steps."""
        if self.given is None:
            return 0
        members, micro_batches, size = self.given
        return members * micro_batches * size

    def left_in_pass(self) -> int:
        """Samples of the pass in progress that have not counted."""
        end = (self.pass_number + 1) * self.per_pass
        waiting = sum(max(0, min(end, first + count) - first) for first, count in self.returned)
        return waiting + max(0, end - self.cursor)

    def give(self, members: int) -> None:
        """Begins a step of so many members."""
        assert self.given is None
        self.given = [members, *self.sizes(members)]

    def batch(self, rank: int, number: int) -> list[int]:
        """The samples of micro-batch `number` of the member with this rank, in the step."""
        assert self.given is not None
        members, _, size = self.given
        first = (number * members + rank) * size
        return [self._index(position) for position in self._positions(first, size)]

    def settle(self, contributors: Iterable[int] | None = None) -> None:
        """Ends the step: the samples of these ranks have counted, all others are given again.

        None: all have counted. Without a step in progress nothing changes.

        Raises:
            ValueError: A rank that the step does not have. Nothing has changed.
        """
        if self.given is None:
            return
        members, micro_batches, size = self.given
        counted = set(range(members)) if contributors is None else set(contributors)
        if not counted <= set(range(members)):
            raise ValueError(f"contributors {sorted(counted)} of a step of {members} members")
        back = [
            position
            for number in range(micro_batches)
            for rank in range(members)
            if rank not in counted
            for position in self._positions((number * members + rank) * size, size)
        ]
        self._advance(self.samples)
        self.returned = ranges(sorted([*self._returned_positions(), *back]))
        self.counted_last = len(counted) * micro_batches * size
        self.counted += self.counted_last
        self.steps += 1
        self.given = None

    def snapshot(self) -> Deal:
        """A copy as of now: a shallow one, because a deal replaces its values and changes none."""
        return copy.copy(self)

    def forecast(self, members: int, rank: int, number: int) -> Iterator[list[int]]:
        """Batches of a member from `number` of this step on, if nothing changes; endless."""
        ahead = self.snapshot()
        while True:
            if ahead.given is None:
                ahead.give(members)
                number = 0
            assert ahead.given is not None
            for following in range(number, ahead.given[1]):
                yield ahead.batch(rank, following)
            ahead.settle()

    def _index(self, position: int) -> int:
        place = position % self.per_pass * self._shares + self._share
        return self._orders.index(self.seed, position // self.per_pass, place)

    def _positions(self, first: int, count: int) -> Iterator[int]:
        """The coming positions of the stream, returned ones first."""
        for start, length in self.returned:
            if count == 0:
                return
            taken = max(0, min(length - first, count))
            yield from range(start + first, start + first + taken)
            count -= taken
            first = max(0, first - length)
        yield from range(self.cursor + first, self.cursor + first + count)

    def _returned_positions(self) -> Iterator[int]:
        for start, length in self.returned:
            yield from range(start, start + length)

    def _advance(self, count: int) -> None:
        """Takes so many positions from the stream ahead."""
        left: list[Range] = []
        for start, length in self.returned:
            taken = min(length, count)
            count -= taken
            if taken < length:
                left.append([start + taken, length - taken])
        self.returned = left
        self.cursor += count
