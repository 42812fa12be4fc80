"""One worker of the demo: trains by DiLoCo and writes down what it sees.

Its records (`worker-N.jsonl`) are the only evidence that the summary judges; its status
(`worker-N.status`, memory-mapped) lets another process look at its operations in flight at any
moment. `train` is the loop that examples/diloco/train.py shows to people, with records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._group import ElasticGroup, group, join
from .model import Batches, ByteGPT, loss_of, split, standard_library_text

SLOTS = 16  # at the end of each reduction: who contributed, one slot a worker
STATUS_BYTES = 4096
HEAD = struct.Struct("<QI")  # sequence number (odd while it is written), bytes of the text
STATUS_INTERVAL_S = 0.001
FILE_S = 600.0
FILE_POLL_S = 0.01
JUDGED_SEED = 7
JUDGED_SEQUENCES = 64


class Status:
    """A page of memory in which a process says how it stands; it is read whole or not at all."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Opens the page; `create` makes it, empty."""
        if create:
            path.write_bytes(bytes(STATUS_BYTES))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), STATUS_BYTES)
        self._sequence = 0

    def write(self, what: dict[str, Any]) -> None:
        """Replaces the status."""
        text = json.dumps(what).encode()[: STATUS_BYTES - HEAD.size]
        HEAD.pack_into(self._page, 0, self._sequence + 1, 0)
        self._page[HEAD.size : HEAD.size + len(text)] = text
        self._sequence += 2
        HEAD.pack_into(self._page, 0, self._sequence, len(text))

    def read(self) -> dict[str, Any] | None:
        """The newest status; None while it is being written, or before the first."""
        before, length = HEAD.unpack_from(self._page, 0)
        text = bytes(self._page[HEAD.size : HEAD.size + length])
        after, _ = HEAD.unpack_from(self._page, 0)
        if before != after or before % 2 == 1 or length == 0:
            return None
        try:
            return cast("dict[str, Any]", json.loads(text))
        except ValueError:  # overwritten while it was read
            return None


class Recorder:
    """Writes records, and the status from a thread of its own while a reduction is in flight."""

    def __init__(self, folder: Path, worker: int) -> None:
        """Makes both files."""
        self._worker = worker
        self._file = (folder / f"worker-{worker}.jsonl").open("w", buffering=1)
        self._status = Status(folder / f"worker-{worker}.status", create=True)
        self._reducing = threading.Event()
        self._writing = threading.Lock()
        self._group: ElasticGroup | None = None
        threading.Thread(target=self._watch, name="status", daemon=True).start()

    def say(self, what: str, **fields: Any) -> None:
        """Writes one record."""
        record = {
            "what": what,
            "worker": self._worker,
            "pid": os.getpid(),
            "time": time.monotonic(),
        }
        self._file.write(json.dumps({**record, **fields}) + "\n")

    def reduce(self, elastic: ElasticGroup, flat: Tensor, step: int) -> None:
        """Runs the all-reduce of a step, and writes the status meanwhile."""
        self._group = elastic
        self._reducing.set()
        try:
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        finally:
            with self._writing:
                self._reducing.clear()
                self._status.write({"step": step, "epoch": elastic.epoch, "operations": []})

    def _watch(self) -> None:
        while True:
            self._reducing.wait()
            with self._writing:
                if self._reducing.is_set() and self._group is not None:
                    operations, epoch = self._group.in_flight(), self._group.epoch
                    self._status.write({"epoch": epoch, "operations": operations})
            time.sleep(STATUS_INTERVAL_S)


def digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over the bytes of `tensors`, in order."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


