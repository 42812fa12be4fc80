"""What the chaos test does to a run never exceeds what the promises cover."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from chaos.harm import KINDS, Harms
from chaos.world import MASTER_HOST, Options, Span

HOSTS = range(1, 5)


@dataclass
class Member:
    number: int
    host: int
    admitted: bool = True
    leaving: bool = False
    stopped: bool = False


@dataclass
class Network:
    hosts: range = HOSTS


@dataclass
class World:
    """As harm.py sees it: nobody is there."""

    live: list[Member]
    wan: Network = field(default_factory=Network)
    options: Options = field(default_factory=Options)

    def on(self, hosts: set[int]) -> list[Member]:
        return [m for m in self.live if m.host in hosts]


def world(seed: int) -> World:
    chance = random.Random(seed)
    count = chance.randint(1, 6)
    members = [Member(i, chance.randint(2, HOSTS[-1])) for i in range(count)]
    for member in members:
        member.admitted = chance.random() < 0.9
        member.leaving = chance.random() < 0.1
    return World(members)


def scenario(seed: int, only: list[str]) -> tuple[World, list[Any]]:
    there = world(seed)
    harms = Harms(there, random.Random(seed), only, most=6)  # type: ignore[arg-type]
    return there, harms.scenario()


@pytest.mark.parametrize("only", [list(KINDS), ["kill"], ["cut"], ["pair", "oneway"], ["stop"]])
def test_somebody_is_left_who_is_whole_and_not_at_risk(only: list[str]) -> None:
    made = 0
    for seed in range(400):
        there, harms = scenario(seed, only)
        made += len(harms)
        at_risk = {m.number for harm in harms for m in harm.risks}
        whole = [m for m in there.live if m.admitted and not m.leaving]
        if harms:
            assert [m for m in whole if m.number not in at_risk], seed
        for harm in harms:
            assert MASTER_HOST not in harm.hosts or harm.name.startswith("oneway")
            assert {m.number for m in there.on(harm.hosts)} <= {m.number for m in harm.risks}
    assert made > 100


def test_the_same_seed_makes_the_same_scenario_and_all_kinds_come() -> None:
    names = set()
    for seed in range(400):
        first, again = scenario(seed, list(KINDS))[1], scenario(seed, list(KINDS))[1]
        assert [h.name for h in first] == [h.name for h in again]
        names |= {h.name.split()[0].rstrip(":") for h in first}
    assert names == {kind.removesuffix("-kill").removesuffix("-stop") for kind in KINDS}


def test_a_fault_explains_what_comes_shortly_after_it_and_nothing_before_or_much_later() -> None:
    span = Span(10.0, 20.0)
    assert [span.holds(t) for t in (9.0, 10.0, 20.0, 25.0, 40.0)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert Span(10.0).holds(1000.0)
