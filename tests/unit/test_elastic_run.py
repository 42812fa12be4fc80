"""ElasticRun over a group that only pretends: what it counts, when it settles, what it shares."""

import dataclasses
import errno
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoint_files import ctrl_c_in
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

import pccl_backend
from pccl_backend import (
    Boundary,
    Checkpoints,
    ElasticRun,
    ElasticSampler,
    GroupClosedError,
    LeftRun,
    PcclError,
    _checkpoint_files,
    _checkpoints,
    ddp_kwargs,
)
from pccl_backend._checkpoint_files import is_locked, lock, unlock
from pccl_backend._sampling import Deal

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class FakeGroup:
    """Boundaries as the engine would answer them."""

    def __init__(self, size: int = 2, rank: int = 0) -> None:
        self.size, self.rank, self.step = size, rank, 0
        self.contributors: tuple[int, ...] = ()
        self.leaves = False
        self.hashes = True
        self.voted = False  # then a newcomer would have to be told by a reduction
        self.process_group = None
        self.left = False
        self.fails: Exception | None = None
        self.finished = 0
        self.rank_at_end: int | None = None
        self.shared: list[dict[str, Any]] = []  # what was hashed at each boundary

    def _contributors(self) -> tuple[int, ...]:
        return self.contributors

    def finish(self, *, timeout_s: float | None = None) -> Boundary:
        self.finished += 1
        self.rank = self.rank_at_end if self.rank_at_end is not None else self.rank
        boundary = self.refresh({})
        return dataclasses.replace(boundary, finished=True)

    def refresh(self, state: Any, *, timeout_s: float | None = None) -> Boundary:
        if self.fails is not None:
            raise self.fails
        if self.hashes and state:
            state.settle(self.contributors or None)
        self.shared.append({n: v for n, v in state.items() if not torch.is_tensor(v)})
        self.step += 1
        return Boundary(
            epoch="1.1",
            rank=self.rank,
            size=self.size,
            step=self.step,
            voted=self.voted,
            admitted=False,
            left=self.leaves,
            bytes_received=0,
            contributors=self.contributors,
            size_changed=False,
            paused_s=0.0,
        )


class Loop:
    def __init__(
        self, group: FakeGroup, checkpoints: Checkpoints | None = None, **state: Any
    ) -> None:
        self.group = group
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        fake: Any = group
        self.run = ElasticRun(
            self.model, [self.optimizer], fake, {**state, **self.more()}, checkpoints
        )

    def more(self) -> dict[str, Any]:
        """To be shared, of what is there by now."""
        return {}

    def step(self) -> None:
        self.model(torch.ones(2)).backward()
        self.optimizer.step()


class CallsExtension(FakeGroup):
    """As the real group, its boundaries call functions of an extension."""

    def refresh(self, state: Any, *, timeout_s: float | None = None) -> Boundary:
        assert pccl_backend.counters()["ops_failed"] == 0
        return super().refresh(state, timeout_s=timeout_s)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_boundaries_of_a_compiled_model_are_no_part_of_it() -> None:
    loop = Loop(CallsExtension())
    loop.model = torch.compile(loop.model, backend="eager")
    for _ in range(3):
        loop.step()  # dynamo warns, here with an error, of builtins that it cannot trace
    assert loop.group.step == 3


def test_a_run_shows_its_group_and_its_step() -> None:
    loop = Loop(FakeGroup())
    loop.step()
    assert repr(loop.run) == f"ElasticRun(step=1, left=False, group={loop.group!r})"


def sampler() -> ElasticSampler:
    return ElasticSampler(20, batch=2, global_batch=8, shuffle=False)


