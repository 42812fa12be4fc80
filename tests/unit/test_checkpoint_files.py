"""Checkpoints in one process: names, what is kept, what is never seen half written."""

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import ROOT
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from pccl_backend import (
    Boundary,
    Checkpoints,
    SharedState,
    _checkpoint_files,
    _checkpoints,
    _replica,
)
from pccl_backend._background import Background

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def boundary(
    *, rank: int = 0, left: bool = False, step: int = 0, finished: bool = False
) -> Boundary:
    return Boundary("1.0", rank, 2, step, False, False, left, 0, (), False, 0.0, finished=finished)


class Training:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.3)
        self.state = SharedState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            step=0,
            note={"x": (1, 2.5, b"\0")},
        )

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.model(torch.randn(8, 5)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.state["step"] += 1

    def bits(self) -> dict[str, Any]:
        return {
            name: value.clone().numpy().tobytes() if isinstance(value, torch.Tensor) else value
            for name, value in self.state.items()
        }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path, training: Training, *, steps: int = 1, **options: Any) -> None:
    checkpoints = Checkpoints(folder, **options)
    for _ in range(steps):
        training.train()
        assert checkpoints.save(training.state, boundary())
        assert checkpoints._writing is not None
        assert checkpoints._writing.has_ended(60)
    checkpoints.close()


def test_a_checkpoint_has_every_bit_also_of_an_optimizer_that_has_not_stepped(
    tmp_path: Path,
) -> None:
    first, second = Training(0), Training(1)
    first.train(2)
    saved(tmp_path, first)
    assert Checkpoints(tmp_path).load(second.state) == 3
    assert second.bits() == first.bits()


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    training = Training(0)
    before = training.bits()
    assert Checkpoints(tmp_path / "new" / "folder").load(training.state) is None
    assert training.bits() == before


def test_the_newest_stay_by_number(tmp_path: Path) -> None:
    training = Training(0)
    training.train(7)
    saved(tmp_path, training, steps=4)
    assert names(tmp_path) == ["step-10", "step-11"]
    assert Checkpoints(tmp_path).load(Training(1).state) == 11


@pytest.mark.parametrize("who", [boundary(rank=1), boundary(left=True)])
def test_only_the_writer_writes(tmp_path: Path, who: Boundary) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert not checkpoints.save(Training(0).state, who)
    checkpoints.close()
    assert names(tmp_path) == []


class Gate:
    """Holds a write where the test says, until it lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        inner: Callable[..., Any] = getattr(owner, name)

        def held(*arguments: Any, **options: Any) -> Any:
            self.reached.set()
            assert self.open.wait(60)
            return inner(*arguments, **options)

        monkeypatch.setattr(owner, name, held)


def test_the_training_goes_on_while_a_copy_is_written_and_a_second_save_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(monkeypatch, _checkpoints, "save_with_dcp")
    checkpoints, training = Checkpoints(tmp_path), Training(0)
    training.train()
    bits = training.bits()
    assert checkpoints.save(training.state, boundary())
    assert gate.reached.wait(60)
    training.train()
    with caplog.at_level(logging.WARNING, "pccl"):
        assert not checkpoints.save(training.state, boundary())
    assert "checkpoint of step 2 is left out" in caplog.text
    gate.open.set()
    checkpoints.close()
    again = Training(1)
    assert Checkpoints(tmp_path).load(again.state) == 1
    assert again.bits() == bits


def test_a_write_that_never_ends_is_waited_for_no_longer_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(monkeypatch, _checkpoints, "save_with_dcp")
    checkpoints, training = Checkpoints(tmp_path, every=1, timeout_s=0.2), Training(0)
    training.train()
    text = rf"into {tmp_path} has not ended within 0.2 s .* the older ones are unchanged"
    with pytest.raises(RuntimeError, match=text):
        checkpoints.save_end(training.state, boundary())
    with caplog.at_level(logging.ERROR, "pccl"):
        checkpoints.save_end(training.state, boundary(), may_fail=True)
    assert "the end of the run, step 1, is not saved: the write of a checkpoint" in caplog.text
    with pytest.raises(RuntimeError, match=text):
        checkpoints.close()
    gate.open.set()


@pytest.mark.parametrize("ends", [True, False])
def test_the_program_ends_when_its_last_write_has_ended_or_is_late(
    ends: bool, tmp_path: Path
) -> None:
    program = f"""
