"""The main job on real text: `python -m pccl_backend.demo`.

A `pccl-master` and three workers train a small byte-level GPT by DiLoCo on the sources of Python's
standard library. This process kills one of them with SIGKILL in the middle of a reduction, later
starts a new one, shows what happens, and judges the workers' own records. Then it runs the same
without faults, to compare. The exit status is 0 if every claim of the summary holds. This process
takes no part in the training.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._config import OF_TOKENS
from .seen import COLUMNS, Kill, Worker, headline, step_of

WORKERS = 3
LIMIT_S = 120.0  # two quiet cores take less than two seconds for a step
TAKES = "about 90 s on two cores"
POLL_S = 0.001
UNCOMMITTED_S = 0.5  # a commit reaches everybody on this machine in a few milliseconds
WITNESS_S = 5.0


class DemoFailedError(Exception):
    """The demo could not go on; the text says why."""


class Show:
    """Progress, as lines with the time since the start."""

    def __init__(self, out: Path) -> None:
        """Opens `out`/progress.log, which gets the lines too."""
        self.began = time.monotonic()
        self._file = (out / "progress.log").open("w", buffering=1)

    def __call__(self, text: str) -> None:
        """Shows one text, in lines that no terminal wraps."""
        first = f"{time.monotonic() - self.began:6.1f} s  "
        for line in textwrap.wrap(
            text, COLUMNS, initial_indent=first, subsequent_indent=" " * len(first)
        ):
            print(line, flush=True)
            self._file.write(line + "\n")


class Demo:
    """The processes and the story; without `faults` the same run with nothing happening to it."""

    def __init__(
        self, out: Path, steps: int, every: int, show: Show, limit_s: float, *, faults: bool
    ) -> None:
        """Files go to `out`."""
        self.out, self.steps, self.every, self.limit_s = out, steps, every, limit_s
        self.show, self.faults = show, faults
        self.master: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.workers: list[Worker] = []
        self.kill: Kill | None = None
        self.join_time: float | None = None
        self._bytes_moved: dict[int, int] = {}
        self._steps_done = 0
        self._last_step = 0.0

    # -------------------------------------------------------------------------- processes

    def start_master(self) -> None:
        """Starts `pccl-master` on a free port."""
        self._last_step = time.monotonic()
        port_file = self.out / "port"
        command = [sys.executable, "-m", "pccl_backend._cli", "--listen", "127.0.0.1:0"]
        command += ["--min-peers", str(WORKERS), "--run", "demo"]
        command += ["--state", str(self.out / "register"), "--port-file", str(port_file)]
        with (self.out / "master.log").open("wb") as log:
            self.master = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait(lambda: port_file.exists() and port_file.read_text().strip(), "the master")
        self.url = f"pccl://127.0.0.1:{port_file.read_text().strip()}/demo"
        if self.faults:
            self.show(f"master: process {self.master.pid}, {self.url}")

    def start_worker(self, join_with: Path | None = None) -> Worker:
        """Starts the next worker; it joins at once, or when that file is there."""
        number = len(self.workers)
        command = [sys.executable, "-m", "pccl_backend.demo.worker", self.url]
        command += [str(number), str(self.steps), str(self.every), str(self.out)]
        command += [] if join_with is None else ["--join-with", str(join_with)]
        log_path = self.out / f"worker-{number}.log"
        environment = {n: v for n, v in os.environ.items() if n not in OF_TOKENS}
        environment["OMP_NUM_THREADS"] = "1"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        worker = Worker(number, process, self.out / f"worker-{number}.jsonl", log_path)
        self.workers.append(worker)
        if self.faults:
            self.show(f"worker {number}: process {process.pid} started")
        return worker

    def close(self) -> None:
        """Ends whatever still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
                worker.process.wait()
        if self.master is not None and self.master.poll() is None:
            self.master.terminate()
            try:
                self.master.wait(10)
            except subprocess.TimeoutExpired:
                self.master.kill()
                self.master.wait()

    # -------------------------------------------------------------------------- waiting

    def wait(self, condition: Callable[[], Any], what: str, poll_s: float = 0.05) -> None:
        """Shows progress until `condition` holds."""
        while not condition():
            self.progress()
            self.check(what)
            time.sleep(poll_s)

    def check(self, what: str) -> None:
        """Stops the demo when it cannot go on."""
        steps_done = sum(worker.step for worker in self.workers)
        if steps_done != self._steps_done:
            self._steps_done, self._last_step = steps_done, time.monotonic()
        elif time.monotonic() - self._last_step > self.limit_s:
            raise DemoFailedError(f"waiting for {what}: no step in {self.limit_s:.0f} s")
        if self.master is not None and self.master.poll() is not None:
            raise DemoFailedError(f"the master has ended; see {self.out / 'master.log'}")
        for worker in self.workers:
            status = worker.process.poll()
            killed = self.kill is not None and self.kill.worker == worker.number
            if status not in (None, 0) and not killed:
                tail = worker.log_path.read_text(errors="replace")[-2000:]
                raise DemoFailedError(f"worker {worker.number} ended with {status}:\n{tail}")

    def progress(self) -> None:
        """Shows what is new in the records."""
        for worker in self.workers:
            for record in worker.read():
                self.show_record(worker, record)

    def show_record(self, worker: Worker, record: dict[str, Any]) -> None:
        """Prints one line for a record, if people want to see records of its kind."""
        if record["what"] == "step":
            sent = record["counters"].get("bytes_sent", 0)
            self._bytes_moved[worker.number] = sent
        if not self.faults:
            return
        leader = min(w.number for w in self.workers if w.process.poll() is None)
        if record["what"] == "shared" and worker.number == leader and worker.of("step"):
            step = worker.of("step")[-1]
            members = " ".join(str(number) for number in step["contributors"])
            total = sum(self._bytes_moved.values()) / 1e6
            self.show(
                f"step {record['step']:3d}  loss {record['loss']:.3f}  "
                f"by workers {members:7s}  epoch {step['epochs'][1]:6s} {total:6.0f} MB sent"
            )
        elif record["what"] == "boundary" and record["admitted"] and worker.number >= WORKERS:
            self.show(
                f"worker {worker.number} has joined at step {record['revision']}: it fetched "
                f"{record['bytes_received'] / 1e6:.1f} MB of shared state"
            )
        elif record["what"] == "final":
            self.show(f"worker {worker.number} is done, model {record['hashes']['model'][:16]}")

    # -------------------------------------------------------------------------- the kill

    def kill_in_the_middle(self) -> None:
        """SIGKILL to the first worker that is caught with a half-sent reduction."""
        self.show("looking for a worker that is half way through sending, to kill it")
        turn = 0
        while self.kill is None:
            self.progress()
            self.check("reduction that could be caught")
            victim = self.workers[turn % WORKERS]
            turn += 1
            if half_sent(victim.status()) is not None:
                self.kill = self.try_to_kill(victim)
            time.sleep(POLL_S)
        kill = self.kill
        survivors = [w for w in self.workers if w.number != kill.worker]
        self.wait(lambda: all(step_of(w, kill) for w in survivors), "result", POLL_S)
        self.show(headline(kill, survivors))

    def try_to_kill(self, victim: Worker) -> Kill | None:
        """Stops the victim, looks whether it is half-way, and kills it or lets it go on."""
        pid = victim.process.pid
        stopped = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            self.wait(lambda: is_stopped(pid), "stopped worker", POLL_S)
            status = victim.status()
            operation = half_sent(status)
            others = [w for w in self.workers if w is not victim]
            if status is None or operation is None or not self.uncommitted(operation, others):
                return None
            victim.process.kill()
            killed = time.monotonic()
            victim.process.wait()
            sent = int(operation["bytes_sent"])
            return Kill(
                victim.number, str(operation["op"]), sent, str(status["epoch"]), stopped, killed
            )
        finally:
            if victim.process.poll() is None:
                os.kill(pid, signal.SIGCONT)

    def uncommitted(self, operation: dict[str, Any], others: list[Worker]) -> bool:
        """Do all others have this operation in flight, and keep having it with the victim stopped?

        Had the victim completed its part, all others would have the commit by then. One of them is
        not done either: had the victim sent all that they need, its contribution would count.
        """
        deadline = time.monotonic() + WITNESS_S
        since: float | None = None
        while time.monotonic() < deadline:
            seen = [in_flight(other.status(), operation["op"]) for other in others]
            if all(seen) and not all(o["complete"] for o in seen if o):
                since = time.monotonic() if since is None else since
                if time.monotonic() - since > UNCOMMITTED_S:
                    return True
            elif since is not None:
                return False
            time.sleep(POLL_S)
        return False

    # -------------------------------------------------------------------------- the story

    def run(self) -> None:
        """Runs the demo, from the first process to the last."""
        self.start_master()
        for _ in range(WORKERS):
            self.start_worker()
        first, second = self.steps // 4, self.steps // 2
        self.wait(lambda: self.workers[0].step >= first, f"step {first}")
        self.kill_in_the_middle()
        assert self.kill is not None
        survivors = [w for w in self.workers if w.number != self.kill.worker]
        now = self.out / "worker-3.join"
        newcomer = self.start_worker(join_with=now)
        self.wait(lambda: all(w.step >= second for w in survivors), f"step {second}")
        now.touch()
        self.show(f"worker {newcomer.number} asks to join")
        self.wait(lambda: any(b["admitted"] for b in newcomer.of("boundary")), "admission")
        self.join_time = next(b for b in newcomer.of("boundary") if b["admitted"])["time"]
        members = [*survivors, newcomer]
        self.wait(lambda: all(w.process.poll() is not None for w in members), "end")
        self.progress()

    def run_without_faults(self) -> None:
        """The same master, workers and seeds, and nothing happens."""
        self.start_master()
        for _ in range(WORKERS):
            self.start_worker()
        self.wait(lambda: all(w.process.poll() is not None for w in self.workers), "end")
        self.progress()