def test_a_newcomer_is_given_the_sampler_as_it_is_after_the_boundary() -> None:
    # The sampler of a newcomer is that of the members, also where it came in the step of a loss.
    mine, theirs = (ElasticSampler(20, batch=2, shuffle=False) for _ in range(2))
    loop = Loop(FakeGroup(size=3), sampler=mine)
    batches = mine.batches()
    assert next(batches) == [0, 1]
    loop.step()
    loop.group.contributors = (0, 2)
    loop.group.size = 2
    assert next(batches) == [2, 3]
    hashed = loop.group.shared[-1]["sampler"]
    assert hashed["given"] is None
    assert hashed["returned"] == [[2, 2]]
    assert loop.run.samples == 4
    theirs.load_state_dict(hashed)
    newcomer = Loop(FakeGroup(size=2, rank=1), sampler=theirs)
    assert next(theirs.batches()) == [6, 7]
    assert newcomer.run.samples_total == loop.run.samples_total == 4
    assert newcomer.run.boundary.samples == loop.run.boundary.samples == 4


@pytest.mark.parametrize("hashes", [True, False])
def test_what_did_not_count_goes_back(hashes: bool) -> None:
    mine = sampler()
    loop = Loop(FakeGroup(size=2), sampler=mine)
    loop.group.hashes = hashes
    batches = mine.batches()
    assert [next(batches), next(batches)] == [[0, 1], [4, 5]]
    loop.step()
    loop.group.contributors = (0,)
    assert next(batches) == [2, 3]
    assert (loop.run.samples, loop.run.samples_total, loop.run.boundary.samples) == (4, 4, 4)


class Ahead:
    """A data loader that fetches three batches ahead, as one with workers does."""

    def __init__(self, batch_sampler: ElasticSampler) -> None:
        self.batch_sampler = batch_sampler
        self.iterators = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.iterators += 1
        indices = iter(self.batch_sampler)
        fetched = [next(indices) for _ in range(3)]
        for batch in indices:
            fetched.append(batch)
            yield fetched.pop(0)


def test_what_was_fetched_ahead_is_dropped_when_members_or_samples_change() -> None:
    mine, plain = sampler(), sampler()
    loop, other = Loop(FakeGroup(size=2), sampler=mine), Loop(FakeGroup(size=2), sampler=plain)
    loader = Ahead(mine)
    pairs = zip(mine.batches(loader, passes=4), plain.batches(passes=4), strict=True)
    changes = {3: ((0, 1), 3), 5: ((0, 2), 2), 6: ((1,), 2)}  # step: contributors, members then
    for batch, wanted in pairs:
        assert batch == wanted
        if mine.is_last:
            contributors, size = changes.get(mine.steps, ((), loop.group.size))
            for one in (loop, other):
                one.group.contributors, one.group.size = contributors, size
                one.step()
    assert loader.iterators == 1 + len(changes)
    assert mine.state_dict() == plain.state_dict()