import time
import torch
from pccl_backend import Boundary, _checkpoints
whole = _checkpoints.save_with_dcp
def slow(*arguments, **options):
    time.sleep({2 if ends else 1000})
    return whole(*arguments, **options)
_checkpoints.save_with_dcp = slow
checkpoints = _checkpoints.Checkpoints({str(tmp_path)!r}, timeout_s={600 if ends else 2})
boundary = Boundary("1.0", 0, 1, 1, False, False, False, 0, (), False, 0.0)
assert checkpoints.save({{"step": 1, "w": torch.zeros(3)}}, boundary)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert (tmp_path / "step-1").exists() == ends


def test_a_write_has_ended_when_its_thread_has_let_go_of_the_memory(tmp_path: Path) -> None:
    """A thread that frees a tensor while the program ends would abort it."""
    begins, ends = threading.Event(), threading.Event()

    class Slow:
        def __del__(self) -> None:
            ends.wait(60)

    def call(_: Slow) -> None:
        begins.wait(60)

    background = Background(call, Slow())
    begins.set()
    assert not background.has_ended(0.5)
    ends.set()
    assert background.has_ended(60)


def test_a_checkpoint_has_no_name_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, Checkpoints, "_publish")
    checkpoints, training = Checkpoints(tmp_path), Training(0)
    checkpoints.save(training.state, boundary())
    assert gate.reached.wait(60)
    (name,) = names(tmp_path)
    assert name.startswith(".writing-0-")
    assert Checkpoints(tmp_path).load(training.state) is None
    gate.open.set()
    checkpoints.close()
    assert names(tmp_path) == ["step-0"]


def test_leftovers_of_a_dead_writer_are_cleared_by_the_next(tmp_path: Path) -> None:
    for name in (".writing-5-abc", ".gone-step-1-abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"half")
    saved(tmp_path, Training(0))
    assert names(tmp_path) == ["step-1"]


def test_who_was_taken_for_dead_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Gate(monkeypatch, Checkpoints, "_publish")
    late = Checkpoints(tmp_path)
    late.save(Training(0).state, boundary())
    assert held.reached.wait(60)
    (name,) = names(tmp_path)
    late._remove(tmp_path / name)  # what the next writer does
    (tmp_path / name).mkdir()  # and a late rank makes it again
    held.open.set()
    with pytest.raises(RuntimeError, match="cleared away by another writer"):
        late.close()
    assert Checkpoints(tmp_path).load(Training(0).state) is None


def test_an_error_is_told_at_the_next_save_and_then_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(0)
    saved(tmp_path, training)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path)
    training.train()
    with monkeypatch.context() as patch:
        patch.setattr(_checkpoints, "save_with_dcp", full)
        checkpoints.save(training.state, boundary())
        assert checkpoints._writing is not None
        assert checkpoints._writing.has_ended(60)
    with pytest.raises(RuntimeError, match=r"step 2 was not written: .*No space left.*unchanged"):
        checkpoints.save(training.state, boundary())
    assert "step-1" in names(tmp_path)
    checkpoints.save(training.state, boundary())
    checkpoints.close()
    assert names(tmp_path) == ["step-1", "step-2"]


def test_another_model_is_refused_and_nothing_has_changed(tmp_path: Path) -> None:
    saved(tmp_path, Training(0))
    state = SharedState(model=nn.Linear(5, 3), step=0)
    before = state["model.weight"].clone()
    with pytest.raises(
        ValueError, match=r"state\['model\.0\.bias'\] is missing here and .* in .*step-1"
    ):
        Checkpoints(tmp_path).load(state)
    assert torch.equal(state["model.weight"], before)
    assert state["step"] == 0