def half_sent(status: dict[str, Any] | None) -> dict[str, Any] | None:
    """The operation of which bytes have left and whose part is not complete."""
    for operation in [] if status is None else status["operations"]:
        if operation["bytes_sent"] > 0 and not operation["complete"]:
            return dict(operation)
    return None


def in_flight(status: dict[str, Any] | None, operation: str) -> dict[str, Any] | None:
    """The entry of an operation in this status; None if it is not in flight."""
    found = [] if status is None else status["operations"]
    return next((dict(o) for o in found if o["op"] == operation), None)


def is_stopped(pid: int) -> bool:
    """Has the process taken the SIGSTOP?"""
    found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    if found == pid and not os.WIFSTOPPED(status):
        raise DemoFailedError(f"process {pid} ended with {status} when it was stopped")
    return found == pid


def main(argv: list[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pccl_backend.demo",
        description="A master and three workers train a byte-level GPT by DiLoCo; one worker is "
        "killed in the middle of a reduction, a new one joins. Exit status 0 if all claims hold.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for all files")
    parser.add_argument("--steps", type=int, default=40, help="outer steps (at least 8)")
    parser.add_argument("--every", type=int, default=20, help="inner steps in each outer step")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_S,
        help="seconds without a step, after which the demo gives up (default %(default).0f)",
    )
    a = parser.parse_args(argv)
    if a.steps < 8 or a.every < 1:
        parser.error("expected --steps of at least 8 and --every of at least 1")
    a.out.mkdir(parents=True, exist_ok=True)
    again = a.out / "without-faults"
    again.mkdir(exist_ok=True)
    for folder in (a.out, again):
        for pattern in ("worker-*", "port", "register*", "*.log", "summary.*", "loss.*"):
            for old in folder.glob(pattern):
                old.unlink()

    from .summary import judge

    show = Show(a.out)
    takes = f" ({TAKES})" if a.steps == parser.get_default("steps") else ""
    show(
        f"three workers train a small GPT{takes}; one is killed, one joins; then the same again "
        "without faults, to compare"
    )
    demo = Demo(a.out, a.steps, a.every, show, a.limit, faults=True)
    twin = Demo(again, a.steps, a.every, show, a.limit, faults=False)
    failure = ""
    try:
        demo.run()
        demo.close()
        show("the same again, without faults")
        twin.run_without_faults()
    except DemoFailedError as error:
        failure = str(error)
    finally:
        demo.close()
        twin.close()
    if failure:
        print(f"the demo could not go on: {failure}", file=sys.stderr)
        return 1
    return 0 if judge(demo, twin) else 1


if __name__ == "__main__":
    sys.exit(main())