def test_a_loader_is_begun_once_also_without_assertions() -> None:
    code = (
        "from test_elastic_run import Ahead, FakeGroup, Loop, sampler\n"
        "mine = sampler()\n"
        "loop = Loop(FakeGroup(size=2), sampler=mine)\n"
        "loader = Ahead(mine)\n"
        "for _ in mine.batches(loader, passes=4):\n"
        "    if mine.is_last:\n"
        "        loop.step()\n"
        "print(loader.iterators)"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout == "1\n"


def test_a_loader_that_hands_out_batches_in_another_order_is_refused() -> None:
    mine = sampler()
    Loop(FakeGroup(size=2), sampler=mine)
    loader: Any = torch.utils.data.DataLoader(
        list(range(20)), batch_sampler=mine, num_workers=1, in_order=False
    )
    with pytest.raises(ValueError, match="in_order=False"):
        mine.batches(loader)


def test_samples_are_the_same_whatever_the_default_device() -> None:
    drawn = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            deal = Deal(20, batch=4)
            deal.give(1)
            drawn.append(deal.batch(0, 0))
    assert drawn[0] == drawn[1]


def test_a_loop_that_was_broken_off_goes_on_where_it_was() -> None:
    mine = sampler()
    loop = Loop(FakeGroup(size=1), sampler=mine)
    loader = Ahead(mine)
    given = []
    for _ in range(30):
        for batch in mine.batches(loader):
            given += batch
            if mine.is_last:
                loop.step()
            break
    assert given == [q % 20 for q in range(60)]
    assert loader.iterators == 1


def test_a_step_whose_reduction_failed_is_given_again() -> None:
    mine = sampler()
    loop = Loop(FakeGroup(size=2), sampler=mine)
    loop.group.contributors = (0, 1)
    batches = mine.batches()
    next(batches)
    loop.run._in_backward = True  # as its hook says; the program catches the error
    with pytest.raises(ValueError, match="its samples go back"):
        loop.step()
    assert next(batches) == [0, 1]
    assert not loop.run.failed
    assert (loop.run.state["step"], mine.steps, loop.run.samples) == (0, 1, 0)


def test_a_loop_over_the_loader_itself_is_refused() -> None:
    mine = sampler()
    loader = torch.utils.data.DataLoader(list(range(20)), batch_sampler=mine)
    for _ in range(2):  # before and after `elastic`
        with pytest.raises(ValueError, match=r"expected `for batch in sampler.batches\(loader\)`"):
            next(iter(loader))
        Loop(FakeGroup(size=2), sampler=mine)
    assert len(loader) == 5


def test_ranks_of_a_replica_say_whether_they_take_their_batches_together() -> None:
    mine = sampler()
    loop = Loop(FakeGroup(size=2), sampler=mine)
    mine.bind(loop.run, ranks=2)
    with pytest.raises(ValueError, match="in a replica of 2 ranks; expected share="):
        mine.batches()
    with pytest.raises(ValueError, match="the default group is not that of this replica's ranks"):
        mine.batches(together=True)
    assert next(mine.batches(together=False)) == [0, 1]


def test_the_gradients_of_a_failed_step_are_not_in_the_next_one() -> None:
    loop = Loop(FakeGroup())
    loop.model(torch.ones(2)).backward()  # a micro-batch
    loop.run._in_backward = True
    loop.model(torch.ones(2)).backward()
    assert loop.model.weight.grad is not None
    assert loop.model.weight.grad.tolist() == [[1.0, 1.0]]


def test_without_a_sampler_a_failed_reduction_makes_a_boundary_and_no_step() -> None:
    loop = Loop(FakeGroup())
    loop.run._in_backward = True
    loop.model(torch.ones(2)).backward()
    assert (loop.run.boundary.step, loop.run.state["step"], loop.run.failed) == (2, 0, False)
    loop.optimizer.step()
    loop.step()
    assert (loop.run.boundary.step, loop.run.state["step"]) == (3, 2)


def test_what_is_read_after_the_optimizer_is_of_its_step() -> None:
    mine = sampler()
    loop = Loop(FakeGroup(size=2), sampler=mine)
    batches = mine.batches()
    run, read = loop.run, []
    for contributors in ((0, 1), (0,), ()):
        for _ in range(2):
            next(batches)
            loop.model(torch.ones(2)).backward()
        loop.group.contributors = contributors
        before = (run.state["step"], run.samples_total)
        loop.optimizer.step()
        read.append((run.state["step"], run.samples, run.samples_total))
        assert before < read[-1][::2]
        after = run.meet()
        assert read[-1] == (run.state["step"], run.samples, run.samples_total)
        assert after.samples == run.samples_total
    assert read == [(1, 8, 8), (2, 4, 12), (3, 8, 20)]


def a_loop_after_its_first_step() -> tuple[ElasticSampler, Loop]:
    """Its boundary is still to be passed."""
    mine = sampler()
    loop = Loop(FakeGroup(size=1), sampler=mine)
    batches = mine.batches()
    for _ in range(4):
        next(batches)
    loop.step()
    return mine, loop


def test_a_boundary_that_is_interrupted_counts_its_step_once() -> None:
    mine, loop = a_loop_after_its_first_step()
    loop.group.fails = RuntimeError("interrupted")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="interrupted"):
            loop.run.meet()
    loop.group.fails = None
    loop.run.meet()
    assert (loop.run.state["step"], loop.run.boundary.step, mine.steps) == (1, 2, 1)


