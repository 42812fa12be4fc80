"""The elastic group as a program sees it: join, refresh, resume, leave, rank and size.

A boundary is a conversation with the engine, because hashing and checking the shared state run on
the caller's thread; it is waited for in short slices, so that Ctrl-C works. Decides nothing about
membership: the master does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.utils.hooks import RemovableHandle

from . import _events, _eviction, _extension, _making, _rank_tables, _rendezvous, _simulated
from ._config import NAME, ON_LOSS, Options, Replica, parse_url
from ._errors import GroupClosedError, MismatchError, PcclError
from ._register import register
from ._session import talk as _talk
from ._state import Exchange, RunMovedOnError, Snapshot, SourceFailedError, revision_of

SLICE_S = 0.2
SAY_WAITING_S = 5.0
SAY_AT_DOOR_S = 1.0
NAMES_SAID = 5
FOUNDING_TIMEOUT_S = 1800.0
NOT_FINISHED = (
    "the run is not finished: other members called refresh at this boundary, or the master is "
    "older than this package; expected finish() of all members"
)
NO_STATE = b"\0" * 32

_log = logging.getLogger(NAME)


@dataclass(frozen=True)
class Boundary:
    """The result of a boundary, which `refresh` and `resume` return.

    Attributes:
        epoch: Number of the epoch in force, "incarnation.counter".
        rank: This peer's rank in the next step.
        size: Number of members in the next step.
        step: Number of the next step.
        voted: The boundary voted: members were compared, admitted or let go. False: this peer sent
            nothing.
        admitted: This boundary has made this newcomer a member.
        left: This peer has left the run, because it asked to: end the program.
        bytes_received: Bytes of shared state that were fetched; 0 if this member's state was right.
        contributors: The ranks that took part in every operation of the ended step that succeeded
            (barriers aside), in the numbering of that step and within this peer group. These are
            all ranks, unless a member was lost in the step. () at a newcomer's first boundary.
        size_changed: `size` is not what it was before this boundary.
        paused_s: Seconds that the call took.
        samples: Samples that have counted in the whole run, those of the ended step included. None,
            unless `elastic` passes the boundaries of a loop with an ElasticSampler.
        writer: This member's replica is the one that logs and saves: it has rank 0.
        finished: The run is finished, as all members have said (`finish`).
    """

    epoch: str
    rank: int
    size: int
    step: int
    voted: bool
    admitted: bool
    left: bool
    bytes_received: int
    contributors: tuple[int, ...]
    size_changed: bool
    paused_s: float
    samples: int | None = None
    finished: bool = False

    @property
    def writer(self) -> bool:
        """Does this member's replica log and save? The same at all its ranks."""
        return self.rank == 0 and not self.left


