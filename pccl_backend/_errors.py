"""What a call of pccl raises.

    torch.distributed.DistBackendError (a RuntimeError)
      PcclError                  whatever went wrong in the backend
        PeerLostError            a member was lost
        OperationTimeoutError    not done in time
        MismatchError            the ranks of a group called different operations
        EvictedError             the run goes on without this peer; join again as a newcomer
        NotAdmittedError         a newcomer has to call refresh before it issues operations
        RefusedError             wrong run, version, proof or number of ranks
        UnreachableError         no process of pccl answers at the address
        GroupClosedError         the group, or the process's engine, has been closed
        ProtocolError            a received message does not follow PROTOCOL.md
        NoMemoryError            a member had no memory for the operation, which failed at all
                                 members; or this one had none for the state that it has to fetch
        RunEndedError            the run is finished, as its members have said: end the program
        EngineError              an invariant of pccl does not hold: a bug, please report it
    ValueError                   an argument is wrong; nothing was sent

An operation that fails leaves its tensors unchanged in an elastic group. In a fixed group, which
cannot go on anyway, outputs may be partly written.

The extension raises through BY_CODE; the codes are those of csrc/base/error.h, each has a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from ._group import Boundary


class PcclError(DistBackendError):
    """Something went wrong in the backend; the subclass says what a caller can do about it."""

    boundary: Boundary | None = None
    """The boundary that `refresh` had passed before it raised this error; None: it passed none."""


class PeerLostError(PcclError):
    """A member was lost. Make a fixed group anew; an elastic one goes on after `refresh`."""


class OperationTimeoutError(PcclError):
    """The operation did not finish in time."""


class MismatchError(PcclError):
    """The ranks of a group called different operations."""


class EvictedError(PcclError):
    """The run goes on without this peer, which may destroy its group and join as a newcomer."""


class NotAdmittedError(PcclError):
    """A newcomer has to call refresh before it issues operations. Nothing was sent."""


class RefusedError(PcclError):
    """The other side refuses: wrong run, version, proof or number of ranks."""


class UnreachableError(PcclError):
    """No process of pccl answers at the address."""


class GroupClosedError(PcclError):
    """The group, or the engine of this process, has been closed."""


class ProtocolError(PcclError):
    """A received message does not follow PROTOCOL.md."""


class NoMemoryError(PcclError):
    """A member had no memory for an operation, which failed at all; or for fetched state."""


class RunEndedError(PcclError):
    """The run is finished: its members have said so, by `finish`. There is nothing left to do."""


class EngineError(PcclError):
    """An invariant of pccl does not hold: a bug. The engine of this process has stopped."""


for _class in (PcclError, *PcclError.__subclasses__()):
    _class.__module__ = __package__  # a traceback names them as programs do
del _class

BY_CODE: dict[str, type[Exception]] = {
    "peer_lost": PeerLostError,
    "timed_out": OperationTimeoutError,
    "malformed": ProtocolError,
    "evicted": EvictedError,
    "mismatch": MismatchError,
    "refused": RefusedError,
    "unreachable": UnreachableError,
    "closed": GroupClosedError,
    "invalid": ValueError,
    "not_admitted": NotAdmittedError,
    "broken": EngineError,
    "no_memory": NoMemoryError,
    "run_ended": RunEndedError,
}
"""Name of a code in csrc/base/error.h -> what it raises."""