def test_a_boundary_that_was_passed_is_not_passed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, loop = a_loop_after_its_first_step()
    ctrl_c_in(monkeypatch, ElasticRun, "_count_samples")
    with pytest.raises(KeyboardInterrupt):
        loop.run.meet()
    loop.run.meet()
    assert (loop.group.step, loop.run.state["step"], loop.run.boundary.step) == (2, 1, 2)
    assert mine.steps == 1


def test_an_error_that_comes_after_the_boundary_passes_it_no_second_time() -> None:
    loop = Loop(FakeGroup())
    loop.step()
    error = PcclError("an operation on device tensors has failed after its wait()")
    error.boundary = loop.group.refresh(loop.run.state)  # before it raises
    loop.group.fails = error
    with pytest.raises(PcclError, match="after its wait"):
        loop.run.meet()
    loop.group.fails = None
    loop.step()
    assert (loop.group.step, loop.run.boundary.step, loop.run.state["step"]) == (2, 2, 2)


def test_who_leaves_at_once_in_the_middle_of_a_step_ends_in_good_order() -> None:
    loop = Loop(FakeGroup())
    loop.run._error = GroupClosedError("this replica has left the run")
    with pytest.raises(GroupClosedError):  # closed by the program itself
        loop.run._end_backward()
    loop.group.left = True
    with pytest.raises(LeftRun, match="left the run at once") as caught:
        loop.run._end_backward()
    assert caught.value.code == 0


def test_what_follows_the_optimizer_belongs_to_its_step() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    group: Any = FakeGroup()
    run = ElasticRun(model, [optimizer], group, {"scheduler": scheduler})
    for step in range(3):
        model(torch.ones(2)).backward()
        assert group.shared[-1]["scheduler"]["last_epoch"] == step
        assert group.shared[-1]["step"] == run.state["step"] == step
        optimizer.step()
        scheduler.step()


def test_who_has_left_ends_with_status_0() -> None:
    group = FakeGroup()
    loop = Loop(group, sampler=(mine := sampler()))
    group.leaves = True
    loop.run.meet()
    assert loop.run.left
    assert list(mine.batches()) == []
    with pytest.raises(LeftRun, match="left the run, before step 2") as caught:
        loop.step()
    assert caught.value.code == 0
    loop.run.close()
    loop.step()  # the hooks are gone
    assert group.step == 2


# ------------------------------------------------------------------------------ checkpoints


