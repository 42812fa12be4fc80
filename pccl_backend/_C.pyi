"""Types of the extension csrc/torch/bind.cpp: the torch side of the engine, one engine a process.

Every blocking call releases the GIL and lets Ctrl-C through. Errors are those of `_errors.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch._C._distributed_c10d import Backend as _Backend
from torch._C._distributed_c10d import Store

TORCH_VERSION: str
"""The torch that the extension was built for."""

def configure_engine(options: dict[str, Any]) -> None:
    """Sets the options (fields of csrc/engine/options.h) of the engine; before the first group."""

def set_stream_wait(wait: bool, launches_block: bool) -> None:
    """Whether `wait()` of an operation on device tensors holds the stream and not the CPU.

    `launches_block`: a kernel's launch returns when the kernel has ended; no stream is held then.
    """

def wait_for_devices(timeout_s: float | None) -> bool:
    """Waits for the operations in flight on devices; raises their first failure. False: not yet."""

def raise_late_failure() -> None:
    """Raises what has failed in the elastic group after its `wait()` had returned, once."""

def create_fixed(store: Store, rank: int, size: int, timeout_s: float, name: str) -> Any:
    """A c10d Backend for a fixed group whose members meet in `store`."""

def create_of_run(peers: list[str], rank: int, timeout_s: float, name: str, number: str) -> Any:
    """A c10d Backend for a fixed group of members of the run (hex peer ids, by rank).

    All of them call it with the same `number`, a text that names no other group of the run.
    """

def create_unconfigured(store: Store, rank: int, size: int, timeout_s: float) -> Any:
    """A c10d Backend that gets its members from c10d's `reconfigure` (torch 2.14 on)."""

class Backend(_Backend):
    """What a group of this name does in c10d."""

    @property
    def options(self) -> GroupOptions: ...

    quantise: str
    """The quantisation of all-reduces that can be quantised; "none": exact."""

    def perform_nocolor_split(self, device: Any) -> None: ...

class GroupOptions(_Backend.Options):
    """What `options` of a group's Backend is; it can be copied."""

    @property
    def quantise(self) -> str: ...

def quantise_next_call(quantise: str | None, sum_error: Any) -> None:
    """The quantisation of the next all-reduce that this thread calls; None: the group's.

    `sum_error`: a float32 tensor on the CPU, as large as that of the call, which becomes what the
    codes of sums that this rank has made took from them, 0 elsewhere; or None.
    """

def as_sent(tensor: Any, quantise: str) -> Any:
    """A float32 CPU tensor as others get it as a contribution: quantised, and back; a new one."""

def join(
    masters: list[str],
    run: str,
    place: dict[str, Any] | None,
    raises: bool,
    timeout_s: float,
) -> tuple[int, int]:
    """Joins the run of a master; waits for the founding. Returns rank and size (provisional or not)."""

def create_elastic(timeout_s: float, name: str, device_types: list[str], quantise: str) -> Any:
    """The c10d ProcessGroup of the joined run, with its Backend registered for the device types."""

def elastic_store(timeout_s: float) -> Store:
    """The key-value store of the joined run's master."""

def is_elastic(group: Any) -> bool:
    """Is this process group the elastic one?"""

def group_view() -> dict[str, Any]:
    """rank, size, epoch (str), epoch_number (int), step, numbering (list of hex peer ids), ring (the
    members of the epoch, in the order of the ring), self (hex), admitted, evicted, left, contributors
    (ranks that have contributed to all operations of this step so far; []: no operation yet),
    without_master, told (why the run waits, as the master has said since the last boundary).
    """

def set_event_sink(function: Callable[[dict[str, Any]], None] | None) -> None:
    """`function` gets every GroupEvent as a dict (what, epoch, lost, joined, lost_names, joined_names,
    members, text), on the thread `pccl-events`, which holds the GIL.
    """

def leave(at_once: bool) -> None: ...
def abort_run(why: str) -> None:
    """Fails the operations of the elastic group, with this text, and leaves the run.

    Raises:
        GroupClosedError: This process has not joined a run.
    """

def boundary_begin(
    kind: str, verify: bool, timeout_s: float | None, talk: object, finish: int | None = None
) -> None:
    """Begins a boundary; kind: "refresh" or "resume"; finish: the run is finished there, at this revision
    of its state. Sets `talk.is_open`, even if a signal comes.
    """