class Refuses:
    """Does not take what the checkpoint has; Ctrl-C comes twice while it gets its own back."""

    def __init__(self, error: BaseException) -> None:
        self.value, self.interrupts, self.error = 3, 2, error

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["value"] != 3:
            raise self.error
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no")])
def test_ctrl_c_does_not_interrupt_the_way_back_from_values_that_are_refused(
    tmp_path: Path, error: BaseException
) -> None:
    training = Training(0)
    written = Refuses(error)
    written.value = 4
    training.state._parts = {"a": 1, **training.state._parts, "object": written, "z": 1}
    saved(tmp_path, training)
    other = Training(1)
    refuses = Refuses(error)
    other.state._parts = {"a": 2, **other.state._parts, "object": refuses, "z": 2}
    before = other.bits()
    with pytest.raises(type(error), match="no"):
        Checkpoints(tmp_path).load(other.state)
    assert refuses.interrupts == 0
    assert other.bits() == before


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    training = Training(0)
    saved(tmp_path, training)
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"step-1 cannot be read: "):
        Checkpoints(tmp_path).load(training.state)


def test_a_mapping_of_tensors_will_do(tmp_path: Path) -> None:
    state: dict[str, Any] = {"step": 4, "w": torch.arange(3.0), "rates": [0.1, float("nan")]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, boundary())
    checkpoints.close()
    other: dict[str, Any] = {"step": 0, "w": torch.zeros(3), "rates": []}
    assert Checkpoints(tmp_path).load(other) == 4
    assert torch.equal(other["w"], state["w"])
    assert str(other["rates"]) == str(state["rates"])


def test_one_at_least_is_kept_and_steps_are_counted_from_one(tmp_path: Path) -> None:
    for keep in (0, 2.0):
        with pytest.raises(ValueError, match=f"keep is {keep}; expected an int, 1 or more"):
            Checkpoints(tmp_path, keep=keep)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s is 0; expected seconds above 0"):
        Checkpoints(tmp_path, timeout_s=0)
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"every is {wrong}; expected a number of steps"):
            Checkpoints(tmp_path, every=wrong)


# ------------------------------------------------------------------------- what others have written


