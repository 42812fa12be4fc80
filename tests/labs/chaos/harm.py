"""What can be done to a run, and never more than its promises cover.

A scenario is up to three harms at once. Each says which members it puts at risk, with all ranks of
their replicas: these may be lost or evicted, and at least one member of whom that is not true,
connected to the masters and to all like it, is left. Harms to masters and etcds, and links that
still move bytes, put nobody at risk. Who may be evicted after a cut is said here alone: `hosts` of
a harm of links, in _cut, _pair and _one_way.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.masters import Server
from chaos.world import Member, Span, World

KINDS: tuple[str, ...] = ("kill", "stop", "leave", "join", "cut", "pair", "oneway", "slow")
KINDS += ("master-kill", "master-stop")
SEVERAL: tuple[str, ...] = ("standby-kill", "standby-stop", "etcd-kill", "etcd-stop")
KINDS += SEVERAL  # where there are several masters
LATEST_S = 3.0  # after the first harm of a scenario, in which the others begin


@dataclass
class Harm:
    """`begin` is called `after_s` into the scenario, `end` `lasts_s` later."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None] = lambda: None
    after_s: float = 0.0
    lasts_s: float = 0.0
    risks: list[Member] = field(default_factory=list)
    hosts: set[int] = field(default_factory=set)  # whose members are at risk, also those to come


