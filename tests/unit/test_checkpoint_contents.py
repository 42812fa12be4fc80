"""What a checkpoint is called and holds: steps that do not grow, the end, names and classes."""

import collections
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoint_files import Gate, Training, boundary, names, saved
from torch import nn

from pccl_backend import Checkpoints, SharedState, _checkpoints
from pccl_backend._checkpoint_files import key_of, parse_key

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# ----------------------------------------------------------------------------- the step in the name


def test_a_state_without_a_step_is_refused_at_every_member(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=1)
    for state in ({"iteration": 3}, SharedState(iteration=3), {"step": None}):
        for call in (checkpoints.save, checkpoints.save_end, checkpoints.save_when_due):
            for who in (boundary(), boundary(rank=1)):
                with pytest.raises(ValueError, match=r"no 'step'.*expected an int .* grows"):
                    call(state, who)  # type: ignore[operator]
        with pytest.raises(ValueError, match="no 'step'"):
            checkpoints.load(state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"state\['step'\] is 1.5; expected"):
        checkpoints.save({"step": 1.5}, boundary())
    checkpoints.close()
    assert names(tmp_path) == []


class Steps:
    """Saves of one process, each waited for, and what the log said about them."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.checkpoints, self.caplog = Checkpoints(folder), caplog

    def warned(self, step: int, at: int, *, end: bool = False, **options: Any) -> bool:
        """A save of step `step` after boundary `at`: is it left out with a warning?"""
        self.caplog.clear()
        save = self.checkpoints.save_end if end else self.checkpoints.save
        save({"step": step, "w": torch.ones(2)}, boundary(step=at, **options))
        self.checkpoints._waited_for()
        texts = [r.getMessage() for r in self.caplog.records if r.levelno >= logging.WARNING]
        assert all(f"nothing is saved at step {step}: " in text for text in texts)
        return bool(texts)


@pytest.mark.parametrize("end", [False, True])
def test_a_step_that_does_not_grow_is_saved_once_and_the_log_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bool
) -> None:
    run = Steps(tmp_path, caplog)
    assert not run.warned(0, at=1)
    assert not run.warned(0, at=1, end=end)  # the end is at the boundary of the last save
    assert run.warned(0, at=2, end=end)
    assert run.warned(0, at=3, rank=0, end=end)
    assert not run.warned(1, at=4, end=end)
    assert names(tmp_path) == ["step-0", "step-1"]


def test_a_checkpoint_of_another_run_is_no_checkpoint_of_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, Training(0))
    assert Steps(tmp_path, caplog).warned(1, at=5)
    assert Steps(tmp_path, caplog).warned(1, at=5, end=True)
    assert Steps(tmp_path, caplog).warned(1, at=5, end=True, finished=True)
    resumed = Steps(tmp_path, caplog)
    assert resumed.checkpoints.load(Training(1).state) == 1
    assert not resumed.warned(1, at=1, end=True)


def test_a_boundary_at_which_nothing_was_due_makes_no_checkpoint_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, Training(0))  # step-1 of another run
    checkpoints = Checkpoints(tmp_path, every=3)
    state = {"step": 1, "w": torch.ones(2)}
    assert not checkpoints.save_when_due(state, boundary(step=5))
    checkpoints.save_end(state, boundary(step=5))
    assert "nothing is saved at step 1: " in caplog.text
    checkpoints.close()


def test_a_new_writer_finds_what_the_writer_before_it_has_saved_at_the_same_boundary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Steps(tmp_path, caplog), Steps(tmp_path, caplog)
    assert not first.warned(7, at=3)
    assert not second.warned(7, at=3, rank=1)
    assert not second.warned(7, at=3)
    assert not second.warned(7, at=4, end=True, finished=True)
    assert names(tmp_path) == ["step-7"]


# ----------------------------------------------------------------------------------------- the end


def test_the_end_is_saved_where_the_write_before_it_is_still_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, _checkpoints, "save_with_dcp")
    checkpoints, training = Checkpoints(tmp_path), Training(0)
    training.train()
    assert checkpoints.save(training.state, boundary(step=1))
    assert gate.reached.wait(60)
    training.train()
    opens = threading.Timer(0.5, gate.open.set)
    opens.start()
    checkpoints.save_end(training.state, boundary(step=2))
    assert names(tmp_path) == ["step-1", "step-2"]
    opens.join()
    checkpoints.save_end(training.state, boundary(step=3, finished=True))
    checkpoints.close()
    again = Training(1)
    assert Checkpoints(tmp_path).load(again.state) == 2
    assert again.bits() == training.bits()


# ----------------------------------------------------------------------------------- names, values


NAMES = [
    "w",
    "w@1",
    "w@0",
    "w@@1",
    "a@values",
    "@values",
    "@values@1",
    "en@de.b",
    "@",
    "@1",
    "",
    "1",
]


def test_every_name_comes_back_from_its_key_at_every_rank() -> None:
    keys = {(name, rank): key_of(name, rank) for name in [None, *NAMES] for rank in (0, 1, 12)}
    assert len(set(keys.values())) == len(keys)
    assert {key: parse_key(text) for key, text in keys.items()} == {key: key for key in keys}
    assert [key_of("w", 0), key_of("w", 3)] == ["w", "w@3"]  # as they have always been
    assert [key_of(None, 0), key_of(None, 3)] == ["@values", "@values@3"]


def test_tensors_with_at_signs_in_their_names_come_back(tmp_path: Path) -> None:
    def state(fill: float) -> dict[str, Any]:
        return {"step": 1, **{name: torch.full((2,), fill + i) for i, name in enumerate(NAMES)}}

    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.save(state(3.0), boundary())
    checkpoints.close()
    loaded = state(50.0)
    assert Checkpoints(tmp_path).load(loaded) == 1
    assert str(loaded) == str(state(3.0))
    model = nn.ModuleDict({"en@de": nn.Linear(2, 2)})
    saved_one = SharedState(model=model, optimizer=torch.optim.Adam(model.parameters()), step=2)
    model["en@de"](torch.ones(2)).sum().backward()
    saved_one._parts["optimizer"].step()
    checkpoints = Checkpoints(tmp_path / "module")
    assert checkpoints.save(saved_one, boundary())
    checkpoints.close()
    other = nn.ModuleDict({"en@de": nn.Linear(2, 2)})
    again = SharedState(model=other, optimizer=torch.optim.Adam(other.parameters()), step=0)
    assert Checkpoints(tmp_path / "module").load(again) == 2
    assert str(sorted(again.items())) == str(sorted(saved_one.items()))


def test_a_name_with_an_at_sign_is_read_as_an_older_pccl_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_key("en@de.bias@1") == ("en@de.bias", 1)
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(_checkpoints, "key_of", lambda name, _: "@values" if name is None else name)
        assert checkpoints.save({"step": 1, "en@de.bias": torch.ones(2)}, boundary())
        checkpoints.close()
    assert '"en@de.bias"' in (tmp_path / "step-1" / "index.json").read_text()
    state = {"step": 0, "en@de.bias": torch.zeros(2)}
    assert Checkpoints(tmp_path).load(state) == 1
    assert state["en@de.bias"].tolist() == [1.0, 1.0]  # type: ignore[attr-defined]


Point = collections.namedtuple("Point", "x y")


class Holds:
    """Gives its value, and takes what it is given; fails where that is of another class."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        value = state["value"]
        if type(value) is not type(self.value):
            raise TypeError(f"a {type(value).__name__} is no {type(self.value).__name__}")
        self.value = value


