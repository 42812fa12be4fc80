"""Every sample of a pass counts exactly once, whatever the churn, and all members agree on it."""

import random
from collections import Counter
from typing import Any

import pytest

from pccl_backend._sampling import Deal

HISTORIES = 400


class World:
    """A run without a network: what its members were given, and which contributions counted."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        samples = self.random.randint(5, 60)
        self.shares = self.random.choice((1, 1, 1, 2, 3))
        self.options: dict[str, Any] = {
            "batch": self.random.randint(1, 4),
            "global_batch": self.random.choice((None, self.random.randint(1, 24))),
            "shuffle": self.random.random() < 0.8,
            "share": (self.random.randrange(self.shares), self.shares),
        }
        self.samples = samples
        self.members = [self.make() for _ in range(self.random.randint(1, 5))]
        for deal in self.members[1:]:
            deal.load_state_dict(self.members[0].state_dict())
        self.seen: list[list[int]] = []  # of each step, the samples that counted

    def make(self) -> Deal:
        seed = self.random.randrange(1 << 30)  # a newcomer takes that of the run
        return Deal(self.samples, seed=seed, **self.options)

    def step(self) -> None:
        count = len(self.members)
        for deal in self.members:
            deal.give(count)
        assert self.members[0].given is not None
        micro_batches, size = self.members[0].given[1:]
        given = [
            [deal.batch(rank, number) for number in range(micro_batches)]
            for rank, deal in enumerate(self.members)
        ]
        assert {len(batch) for batches in given for batch in batches} == {size}
        # Lost before its reductions were committed; one that fails for all counts for nobody.
        lost_in_step = {r for r in range(count) if self.random.random() < 0.15}
        fails = self.random.random() < 0.05
        contributors = set() if fails else set(range(count)) - lost_in_step
        # Lost, or leaving, at the boundary: what they gave has counted.
        gone = lost_in_step | {r for r in range(count) if self.random.random() < 0.08}
        if len(gone) == count:
            gone.discard(self.random.choice(sorted(contributors) or sorted(gone)))
        self.seen.append([i for r in sorted(contributors) for batch in given[r] for i in batch])
        late = self.random.random() < 0.5  # a newcomer may get the state before it is settled
        newcomers = [self.make() for _ in range(self.random.choice((0, 0, 0, 1, 2)))]
        stay = [deal for rank, deal in enumerate(self.members) if rank not in gone]
        source = self.random.choice(stay)
        if late:
            for deal in newcomers:
                deal.load_state_dict(source.state_dict())
        for deal in stay + (newcomers if late else []):
            deal.settle(contributors)
        if not late:
            for deal in newcomers:
                deal.load_state_dict(source.state_dict())
        self.members = (stay + newcomers)[:8]
        assert all(d.state_dict() == self.members[0].state_dict() for d in self.members)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_sample_of_a_pass_counts_once(seed: int) -> None:
    world = World(seed)
    passes = 3
    while world.members[0].pass_number < passes:
        world.step()
    deal = world.members[0]
    assert deal.counted == sum(map(len, world.seen))
    assert deal.counted_last == len(world.seen[-1])
    assert deal.steps == len(world.seen)
    # Of what has counted, take away the passes that are over: nothing is missing, and what is left
    # belongs to passes that are not, none of it twice in one of them.
    rank, shares = world.options["share"]
    counts = Counter(i for step in world.seen for i in step)
    per_pass = world.samples // shares
    for number in range(deal.pass_number):
        order = [deal._index(number * per_pass + place) for place in range(per_pass)]
        assert len(set(order)) == per_pass
        counts.subtract(order)
    assert min(counts.values()) >= 0
    begun = -(-deal.cursor // per_pass) - deal.pass_number
    assert max(counts.values()) <= begun
    if not world.options["shuffle"]:
        assert all(i % shares == rank for i in counts)


def test_passes_have_orders_of_their_own_and_members_the_same() -> None:
    deals = [Deal(50, batch=1, seed=seed) for seed in (3, 3, 4)]
    orders = [[deal._index(q) for q in range(100)] for deal in deals]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][:50]) == sorted(orders[0][50:]) == list(range(50))
    assert orders[0][:50] != orders[0][50:]


def test_the_shares_of_a_replica_are_all_of_a_pass() -> None:
    deals = [Deal(12, batch=1, seed=3, share=(r, 3)) for r in range(3)]
    assert sorted(deal._index(q) for deal in deals for q in range(4)) == list(range(12))


@pytest.mark.parametrize(
    ("batch", "global_batch", "members", "sizes"),
    [
        (8, None, 5, (1, 8)),
        (8, 96, 1, (12, 8)),
        (8, 96, 3, (4, 8)),
        (8, 96, 5, (3, 6)),  # 90
        (8, 96, 12, (1, 8)),
        (8, 96, 13, (1, 7)),  # 91
        (8, 4, 5, (1, 1)),  # more members than samples of a step
    ],
)
def test_micro_batches_follow_from_the_size(
    batch: int, global_batch: int | None, members: int, sizes: tuple[int, int]
) -> None:
    assert Deal(100, batch=batch, global_batch=global_batch).sizes(members) == sizes


@pytest.mark.parametrize("seed", range(50))
def test_a_forecast_is_what_comes_when_nothing_changes(seed: int) -> None:
    chance = random.Random(seed)
    deal = Deal(20, batch=3, global_batch=14)
    deal.give(4)
    deal.settle({0, 2})  # some went back
    members, rank = chance.randint(1, 4), 0
    deal.give(members)
    assert deal.given is not None
    number = chance.randrange(deal.given[1])
    forecast = deal.forecast(members, rank, number)
    for _ in range(12):
        if deal.given is None:
            deal.give(members)
            number = 0
        while number < deal.given[1]:
            assert next(forecast) == deal.batch(rank, number)
            number += 1
        deal.settle()


def test_what_went_back_is_given_first() -> None:
    deal = Deal(100, batch=2, shuffle=False)
    deal.give(3)
    assert [deal.batch(r, 0) for r in range(3)] == [[0, 1], [2, 3], [4, 5]]
    deal.settle({0, 2})
    assert deal.returned == [[2, 2]]
    deal.give(2)
    assert [deal.batch(r, 0) for r in range(2)] == [[2, 3], [6, 7]]
    deal.settle()
    assert (deal.returned, deal.cursor, deal.counted, deal.counted_last) == ([], 8, 8, 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"batch": True}, "batch is True"),
        ({"batch": 1, "global_batch": -2}, "global_batch is -2"),
        ({"batch": 1, "share": (2, 2)}, r"share is \(2, 2\)"),
        ({"batch": 1, "share": (0, 11)}, "10 samples for 11 shares"),
    ],
)
def test_bad_numbers_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Deal(10, **options)


def test_the_state_of_other_data_is_refused_and_nothing_changes() -> None:
    deal = Deal(10, batch=1)
    with pytest.raises(ValueError, match="the sampler of the run has samples=11 and this one 10"):
        deal.load_state_dict(Deal(11, batch=1, seed=7).state_dict())
    assert deal.seed == 0
    deal.give(2)
    with pytest.raises(ValueError, match=r"contributors \[2\] of a step of 2 members"):
        deal.settle({2})
    assert deal.given is not None
