"""Checkpoints of a run: one replica writes the shared state while all go on training.

A checkpoint is a folder `step-N` in the format of torch.distributed.checkpoint. The folder is
written under another name and renamed when it is whole, so every `step-N` can be read. It holds the
state that `refresh` shares, from just after a boundary: so the run is never behind its checkpoints.
Decides nothing about membership and calls nothing on the elastic group.

The plain values of the state are one tensor of bytes, in the encoding of the manifest
(`_state.py`). `_checkpoint_files.py` says by which keys a checkpoint holds its tensors.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_with_dcp

from . import _extension
from ._background import Background
from ._checkpoint_files import (
    Planner,
    Writer,
    cause_of,
    is_locked,
    key_of,
    lock,
    sync,
    unlock,
    why,
)
from ._checkpoint_reading import read
from ._group import Boundary
from ._replica import Ranks, from_rank_0, group_of_ranks
from ._shared_state import State, state_of
from ._state import (
    REVISION_MAX,
    encode_manifest,
    plain_of,
    revision_of,
)

WRITING, GONE = ".writing-", ".gone-"  # prefixes of what is not, or no longer, a checkpoint
MARK = "pccl"  # file in the folder that rank 0 has made
# The last write, or a load; the ranks of a replica act on their highest.
FREE, BUSY, FAILED, LATE, REFUSED = 0, 1, 2, 3, 4
WRITE_S = 1200.0  # below the default time-out of groups: ranks wait for each other's writes

_log = logging.getLogger("pccl")

# A replica of one rank writes without a group, and DCP would warn of that at each call.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class Checkpoints:
    """Saves and loads the shared state of a run, in a folder that all replicas see.

        checkpoints = pccl.Checkpoints("checkpoints")
        checkpoints.load(state)
        boundary = group.refresh(state)
        ...
            boundary = group.refresh(state)
            if state["step"] % 100 == 0:
                checkpoints.save(state, boundary)
        if not boundary.left:
            checkpoints.save_end(state, boundary)
            boundary = group.finish()
            checkpoints.save_end(state, boundary)
        checkpoints.close()

    A checkpoint is named after its step: the state has an integer under "step", which grows.
    With `elastic`, which loads and saves by itself:

        checkpoints = pccl.Checkpoints("checkpoints", every=100)
        run = pccl.elastic(model, optimizer, checkpoints=checkpoints)

    Use an object from one thread. A thread of the object writes; one write is in flight at most.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int = 2,
        timeout_s: float = WRITE_S,
        unpickle: bool = False,
    ) -> None:
        """Collective among the ranks of a replica: makes two groups of these ranks, for writing.

        Args:
            folder: Folder that all replicas see; made if it is missing.
            every: For `elastic`: number of steps between two checkpoints.
            keep: Number of checkpoints that are kept: the one just written, and those of the steps
                before. Checkpoints of later steps, which another run has left, are kept, too.
            timeout_s: Seconds for which `close`, and `finish` of `elastic`, wait for a write.
            unpickle: Load checkpoints that have no `index.json`, too; pccl 0.1 wrote none. Their
                index is a pickle: whoever can write to the folder runs code in this process.

        Raises:
            ValueError: `every` or `keep` is no int or less than 1, or `timeout_s` is not above 0.
            OSError: The folder cannot be made, or rank 0 cannot read it.
        """
        if type(keep) is not int or keep < 1:
            raise ValueError(f"keep is {keep!r}; expected an int, 1 or more")
        if every is not None and not (type(every) is int and every >= 1):
            raise ValueError(f"every is {every!r}; expected a number of steps, 1 or more")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds above 0")
        self.every = every
        self._timeout_s = timeout_s
        self._unpickle = unpickle
        self._closed = False
        self._was_writer = False  # at the last boundary that `save_when_due` was told of
        # Step of the last load, or step and boundary of the last save at whichever member.
        self._last: tuple[int, int | None] | None = None
        self._folder = Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep = keep
        self._write_group = group_of_ranks()
        self._ask_group = group_of_ranks()  # the writing thread never uses it
        alone = self._ask_group is None
        self._rank, self._size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        self._found = self._found_by_rank_0(self._names)  # of other runs, if they are later
        self._stager: Any = StateDictStager()  # torch's DefaultStager serves once up to torch 2.12
        self._writing: Background | None = None
        self._begun: Path | None = None  # the folder in which this process writes, at rank 0
        self._lock: int | None = None  # of that folder
        atexit.register(self._wait_at_exit)  # the end of the program does not cut a write off

    def save(self, state: MutableMapping[str, Any], boundary: Boundary) -> bool:
        """Begins to write the state as it is after `boundary`, if this replica is the writer.

        All members call `save` with what `refresh` has returned, before `state` changes. The call
        copies the state and returns; the write goes on beside the training. If the write before is
        still in flight, this checkpoint is left out, and the log says so (`save_end` leaves none
        out). If the folder has a checkpoint of this step already, nothing is written, with a
        warning unless this process has loaded that one, or a member has saved it at this boundary.

        Args:
            state: The state, as `refresh` takes it.
            boundary: What `refresh(state)` has returned.

        Returns:
            Whether a write has begun.

        Raises:
            ValueError: `state` has no integer under "step". Nothing is written.
            RuntimeError: The write before has failed (it was logged then), or these Checkpoints are
                closed. Nothing is written now; `state` and the older checkpoints are unchanged.
                After a failure the next call tries again.
        """
        step = _step_of(state)
        if not boundary.writer:
            self._last = step, boundary.step
            return False
        word, error = self._outcome()
        word = self._agree(word)
        if word == FAILED:
            raise _failed(error)
        return self._begin_write(state, boundary, word)

    def save_when_due(self, state: MutableMapping[str, Any], boundary: Boundary) -> bool:
        """Saves after every `every` steps; `elastic` calls it at each boundary that ends a step.

        A writer may be lost before its write has begun, and if the boundary did not vote, there is
        no writer at that boundary. So the next writer saves an overdue checkpoint at once. A
        checkpoint that is being written counts as written while the process that writes it lives:
        that process may have left the run. A write that failed, also for want of memory or of a
        thread, is logged and not raised: otherwise a full disk would end one replica after the
        other.

        Returns:
            Whether a write has begun.
        """
        assert self.every is not None
        step = _step_of(state)
        last_due = step - step % self.every
        is_new, self._was_writer = not self._was_writer, boundary.writer
        if not boundary.writer:
            if step == last_due:
                self._last = step, boundary.step
            return False
        if step != last_due:
            if not is_new:
                return False
            newest, is_whole = self._found_by_rank_0(lambda: self._newest_begun(step))
            if newest >= last_due:
                self._was_writer = is_whole  # else the next boundary looks again
                return False
        word = self._agree(self._outcome()[0])
        while word == FAILED:  # at another rank it may still be going on, and fail later
            word = self._agree(self._outcome()[0])
        try:
            return self._begin_write(state, boundary, word)
        except BaseException as error:  # Ctrl-C, or no thread: overdue at the next boundary
            if self._size == 1:
                self._was_writer = False
            if self._closed or not isinstance(error, RuntimeError):
                raise
            _log.error("checkpoint of step %d was not written: %s", step, error)
            return False

    def save_end(
        self, state: MutableMapping[str, Any], boundary: Boundary, *, may_fail: bool = False
    ) -> None:
        """Saves the end of a run, at the writer's replica, and returns when it is written.

        All members call `save_end` after the last boundary of the loop, before `group.finish`. The
        writer waits for the write in flight, writes the state if the checkpoint of this step is not
        there, and waits for that write too, each time for `timeout_s` at most. The other members
        return at once, and wait in `finish`. Called again with the boundary that `finish` has
        returned, `save_end` does nothing, unless the writer was lost before its write had ended:
        then the member that has got rank 0 writes. `elastic` makes both calls.

        Args:
            state: The state, as `refresh` takes it, as it is after the last boundary of the loop.
            boundary: What the last `refresh`, or `finish`, has returned.
            may_fail: A write that fails, or does not end in time, is logged and not raised.

        Raises:
            ValueError: `state` has no integer under "step". Nothing is written.
            RuntimeError: The write has failed, or has not ended within `timeout_s`. The older
                checkpoints are unchanged.
        """
        step = _step_of(state)
        if not boundary.writer:
            self._last = step, boundary.step
            return
        is_there = False
        try:
            is_there, error = self._settled(step)
            if is_there:  # the write that was under way may have been the one of this step
                self._say_there(step, self._knows(step, boundary))
            else:
                self._begin_write(state, boundary, FREE)
                is_there, error = self._settled(step)
        except OSError as failure:
            error = failure
        except RuntimeError as no_thread:
            if self._closed:
                raise
            error = no_thread
        if not (is_there or may_fail):
            raise _failed(error)

    def _settled(self, step: int) -> tuple[bool, BaseException | None]:
        """Waits for the write in flight. Is the checkpoint of `step` there; has that write failed?

        Raises:
            OSError: The folder cannot be read, or (TimeoutError) the write has not ended in time;
                the log says so.
        """
        word, error = self._waited_for()
        word = self._agree(word)
        try:
            is_there = self._found_by_rank_0(self._path(step).exists)
        except OSError as unreadable:
            _log.error("the end of the run, step %d, may not be saved: %s", step, unreadable)
            raise
        if word == LATE and not is_there:
            late = self._late()
            _log.error("the end of the run, step %d, is not saved: %s", step, late)
            raise late
        return is_there, error

    def _knows(self, step: int, boundary: Boundary) -> bool:
        """May the checkpoint of this step be there already?

        A checkpoint that this process has loaded may, and one that a member has saved at this same
        boundary: `finish` changes no state, so its boundary counts as the one before.
        """
        if self._last is None or self._last[0] != step:
            return False
        return boundary.finished or self._last[1] in (None, boundary.step)

    def _begin_write(self, state: MutableMapping[str, Any], boundary: Boundary, word: int) -> bool:
        step = revision_of(state)
        if self._closed:
            raise RuntimeError(f"step {step} is not saved: these Checkpoints are closed")
        if word == BUSY:
            _log.warning("checkpoint of step %d is left out: one is still being written", step)
            return False
        is_known = self._knows(step, boundary)
        snapshot: dict[str, Any] | Exception
        try:
            snapshot = self._snapshot(state_of(state))
        except Exception as error:
            if self._size == 1 and isinstance(error, (TypeError, ValueError)):  # of the program
                raise
            snapshot = error  # fails the write, of which the other ranks hear, too
        writing = self._thread(step, snapshot, is_known)
        word = self._agree(FAILED if writing is None else FREE)
        if word == FAILED or writing is None:
            raise RuntimeError(f"step {step} is not saved: a rank has no thread for the write")
        self._writing = writing
        self._writing.begin()  # known by now, so that Ctrl-C loses no write from sight
        self._last = step, boundary.step
        return True

    def _thread(self, *arguments: Any) -> Background | None:
        """A thread that will write; None: the system gives no more threads."""
        try:
            return Background(self._write, *arguments)
        except RuntimeError as error:
            _log.error("no thread for the write of a checkpoint: %s", error)
            return None

    def load(self, state: MutableMapping[str, Any]) -> int | None:
        """Takes the newest checkpoint into `state`, before the first `refresh`.

        Collective among the ranks of a replica. The replica may have another number of ranks than
        the replica that wrote: DTensors are divided anew. An optimizer that has not stepped gets
        its state too. A plain value that the checkpoint lacks, since the program is newer, is
        kept, and the log says so. At the first boundary of a run the highest step that a replica
        has loaded wins; a newcomer of a running run receives the state of the run if it has loaded
        an older one, and is refused if it has loaded a later one (`RefusedError`).

        Returns:
            The step of the checkpoint; None if there is none, and `state` is unchanged.

        Raises:
            ValueError: `state` has no integer under "step"; or names, dtypes or shapes differ from
                those of the checkpoint; or an object does not take its values; or the number of
                ranks differs, and a value that is no DTensor was not the same at all ranks. Tensors
                and plain values are unchanged. The other ranks of the replica raise too, and may
                hold the checkpoint.
            OSError: Rank 0 of the replica cannot read the folder. `state` is unchanged.
            RuntimeError: The checkpoint cannot be read. `state` may hold a part of it.
        """
        _step_of(state)
        failed: tuple[str, BaseException | None] | None = None
        while True:
            newest = self._found_by_rank_0(lambda: self._names()[-1:])
            if not newest:
                return None
            (name,) = newest
            if failed is not None and failed[0] == name:
                text = f"the checkpoint {self._folder / name} cannot be read: {failed[1]}"
                raise RuntimeError(text) from failed[1]
            error: BaseException | None = None
            try:
                read(
                    self._folder / name,
                    state_of(state),
                    rank=self._rank,
                    size=self._size,
                    unpickle=self._unpickle,
                )
            except (Exception, CheckpointException) as raised:
                error = raised  # it may have been cleared away for a newer one
            is_refused = isinstance(error, ValueError)
            word = self._agree(FREE if error is None else REFUSED if is_refused else FAILED)
            if word == FREE:
                step = revision_of(state)
                self._last = step, None
                _log.info("checkpoint of step %d loaded from %s", step, self._folder)
                return step
            if error is not None and is_refused:
                raise error
            if word == REFUSED:
                raise ValueError(
                    f"another rank of this replica has refused {self._folder / name}; the error "
                    "of that rank says why"
                )
            failed = name, error or RuntimeError("another rank of this replica failed")

    def close(self) -> None:
        """Waits for the write in flight; called at all ranks, before `destroy_process_group`.

        Raises:
            RuntimeError: The write has failed, or has not ended within `timeout_s`. The older
                checkpoints are unchanged.
        """
        self._closed = True
        word, error = self._waited_for()
        atexit.unregister(self._wait_at_exit)
        if word == LATE:  # the write may go on, from the memory of the stager
            raise _failed(self._late())
        self._stager.close()
        if word == FAILED:
            raise _failed(error)

    # -------------------------------------------------------------------------- ranks

    def _outcome(self) -> tuple[int, BaseException | None]:
        """The outcome of the last write; its error is raised once."""
        writing = self._writing
        if writing is None:
            return FREE, None
        if not writing.has_ended():
            return BUSY, None
        self._writing = None
        return (FREE if writing.error is None else FAILED), writing.error

    def _waited_for(self) -> tuple[int, BaseException | None]:
        """The outcome of the write in flight, for which it waits; LATE: it has not ended."""
        if self._writing is not None:
            self._writing.has_ended(self._timeout_s)
        word, error = self._outcome()
        return (LATE if word == BUSY else word), error

    def _wait_at_exit(self) -> None:
        """Waits for the write in flight; the other members do not wait for this one meanwhile.

        A replica of several ranks stays in the run until then: it leaves as a whole, and its ranks
        write together.
        """
        if self._size == 1 and self._writing is not None and not self._writing.has_ended():
            _extension.leave_run()
        self._waited_for()

    def _late(self) -> TimeoutError:
        return TimeoutError(
            f"the write of a checkpoint into {self._folder} has not ended within "
            f"{self._timeout_s:g} s (timeout_s of Checkpoints): the file system, or another rank "
            "of this replica, has not answered"
        )

    def _agree(self, word: int) -> int:
        """The highest state of all ranks, so that all begin a write or all leave it out."""
        if self._ask_group is None:
            return word
        highest = torch.tensor([word], device="cpu")
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self._ask_group)
        return int(highest.item())

    def _found_by_rank_0(self, look: Callable[[], Any], *, writing: bool = False) -> Any:
        """What rank 0 finds in the folder; all ranks raise its OSError."""
        said: list[Any] = [None, ""]
        if self._rank == 0:
            try:
                said[0] = look()
            except OSError as error:
                said[1] = str(error) or repr(error)
        found, error_text = from_rank_0(said, self._write_group if writing else self._ask_group)
        if error_text:
            raise OSError(error_text)
        return found

    # -------------------------------------------------------------------------- writing

    def _snapshot(self, state: State) -> dict[str, Any]:
        """Copies of the state in host memory, by the names in the checkpoint.

        The memory is used again by the next snapshot, which must not be made during a write.
        """
        tensors = {
            key_of(name, 0 if hasattr(tensor, "to_local") else self._rank): tensor
            for name, tensor in state.wholes().items()
            if isinstance(tensor, torch.Tensor)
        }
        try:
            copies: Any = self._stager.stage(tensors)
        except AssertionError:  # the memory of a tensor has another size than before
            self._stager = StateDictStager()
            copies = self._stager.stage(tensors)
        text = encode_manifest([], plain_of(state))
        own = key_of(None, self._rank)
        return {**copies, own: torch.frombuffer(bytearray(text), dtype=torch.uint8)}

    def _write(self, step: int, snapshot: dict[str, Any] | Exception, is_known: bool) -> None:
        """Runs on the thread: writes a whole checkpoint, or fails and leaves nothing."""
        began = time.monotonic()
        name = None
        try:
            name = self._begin(step, is_known)
            if name is None:
                return
            self._write_files(self._folder / name, snapshot)
            if self._rank == 0:
                self._publish(name, step)
                _log.info(
                    "checkpoint of step %d written in %.1f s: %s",
                    step,
                    time.monotonic() - began,
                    self._path(step),
                )
        except BaseException as error:  # DCP's own is no Exception
            text = why(error, self._folder)
            _log.error("checkpoint of step %d was not written: %s", step, text)
            _log.debug("the failed write", exc_info=error)
            if self._begun is not None:
                self._remove(self._begun)
            raise RuntimeError(f"the checkpoint of step {step} was not written: {text}") from error
        finally:
            self._begun = None
            if self._lock is not None:
                unlock(self._lock)
                self._lock = None

    def _write_files(self, path: Path, snapshot: dict[str, Any] | Exception) -> None:
        """Collective: each rank writes its files; DCP, for which each is alone, sees no group."""
        ranks = Ranks(self._write_group)
        try:
            if isinstance(snapshot, Exception):
                raise snapshot
            save_with_dcp(
                snapshot,
                storage_writer=Writer(path, ranks),
                planner=Planner(ranks),
                no_dist=True,
            )
        except BaseException as error:
            ranks.tell(cause_of(error))
            raise

    def _begin(self, step: int, is_known: bool) -> str | None:
        """Makes the folder to write in, at rank 0; its name, None if the checkpoint is there."""
        made: str | None = self._found_by_rank_0(
            lambda: self._make_folder(step, is_known), writing=True
        )
        return made

    def _make_folder(self, step: int, is_known: bool) -> str | None:
        for leftover in self._folder.iterdir():
            if leftover.name.startswith((WRITING, GONE)):
                self._remove(leftover)
        if self._path(step).exists():
            self._say_there(step, is_known)
            return None
        path = self._folder / f"{WRITING}{step}-{secrets.token_hex(4)}"
        path.mkdir()
        self._begun = path
        self._lock = lock(path / MARK)
        return path.name

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def _say_there(self, step: int, is_known: bool) -> None:
        if self._rank != 0:
            return
        if is_known:
            _log.info("checkpoint of step %d is there already", step)
        else:
            _log.warning(
                "nothing is saved at step %d: %s is there already, from another run or an earlier "
                "boundary; state['step'] has to grow, and each run needs a folder of its own",
                *(step, self._path(step)),
            )

    def _publish(self, name: str, step: int) -> None:
        """Gives the folder its name, durably.

        Another writer that took this one for dead renames the folder before it removes it. Late
        ranks then write into a new folder of the old name, which has no mark.
        """
        path = self._folder / name
        if not (path / MARK).exists():
            raise OSError(f"{path} was cleared away by another writer")
        sync(path)
        try:
            path.rename(self._path(step))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._remove(path)  # another writer was faster, with the same state
        sync(self._folder)
        names = self._names()
        ours = [name for name in names if _number(name) <= step]
        for old in ours[: -self._keep]:
            self._remove(self._folder / old)
        if later := [name for name in names[len(ours) :] if name in self._found]:
            _log.warning(
                "%s has checkpoints of later steps than %d, up to %s: load takes the latest one; a "
                "run that begins anew needs a folder of its own",
                *(self._folder, step, later[-1]),
            )

    def _remove(self, path: Path) -> None:
        """Renames the folder first, because a half-removed folder is no checkpoint."""
        gone = path
        if not path.name.startswith(GONE):
            gone = self._folder / f"{GONE}{path.name.lstrip('.')}-{secrets.token_hex(4)}"
            with contextlib.suppress(FileNotFoundError):  # another one removes it
                path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)  # what is left is cleared by the next write

    def _names(self) -> list[str]:
        """The whole checkpoints, oldest first."""
        found = [path.name for path in self._folder.iterdir()]
        return sorted(
            (name for name in found if re.fullmatch(r"step-\d+", name)),
            key=_number,
        )

    def _newest_begun(self, step: int) -> tuple[int, bool]:
        """Highest step up to this one with a checkpoint, or one that is being written; 0: none.

        And whether that checkpoint is whole.
        """
        begun = [(0, True)]
        try:
            for path in self._folder.iterdir():
                match = re.fullmatch(rf"(?:step-(\d+)|{re.escape(WRITING)}(\d+)-\w+)", path.name)
                if match and (match[1] or is_locked(path / MARK)):
                    begun.append((int(match[1] or match[2]), match[1] is not None))
        except OSError as error:
            _log.error("the checkpoints in %s cannot be listed: %s", self._folder, error)
            return REVISION_MAX, True  # the next one is written when it is due
        return max(one for one in begun if one[0] <= step)


def _failed(error: BaseException | None) -> RuntimeError:
    text = str(error) if error else "a checkpoint was not written: see the log of the other ranks"
    failure = RuntimeError(f"{text}; the older ones are unchanged")
    failure.__cause__ = error
    return failure


def _number(name: str) -> int:
    """Of a whole checkpoint's name."""
    return int(name.removeprefix("step-"))


def _step_of(state: MutableMapping[str, Any]) -> int:
    """The number in the name of a checkpoint.

    Raises:
        ValueError: `state` has no integer under "step".
    """
    if state.get("step") is None:
        raise ValueError(
            "the state has no 'step', after which a checkpoint is named; expected an int under "
            "'step' that grows: state['step'] += 1 in each step of the loop"
        )
    return revision_of(state)
