"""Does the order of the ring fit the network, however the members came?

Six members on two emulated continents (tests/labs/wan: needs root and /dev/net/tun). Members of one
continent reach each other at 400 Mbit/s and 2 ms, those of two at 40 Mbit/s and 80 ms, but for one
pair each way that has 100 Mbit/s. An all-reduce goes round as fast as the slowest link of its ring,
so the best possible ring crosses the ocean twice, over the two fast pairs.

  worst      the members join in turns, so that rank order crosses the ocean six times; the members
             measure their links while they train, and a boundary adopts a better ring
  best       the members join in the order of the best possible ring
  stays      as worst, with a master that keeps rank order (--ring rank)

Each call is timed behind a barrier; `before` are the calls up to the change of the ring, `in the
end` the last ones: links that come into use first find their rates.

    python benchmarks/topology.py
    python benchmarks/topology.py --kinds worst --mib 1 --slower 4 --calls 3  # a slow machine
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from option_types import above_zero, whole

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "labs"))
PORT = 48148
HOSTS = 6  # 1, 3, 5 on one side of the ocean, 2, 4, 6 on the other
FAST = [(5, 2), (6, 1)]  # the pairs, sender first, that cross it at 100 Mbit/s
ORDERS = {
    "worst": [1, 2, 3, 4, 5, 6],
    "best": [1, 3, 5, 2, 4, 6],
    "stays": [1, 2, 3, 4, 5, 6],
}
NEAR_MBIT, OCEAN_MBIT, FAST_MBIT = 400.0, 40.0, 100.0
CHANGED = re.compile(r"data go round in another order: ranks ([0-9, ]+);(.*)")


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kinds", nargs="+", default=list(ORDERS), choices=list(ORDERS))
    p.add_argument("--mib", type=whole(1), default=8, help="of the tensor (default 8)")
    p.add_argument("--slower", type=whole(1), default=1, help="all rates by this (default 1)")
    p.add_argument("--calls", type=whole(1), default=15, help="in the ring in the end (default 15)")
    p.add_argument("--limit-s", type=above_zero, default=300, help="of one kind (default 300)")
    p.add_argument("--number", type=int, help=argparse.SUPPRESS)
    p.add_argument("--url", help=argparse.SUPPRESS)
    return p.parse_args()


def member(a: argparse.Namespace) -> None:
    """All-reduces between boundaries; rank 0 prints the seconds of each call."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    pg = pccl.join(a.url, timeout_s=600.0)
    group = pccl.group(pg)
    state = pccl.SharedState(step=0)
    tensor = torch.ones(a.mib << 18)
    goes_on = torch.ones(1)
    while goes_on.item() > 0:
        group.refresh(state)
        state["step"] += 1
        dist.barrier(pg)
        began = time.perf_counter()
        dist.all_reduce(tensor, dist.ReduceOp.AVG, pg)
        seconds = time.perf_counter() - began
        assert tensor[0].item() == 1.0
        if pg.rank() == 0:
            print(json.dumps({"at": time.time(), "seconds": seconds}), flush=True)
            goes_on.fill_(0 if Path(f"{os.environ['STOP']}").exists() else 1)
        dist.broadcast(goes_on, group=pg, group_src=0)
    group.leave()
    dist.destroy_process_group()


class Lines:
    """What a process has written to a file so far, with the time at which each line was seen."""

    def __init__(self, path: Path) -> None:
        """Of the process that writes to this file."""
        self.path, self.seen = path, 0
        self.lines: list[tuple[float, str]] = []

    def look(self) -> list[tuple[float, str]]:
        """All of them so far."""
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        self.lines += [(time.time(), line) for line in whole[self.seen :]]
        self.seen = len(whole)
        return self.lines


