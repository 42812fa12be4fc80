"""What the chaos test does to a run never exceeds what the promises cover."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos.harm import KINDS, Harms
from chaos.lines import STANDS_BY, TAKES_OVER
from chaos.masters import Masters
from chaos.world import MARGIN_S, Options, Span
from conftest import ROOT
from wan.wan import Wan

from pccl_backend.demo.growing_file import GrowingFile

MASTERS = 2
OPTIONS = Options(masters=MASTERS)
HOSTS = range(1, OPTIONS.other_hosts + OPTIONS.hosts + 1)
MEMBER_HOSTS = HOSTS[OPTIONS.other_hosts :]


@dataclass
class Member:
    number: int
    host: int
    replica: str = ""
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
    masters: Masters
    wan: Network = field(default_factory=Network)
    options: Options = field(default_factory=lambda: OPTIONS)
    member_hosts: tuple[int, ...] = tuple(MEMBER_HOSTS)

    def on(self, hosts: set[int]) -> list[Member]:
        return [m for m in self.live if m.host in hosts]

    def whole(self, members: list[Member]) -> list[Member]:
        replicas = {m.replica for m in members}
        return [m for m in self.live if m.replica in replicas]


def masters() -> Masters:
    """The first one is in charge; no process runs."""
    made = Masters(Wan(HOSTS[-1]), lambda *_: None, Path(), [], MASTERS)  # type: ignore[arg-type]
    for server in [*made.all, *made.etcds]:
        server.process = object()  # type: ignore[assignment]
    made.all[0].in_charge = True
    return made


def world(seed: int) -> World:
    chance = random.Random(seed)
    count, size = chance.randint(1, 6), chance.choice((1, 1, 2))
    members = [Member(i, chance.choice(MEMBER_HOSTS), f"{i // size}") for i in range(count)]
    for member in members:
        member.admitted = chance.random() < 0.9
        member.leaving = chance.random() < 0.1
    return World(members, masters())


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
            assert harm.hosts <= set(MEMBER_HOSTS) or harm.name.startswith("oneway")
            at_risk = {m.number for m in harm.risks}
            assert {m.number for m in there.on(harm.hosts)} <= at_risk
            assert {m.number for m in there.whole(harm.risks)} == at_risk
    assert made > 100


def test_the_same_seed_makes_the_same_scenario_and_all_kinds_come() -> None:
    names = set()
    for seed in range(400):
        first, again = scenario(seed, list(KINDS))[1], scenario(seed, list(KINDS))[1]
        assert [h.name for h in first] == [h.name for h in again]
        names |= {h.name.split()[0].rstrip(":") for h in first}
    assert names == {kind.removesuffix("-kill").removesuffix("-stop") for kind in KINDS}


def test_the_ranks_of_a_replica_share_a_host_or_have_each_another_one() -> None:
    placed = set()
    for seed in range(40):
        there = World([], masters(), options=Options(masters=MASTERS, replica_size=2))
        hosts = Harms(there, random.Random(seed), ["join"], 6).least_used_hosts()  # type: ignore[arg-type]
        assert set(hosts) <= set(MEMBER_HOSTS)
        placed.add(len(set(hosts)))
    assert placed == {1, 2}


def test_harms_to_masters_and_etcds_put_no_member_at_risk_and_name_whom_they_strike() -> None:
    names = set()
    for kind in ("master-kill", "standby-stop", "etcd-kill"):
        for seed in range(20):
            for harm in scenario(seed, [kind])[1]:
                assert harm.risks == []
                names.add(" ".join(harm.name.split()[:3]))
    assert {"master: master 0", "standby: master 1", "etcd: etcd 2"} <= names


def test_who_is_in_charge_is_read_from_the_logs_of_the_masters(tmp_path: Path) -> None:
    several = masters()
    for server in several.all:
        server.log = GrowingFile(tmp_path / server.name)

    def says(index: int, text: str) -> None:
        with several.all[index].log.path.open("a") as file:
            file.write(f"12:00:00.000 pccl[1] INFO {text}\n")
        several.all[index].look()

    def chief() -> list[str]:
        return [server.name for server in several.all if server.in_charge]

    says(0, "this master holds the lease of the run")
    says(1, "standing by: a (host, process 1) holds the lease of this run")
    assert chief() == ["master 0"]
    says(1, "this master holds the lease of the run")
    says(0, "this master is deposed: b holds the lease; it closes its connections and stands by")
    assert chief() == ["master 1"]


def test_the_words_are_those_of_the_master() -> None:
    source = (ROOT / "csrc" / "master" / "run_server.cpp").read_text()
    for words in (*TAKES_OVER, *STANDS_BY):
        assert words in source


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "log")
    assert file.new_lines() == []
    file.path.write_bytes(b"one\ntw")
    assert file.new_lines() == ["one"]
    assert file.new_lines() == []
    file.path.write_bytes(b"one\ntwo\nthree\n")
    assert file.new_lines() == ["two", "three"]


def test_a_fault_shows_shortly_after_its_end_or_when_a_master_that_is_back_has_waited() -> None:
    fault, patience_s = Span(10.0, 20.0), 15.0
    alone = fault.end + MARGIN_S
    assert fault.shows_until([], patience_s) == alone
    assert Span(10.0).shows_until([], patience_s) == float("inf")
    far_before, far_after = Span(-100.0, -50.0), Span(alone + 1, alone + 2)
    assert fault.shows_until([far_before, far_after], patience_s) == alone
    # The master is away when it happens, or waits for its members, or goes a moment later.
    for outage in (Span(0.0, 25.0), Span(0.0, 24.0), Span(15.0, 40.0), Span(alone - 1, 45.0)):
        assert fault.shows_until([outage], patience_s) == outage.end + patience_s + MARGIN_S
    # The next one goes before that one was patient to the end.
    chain = [Span(50.0, 60.0), Span(15.0, 40.0)]
    assert fault.shows_until(chain, patience_s) == 60.0 + patience_s + MARGIN_S