class Saving(Loop):
    """With everything that a checkpoint has to hold, and a folder for it."""

    def __init__(self, folder: Path, group: FakeGroup, **options: Any) -> None:
        self.sampler = ElasticSampler(20, batch=2, global_batch=4, shuffle=False)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        self.checkpoints = Checkpoints(folder, **{"every": 3, **options})
        super().__init__(group, self.checkpoints, sampler=self.sampler, scaler=self.scaler)

    def more(self) -> dict[str, Any]:
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        return {"scheduler": self.scheduler}

    def steps(self, count: int) -> list[int]:
        """Returns the samples that this member was given."""
        given: list[int] = []
        for indices in self.sampler.batches(steps=self.sampler.steps + count):
            given += indices
            if self.sampler.is_last:
                self.scaler.scale(self.model(torch.ones(2))).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                self.optimizer.zero_grad()
        return given

    def written(self) -> None:
        if self.checkpoints._writing is not None:
            assert self.checkpoints._writing.has_ended(60)

    def shared(self) -> dict[str, Any]:
        return {n: v.tolist() if torch.is_tensor(v) else v for n, v in self.run.state.items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_that_is_shared_goes_on_from_a_checkpoint_with_other_members(tmp_path: Path) -> None:
    first = Saving(tmp_path, FakeGroup(size=2))
    mine = first.steps(3)
    first.written()
    at_3 = first.shared()
    first.steps(1)  # is lost with the members
    assert names(tmp_path) == ["step-3"]
    second = Saving(tmp_path, FakeGroup(size=1))
    assert second.group.shared[0]["step"] == 3  # at the first boundary already
    assert second.shared() == at_3
    assert second.run.samples_total == 12
    rest = second.steps(2)
    theirs = [i + 2 for i in mine]  # of the other member
    assert sorted(mine + theirs + rest) == list(range(20))
    assert second.run.state["step"] == 5
    for loop in (first, second):
        loop.checkpoints.close()


def test_a_new_writer_saves_what_the_one_before_it_has_not(tmp_path: Path) -> None:
    loop = Saving(tmp_path, FakeGroup(size=2, rank=1))
    loop.steps(4)  # the writer was lost in the third: nobody has saved
    assert names(tmp_path) == []
    loop.group.rank = 0
    loop.steps(1)
    loop.written()
    assert names(tmp_path) == ["step-5"]
    loop.steps(1)
    loop.written()
    assert names(tmp_path) == ["step-5", "step-6"]
    loop.checkpoints.close()


def test_a_new_writer_leaves_what_is_being_written_to_the_one_that_leaves(tmp_path: Path) -> None:
    loop = Saving(tmp_path, FakeGroup(size=2, rank=1))
    loop.steps(3)
    (tmp_path / ".writing-3-0123abcd").mkdir()
    writing = lock(tmp_path / ".writing-3-0123abcd" / "pccl")
    loop.group.rank = 0
    loop.steps(2)
    loop.written()
    assert names(tmp_path) == [".writing-3-0123abcd"]
    loop.steps(1)
    loop.written()
    assert names(tmp_path) == ["step-6"]
    loop.checkpoints.close()
    unlock(writing)


def test_a_new_writer_saves_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    loop = Saving(tmp_path, FakeGroup(size=2, rank=1), every=100)
    loop.steps(100)
    (tmp_path / ".writing-100-0123abcd").mkdir()
    writing = lock(tmp_path / ".writing-100-0123abcd" / "pccl")
    loop.group.rank = 0
    loop.steps(3)
    unlock(writing)  # as the end of its process does
    loop.steps(1)
    loop.written()
    loop.steps(3)
    loop.written()
    assert names(tmp_path) == ["step-104"]
    loop.checkpoints.close()


def test_remains_without_a_lock_count_as_being_written_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    mark = tmp_path / "pccl"
    assert not is_locked(mark)
    unlock(lock(mark))
    assert is_locked(mark)


def test_no_memory_for_a_copy_of_the_state_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: Any) -> None:
        raise RuntimeError("can't allocate memory: you tried to allocate 7 bytes")

    loop = Saving(tmp_path, FakeGroup(size=1))
    for where, what in ((Checkpoints, "_snapshot"), (_checkpoints, "Background")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, none)
            loop.steps(4)  # what is overdue is tried again, too
            loop.written()
        assert "was not written: " in caplog.text
        assert "you tried to allocate 7 bytes" in caplog.text
        caplog.clear()
    loop.steps(3)
    loop.written()
    assert names(tmp_path)[-1] == "step-9"
    loop.checkpoints.close()


def test_a_folder_that_cannot_be_asked_at_the_end_does_not_keep_the_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Saving(tmp_path, FakeGroup(size=1))
    loop.steps(1)

    def stale(*_: Any) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", stale)
        with pytest.raises(RuntimeError, match="Stale file handle; the older ones are unchanged"):
            loop.run.finish()
    assert loop.group.finished == 1
    assert loop.run.boundary.finished
    loop.checkpoints.close()


