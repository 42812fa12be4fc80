"""What the ranks of one replica say to each other beside the training: JSON, and no pickles.

A pickle is a program of whoever wrote it. Everything that is read here is checked.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from . import _rank_tables
from ._checked import list_in

SAID_BYTES_MAX = 256 << 20
FAILURE_CHARACTERS_MAX = 1000  # of a failure, that the other ranks are told


def group_of_ranks() -> Any:
    """Makes a group of the ranks of this replica; None: this rank is alone. Collective.

    What they say lies in host memory, which NCCL does not serve: gloo does it in its place.
    """
    if not dist.is_initialized() or _rank_tables.elastic_default() is not None:
        return None
    if dist.get_world_size() == 1:
        return None
    serves_host = "cpu:" in dist.get_backend_config()
    return dist.new_group(backend=None if serves_host else "gloo")


class Ranks:
    """Rounds in which all ranks of a replica say something, or that they have failed.

    Each round is collective, and a round with a failure is the last one: so no rank waits for one
    that has given up. Use from one thread.
    """

    def __init__(self, group: Any) -> None:
        """`group` None: this rank is alone."""
        self.rank = 0 if group is None else dist.get_rank(group)
        self._group = group
        self._is_over = False

    def exchange(self, value: Any, *, last: bool = False) -> list[Any]:
        """What each rank says in this round, in their order.

        Raises:
            RuntimeError: A rank has failed; the text says which and why.
        """
        self._is_over = True
        said = [_parsed(text) for text in self._gather(json_bytes(["ok", value]))]
        failed = [(rank, one) for rank, one in enumerate(said) if one[0] != "ok"]
        if failed:
            rank, one = failed[0]
            raise RuntimeError(f"rank {rank} of this replica: {one[1]}")
        self._is_over = last
        return [one[1] for one in said]

    def tell(self, cause: str) -> None:
        """That this rank has failed, in the round for which the others wait, if there is one."""
        if not self._is_over:
            self._is_over = True
            said = cause[:FAILURE_CHARACTERS_MAX]
            self._gather(json_bytes(["failed", said]))

    def _gather(self, text: bytes) -> list[bytes]:
        if self._group is None:
            return [text]
        count = dist.get_world_size(self._group)
        size = torch.tensor([len(text)], device="cpu")
        sizes = [torch.zeros_like(size) for _ in range(count)]
        dist.all_gather(sizes, size, group=self._group)
        lengths = [int(one.item()) for one in sizes]
        own = torch.zeros(_checked_length(max(lengths)), dtype=torch.uint8, device="cpu")
        own[: len(text)] = _bytes_of(text)
        parts = [torch.empty_like(own) for _ in range(count)]
        dist.all_gather(parts, own, group=self._group)
        return [
            part[: max(0, length)].numpy().tobytes()
            for part, length in zip(parts, lengths, strict=True)
        ]


def from_rank_0(what: list[Any], group: Any) -> list[Any]:
    """`what` of rank 0, values of JSON; collective in `group`, None: this rank is alone."""
    if group is None:
        return what
    text = json_bytes(what) if dist.get_rank(group) == 0 else b""
    size = torch.tensor([len(text)], device="cpu")
    dist.broadcast(size, group=group, group_src=0)
    data = torch.zeros(_checked_length(int(size.item())), dtype=torch.uint8, device="cpu")
    if text:
        data = _bytes_of(text)
    dist.broadcast(data, group=group, group_src=0)
    return list_in(json_of(data.numpy().tobytes()), len(what))


def _bytes_of(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _checked_length(length: int) -> int:
    if not 0 < length <= SAID_BYTES_MAX:
        raise RuntimeError(f"a rank says {length} bytes; expected 1 to {SAID_BYTES_MAX}")
    return length


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_of(text: bytes) -> Any:
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None


def _parsed(text: bytes) -> list[Any]:
    said = list_in(json_of(text), 2)
    if said[0] not in ("ok", "failed"):
        raise ValueError("a rank says neither that it goes on nor that it has failed")
    return said