def measure(a: argparse.Namespace, kind: str, folder: Path) -> dict[str, Any]:
    """One run: the seconds of the calls before and after the change of the ring."""
    from wan.wan import Wan

    with Wan(HOSTS + 1, rate_mbit=OCEAN_MBIT / a.slower, rtt_ms=80) as wan:
        for one in range(1, HOSTS + 2):
            for other in range(1, HOSTS + 2):
                if one == other:
                    continue
                if HOSTS + 1 in (one, other):  # the master's host
                    wan.set(one, other, rate_mbit=NEAR_MBIT / a.slower, delay_ms=10)
                elif one % 2 == other % 2:
                    wan.set(one, other, rate_mbit=NEAR_MBIT / a.slower, delay_ms=1)
        for sender, receiver in FAST:
            wan.set(sender, receiver, rate_mbit=FAST_MBIT / a.slower)
        log, out = folder / f"{kind}-master.log", folder / f"{kind}-rank0.out"
        url = f"pccl://{wan.address(HOSTS + 1)}:{PORT}"
        command = [sys.executable, "-m", "pccl_backend._cli", "--insecure", "--state", "none"]
        command += ["--listen", f"{wan.address(HOSTS + 1)}:{PORT}", "--min-peers", str(HOSTS)]
        command += ["--ring", "rank"] if kind == "stays" else []
        stop = folder / f"{kind}-stop"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "STOP": str(stop)}
        with log.open("w") as err:
            processes = [
                subprocess.Popen(wan.command(HOSTS + 1, command), stdout=err, stderr=err, env=env)
            ]
        said = Lines(log)
        try:
            for place, host in enumerate(ORDERS[kind]):
                peer = [sys.executable, __file__, "--number", str(place), "--url", url]
                peer += ["--mib", str(a.mib)]
                with (out if place == 0 else folder / f"{kind}-{host}.out").open("w") as stdout:
                    processes.append(
                        subprocess.Popen(
                            wan.command(host, peer),
                            stdout=stdout,
                            env={**env, "PCCL_LOG_LEVEL": "warning", "PCCL_NAME": f"host{host}"},
                        )
                    )
                wait_until_it_has_come(wan, url, place + 1)
            return watch(a, kind, said, Lines(out), stop, processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def wait_until_it_has_come(wan: Any, url: str, count: int) -> None:
    """The next member comes after it, and so behind it."""
    command = [sys.executable, "-m", "pccl_backend._cli", "--status", url, "--json"]
    for _ in range(120):
        done = wan.run(HOSTS + 1, command, capture_output=True, text=True)
        if done.returncode == 0:
            status = json.loads(done.stdout)
            if len(status["members"]) + len(status["door"]) >= count:
                return
        time.sleep(0.25)
    raise SystemExit(f"{count} members do not come")


def watch(
    a: argparse.Namespace,
    kind: str,
    said: Lines,
    timed: Lines,
    stop: Path,
    processes: list[subprocess.Popen[bytes]],
) -> dict[str, Any]:
    """Waits until the ring has changed and enough calls went through it."""
    began = time.time()
    while True:
        time.sleep(0.2)
        changes = [(at, found) for at, line in said.look() if (found := CHANGED.search(line))]
        calls = [json.loads(line) for _, line in timed.look()]
        changed = changes[-1][0] if changes else None
        after = [c["seconds"] for c in calls[1:] if not changed or c["at"] > changed + c["seconds"]]
        before = [c["seconds"] for c in calls[1:] if changed and c["at"] < changed]
        late = time.time() > began + a.limit_s
        if (len(after) >= 2 * a.calls and (changed or kind != "worst")) or late:
            break
        assert all(p.poll() is None for p in processes), "a process has ended"
    stop.touch()
    for process in processes[1:]:
        process.wait(60)
    return {
        "kind": kind,
        "ring": changes[-1][1].group(1).replace(" ", "") if changes else "0,1,2,3,4,5",
        "changed_s": changed - began if changed else None,
        "before": before,
        "after": after[-a.calls :],
    }


def main() -> None:
    """Prints the table."""
    import tempfile

    a = arguments()
    if a.number is not None:
        member(a)
        return
    best_s = 2 * (HOSTS - 1) / HOSTS * (a.mib << 20) * 8 / (FAST_MBIT / a.slower * 1e6)
    print(f"All-reduce of {a.mib} MiB, {HOSTS} members; the slowest link of the best ring alone")
    print(f"takes {best_s:.2f} s\n")
    print("| joined | ring in the end, ranks | changed after | before | in the end | of the best |")
    print("|---|---|---|---|---|---|")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in a.kinds:
            run = measure(a, kind, Path(folder))
            end_s = found[kind] = statistics.median(run["after"])
            before = f"{statistics.median(run['before']):.2f} s" if run["before"] else "-"
            changed = f"{run['changed_s']:.0f} s" if run["changed_s"] else "-"
            row = [kind, run["ring"], changed, before, f"{end_s:.2f} s", f"{best_s / end_s:.0%}"]
            print("| " + " | ".join(row) + " |", flush=True)
    if "worst" in found and "best" in found:
        print(f"\nworst / best in the end: {found['worst'] / found['best']:.2f}")


if __name__ == "__main__":
    main()
