"""The variables that a worker of `pccl-run` gets: torchrun's where they mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NOTE = "PCCL_RUN_NOTE"
FINISHED = "PCCL_RUN_FINISHED"

# These describe another launcher's world, or torch's rendezvous in it, and never this run.
_OF_A_WORLD = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "PCCL_MASTER",
    "PCCL_JOIN_URL",
)


def finished_note(note: Path, rank: int, attempt: int) -> Path:
    """The file in which this start of a worker notes that it has finished the run."""
    return note.with_name(f"finished-{rank}-{attempt}")


def of_worker(
    base: Mapping[str, str], *, url: str, note: Path, rank: int, processes: int, attempt: int
) -> dict[str, str]:
    """The variables of a worker that is a replica of its own.

    Args:
        base: The launcher's own.
        url: Of the run.
        note: The file in which a worker notes that the run has ended.
        rank: Of the worker on this host.
        processes: Workers on this host.
        attempt: How often it was started before.
    """
    environment = {name: value for name, value in base.items() if name not in _OF_A_WORLD}
    environment |= {
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "PCCL_MASTER": url,
        NOTE: str(note),
        FINISHED: str(finished_note(note, rank, attempt)),
    }
    if processes > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def of_rank(worker: Mapping[str, str], *, name: str, port: int) -> dict[str, str]:
    """The variables of a rank of a replica: those of `of_worker`, and the host's fixed group.

    The default group is that of the replica, so the run's URL is `join`'s alone.

    Args:
        worker: The variables of a worker that is a replica of its own.
        name: Of the replica.
        port: Of the store in which its ranks meet, which rank 0 serves.
    """
    rank, size = worker["LOCAL_RANK"], worker["LOCAL_WORLD_SIZE"]
    environment = {
        variable: value for variable, value in worker.items() if variable != "PCCL_MASTER"
    }
    return environment | {
        "PCCL_JOIN_URL": worker["PCCL_MASTER"],
        "RANK": rank,
        "WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": name,
    }