class ElasticGroup:
    """The elastic group of this process; `group()` returns it. Use it from one thread at a time."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        """Takes an elastic process group; programs call `group()`."""
        self.process_group = process_group
        self._module = _extension.extension()

    def __repr__(self) -> str:
        """Rank, size, epoch and step as they are now."""
        try:
            rank, size, epoch, step = self.rank, self.size, self.epoch, self.step
        except GroupClosedError:
            return "ElasticGroup(closed)"
        return f"ElasticGroup(rank={rank}, size={size}, epoch={epoch!r}, step={step})"

    @property
    def rank(self) -> int:
        """Rank of this peer; it changes at boundaries only."""
        return int(self._module.group_view()["rank"])

    @property
    def size(self) -> int:
        """Number of members; it changes at boundaries only."""
        return int(self._module.group_view()["size"])

    @property
    def epoch(self) -> str:
        """Number of the newest epoch, "incarnation.counter"; a loss changes it within a step."""
        return str(self._module.group_view()["epoch"])

    @property
    def step(self) -> int:
        """Number of the step between the last boundary and the next."""
        return int(self._module.group_view()["step"])

    def in_flight(self) -> list[dict[str, Any]]:
        """The operations that have not ended yet.

        Returns:
            For each a dict: `op` ("step.index"), `kind`, `bytes_sent`, `bytes_received`,
            `complete` (this peer's part is done, and the commit is still to come), and
            `algorithm` (how it goes: "ring", for example; "none" before it has begun).

        Raises:
            OperationTimeoutError: The engine's thread was busy for 30 s.
            EngineError: A bug has stopped the engine.
            GroupClosedError: The engine is being shut down.
        """
        operations: list[dict[str, Any]] = self._module.in_flight()
        return operations

    def refresh(
        self,
        state: MutableMapping[str, Any] | None = None,
        *,
        verify: bool = False,
        timeout_s: float | None = None,
    ) -> Boundary:
        """Passes a boundary: admits newcomers that wait, and makes `state` equal at all members.

        Collective: every member calls `refresh` at the same boundary, between two steps. A
        newcomer's first call returns when the newcomer has been admitted and holds the state. If no
        member has a reason to vote, the call sends nothing and returns at once.

        Args:
            state: Contiguous tensors of any shape `(...)`, on CPU or CUDA, and plain values (None,
                bool, int, float, str, bytes, lists and dicts of them), by name; names, shapes and
                dtypes are the same at all members. Tensors that differ are written in place, plain
                values are replaced in the mapping (of a dict the keys keep the order that they have
                here). The integer under "step" is the state's revision. None: there is no shared
                state.
            verify: Compare the states even if nothing else asks for a vote; the same value at all
                members.
            timeout_s: Seconds until the members that have not come are evicted (None:
                `step_timeout_s`). A newcomer that nobody admits gives up after these seconds; each
                piece of the state that arrives starts them anew.

        Returns:
            Epoch, rank and size of the next step, and what the boundary has done.

        Raises:
            ValueError: The state cannot be shared (nothing was sent), or differs in names, dtypes
                or shapes from the run's (the tensors are unchanged).
            EvictedError: The run goes on without this peer. Leave and join again.
            OperationTimeoutError: `timeout_s` passed and this newcomer was not admitted: join
                again. The state is unchanged.
            NoMemoryError: This member has no memory for the state that it has to fetch. The state
                is unchanged; the next call of `refresh` tries again.
            RuntimeError: Another call of `refresh` or `resume` has not returned: one of another
                thread, or one that a signal handler has interrupted. That call goes on.
            PcclError: An operation on device tensors of the ended step failed after its `wait()`
                had returned; its tensors are unchanged. The boundary has been passed.

        Source:
            docs/architecture/rules.md: the state that most members hold wins.
        """

        def call() -> Boundary:
            shared = None
            _talk.had_state = _talk.revision is not None
            _talk.revision = None if state is None else revision_of(state)
            if state is not None:
                _talk.fetched = _talk.fetched or self._module.StateFetch()
                shared = Exchange(state, self._module.sha256, _talk.fetched)
            return self._pass("refresh", shared, verify, timeout_s)

        return self._alone(call)

    def resume(self, *, timeout_s: float | None = None) -> Boundary:
        """Begins the next step with the survivors of a loss, in a program without `refresh`.

        Collective among the survivors. Brings rank and size up to date; admits nobody.

        Raises:
            EvictedError: The run goes on without this peer.
        """
        return self._alone(lambda: self._pass("resume", None, False, timeout_s))

    def finish(self, *, timeout_s: float | None = None) -> Boundary:
        """Says that the run is finished, and returns when all members have said so.

        Collective, in place of a `refresh`, at the same boundary of all members. The master writes
        down that the run is finished, after which step, and when. From then on a process that
        wants to join, or waits at the door, gets RunEndedError; `pccl-master --again TIME` opens
        the run anew. (If all members leave or end without this call, the run only pauses: the next
        newcomers go on from a checkpoint, or begin.) Afterwards operations of this group raise
        GroupClosedError.

        Args:
            timeout_s: Seconds until members that did not come are evicted (None: `step_timeout_s`).

        Returns:
            A boundary with `finished`, and rank and size of the members that have finished the run;
            `left`, if this peer has left before, by `leave`: the one at which it left.

        Raises:
            MismatchError: Other members have called `refresh` at this boundary, or the master is of
                a version that knows no end of a run. The boundary has been passed like any other;
                if the other members share a state, they wait for `refresh(state)` of this peer.
            NotAdmittedError: This newcomer has not called `refresh`.
            EvictedError: The run goes on without this peer.
        """
        if _talk.left is not None:
            left: Boundary = _talk.left
            return left
        boundary = self._alone(lambda: self._pass("finish", None, False, timeout_s))
        if not (boundary.finished or boundary.left):
            raise MismatchError(NOT_FINISHED)
        return boundary

    @property
    def left(self) -> bool:
        """Whether this peer has left the run: operations raise, and `refresh` returns `left`."""
        return bool(self._module.group_view()["left"])

    def leave(self, *, at_once: bool = True) -> None:
        """Asks to leave the run: the `refresh` of the next boundary returns with `left` set.

        If no member has issued an operation in this step (as between the outer steps of DiLoCo),
        this peer leaves before the boundary, within a second or so: then the property `left` is
        set, and operations raise GroupClosedError. May be called at any time, also from a signal
        handler, and a second time to change `at_once`. The other members replay nothing and get no
        error.

        Args:
            at_once: False: leave at a boundary only, since this program has still to issue
                operations of this step.
        """
        self._module.leave(at_once)

    def on(self, what: str, function: _events.Hook) -> RemovableHandle:
        """Calls `function(change)` when something happens to the run, on pccl's event thread.

        `function` must not call collectives: these have their order in the program. An exception
        that `function` raises is logged.

        Args:
            what: "epoch" (a new epoch has begun), "joined" (with new members), "left" (without
                members that have left or were lost), "evicted" (this peer was evicted),
                "master_lost", "master_back".
            function: Is given a Change.

        Returns:
            A handle; its `remove()` takes the hook away. All hooks end with the group.

        Raises:
            ValueError: There is no such event.
        """
        return _events.add(what, function)

    def _contributors(self) -> tuple[int, ...]:
        """Ranks that have contributed to all operations of this step so far; (): there is none."""
        return tuple(self._module.group_view()["contributors"])

    def _alone(self, call: Callable[[], Boundary]) -> Boundary:
        boundary: Boundary = self._module.turn.take(call)
        return boundary

    def _pass(
        self, kind: str, shared: Exchange | None, verify: bool, timeout_s: float | None
    ) -> Boundary:
        module = self._module
        began = time.monotonic()
        if timeout_s is None:
            timeout_s = _extension.config().step_timeout_s
        elif not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds above 0, or None")
        if not _talk.is_open:
            _talk.before = module.group_view()
            if kind == "finish":
                revision = _talk.before["step"] if _talk.revision is None else _talk.revision
                module.boundary_begin("refresh", verify, timeout_s, _talk, revision)
            else:
                module.boundary_begin(kind, verify, timeout_s, _talk)
        event = self._converse(kind, shared, _talk.before["step"], began, timeout_s)
        boundary = self._finished(event, shared, _talk.before, time.monotonic() - began)
        if boundary.left:
            _talk.left = boundary
        _talk.end()  # until here a call that Ctrl-C has ended is taken up by the next one
        try:
            module.raise_late_failure()
        except PcclError as error:
            error.boundary = boundary
            raise
        return boundary

    def _converse(
        self, kind: str, shared: Exchange | None, step: int, began: float, timeout_s: float | None
    ) -> dict[str, Any]:
        """Answers the engine until the boundary is over; returns its last event."""
        said = False
        if _talk.adopts:  # the last call was interrupted: with which state?
            self._tell_state(None if shared is None else shared.snapshot())
        while True:
            question = _talk.unanswered
            if question is None or question["what"] == "fetch":  # a newer one replaces it
                self._next_event()
                question = _talk.unanswered
            if question is None:
                quiet_s = SAY_WAITING_S if _talk.before["admitted"] else SAY_AT_DOOR_S
                if not said and time.monotonic() - began > quiet_s:
                    said = True
                    self._say_waiting(kind, step, timeout_s)
                continue
            if question["what"] == "finished":
                return question
            if question["what"] == "hash":
                self._hash(shared, tuple(question.get("contributors", ())))
                _talk.unanswered = None
            elif kind == "finish":  # the others share a state
                raise MismatchError(NOT_FINISHED)
            elif self._fetch(question, shared):
                _talk.unanswered = None

    def _next_event(self) -> None:
        """Waits for an event, which is `_talk.unanswered` before a signal's handler runs."""
        try:
            came = self._module.boundary_next(SLICE_S, _talk)
        except Exception:  # the boundary has failed; Ctrl-C is none of these
            _talk.end()
            raise
        if came and _talk.unanswered is not None and _talk.unanswered["what"] == "fetch":
            _log.info("shared state: fetching; %s", _talk.unanswered.get("why", ""))

    def _say_differed(self, names: list[str], why: str) -> None:
        """A newcomer's state, and that of a member which had none, may be any."""
        if names and _talk.had_state and _talk.before["admitted"]:
            more = f" and {len(names) - NAMES_SAID} more" if len(names) > NAMES_SAID else ""
            _log.warning(
                "shared state: after step %d this member's differed from that with which the run "
                "goes on, and was replaced (%s%s): its program has not done what others' have (%s)",
                _talk.before["step"],
                ", ".join(names[:NAMES_SAID]),
                more,
                why,
            )

    def _hash(self, shared: Exchange | None, contributors: tuple[int, ...]) -> None:
        if shared is None:
            self._module.boundary_root(False, 0, NO_STATE, [], None)
            return
        self._module.copy_results()
        shared.settle(contributors or None)
        offer = shared.snapshot()
        self._module.boundary_root(True, offer.revision, offer.digest, offer.items, offer.keep)

    def _fetch(self, event: dict[str, Any], shared: Exchange | None) -> bool:
        """Fetches what a proposal asks for; False while none of its sources delivers."""
        root = event["root"]

        def adopt() -> bool:
            _talk.adopts = True
            _talk.adopts = self._module.boundary_adopt(root["revision"], root["digest"])
            return _talk.adopts

        if shared is None:
            raise ValueError(
                "state=None: the members of this run share a state; expected the same names here"
            )
        try:
            offer = shared.fetch(root["digest"], event["sources"], adopt)
        except SourceFailedError:
            return False
        except RunMovedOnError:
            return True  # to what, the next event says
        self._tell_state(offer)
        self._say_differed(shared.differed, event.get("why", ""))
        return True

    def _tell_state(self, offer: Snapshot | None) -> None:
        if offer is None:
            self._module.boundary_fetched(False, 0, NO_STATE, [], None)
        else:
            self._module.boundary_fetched(
                True, offer.revision, offer.digest, offer.items, offer.keep
            )
        _talk.adopts = False

    def _say_waiting(self, kind: str, step: int, timeout_s: float | None) -> None:
        view = self._module.group_view()
        limit = "" if timeout_s is None else f", {timeout_s:g} s at most"
        if view["admitted"]:
            whom = f" for others of {view['size']} members{limit}"
            if view["without_master"]:
                whom = " for a master in charge"
            elif view["told"]:
                whom = f"{limit}; the master says: {view['told']}"
            _log.warning("%s of step %d waits%s", kind, step, whom)
        else:
            _log.warning(
                "waiting at the door%s: this process becomes a member at the run's next boundary",
                limit,
            )

    def _finished(
        self,
        event: dict[str, Any],
        shared: Exchange | None,
        before: dict[str, Any],
        paused_s: float,
    ) -> Boundary:
        view = self._module.group_view()
        changed = view["numbering"] != before["numbering"] or not before["admitted"]
        if not event["left"] and not event.get("ended"):
            _rank_tables.sync_tables(self._module, new_numbers=changed)
        boundary = Boundary(
            epoch=str(view["epoch"]),
            rank=int(view["rank"]),
            size=int(view["size"]),
            step=int(event["step"]),
            voted=bool(event["voted"] or event["admitted"]),
            admitted=bool(event["admitted"]),
            left=bool(event["left"]),
            bytes_received=0 if shared is None else shared.bytes_received,
            contributors=tuple(event["contributors"]),
            size_changed=view["size"] != before["size"],
            paused_s=paused_s,
            finished=bool(event.get("ended")),
        )
        if boundary.finished:
            _extension.note_finished()
        told = boundary.admitted or boundary.left or boundary.bytes_received > 0
        level = logging.INFO if told else logging.DEBUG
        _log.log(
            level,
            "step %d: epoch %s, rank %d of %d%s%s, %d bytes of state received, %.3f s",
            boundary.step,
            boundary.epoch,
            boundary.rank,
            boundary.size,
            ", admitted" if boundary.admitted else "",
            ", left" if boundary.left else "",
            boundary.bytes_received,
            boundary.paused_s,
        )
        return boundary


def group(pg: dist.ProcessGroup | ElasticGroup | None = None) -> ElasticGroup:
    """The ElasticGroup of a process group.

    Args:
        pg: An elastic process group, or its ElasticGroup; None: this process's elastic group.

    Raises:
        ValueError: There is no such group, or it is not elastic.
    """
    if isinstance(pg, ElasticGroup):
        return pg
    simulated: ElasticGroup | None = _simulated.group_here()
    if simulated is not None:
        return simulated
    target = (_rank_tables.elastic_group() or dist.group.WORLD) if pg is None else pg
    if target is None:
        raise ValueError("there is no default group; expected init_process_group or join before")
    if not _extension.extension().is_elastic(target):
        raise ValueError(
            "the group is fixed; expected one made with init_method='pccl://HOST:PORT', "
            "PCCL_MASTER or pccl_backend.join"
        )
    return ElasticGroup(target)


def join(
    url: str | None = None,
    *,
    replica: Replica | str | None = None,
    on_loss: str | None = None,
    options: Options | None = None,
    timeout_s: float = FOUNDING_TIMEOUT_S,
) -> dist.ProcessGroup:
    """Joins the run that a master serves, and makes the elastic group of this process.

    The elastic group becomes the default group of torch.distributed. If the process has a default
    group already (a fixed one: the ranks of an FSDP replica), the elastic group is a second group,
    as `new_group` makes it; calls then name its members by their ranks in it (`group_src`,
    `group_dst`, `pg.rank()`, `pg.size()`).

    Returns when the run has been founded. If the run has begun already, returns when the master has
    registered this newcomer, whose first `refresh` then makes it a member.

    Args:
        url: `pccl://HOST:PORT[,HOST:PORT...][/RUN]`. None: that of the options, PCCL_JOIN_URL or
            PCCL_MASTER, which `pccl-run` sets.
        replica: Which copy of the model this process holds a part of; "torchrun": the processes of
            one torchrun are one replica, named by its --rdzv-id, or those of one
            `pccl-run --replica`. None: this process alone.
        on_loss: The same at all members. "retry": an operation that a loss interrupts is replayed
            among the survivors if its kind allows that. "raise": such an operation fails with
            PeerLostError at all survivors, with its tensors unchanged, and so does every later one
            until `refresh` or `resume`. None: as `options` or PCCL_ON_LOSS say; else "retry".
        options: Options of this process; they win over the PCCL_* variables.
        timeout_s: Seconds until the run must have been founded; also the default time-out of the
            group's operations.

    Returns:
        The process group.

    Raises:
        ValueError: An argument is wrong, or this process has an elastic group already.
        UnreachableError: No master answered.
        RefusedError: The master serves another run, or another version, or a run with another
            `on_loss`.
        OperationTimeoutError: The run was not founded in time.
    """
    target = None if url is None else parse_url(url)
    if replica == "torchrun":
        replica = Replica.from_torchrun()
    if not (replica is None or isinstance(replica, Replica)):
        raise ValueError(f"replica is {replica!r}; expected a Replica, 'torchrun' or None")
    if on_loss not in (None, *ON_LOSS):
        raise ValueError(f"on_loss is {on_loss!r}; expected 'retry', 'raise' or None")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds above 0")
    if (simulated := _simulated.group_here()) is not None:
        group: dist.ProcessGroup = simulated.process_group
        return group
    if _rank_tables.elastic_group() is not None:
        how = "expected one join"
        if _extension.config().master and _rank_tables.elastic_default() is not None:
            how = "PCCL_MASTER has made the default group elastic; set PCCL_JOIN_URL in its place"
        raise ValueError(f"this process has an elastic group already; {how}")
    if target is None:
        target = (options or Options()).with_environment().join_target()
    register()
    module = _extension.extension(options)
    if (
        replica is not None
        and replica.size > 1
        and (on_loss or _extension.config().on_loss) == "raise"
    ):
        raise ValueError(
            f"on_loss='raise' with replicas of {replica.size} ranks: a failure in one peer group "
            "would leave the ranks of a replica a step apart; expected 'retry'"
        )
    quantise = _rendezvous.quantise_of_default(options)
    joined = _rendezvous.join_master(
        module, target, timeout_s, ("cpu", "cuda"), on_loss, replica, quantise
    )
    if dist.is_initialized():
        pg: dist.ProcessGroup = _making.create_beside(joined, timeout_s)
        if replica is not None and replica.size > 1:
            _eviction.guard(dist.group.WORLD)
    else:
        # The prefix is the one that init_process_group gives to the store of a URL.
        dist.init_process_group(
            NAME,
            store=PrefixStore("default_pg", joined.store),
            rank=joined.rank,
            world_size=joined.size,
            timeout=timedelta(seconds=timeout_s),
        )
        assert dist.group.WORLD is not None
        pg = dist.group.WORLD
    _talk.replica_size = 1 if replica is None else replica.size
    return pg