def boundary_next(timeout_s: float, talk: object) -> bool:
    """Waits for an event of the boundary. False: none within timeout_s. Else sets `talk.unanswered`, even
    if a signal comes, to a dict: what ("hash", "fetch", "finished"), step, voted, admitted, left, ended
    (text), root ({present, revision, digest}) and, for "fetch", epoch, sources (hex ids), why. An error of the
    boundary sets `talk.is_open` to False.
    """

def copy_results() -> None:
    """Copies results that lie in temporaries into their tensors, of all operations that are over,
    waited for or not: at a boundary tensors are read.
    """

def boundary_root(
    present: bool, revision: int, digest: bytes, items: list[tuple[int, int]], keep: object
) -> None:
    """Answers "hash": the root, and (address, bytes) of each item that others may pull; item 0 is the
    manifest. `keep` is held until the boundary is over.
    """

def boundary_adopt(revision: int, digest: bytes) -> bool:
    """The state with this root has been fetched: may it replace this peer's state? True: yes, and
    boundary_fetched has to follow, even if the replacement fails. False: the run has moved on to
    another state, which the next event names.
    """

def boundary_fetched(
    present: bool,
    revision: int,
    digest: bytes,
    items: list[tuple[int, int]],
    keep: object,
) -> None:
    """Reports the state that this peer holds from now on."""

def or_back(
    call: Callable[[], Any], way_back: Sequence[Callable[[], None]], interrupts_max: int
) -> Any:
    """Returns what `call` returns. If `call` raises, all steps of the way back are run first, even if
    signals come: a step that KeyboardInterrupt or SystemExit interrupts is begun anew; after
    `interrupts_max` interrupts the way back gives up. If steps fail, the first error is raised after
    all steps have run.
    """

class Turn:
    """Lets one call run at a time, of all threads and handlers of signals."""

    def take(self, call: Callable[[], Any]) -> Any:
        """Runs `call` and returns its result.

        Raises:
            RuntimeError: Another call has not returned.
        """

turn: Turn
"""Of `refresh` and `resume`."""

class StateFetch:
    """A state that is being fetched: memory beside the caller's, item by item (csrc/state/fetch.h)."""

    @property
    def bytes_received(self) -> int:
        """Bytes of all items that have come."""

    def run(
        self, root: bytes, sources: Sequence[str], items: Sequence[tuple[int, bytes, int | None]]
    ) -> bool:
        """Pulls the missing ones of `items` (index, digest, bytes) of the snapshot `root`, each from one
        source, and checks them. Bytes None: the size is not known (the manifest). False: no source
        delivered. Items that have come are kept, whatever this call raises. A source that is too slow
        is given up (PROTOCOL.md, `pull`); a source that has failed is asked last from then on.
        """

    def at(self, digest: bytes) -> bytes:
        """The item with this digest, which is here."""

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        """Exchanges the fetched items with the memory of the targets (digest, address, bytes): all of
        them or, with an error, none.
        """

    def take_back(self) -> None:
        """Undoes `replace`, if it was called."""

    def clear(self) -> None:
        """Forgets the fetched items; the caller's memory stays as it is."""

def sha256(items: list[tuple[int, int]]) -> list[bytes]:
    """SHA-256 over each (address, bytes): over its 4 MiB chunks, then over their digests; all cores."""

def in_flight() -> list[dict[str, Any]]:
    """Operations of the elastic group without an outcome: op ("step.index"), kind, bytes_sent,
    bytes_received, complete, algorithm. Safe to call from any thread at any time.
    """

def counters() -> dict[str, int]: ...
def links() -> list[dict[str, Any]]: ...
def set_log_level(level: str) -> None: ...
def set_log_sink(function: Callable[[int, str], None] | None) -> None: ...
def library_of(symbol: str) -> str:
    """Path of the library from which a C symbol that the engine uses comes (dladdr)."""

def break_invariant(what: str) -> None:
    """Breaks an invariant of the engine, with this text. For tests."""

def leave_run(failure: str) -> None:
    """Closes the elastic group, if there is one, for good; other groups stay."""

def end(failure: str) -> None: ...
def shutdown() -> None:
    """Ends the engine in good order: sends goodbyes and data that others need, then ends its thread.
    Idempotent.
    """
