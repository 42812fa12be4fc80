"""What does a loss cost, and what a newcomer? Real processes, killed and started again.

Each worker holds a state (it is held, not reduced) and two data-loader workers, and issues
all-reduces back to back. One is killed at a random moment; then a new one starts. Measured, on the
one clock of the machine:

  recovery       from SIGKILL until the last survivor has its first all-reduce of the new epoch
  vote           how long the survivors' boundary after the loss took: they hash the state
  admission      from the start of a newcomer's process to the end of its first all-reduce
  stood still    the longest time without an all-reduce at the members while it was admitted

    python benchmarks/recovery.py                                        # world 3, 1 GiB, 50 times
    python benchmarks/recovery.py --world 8 --state-mib 128 --times 20
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from option_types import above_zero, whole

from pccl_backend.demo.growing_file import GrowingFile

LIMIT_S = 180.0  # for anything that is waited for
POLL_S = 0.01
KEPT = 100  # lines of a worker, from one kill to the next
OPERATIONS = 20  # between two boundaries


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--world", type=whole(2), default=3, help="workers (default 3)")
    p.add_argument("--state-mib", type=whole(1), default=1024, help="state of each (default 1024)")
    p.add_argument("--times", type=whole(1), default=50, help="kills (default 50)")
    p.add_argument("--mib", type=above_zero, default=4.0, help="of an all-reduce (default 4)")
    p.add_argument("--seed", type=int, default=1, help="of victims and moments (default 1)")
    p.add_argument("--json", help="also write the figures to this file")
    p.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    p.add_argument("--url", help=argparse.SUPPRESS)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return p.parse_args()


# ------------------------------------------------------------------------------ a worker


def work(a: argparse.Namespace) -> None:
    """Trains until it is killed; one line for each boundary and each all-reduce."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    file = (a.folder / f"worker-{a.worker}.jsonl").open("w", buffering=1)

    def say(what: str, **fields: Any) -> None:
        file.write(json.dumps({"what": what, "t": time.monotonic(), **fields}) + "\n")

    # Each with another content, so that a newcomer receives all of it.
    state: dict[str, Any] = {"step": 0, "held": torch.full((a.state_mib << 18,), float(a.worker))}
    pccl.join(a.url, timeout_s=LIMIT_S)
    data = torch.utils.data.TensorDataset(torch.arange(1_000_000.0))
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    batches = iter(loader)
    next(batches)
    say("ready")
    group = pccl.group()
    tensor = torch.ones(int(a.mib * (1 << 18)))
    while True:
        boundary = group.refresh(state)
        say("boundary", **vars(boundary))
        for _ in range(OPERATIONS):
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            say("op", epoch=group.epoch)
        state["step"] += 1


# ------------------------------------------------------------------------------ the driver


