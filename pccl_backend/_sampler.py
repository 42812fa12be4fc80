"""ElasticSampler: the batches of a member, handed out by its data loader between boundaries.

`_sampling.py` decides which member gets which samples. This module connects that with the program:
it passes a boundary before each step, and drops the batches that the data loader has fetched ahead
when members or samples have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sized
from typing import Any, Protocol

from torch.utils.data import DataLoader

from ._group import Boundary
from ._replica import from_rank_0, group_of_ranks
from ._sampling import Deal

_log = logging.getLogger("pccl")


class Run(Protocol):
    """What a sampler needs of the run that it belongs to."""

    boundary: Boundary

    @property
    def failed(self) -> bool:
        """Has a backward of this step failed?"""

    @property
    def left(self) -> bool:
        """Has this peer left the run?"""

    def pass_between_batches(self) -> None:
        """Passes the boundary between two steps."""


class ElasticSampler:
    """Batch sampler of an elastic run: every sample of a pass over the data counts once.

        sampler = pccl.ElasticSampler(len(data), batch=8, global_batch=96)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
        run = pccl.elastic(model, optimizer, state={"sampler": sampler})
        for x, y in sampler.batches(loader, passes=3):
            with contextlib.nullcontext() if sampler.is_last else model.no_sync():
                (criterion(model(x), y) / sampler.accumulation).backward()
            if sampler.is_last:
                optimizer.step()
                optimizer.zero_grad()

    In a step each member gets `accumulation` batches of one size. If a member was lost, so that its
    contribution to the step did not count, its samples are given again, first of all, in the next
    step. The last step of a pass is filled up with samples of the next pass: so every step has the
    same size, and all members make the same calls. The order follows from the seed; seed and
    position are shared state, so a newcomer gets those of the run.
    """

    def __init__(
        self,
        data: int | Sized,
        *,
        batch: int,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Takes the same arguments at all members (but for the rank in `share`).

        Args:
            data: The data set, or the number of its samples.
            batch: The most samples in one batch: what a member computes at a time.
            global_batch: The most samples of a step, all members together (with `share`: those of
                this share). This and the number of members decide how many batches a member
                accumulates. None: one batch each.
            shuffle: Whether each pass has another order.
            seed: Seed of the orders.
            share: (r, S): this process is rank r of a replica of S ranks that are given different
                data (FSDP). The process gets the samples at the places r, r + S, ... in the order
                of each pass, and counts them by itself. The last `len(data) % S` samples of each
                order are left out.

        Raises:
            ValueError: A number is out of range.
        """
        samples = data if isinstance(data, int) else len(data)
        self._deal = Deal(
            samples,
            batch=batch,
            global_batch=global_batch,
            shuffle=shuffle,
            seed=seed,
            share=share,
        )
        self._has_shares = share[1] > 1
        self._run: Run | None = None
        self._ranks = 1  # of this replica
        self._replica: Any = None  # their group, if they take the same batches together
        self._handed = 0  # batches of this step that the program has
        self._current: tuple[int, bool] = (1, True)
        self._fetches = False  # asks the loader, which asks this object
        self._loader: Any = None
        self._iterator: Iterator[Any] | None = None
        self._expected: Iterator[list[int]] = iter(())

    # -------------------------------------------------------------------------- figures

    @property
    def accumulation(self) -> int:
        """Number of batches of this member in the step: divide the loss of each batch by it."""
        return self._current[0]

    @property
    def is_last(self) -> bool:
        """Is the batch that was given last the last one of its step?"""
        return self._current[1]

    @property
    def samples(self) -> int:
        """Samples of this step at all members, to scale a learning rate; 0 between steps."""
        return self._deal.samples

    @property
    def counted(self) -> int:
        """Samples that have counted in the whole run."""
        return self._deal.counted

    @property
    def counted_last(self) -> int:
        """Samples that counted in the last step that has ended."""
        return self._deal.counted_last

    @property
    def pass_number(self) -> int:
        """Number of passes all of whose samples have counted."""
        return self._deal.pass_number

    @property
    def steps(self) -> int:
        """Number of steps of the whole run that have ended."""
        return self._deal.steps

    def __len__(self) -> int:
        """Batches that this member still gets in this pass if the members stay the same."""
        members = 1 if self._run is None else self._run.boundary.size
        _, size = self._deal.sizes(members)
        return -(-self._deal.left_in_pass() // (members * size))

    # -------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Seed, position and counts, as a few plain values."""
        return self._deal.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the state of another member, or of a checkpoint.

        Raises:
            ValueError: The state is that of a sampler with other data or other batch sizes. Nothing
                has changed.
        """
        self._deal.load_state_dict(state)
        self._handed = 0

    # -------------------------------------------------------------------------- batches

    def batches(
        self,
        loader: DataLoader[Any] | None = None,
        *,
        passes: int | None = None,
        steps: int | None = None,
        together: bool | None = None,
    ) -> Iterator[Any]:
        """The batches of this member; passes the boundary before each step but the first.

        After the last batch of a step (`is_last`) the optimizers have to step before the loop asks
        for the next batch. The batches end after the pass in progress, or after the number of
        `passes` or `steps`, or when this peer has left the run.

        Args:
            loader: `DataLoader(data, batch_sampler=sampler, ...)`. None: lists of indices.
            passes: Until so many passes are over in the whole run. None: the pass in progress,
                unless `steps` is given.
            steps: Until so many steps are over in the whole run. A step that failed is over, too:
                its samples are given again in the next one.
            together: In a replica of several ranks whose sampler has no `share`: True where all its
                ranks take these batches, the same ones, at the same places of their programs
                (tensor parallelism). Collective among them; before each step rank 0 says what has
                counted, since after a loss the ranks may have seen different things. False where
                one rank takes them, and gives the others what they need.

        Raises:
            ValueError: The loader has another batch sampler or `in_order=False`, `elastic` does not
                know this sampler, `together` is missing, or shares have no `steps`: a loss may be
                in the middle of the last step of a pass for one rank and after it for another.
        """
        if self._run is None:
            raise ValueError(
                "this sampler belongs to no run; expected "
                "pccl.elastic(model, optimizer, state={'sampler': sampler}) before"
            )
        if loader is not None and getattr(loader, "batch_sampler", None) is not self:
            raise ValueError(
                "the loader has another batch_sampler; expected "
                "DataLoader(data, batch_sampler=sampler)"
            )
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "the loader has in_order=False, and the sampler could not tell which samples a "
                "batch has; expected a DataLoader without it"
            )
        if self._has_shares and steps is None:
            raise ValueError("steps is None for a share of a replica; expected a number of steps")
        if self._ranks > 1 and not self._has_shares:
            self._meet_ranks(together)
        return self._batches(self._run, loader, passes, steps)

    def _meet_ranks(self, together: bool | None) -> None:
        if together is None:
            raise ValueError(
                f"a sampler without share in a replica of {self._ranks} ranks; expected share=, or "
                "batches(..., together=True) at all these ranks, or together=False at one of them"
            )
        if together and self._replica is None:
            self._replica = group_of_ranks()
        if together and (self._replica is None or self._replica.size() != self._ranks):
            raise ValueError(
                "together=True, and the default group is not that of this replica's ranks; "
                f"expected init_process_group() for {self._ranks} ranks before join(replica=...)"
            )

    def _batches(
        self, run: Run, loader: DataLoader[Any] | None, passes: int | None, steps: int | None
    ) -> Iterator[Any]:
        deal, one_pass = self._deal, passes is None and steps is None
        while not run.left:
            if deal.given is not None and (self._handed == deal.given[1] or run.failed):
                run.pass_between_batches()
                continue
            if deal.given is None:
                self._follow()
                if one_pass and passes is None:  # now that what was given before is settled
                    passes = deal.pass_number + 1
                if passes is not None and deal.pass_number >= passes:
                    break
                if steps is not None and deal.steps >= steps:
                    break
                deal.give(run.boundary.size)
                self._handed = 0
            assert deal.given is not None
            found = self._fetch(loader, deal.batch(run.boundary.rank, self._handed))
            self._handed += 1
            self._current = (deal.given[1], self._handed == deal.given[1])
            yield found
        if run.left or not one_pass:
            self._drop()

    def __iter__(self) -> Iterator[list[int]]:
        """What a loader fetches ahead: this member's batches from now on, if nothing changes.

        Raises:
            ValueError: A program iterates by itself; it would pass no boundary, and find no end.
        """
        if not self._fetches:
            raise ValueError(
                "the loop takes its batches from the loader, or from the sampler; expected "
                "`for batch in sampler.batches(loader)`, which passes the boundaries"
            )
        boundary = None if self._run is None else self._run.boundary
        members, rank = (1, 0) if boundary is None else (boundary.size, boundary.rank)
        return self._deal.snapshot().forecast(members, rank, self._handed)

    def _fetch(self, loader: Any, wanted: list[int]) -> Any:
        """The batch of these samples; a new iterator where the loader is on another way."""
        if loader is None:
            return wanted
        self._fetches = True
        try:
            return self._fetch_from(loader, wanted)
        finally:
            self._fetches = False

    def _fetch_from(self, loader: Any, wanted: list[int]) -> Any:
        if self._iterator is None or self._loader is not loader or next(self._expected) != wanted:
            if self._iterator is not None:
                _log.debug("batches that were fetched ahead are dropped")
            self._drop()  # the workers of the old one end before those of the new one begin
            self._loader, self._expected = loader, iter(self)
            self._iterator = iter(loader)
            first = next(self._expected)
            assert first == wanted
        return next(self._iterator)

    def _drop(self) -> None:
        self._iterator = self._loader = None
        self._expected = iter(())

    def _follow(self) -> None:
        """Goes on where rank 0 of the replica is: all its ranks compute the same samples.

        Where a member was lost in the middle of a step, its contribution may be in that step for
        some ranks of this replica and not for others.
        """
        if self._replica is not None:
            (state,) = from_rank_0([self._deal.state_dict()], self._replica)
            self._deal.load_state_dict(state)

    # -------------------------------------------------------------------------- for `elastic`

    def bind(self, run: Run, ranks: int = 1) -> None:
        """Belongs to this run from now on, in a replica of so many ranks."""
        self._run = run
        self._ranks, self._replica = ranks, None
        self._drop()

    @property
    def in_step(self) -> bool:
        """Has a step been given out whose end is not known yet?"""
        return self._deal.given is not None

    @property
    def members(self) -> int:
        """Members of the step in progress; 0 between two steps."""
        return 0 if self._deal.given is None else self._deal.given[0]

    @property
    def missing(self) -> int:
        """Batches of the step in progress that the program has not taken."""
        return 0 if self._deal.given is None else self._deal.given[1] - self._handed

    def settle(self, contributors: tuple[int, ...] | None) -> None:
        """Ends the step in progress; see `Deal.settle`."""
        self._deal.settle(contributors)
        self._handed = 0
