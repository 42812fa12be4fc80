"""What can be done to a run, and never more than its promises cover.

A scenario is up to three harms at once. Each says which members it puts at risk: these may be lost
or evicted, and at least one member of whom that is not true, connected to the master and to all
like it, is left. Harms to the master, and links that still move bytes, put nobody at risk.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.world import MASTER_HOST, Member, Span, World

KINDS: tuple[str, ...] = ("kill", "stop", "leave", "join", "cut", "pair", "oneway", "slow")
KINDS += ("master-kill", "master-stop")
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
        makers += [self._one_way, self._slow, self._master_kill, self._master_stop]
        return makers[KINDS.index(kind)]()

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
                victim.leaving = True
                self.world.signal(victim, signal.SIGTERM)

        return Harm(f"leave: SIGTERM to member {victim.number}", begin, risks=[victim])

    def _join(self) -> Harm | None:
        if len(self.world.live) >= self.most:
            return None
        host = self.least_used_host()
        return Harm(f"join on host {host}", lambda: void(self.world.start_member(host)))

    def least_used_host(self) -> int:
        hosts = [h for h in self.world.wan.hosts if h != MASTER_HOST]
        fewest = min(len(self.world.on({h})) for h in hosts)
        return self.random.choice([h for h in hosts if len(self.world.on({h})) == fewest])

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
        return self.random.choice([h for h in self.world.wan.hosts if h != MASTER_HOST])

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
        a, b = self._member_host(), self.random.choice(list(self.world.wan.hosts))
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

    # -------------------------------------------------------------------------- the master

    def _master_kill(self) -> Harm | None:
        away_s = self.random.choice((0.0, self.random.uniform(0, 10)))

        def begin() -> None:
            master = self.world.master
            assert master is not None
            self.world.master = None
            master.kill()
            master.wait()
            self.world.outages.append(Span(time.time()))

        def end() -> None:
            self.world.outages[-1].end = time.time()
            self.world.start_master()

        name = f"master: killed, started again after {away_s:.1f} s"
        return Harm(name, begin, end, lasts_s=away_s)

    def _master_stop(self) -> Harm | None:
        span = self.random.uniform(0.2, 2 * self.world.options.evict_after_s)

        def put(number: int) -> None:
            if self.world.master is not None:
                self.world.master.send_signal(number)

        def begin() -> None:
            self.world.outages.append(Span(time.time()))
            put(signal.SIGSTOP)

        def end() -> None:
            self.world.outages[-1].end = time.time()
            put(signal.SIGCONT)

        return Harm(f"master: stopped for {span:.1f} s", begin, end, lasts_s=span)


def void(_: object) -> None:
    return None