def test_an_object_whose_setter_fails_is_named_and_the_files_are_not_blamed(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.save(SharedState(meter=Holds(3), step=1, x=1), boundary())
    checkpoints.close()
    state = SharedState(meter=Holds([]), step=0, x=2)
    text = r"state\['meter'\] does not take its value in .*step-1: TypeError: a int is no list"
    with pytest.raises(ValueError, match=text):
        Checkpoints(tmp_path).load(state)
    assert (state["step"], state["x"], state["meter"]) == (0, 2, {"value": []})


def test_values_of_objects_keep_their_classes(tmp_path: Path) -> None:
    counts: Any = collections.defaultdict(int, a=3)
    checkpoints = Checkpoints(tmp_path)
    state = SharedState(meter=Holds(counts), place=Holds(Point(1, 2.5)), step=1)
    assert checkpoints.save(state, boundary())
    checkpoints.close()
    meter, place = Holds(collections.defaultdict(int)), Holds(Point(0, 0.0))
    assert Checkpoints(tmp_path).load(SharedState(meter=meter, place=place, step=0)) == 1
    meter.value["b"] += 1
    assert (meter.value, place.value) == ({"a": 3, "b": 1}, Point(1, 2.5))


def test_a_plain_value_that_the_checkpoint_lacks_keeps_what_the_newer_program_gave_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = {"step": 3, "rate": 0.5, "w": torch.ones(2)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_end(old, boundary(step=1))
    state: dict[str, Any] = {"step": 0, "rate": 0.1, "best": 9.0, "w": torch.zeros(2)}
    with caplog.at_level("INFO"):
        assert checkpoints.load(state) == 3
    assert (state["rate"], state["best"]) == (0.5, 9.0)
    assert state["w"].tolist() == [1, 1]
    assert "kept as it is: 'best'" in caplog.text
    checkpoints.close()


def test_a_new_checkpoint_stays_beside_those_of_later_steps_of_another_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def save(checkpoints: Checkpoints, *steps: int) -> None:
        for step in steps:
            checkpoints.save_end({"step": step, "w": torch.ones(2)}, boundary(step=step))
        checkpoints.close()

    save(Checkpoints(tmp_path), 8, 9)
    assert "later steps" not in caplog.text
    save(Checkpoints(tmp_path, keep=2), 1, 2, 3)
    assert names(tmp_path) == ["step-2", "step-3", "step-8", "step-9"]
    assert "has checkpoints of later steps than 3, up to step-9: load takes" in caplog.text
    save(Checkpoints(tmp_path, keep=1), 4)
    assert names(tmp_path) == ["step-4", "step-8", "step-9"]


class Counting(nn.Module):
    """A module whose extra state is the dict that it fills itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.counts = {"seen": 7}

    def get_extra_state(self) -> dict[str, int]:
        return self.counts

    def set_extra_state(self, values: dict[str, int]) -> None:
        self.counts.clear()
        self.counts.update(values)


def test_a_value_that_is_kept_is_not_set(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_end({"step": 3, "model.weight": torch.zeros(2)}, boundary(step=1))
    model = Counting()
    assert checkpoints.load(SharedState(step=0, model=model)) == 3
    assert (model.counts, model.weight.tolist()) == ({"seen": 7}, [0, 0])
    checkpoints.close()


class Scaled(nn.Module):
    """A module whose extra state is a tensor."""

    def __init__(self, amax: float) -> None:
        super().__init__()
        self.amax = torch.full((2, 2), amax)

    def get_extra_state(self) -> torch.Tensor:
        return self.amax.clone()

    def set_extra_state(self, amax: torch.Tensor) -> None:
        self.amax = amax


def test_an_extra_state_that_is_a_tensor_comes_back_also_from_an_older_checkpoint(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_end(SharedState(step=3, model=Scaled(7.0)), boundary(step=1))
    older = {"step": 4, "model._extra_state": torch.full((2, 2), 8.0)}  # as a tensor of its own
    for step, amax in ((3, 7.0), (4, 8.0)):
        if step == 4:
            checkpoints.save_end(older, boundary(step=2))
        model = Scaled(0.0)
        assert checkpoints.load(SharedState(step=0, model=model)) == step
        assert model.amax.tolist() == [[amax] * 2] * 2
    checkpoints.close()


def test_an_optimizer_that_is_not_in_the_checkpoint_is_refused_and_keeps_its_state(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 1)
    second = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    second.step()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_end(SharedState(step=3, model=model), boundary(step=1))
    with pytest.raises(ValueError, match=r"state\['second.groups'\] is not in"):
        checkpoints.load(SharedState(step=0, model=model, second=second))
    assert all("momentum_buffer" in one for one in second.state.values())
    checkpoints.close()


def test_a_tensor_whose_memory_has_grown_is_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    state: dict[str, Any] = {"step": 1, "w": torch.ones(2)}
    checkpoints.save_end(state, boundary(step=1))
    state["step"], state["w"] = 2, state["w"].resize_(5).fill_(3.0)
    checkpoints.save_end(state, boundary(step=2))
    back = {"step": 0, "w": torch.zeros(5)}
    assert checkpoints.load(back) == 2
    assert back["w"].tolist() == [3] * 5  # type: ignore[attr-defined]
    checkpoints.close()
