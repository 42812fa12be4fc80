"""A chaos run: `scripts/chaos --minutes 30 --seed 1`, with real processes over the emulated WAN.

A master and members that train. By chance, but the same for one seed, members are killed, stopped,
cut off, asked to leave and started, links get bad, the master dies. After each scenario everybody
who lives must make progress within a deadline. At the end the checker compares all bits. Exit
status: 0 if everything holds, 1 if not, 2 for wrong arguments, 77 where no network can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import time
from pathlib import Path

from carriers import CARRIERS
from chaos import checker
from chaos.harm import KINDS, SEVERAL, Harm, Harms
from chaos.world import EVICTED, ROOT, Member, Options, Span, World
from wan.wan import Wan, WanError

NO_NAMESPACES = 77  # exit status
POLL_S = 0.02
SAY_EVERY_S = 3.0
START_EVERY_S = 2.0  # between two new members: each loads torch, on the same cores
CALM_STEPS = 2  # that everybody makes after a scenario
FIRST_DEADLINE_S = 120.0


class ChaosError(Exception):
    """A promise was broken; the text says which."""


class Chaos:
    def __init__(self, world: World, arguments: argparse.Namespace) -> None:
        self.world, self.arguments = world, arguments
        self.random = random.Random(arguments.seed)
        self.size = world.options.replica_size  # members: always whole replicas
        self.least = world.founders * self.size
        self.most = max(self.least, replicas_max(world.options) * self.size)
        self.target = self.least
        self.harms = Harms(world, self.random, arguments.only, self.most)
        self.healed = time.time()
        self.doing: list[str] = []
        self.scenarios = 0
        self._said = self._started = 0.0

    # -------------------------------------------------------------------------- the story

    def run(self) -> None:
        for server in [*self.world.masters.etcds, *self.world.masters.all]:
            self.world.start_server(server)
        for _ in range(self.world.founders):
            self.world.start_replica(self.harms.least_used_hosts())
        self.calm(FIRST_DEADLINE_S)
        end = self.world.began + 60 * self.arguments.minutes
        while time.time() < end or self.scenarios == 0:  # also where starting took all the time
            self.target = self.random.randrange(self.least, self.most + 1, self.size)
            self.wait(self.random.uniform(0, 1.5))
            scenario = self.harms.scenario()
            if not scenario:
                continue
            self.scenarios += 1
            self.strike(scenario)
            self.calm(self.arguments.deadline)
        self.finish()

    def strike(self, scenario: list[Harm]) -> None:
        """Begins and ends the harms of a scenario, each at its time."""
        began = time.time()
        times: list[tuple[float, int, Harm, Span]] = []
        for i, harm in enumerate(scenario):
            span = Span(0.0)
            times.append((harm.after_s, 2 * i, harm, span))
            times.append((harm.after_s + harm.lasts_s, 2 * i + 1, harm, span))
        for at_s, number, harm, span in sorted(times, key=lambda t: t[:2]):
            self.wait(began + at_s - time.time())
            if number % 2 == 0:
                span.begin = time.time()
                for member in harm.risks:
                    member.risks.append(span)
                for host in harm.hosts:
                    self.world.risks[host].append(span)
                self.world.note("harm", name=harm.name)
                self.doing.append(harm.name)
                harm.begin()
            else:
                harm.end()
                span.end = time.time()
                if harm.lasts_s > 0:
                    self.world.note("harm is over", name=harm.name)
        self.healed = time.time()

    def calm(self, deadline_s: float) -> None:
        """Waits until everybody who lives has made progress, and enough of them do live."""
        seen = max((m.step for m in self.world.live), default=0)
        while True:
            waits = [m for m in self.world.live if m.leaving or m.step < seen + CALM_STEPS]
            if not waits and len(self.world.live) >= self.least:
                return
            now = time.time()
            late = [m for m in waits if now > max(self.healed, m.began) + deadline_s]
            if late:
                self.hangs(late, deadline_s)
            self.turn()

    def hangs(self, late: list[Member], deadline_s: float) -> None:
        now = time.time()
        self.world.where_they_hang(self.world.live)
        time.sleep(1.0)
        said = [
            f"member {m.number} (host {m.host}) stands still for {now - m.heard:.0f} s, its "
            f"last record is {m.last!r} at step {m.step}{', it is to leave' if m.leaving else ''}"
            for m in late
        ]
        raise ChaosError(f"{deadline_s:.0f} s after the last harm is over: {'; '.join(said)}")

    def finish(self) -> None:
        """Asks everybody to end; they do it in the same step."""
        self.target = 0
        (self.world.folder / "stop").touch()
        began = time.time()
        while self.world.live:
            if time.time() > began + self.arguments.deadline:
                self.healed = began
                self.hangs(self.world.live, self.arguments.deadline)
            self.turn()
        if wrong := self.world.masters.finish():
            raise ChaosError("; ".join(wrong))

    # -------------------------------------------------------------------------- turns

    def wait(self, span_s: float) -> None:
        end = time.time() + span_s
        while time.time() < end:
            self.turn()

    def turn(self) -> None:
        self.world.look()
        if self.world.wrong and not self.arguments.keep_going:
            raise ChaosError(self.world.wrong[0])
        now = time.time()
        missing = self.target - len([m for m in self.world.live if not m.leaving])
        if missing > 0 and now - self._started > START_EVERY_S * self.size:
            self._started = now
            started = self.world.start_replica(self.harms.least_used_hosts())
            self.doing.append(f"member {' and '.join(str(m.number) for m in started)} starts")
        if now - self._said > SAY_EVERY_S:
            self._said = now
            self.progress()
        time.sleep(POLL_S)

    def progress(self) -> None:
        at_s = time.time() - self.world.began
        steps = [m.step for m in self.world.live if m.admitted]
        names = ["-" + str(m.number) if not m.admitted else str(m.number) for m in self.world.live]
        doing, self.doing = "; ".join(self.doing), []
        step = max(steps, default=0)
        print(f"{at_s:7.1f} s  step {step:5d}  members {' '.join(names)}  {doing}", flush=True)


def founders(options: Options) -> int:
    """Replicas with which a run begins."""
    return max(2, options.hosts // options.replica_size)


def replicas_max(options: Options) -> int:
    return max(founders(options) + 1, options.hosts * options.per_host // options.replica_size)


# ------------------------------------------------------------------------------ command


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Real processes over an emulated WAN: members and the master are killed, "
        "stopped and cut off by chance; all bits are compared with a reference. Needs root and "
        "/dev/net/tun. Exit status 0: all holds; 1: not; 77: namespaces cannot be made here.",
    )
    add = parser.add_argument
    defaults = Options()
    add("--minutes", type=float, default=30.0)
    add("--seed", type=int, default=1)
    add("--hosts", type=int, default=defaults.hosts, help="of members; at least 2")
    add("--per-host", type=int, default=defaults.per_host, help="members at most")
    add("--replica-size", type=int, default=1, help="ranks of a replica; it goes as a whole")
    add("--masters", type=int, default=1, help="several share an etcd cluster (etcd-server)")
    add("--evict-after", type=float, default=defaults.evict_after_s, help="option of the master")
    add("--user-timeout", type=float, default=defaults.user_timeout_s, help="option of members")
    add("--rtt-ms", type=float, default=defaults.rtt_ms)
    add("--rate-mbit", type=float, default=defaults.rate_mbit)
    add("--deadline", type=float, default=60.0, help="seconds for progress after a scenario")
    add("--only", nargs="+", choices=KINDS, default=list(KINDS), help="what is done")
    add("--without", nargs="+", choices=KINDS, default=[], help="what is not done")
    add("--keep-going", action="store_true", help="after an exit that nothing explains")
    add("--out", type=Path, help="folder for logs and records (default: build/chaos/seed-N)")
    add("--log-level", default=defaults.log_level, help="of the engines")
    add(
        "--carrier",
        default=defaults.carrier,
        choices=list(CARRIERS),
        help="of data; memory: of one host",
    )
    add("--check", type=Path, metavar="FOLDER", help="judge the records of an earlier run again")
    a = parser.parse_args(argv)
    left_out = [*a.without, *(SEVERAL if a.masters == 1 else ())]
    a.only = [kind for kind in a.only if kind not in left_out]
    if a.hosts < 2 or a.per_host < 1 or not a.only or a.minutes < 0:
        parser.error("expected --hosts of at least 2, --per-host of at least 1, something to do")
    if a.replica_size < 1 or a.masters < 1:
        parser.error("expected --replica-size and --masters of at least 1")
    return a


def why_not(masters: int = 1) -> str:
    """Why no network can be emulated here; "" if one can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "it needs /dev/net/tun, which is not there or cannot be opened"
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    if not any(line.split()[4] == "/" for line in mounts):  # `ip netns exec` changes that mount
        return "it needs / to be a mount, which it is not in a chroot"
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]
    needed = ["ip", compiler, *(["etcd"] if masters > 1 else [])]
    missing = [name for name in needed if not shutil.which(name)]
    packages = "(Debian: iproute2, g++, etcd-server)"
    return f"it needs {' and '.join(missing)} {packages}" if missing else ""