class Program:
    """It makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_what_stands_in_the_folder_is_not_run_but_where_it_is_asked_for(tmp_path: Path) -> None:
    training = Training(0)
    saved(tmp_path / "c", training)
    folder, ran = tmp_path / "c" / "step-1", tmp_path / "ran"
    pickled = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(Program(ran)))
    again = Training(1)
    assert Checkpoints(tmp_path / "c").load(again.state) == 1
    assert again.bits() == training.bits()
    (folder / "index.json").unlink()
    with pytest.raises(RuntimeError, match=r"is a pickle, which runs code .*unpickle=True"):
        Checkpoints(tmp_path / "c").load(again.state)
    assert not ran.exists()
    with pytest.raises(RuntimeError, match="cannot be read"):
        Checkpoints(tmp_path / "c", unpickle=True).load(again.state)
    assert ran.exists()  # else this test would show nothing
    (folder / ".metadata").write_bytes(pickled)  # as an older pccl has left it
    older = Training(1)
    assert Checkpoints(tmp_path / "c", unpickle=True).load(older.state) == 1
    assert older.bits() == training.bits()


def test_tools_of_torch_read_what_was_written(tmp_path: Path) -> None:
    training = Training(0)
    saved(tmp_path, training)
    name, value = next(
        (n, v) for n, v in training.state.items() if isinstance(v, torch.Tensor) and v.numel() > 3
    )
    target = {name: torch.zeros_like(value)}
    dcp.load(target, checkpoint_id=tmp_path / "step-1")
    assert torch.equal(target[name], value.detach())


def changed(index: Any, *path: Any, to: Any) -> Any:
    *way, last = path
    at = index
    for step in way:
        at = at[step]
    at[last] = to
    return index


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: [],
        lambda index: changed(index, "format", to="pccl checkpoint 2"),
        lambda index: changed(index, "tensors", to={}),
        lambda index: changed(index, "tensors", 1, to=index["tensors"][0]),
        lambda index: changed(index, "tensors", 0, 0, to=3),
        lambda index: changed(index, "tensors", 0, 1, to="load"),
        lambda index: changed(index, "tensors", 0, 1, to="nn"),
        lambda index: changed(index, "tensors", 0, 2, to=[-1]),
        lambda index: changed(index, "tensors", 0, 2, to=[1] * 65),
        lambda index: changed(index, "tensors", 0, 2, to=[1 << 63]),
        lambda index: changed(index, "tensors", 0, 3, to=[]),  # else nothing would be loaded
        lambda index: changed(index, "tensors", 0, 3, 0, 2, to="../__0_0.distcp"),
        lambda index: changed(index, "tensors", 0, 3, 0, 2, to="/etc/passwd"),
        lambda index: changed(index, "tensors", 0, 3, 0, 3, to=True),
        lambda index: changed(index, "tensors", 0, 3, 0, 4, to=1.5),
    ],
)
def test_a_damaged_index_is_an_error_with_its_path(
    tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    training = Training(0)
    saved(tmp_path, training)
    path = tmp_path / "step-1" / "index.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    before = training.bits()
    with pytest.raises(RuntimeError, match=r"cannot be read: .*index\.json is damaged"):
        Checkpoints(tmp_path).load(training.state)
    assert training.bits() == before


def test_a_pipe_in_place_of_an_index_is_not_waited_for(tmp_path: Path) -> None:
    training = Training(0)
    saved(tmp_path, training)
    path = tmp_path / "step-1" / "index.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RuntimeError, match=r"index\.json is not a file"):
        Checkpoints(tmp_path).load(training.state)


def test_an_index_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, Training(0))
    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr(_checkpoint_files, "INDEX_BYTES_MAX", 100)
    training = Training(0)
    training.train(2)
    assert checkpoints.save(training.state, boundary())
    with pytest.raises(RuntimeError, match=r"more than the 100 that can be read again"):
        checkpoints.close()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_the_cause_of_a_failed_write_is_one_line() -> None:
    full = OSError("No space left on device")
    failed = CheckpointException("frame\n" * 1000, {0: (full, None)})
    assert _checkpoint_files.cause_of(failed) == "OSError: No space left on device"
    assert _checkpoint_files.cause_of(ValueError("x\nframe")) == "ValueError: x"


def test_who_fails_tells_no_more_than_the_others_read() -> None:
    told: list[Any] = []
    ranks = _replica.Ranks(None)
    ranks._gather = lambda text: told.append(json.loads(text)) or []  # type: ignore[func-returns-value, method-assign]
    ranks.tell("x" * 10_000)
    assert told == [["failed", "x" * _replica.FAILURE_CHARACTERS_MAX]]


def ctrl_c_in(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    """Ctrl-C comes as the next call of this method begins, and does so once."""

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, method, interrupted)


def test_ctrl_c_before_a_write_has_begun_loses_it_not_from_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    ctrl_c_in(monkeypatch, Background, "begin")
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save({"step": 1, "w": torch.ones(2)}, boundary(step=1))
    assert names(tmp_path) == []
    checkpoints.close()
    assert names(tmp_path) == ["step-1"]


def test_a_write_that_has_failed_leaves_nothing_and_the_next_writer_saves_what_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    state = {"step": 100, "w": torch.ones(2)}
    first, second = (Checkpoints(tmp_path, every=50) for _ in range(2))
    monkeypatch.setattr(_checkpoint_files.Writer, "write_data", full)
    assert first.save_when_due(state, boundary(step=1))
    with pytest.raises(RuntimeError, match="the disk is full"):
        first.close()
    assert names(tmp_path) == []
    monkeypatch.undo()
    (tmp_path / "step-5000").mkdir()  # of another run
    state["step"] = 102
    assert second.save_when_due(state, boundary(step=3))
    second.close()
    assert names(tmp_path) == ["step-102", "step-5000"]


def test_a_late_writer_warns_of_no_other_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late, next_one = Checkpoints(tmp_path), Checkpoints(tmp_path)
    next_one.save_end({"step": 2, "w": torch.ones(2)}, boundary(step=2))
    late.save_end({"step": 1, "w": torch.ones(2)}, boundary(step=1))
    assert names(tmp_path) == ["step-1", "step-2"]
    assert "later steps" not in caplog.text
    late.close()
    next_one.close()


def test_a_due_checkpoint_that_ctrl_c_has_stopped_is_saved_at_the_next_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, every=50)
    state = {"step": 100, "w": torch.ones(2)}
    ctrl_c_in(monkeypatch, Checkpoints, "_snapshot")
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save_when_due(state, boundary(step=1))
    state["step"] = 101
    assert checkpoints.save_when_due(state, boundary(step=2))
    checkpoints.close()
    assert names(tmp_path) == ["step-101"]