def test_a_full_disk_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:  # as DCP's writer, whose file ends by the second error
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            try:
                raise RuntimeError("unexpected pos 704 vs 598")
            except RuntimeError as wrong:
                raise CheckpointException("", {0: (wrong, None)}) from None

    loop = Saving(tmp_path, FakeGroup(size=1))
    monkeypatch.setattr(_checkpoints, "save_with_dcp", fails)
    monkeypatch.setattr(_checkpoint_files, "FREE_BYTES_LITTLE", 1 << 62)
    loop.steps(3)
    loop.written()
    (line,) = [r.getMessage() for r in caplog.records if "not written" in r.getMessage()]
    assert re.fullmatch(r".*\[Errno 28\] No space left on device; \d+ bytes are free in .*", line)
    with pytest.raises(RuntimeError, match="No space left"):
        loop.checkpoints.close()


def test_a_write_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    loop = Saving(tmp_path, FakeGroup(size=1))
    with monkeypatch.context() as patch:
        patch.setattr(_checkpoints, "save_with_dcp", full)
        loop.steps(4)
        loop.written()
    assert "checkpoint of step 3 was not written: " in caplog.text
    loop.steps(3)
    loop.written()
    assert names(tmp_path) == ["step-6"]
    loop.checkpoints.close()


def test_a_checkpoint_of_other_things_is_refused_and_nothing_has_changed(tmp_path: Path) -> None:
    first = Saving(tmp_path, FakeGroup(size=1), every=1)
    first.steps(2)
    first.checkpoints.close()
    other = ElasticSampler(20, batch=5, shuffle=False)
    more = {"scheduler": first.scheduler, "scaler": first.scaler}
    for state, text in (
        ({"sampler": other, **more}, "has batch=2 and this one 5"),
        ({"sampler": sampler(), "clip": first.scheduler, **more}, r"state\['clip'\] is not in"),
    ):
        checkpoints = Checkpoints(tmp_path, every=1)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.25, momentum=0.5)
        before = model.weight.tolist()
        group: Any = FakeGroup(size=1)
        with pytest.raises(ValueError, match=text):
            ElasticRun(model, [optimizer], group, state, checkpoints)
        assert model.weight.tolist() == before
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert group.shared == []  # no boundary was passed
        checkpoints.close()


def test_the_arguments_for_ddp_are_those_of_this_torch() -> None:
    assert ddp_kwargs["init_sync"] is False
    assert len(ddp_kwargs) == 3


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_end_is_saved_before_the_run_is_finished(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=2)
    loop = Loop(FakeGroup(), checkpoints)
    for _ in range(3):
        loop.step()
    seen = []
    finish = loop.group.finish

    def spy(**options: Any) -> Boundary:
        seen.append(saved(tmp_path))
        return finish(**options)

    loop.group.finish = spy  # type: ignore[method-assign]
    boundary = loop.run.finish()
    assert seen == [["step-2", "step-3"]]
    assert (boundary.finished, boundary.writer, loop.run.state["step"]) == (True, True, 3)
    assert loop.run.finish() is boundary
    assert loop.group.finished == 1
    checkpoints.close()
    again = Loop(FakeGroup(), Checkpoints(tmp_path, every=2))
    assert again.run.state["step"] == 3


def test_where_the_writer_is_lost_at_the_end_its_successor_saves(tmp_path: Path) -> None:
    loop = Loop(FakeGroup(rank=1), Checkpoints(tmp_path, every=2))
    loop.step()
    loop.group.rank_at_end = 0
    assert loop.run.finish().writer
    assert saved(tmp_path) == ["step-1"]


def test_an_end_that_cannot_be_saved_is_an_error_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    loop = Loop(FakeGroup(), Checkpoints(tmp_path, every=2))
    loop.step()
    monkeypatch.setattr(_checkpoints, "save_with_dcp", fails)
    with pytest.raises(RuntimeError, match="no space left"):
        loop.run.finish()
    assert loop.group.finished == 1
    assert loop.run.boundary.finished


def test_who_has_left_finishes_nothing() -> None:
    loop = Loop(FakeGroup())
    loop.step()
    loop.group.leaves = True
    assert loop.run.finish().left
    assert loop.group.finished == 0