def judge(chaos: Chaos, failure: str, seconds: float) -> bool:
    """Checks the records, writes summary.json, prints what came of it."""
    world = chaos.world
    records = checker.read(world.folder)
    verdict = checker.check(records, print)
    wrong = [*([failure] if failure else []), *world.wrong, *verdict.contradictions]
    wrong = list(dict.fromkeys(wrong))
    statuses = [m.process.poll() for m in world.members]
    summary = {
        "seed": chaos.arguments.seed,
        "holds": not wrong,
        "wrong": wrong,
        "seconds": round(seconds, 1),
        "scenarios": chaos.scenarios,
        "members": verdict.members,
        "steps": verdict.steps,
        "operations": verdict.operations,
        "operations_with_fewer": verdict.with_fewer,
        "messages": verdict.messages,
        "messages_failed": verdict.messages_failed,
        "groups": verdict.groups,
        "groups_failed": verdict.groups_failed,
        "killed": sum(m.killed for m in world.members),
        "evicted": sum(status == EVICTED for status in statuses),
        "left": world.counts.get("left", 0),
        "masters": world.counts.get("master starts", 0),
        "final": verdict.final,
    }
    (world.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    figures = ", ".join(f"{name} {summary[name]}" for name in list(summary)[3:-1])
    print(f"seed {chaos.arguments.seed}: {figures}")
    if wrong:
        print(f"FAILED, seed {chaos.arguments.seed}; logs and records: {world.folder}")
        for text in wrong:
            print(f"  {text}")
    else:
        print(f"holds: all members end with the reference's bits, {verdict.final[:16]}")
    return not wrong


def judge_again(folder: Path) -> int:
    verdict = checker.check(checker.read(folder), print)
    print(
        f"{verdict.steps} steps, {verdict.operations} operations, {verdict.messages} messages "
        f"({verdict.messages_failed} lost), {verdict.groups} uses of groups of some ranks "
        f"({verdict.groups_failed} failed), {verdict.members} members"
    )
    print("\n".join(verdict.contradictions) or "no contradiction")
    return 1 if verdict.contradictions else 0


def main(argv: list[str] | None = None) -> int:
    a = parse(argv)
    if a.check:
        return judge_again(a.check)
    reason = why_not(a.masters)
    if reason:
        print(f"chaos: no network can be emulated here: {reason}", file=sys.stderr)
        return NO_NAMESPACES
    folder = (a.out or ROOT / "build" / "chaos" / f"seed-{a.seed}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = Options(
        a.hosts,
        a.per_host,
        a.replica_size,
        a.masters,
        evict_after_s=a.evict_after,
        rtt_ms=a.rtt_ms,
        rate_mbit=a.rate_mbit,
        user_timeout_s=a.user_timeout,
        log_level=a.log_level,
        carrier=a.carrier,
    )
    failure = ""
    try:
        count = options.other_hosts + a.hosts
        network = Wan(count, seed=a.seed, rtt_ms=a.rtt_ms, rate_mbit=a.rate_mbit)
        network.up()
    except (WanError, OSError) as error:
        print(f"chaos: no network can be emulated here: {error}", file=sys.stderr)
        return NO_NAMESPACES
    try:
        world = World(folder, options, network, founders(options))
        chaos = Chaos(world, a)
        print(f"seed {a.seed}, records in {folder}", flush=True)
        try:
            chaos.run()
        except ChaosError as error:
            failure = str(error)
        finally:
            seconds = time.time() - world.began
            world.close()
    finally:
        network.down()
    return 0 if judge(chaos, failure, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