class DiLoCo:
    """A model that this worker trains alone, and the outer parameters that all workers share.

    The shared state is the outer parameters and their momentum; `refresh` gives a newcomer both.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        *,
        worker: int,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        """Begins with the outer parameters of `model`, and without momentum."""
        self._inner = inner
        self._lr, self._beta = outer_lr, outer_momentum
        self.model = model
        self._params = list(model.parameters())
        self._outer = [p.detach().clone() for p in self._params]
        self._momentum = [torch.zeros_like(p) for p in self._outer]
        names = [name for name, _ in model.named_parameters()]
        self.state: dict[str, Any] = {"step": 0}
        self.state |= {f"outer.{n}": p for n, p in zip(names, self._outer, strict=True)}
        self.state |= {f"momentum.{n}": m for n, m in zip(names, self._momentum, strict=True)}
        self._mine = torch.zeros(SLOTS)
        self._mine[worker] = 1.0

    @torch.no_grad()
    def begin_at_outer(self) -> None:
        """Copies the outer parameters into the model."""
        for p, o in zip(self._params, self._outer, strict=True):
            p.copy_(o)

    def inner_steps(self, batches: Batches, count: int) -> float:
        """Trains the model alone; returns the mean loss."""
        total = 0.0
        for _ in range(count):
            loss = loss_of(self.model, batches.next())
            self._inner.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._inner.step()
            total += loss.item()
        return total / count

    @torch.no_grad()
    def pseudo_gradient(self) -> Tensor:
        """How far the inner steps went, and behind it a slot for each worker, 1.0 in the own."""
        parts = [(o - p).view(-1) for o, p in zip(self._outer, self._params, strict=True)]
        return torch.cat([*parts, self._mine])

    @torch.no_grad()
    def outer_step(self, averaged: Tensor) -> list[float]:
        """Takes the average of all workers' pseudo-gradients; returns the slots."""
        parts = torch.split(averaged[:-SLOTS], [p.numel() for p in self._params])
        for o, m, part in zip(self._outer, self._momentum, parts, strict=True):
            d = part.view_as(o)
            m.mul_(self._beta).add_(d)
            o.sub_(self._lr * (d + self._beta * m))  # Nesterov
        self.state["step"] += 1
        return averaged[-SLOTS:].tolist()

    def hashes(self) -> dict[str, str]:
        """Digests of all that is trained: the shared parts are alike at all workers."""
        moments = [v for s in self._inner.state.values() for v in s.values()]
        return {
            "model": digest(self._params),
            "outer": digest(self._outer),
            "outer_optimizer": digest(self._momentum),
            "inner_optimizer": digest(m for m in moments if isinstance(m, Tensor)),
        }


def train(
    diloco: DiLoCo,
    batches: Batches,
    judged: Tensor,
    elastic: ElasticGroup,
    record: Recorder,
    *,
    steps: int,
    every: int,
) -> None:
    """DiLoCo: `every` inner steps alone, then one outer step together, `steps` times.

    `judged` is a batch that nobody trains on: the shared model's loss there is recorded.
    """
    while True:
        # This boundary admits newcomers; then all hold the same shared state.
        boundary = elastic.refresh(diloco.state)
        step = diloco.state["step"]
        record.say("boundary", **vars(boundary), revision=step)
        diloco.begin_at_outer()
        with torch.no_grad():
            record.say("shared", step=step, loss=loss_of(diloco.model, judged).item())
        if boundary.left or step >= steps:
            break

        began = time.monotonic()
        loss = diloco.inner_steps(batches, every)

        # The pseudo-gradient is averaged over the workers that are left.
        flat = diloco.pseudo_gradient()
        epoch, issued = elastic.epoch, time.monotonic()
        record.reduce(elastic, flat, elastic.step)
        reduced = time.monotonic()
        shares = diloco.outer_step(flat)
        record.say(
            "step",
            step=diloco.state["step"],
            loss=loss,
            engine_step=elastic.step,
            contributors=[slot for slot, share in enumerate(shares) if share > 0],
            shares=[share for share in shares if share > 0],
            epochs=[epoch, elastic.epoch],
            times={"began": began, "issued": issued, "reduced": reduced},
            bytes=flat.numel() * flat.element_size(),
            counters=_counters(),
            hashes=diloco.hashes(),
        )
    record.say("final", step=step, hashes=diloco.hashes(), counters=_counters())


def _counters() -> dict[str, int]:
    from .. import _extension

    return dict(_extension.extension().counters())


def wait_for(path: Path) -> None:
    """Returns when the file is there; a worker that is started early joins when it is time."""
    deadline = time.monotonic() + FILE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {path} within {FILE_S:.0f} s")
        time.sleep(FILE_POLL_S)


def main() -> None:
    """Runs a worker: `python -m pccl_backend.demo.worker URL WORKER FOLDER STEPS EVERY`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    for name in ("worker", "steps", "every"):
        parser.add_argument(name, type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--join-with", metavar="FILE", type=Path, help="wait for this file first")
    a = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    torch.set_num_threads(1)
    record = Recorder(a.folder, a.worker)
    record.say("start")
    torch.manual_seed(0)  # all begin with the same model
    model = ByteGPT()
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    text, kept = split(standard_library_text())
    batches = Batches(text, seed=1000 + a.worker)
    judged = Batches(kept, seed=JUDGED_SEED, sequences=JUDGED_SEQUENCES).next()
    if a.join_with is not None:
        wait_for(a.join_with)
    join(a.url, timeout_s=120.0)
    record.say(
        "joined", size=dist.get_world_size(), parameters=sum(p.numel() for p in model.parameters())
    )
    diloco = DiLoCo(model, inner, worker=a.worker)
    train(diloco, batches, judged, group(), record, steps=a.steps, every=a.every)
    dist.destroy_process_group()
    record.say("end")


if __name__ == "__main__":
    main()