class Harms:
    """Makes harms by chance; `only` names those that are wanted."""

    def __init__(self, world: World, chance: random.Random, only: list[str], most: int) -> None:
        self.world, self.random, self.most = world, chance, most
        self._only = only

    def scenario(self) -> list[Harm]:
        """One to three harms that leave somebody whole."""
        wanted = self.random.choices((1, 2, 3), (4, 3, 2))[0]
        found: list[Harm] = []
        at_risk: set[int] = set()
        for _ in range(10 * wanted):
            harm = self._make(self.random.choice(self._only))
            if harm is None or any(h.name.split()[0] == harm.name.split()[0] for h in found):
                continue
            harm.risks = self.world.whole(harm.risks)
            risks = at_risk | {m.number for m in harm.risks}
            if not [m for m in self._whole() if m.number not in risks]:
                continue
            harm.after_s = 0.0 if not found else self.random.uniform(0, LATEST_S)
            found.append(harm)
            at_risk = risks
            if len(found) == wanted:
                break
        return found

    def _whole(self) -> list[Member]:
        return [m for m in self.world.live if m.admitted and not m.leaving and not m.stopped]

    def _pick(self) -> Member | None:
        whole = self._whole()
        return self.random.choice(whole) if whole else None

    def _make(self, kind: str) -> Harm | None:
        makers = [self._kill, self._stop, self._leave, self._join, self._cut, self._pair]
        makers += [self._one_way, self._slow]
        if kind in KINDS[: len(makers)]:
            return makers[KINDS.index(kind)]()
        who, what = kind.split("-")
        masters = self.world.masters
        servers = {"master": masters.in_charge, "standby": masters.standby, "etcd": self._an_etcd}
        server = servers[who]()
        if server is None:
            return None
        return self._server_kill(who, server) if what == "kill" else self._server_stop(who, server)

    # -------------------------------------------------------------------------- processes

    def _kill(self) -> Harm | None:
        victim = self._pick()
        if victim is None:
            return None

        def begin() -> None:
            if victim.alive:
                victim.killed = True
                self.world.signal(victim, signal.SIGKILL)

        return Harm(f"kill member {victim.number}", begin, risks=[victim])

    def _stop(self) -> Harm | None:
        """For a moment, or for longer than the master waits."""
        victim = self._pick()
        if victim is None:
            return None
        patience = self.world.options.evict_after_s
        long = self.random.random() < 0.5
        span = self.random.uniform(patience, patience + 4) if long else self.random.uniform(0.1, 2)

        def begin() -> None:
            victim.stopped = True
            self.world.signal(victim, signal.SIGSTOP)

        def end() -> None:
            victim.stopped = False
            self.world.signal(victim, signal.SIGCONT)

        name = f"stop member {victim.number} for {span:.1f} s"
        return Harm(name, begin, end, lasts_s=span, risks=[victim])

    def _leave(self) -> Harm | None:
        victim = self._pick()
        if victim is None:
            return None

        def begin() -> None:
            if victim.alive:
                for member in self.world.whole([victim]):
                    member.leaving = True
                self.world.signal(victim, signal.SIGTERM)

        return Harm(f"leave: SIGTERM to member {victim.number}", begin, risks=[victim])

    def _join(self) -> Harm | None:
        if len(self.world.live) >= self.most:
            return None
        hosts = self.least_used_hosts()
        words = " and ".join(map(str, sorted(set(hosts))))
        return Harm(f"join on host {words}", lambda: void(self.world.start_replica(hosts)))

    def least_used_hosts(self) -> list[int]:
        """For the ranks of a replica: one host, or each another one."""
        size = self.world.options.replica_size
        used = {h: len(self.world.on({h})) for h in self.world.member_hosts}
        spread = size > 1 and self.random.random() < 0.5
        found: list[int] = []
        for _ in range(size):
            if not found or spread:
                fewest = min(used.values())
                found.append(self.random.choice([h for h in used if used[h] == fewest]))
            else:
                found.append(found[0])
            used[found[-1]] += 1
        return found

    # -------------------------------------------------------------------------- links

    def _span(self, longest_s: float) -> float:
        """Of a cut: shorter than anything notices, or so long that it is noticed."""
        patience = self.world.options.evict_after_s
        if self.random.random() < 0.4:
            return self.random.uniform(0.3, patience / 2)
        return self.random.uniform(patience, longest_s)

    def _unreachable_s(self) -> float:
        """Between two members only TCP notices it: the master hears both."""
        return self.world.options.user_timeout_s + 5

    def _member_host(self) -> int:
        return self.random.choice(self.world.member_hosts)

    def _cut(self) -> Harm | None:
        """One host is cut off from all others."""
        host, span = self._member_host(), self._span(2 * self.world.options.evict_after_s + 3)
        return Harm(
            f"cut host {host} off for {span:.1f} s",
            lambda: self.world.wan.partition(host),
            lambda: self.world.wan.heal(host),
            lasts_s=span,
            risks=self.world.on({host}),
            hosts={host},
        )

    def _pair(self) -> Harm | None:
        """Two hosts cannot reach each other; the master reaches both."""
        a, b, span = self._member_host(), self._member_host(), self._span(self._unreachable_s())
        if a == b:
            return None
        return Harm(
            f"pair: hosts {a} and {b} cut for {span:.1f} s",
            lambda: self.world.wan.partition(a, b),
            lambda: self.world.wan.heal(a, b),
            lasts_s=span,
            risks=self.world.on({a, b}),
            hosts={a, b},
        )

    def _one_way(self) -> Harm | None:
        """Packets of one host to another, perhaps the master's, are dropped; the others pass."""
        others = [*self.world.masters.hosts, *self.world.member_hosts]
        a, b = self._member_host(), self.random.choice(others)
        if a == b:
            return None
        if self.random.random() < 0.5:
            a, b = b, a
        span = self._span(self._unreachable_s())
        return Harm(
            f"oneway: host {a} to {b} cut for {span:.1f} s",
            lambda: self.world.wan.set(a, b, cut=1),
            lambda: self.world.wan.set(a, b, cut=0),
            lasts_s=span,
            risks=self.world.on({a, b}),
            hosts={a, b},
        )

    def _slow(self) -> Harm | None:
        """All links of a host: late, lossy and narrow, down to a crawl, but they move bytes."""
        host, span = self._member_host(), self.random.uniform(2, 10)
        bad = {
            "delay_ms": self.random.uniform(20, 150),
            "loss_pct": self.random.uniform(0, 1),
            "rate_mbit": 10 ** self.random.uniform(0, 2),
        }
        o = self.world.options
        good = {"delay_ms": o.rtt_ms / 2, "loss_pct": 0.0, "rate_mbit": o.rate_mbit}

        def put(settings: dict[str, float]) -> None:
            for other in self.world.wan.hosts:
                if other != host:
                    self.world.wan.set(host, other, both=True, **settings)

        words = ", ".join(f"{name} {value:.1f}" for name, value in bad.items())
        name = f"slow host {host} for {span:.1f} s: {words}"
        return Harm(name, lambda: put(bad), lambda: put(good), lasts_s=span)

    # -------------------------------------------------------------------------- masters and etcds

    def _an_etcd(self) -> Server | None:
        """One at a time: of three, two are needed."""
        etcds = self.world.masters.etcds
        return self.random.choice(etcds) if etcds else None

    def _server_kill(self, who: str, server: Server) -> Harm | None:
        away_s = self.random.choice((0.0, self.random.uniform(0, 10)))
        outage = Span(0.0)

        def begin() -> None:
            outage.begin = time.time()
            self.world.outages.append(outage)
            server.kill()

        def end() -> None:
            outage.end = time.time()
            self.world.start_server(server)

        name = f"{who}: {server.name} killed, started again after {away_s:.1f} s"
        return Harm(name, begin, end, lasts_s=away_s)

    def _server_stop(self, who: str, server: Server) -> Harm | None:
        span = self.random.uniform(0.2, 2 * self.world.options.evict_after_s)
        outage = Span(0.0)

        def begin() -> None:
            outage.begin = time.time()
            self.world.outages.append(outage)
            server.signal(signal.SIGSTOP)

        def end() -> None:
            outage.end = time.time()
            server.signal(signal.SIGCONT)

        return Harm(f"{who}: {server.name} stopped for {span:.1f} s", begin, end, lasts_s=span)


def void(_: object) -> None:
    return None