class Worker:
    """A worker's process and what it has written."""

    def __init__(self, number: int, url: str, folder: Path) -> None:
        """Starts it, with the arguments of this process."""
        self.number = number
        self.lines: list[dict[str, Any]] = []
        self._file = GrowingFile(folder / f"worker-{number}.jsonl")
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", str(number)]
        command += ["--url", url, "--folder", str(folder)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.began = time.monotonic()
        with (folder / f"worker-{number}.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        self.lines += [json.loads(line) for line in self._file.new_lines()]
        return self.lines

    def forget(self) -> None:
        """All but the last lines: they are searched again and again."""
        self.lines = self.read()[-KEPT:]

    def since(self, t: float, what: str) -> list[dict[str, Any]]:
        """Lines of one kind after a moment."""
        return [line for line in self.read() if line["what"] == what and line["t"] > t]


class Bench:
    """The processes, and what was measured."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        """Starts the master and the first workers."""
        self.a, self.folder = a, folder
        self.random = random.Random(a.seed)
        self.figures: dict[str, list[float]] = {}
        port_file = folder / "port"
        command = [sys.executable, "-m", "pccl_backend._cli", "--listen", "127.0.0.1:0"]
        command += ["--min-peers", str(a.world), "--state", str(folder / "register")]
        with (folder / "master.log").open("wb") as log:
            self.master = subprocess.Popen(
                [*command, "--port-file", str(port_file)], stdout=log, stderr=log
            )
        self.workers: list[Worker] = []
        self.wait(lambda: port_file.exists() and port_file.read_text().strip(), "the master")
        self.url = f"pccl://127.0.0.1:{port_file.read_text().strip()}"
        self.started = 0
        for _ in range(a.world):
            self.start()

    def start(self) -> Worker:
        """One more worker."""
        worker = Worker(self.started, self.url, self.folder)
        self.started += 1
        self.workers.append(worker)
        return worker

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Until `condition` holds; ends the benchmark if it never does."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            ended = [w.number for w in self.workers if w.process.poll() is not None]
            if ended or self.master.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"no {what}; ended: {ended}; logs in {self.folder}")
            time.sleep(POLL_S)

    def count(self, name: str, value: float) -> None:
        """Keeps a figure."""
        self.figures.setdefault(name, []).append(value)

    def run(self) -> None:
        """Kills and starts, `times` times."""
        self.wait(lambda: all(w.since(0, "op") for w in self.workers), "first all-reduce")
        for i in range(self.a.times):
            time.sleep(self.random.uniform(0.3, 1.5))
            self.lose()
            self.replace()
            last = {name: round(values[-1], 3) for name, values in self.figures.items()}
            print(f"{i + 1} of {self.a.times}: {last}", file=sys.stderr, flush=True)

    def lose(self) -> None:
        """Kills one and waits until the others go on, and have passed a boundary."""
        for worker in self.workers:
            worker.forget()
        victim = self.random.choice(self.workers)
        before = {w.number: w.since(0, "op")[-1]["epoch"] for w in self.workers}
        killed = time.monotonic()
        victim.process.send_signal(signal.SIGKILL)
        self.workers.remove(victim)
        victim.process.wait()

        def first(worker: Worker) -> float | None:
            lines = worker.since(killed, "op")
            return next((x["t"] for x in lines if x["epoch"] != before[worker.number]), None)

        self.wait(lambda: all(first(w) for w in self.workers), "all-reduce of a new epoch")
        self.count("recovery", max(first(w) or 0.0 for w in self.workers) - killed)
        fewer = self.a.world - 1

        def votes(worker: Worker) -> list[float]:
            lines = worker.since(killed, "boundary")
            return [x["paused_s"] for x in lines if x["voted"] and x["size"] == fewer]

        self.wait(lambda: all(votes(w) for w in self.workers), "boundary after the loss")
        self.count("vote", max(votes(w)[0] for w in self.workers))

    def replace(self) -> None:
        """Starts a newcomer and waits for its first all-reduce."""
        members = list(self.workers)
        newcomer = self.start()
        self.wait(lambda: newcomer.since(0, "op"), "first all-reduce of a newcomer")
        first = newcomer.since(0, "op")[0]["t"]
        self.count("admission", first - newcomer.began)
        self.wait(lambda: all(w.since(first, "op") for w in members), "members that go on")
        still = 0.0
        for w in members:
            times = [line["t"] for line in w.since(newcomer.began, "op")]
            still = max(still, *(b - a for a, b in itertools.pairwise(times)))
        self.count("stood still", still)

    def close(self) -> None:
        """Ends all processes."""
        for process in [*(w.process for w in self.workers), self.master]:
            process.kill()
            process.wait()


def table(a: argparse.Namespace, figures: dict[str, list[float]]) -> str:
    """The figures in Markdown."""
    lines = ["| world | state | what | median, s | worst, s | times |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, values in figures.items():
        lines.append(
            f"| {a.world} | {a.state_mib} MiB | {name} | {statistics.median(values):.3f} "
            f"| {max(values):.3f} | {len(values)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and prints the table."""
    a = arguments()
    if a.worker is not None:
        work(a)
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(a, Path(folder))
        try:
            bench.run()
        finally:
            bench.close()
    print(table(a, bench.figures))
    if a.json:
        Path(a.json).write_text(json.dumps(bench.figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
