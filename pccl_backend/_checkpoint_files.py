"""The files of a checkpoint.

torch.distributed.checkpoint (DCP) makes pickles of its index `.metadata`, and of the plans and
results that ranks exchange. A pickle is a program of whoever wrote it. So pccl writes an index of
its own beside `.metadata`, in JSON, reads that one alone, and exchanges plans and results as JSON
(`_replica.py`). The data files are DCP's, read with `weights_only=True`; `.metadata` is there for
DCP's tools.

The files know a tensor by its key. That of a DTensor, and of any tensor at rank 0, is the name in
the state, with "@@" for each "@". Another tensor may differ among the ranks of the replica, and has
the key "NAME@RANK" at rank 1 and above. The plain values of rank 0 are "@values", those of another
rank "@values@RANK".

Everything that is read here is checked: it may have been written by anybody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_with_dcp
from torch.distributed.checkpoint.storage import WriteResult

from ._checked import count_in, list_in, text_in
from ._replica import Ranks, json_bytes, json_of
from ._shared_state import Wanted

INDEX = "index.json"
FORMAT = "pccl checkpoint 1"
FREE_BYTES_LITTLE = 16 << 20
INDEX_BYTES_MAX = 256 << 20
DIMENSIONS_MAX = 64
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")
_VALUES = "@values"
_AT_RANK = re.compile(
    r"(.*?(?<!@)(?:@@)*)@([1-9][0-9]{0,8})", re.DOTALL
)  # an "@@" separates nothing


# ------------------------------------------------------------------------------------------ keys


Name = str | None
"""Of a tensor in the state; None: the plain values."""


def key_of(name: Name, rank: int) -> str:
    """The key of what this rank alone has, or (0) of what all ranks have in common."""
    key = _VALUES if name is None else name.replace("@", "@@")
    return key if rank == 0 else f"{key}@{rank}"


def parse_key(key: str) -> tuple[Name, int]:
    """Name and rank of a key.

    An older pccl wrote names as they are. A name of such a checkpoint is read rightly, unless it
    has "@@", or ends with "@" and the number of a rank from 1 on.
    """
    match = _AT_RANK.fullmatch(key)
    name, rank = (match[1], int(match[2])) if match else (key, 0)
    return None if name == _VALUES else name.replace("@@", "@"), rank


# --------------------------------------------------------------------------------------- writing


class Planner(DefaultSavePlanner):
    """Of all ranks: each makes the global plan by itself, from the plans that all have said.

    For a `save` of DCP's with `no_dist=True`, which asks this planner for the plan of one rank.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Plans with these ranks."""
        super().__init__()
        self._ranks = ranks

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plan of this rank alone, in a list, and the metadata of all."""
        (own,) = all_plans
        said = self._ranks.exchange([_item_out(item) for item in own.items])
        plans = [_plan_in(items) for items in said]
        plans, metadata = super().create_global_plan(plans)
        return [plans[self._ranks.rank]], metadata


class Writer(FileSystemWriter):
    """Of all ranks: each writes its files; rank 0 also `.metadata` and `index.json`."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        """Writes into the folder `path` with these ranks."""
        super().__init__(path)
        self._ranks = ranks

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Gives this rank's plan the file names of its rank: of the place in the list."""
        (own,) = plans
        return super().prepare_global_plan([own] * (self._ranks.rank + 1))[-1:]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Collective: rank 0 writes the indices; returns when they are there."""
        (own,) = results
        said = self._ranks.exchange([_result_out(result) for result in own])
        if self._ranks.rank == 0:
            super().finish(metadata, [[_result_in(one) for one in list_in(part)] for part in said])
            _write_index(Path(self.path) / INDEX, metadata)
        self._ranks.exchange(None, last=True)


def _write_index(path: Path, metadata: Metadata) -> None:
    tensors = []
    for name, entry in sorted(metadata.state_dict_metadata.items()):
        assert isinstance(entry, TensorStorageMetadata), name
        chunks = []
        for chunk in entry.chunks:
            at = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            place = [at.relative_path, at.offset, at.length]
            chunks.append([list(chunk.offsets), list(chunk.sizes), *place])
        tensors.append([name, _dtype_out(entry.properties.dtype), list(entry.size), chunks])
    text = json_bytes({"format": FORMAT, "tensors": tensors})
    if len(text) > INDEX_BYTES_MAX:
        raise RuntimeError(
            f"the index of this checkpoint has {len(text)} bytes, more than the {INDEX_BYTES_MAX} "
            "that can be read again; save fewer, larger tensors"
        )
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Returns when the names in a folder are on the disk, where its file system can do so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do it for folders
            raise
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------- signs of a writer


def lock(mark: Path) -> int:
    """Makes the file that shows that this process is writing; the lock ends with the process.

    Returns:
        The descriptor, for `unlock`.
    """
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def unlock(descriptor: int) -> None:
    """Ends a lock, also where a forked process has inherited the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_locked(mark: Path) -> bool:
    """Is the process that has made this file still writing? Where nobody can say: yes."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def why(error: BaseException, folder: Path) -> str:
    """What has ended a write, in one line; and the room in the folder, if it is little."""
    text = cause_of(error)
    try:
        room = os.statvfs(folder)
    except OSError:
        return text
    free = room.f_bavail * room.f_frsize
    return text + (f"; {free} bytes are free in {folder}" if free < FREE_BYTES_LITTLE else "")


def cause_of(error: BaseException) -> str:
    """The error of the file system, if there is one: DCP's own names a wrong place in a file."""
    causes: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in causes:
        causes.append(found)
        failures = found.failures if isinstance(found, CheckpointException) else {}
        found = next((e for e, _ in failures.values()), found.__cause__ or found.__context__)
    own = next((e for e in causes if not isinstance(e, CheckpointException)), error)
    cause = next((e for e in causes if isinstance(e, OSError)), own)
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


def _item_out(item: WriteItem) -> list[Any]:
    data = item.tensor_data
    assert data is not None, item.index  # a state of pccl's has tensors only
    return [
        *(item.index.fqn, None if item.index.offset is None else list(item.index.offset)),
        *(item.index.index, item.type.name, list(data.chunk.offsets), list(data.chunk.sizes)),
        *(_dtype_out(data.properties.dtype), list(data.size)),
    ]


def _item_in(said: Any) -> WriteItem:
    name, offset, index, kind, offsets, sizes, dtype, size = list_in(said, 8)
    if kind not in (WriteItemType.TENSOR.name, WriteItemType.SHARD.name):
        raise ValueError(f"{kind!r} is no kind of a tensor")
    place = None if offset is None else _size(offset)
    return WriteItem(
        index=MetadataIndex(text_in(name), place, None if index is None else count_in(index)),
        type=WriteItemType[kind],
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=_size(offsets), sizes=_size(sizes)),
            properties=TensorProperties(dtype=_dtype_in(dtype)),
            size=_size(size),
        ),
    )


def _plan_in(said: Any) -> SavePlan:
    items = [_item_in(one) for one in list_in(said)]
    paths = {item.index.fqn: (item.index.fqn,) for item in items}  # names are flat
    return SavePlan(items, planner_data=paths)


def _result_out(result: WriteResult) -> list[Any]:
    at = result.storage_data
    offset = None if result.index.offset is None else list(result.index.offset)
    place = [at.relative_path, at.offset, at.length]
    return [result.index.fqn, offset, result.size_in_bytes, *place]


def _result_in(said: Any) -> WriteResult:
    name, offset, size, file, start, length = list_in(said, 6)
    return WriteResult(
        index=MetadataIndex(text_in(name), None if offset is None else _size(offset)),
        size_in_bytes=count_in(size),
        storage_data=_StorageInfo(_file_name(file), count_in(start), count_in(length)),
    )


# --------------------------------------------------------------------------------------- reading


class Reader(FileSystemReader):
    """Reads the index of pccl's, and unpickles none."""

    def __init__(self, path: Path, *, unpickle: bool) -> None:
        """Reads the folder `path`.

        Args:
            path: The folder.
            unpickle: Where there is no `index.json`, take `.metadata`, a pickle.
        """
        super().__init__(path)
        self._unpickle = unpickle

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """From `index.json`.

        Raises:
            RuntimeError: There is none, or it is damaged.
        """
        path = Path(self.path) / INDEX
        try:
            with open(path, "rb", opener=_open_file) as file:
                text = file.read(INDEX_BYTES_MAX + 1)
        except FileNotFoundError:
            if self._unpickle:
                return super().read_metadata(*args, **kwargs)
            raise RuntimeError(
                f"{path} is missing; an older pccl wrote none, and its index .metadata is a "
                "pickle, which runs code of whoever wrote it: Checkpoints(unpickle=True) loads it"
            ) from None
        if len(text) > INDEX_BYTES_MAX:
            raise RuntimeError(f"{path} is larger than {INDEX_BYTES_MAX} bytes")
        try:
            metadata = _metadata_in(json_of(text))
        except ValueError as error:
            raise RuntimeError(f"{path} is damaged: {error}") from None
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def wanted_of(metadata: Metadata, key: str) -> Wanted:
    """Dtype and shape of a tensor of the checkpoint.

    Raises:
        ValueError: It is no tensor.
    """
    entry = metadata.state_dict_metadata[key]
    if not isinstance(entry, TensorStorageMetadata):
        raise ValueError(f"the checkpoint has {key!r}, which is no tensor; expected one of pccl's")
    return str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size)


def wanted_at(
    own: int,
    metadata: Metadata,
    keys: Mapping[tuple[Name, int], str],
    is_mine: Callable[[str], bool],
) -> dict[str, Wanted]:
    """Dtypes and shapes of the tensors that rank `own` of the writing replica had.

    A DTensor has one key, that of rank 0; other tensors have one for each rank, and may differ in
    name and shape. A tensor of rank 0 in one piece, which `is_mine` does not name, is of rank 0
    alone.
    """
    chosen = {name: key for (name, rank), key in keys.items() if name is not None and rank == own}
    for (name, rank), key in keys.items():
        if name is None or rank != 0 or name in chosen:
            continue
        pieces = getattr(metadata.state_dict_metadata[key], "chunks", ())
        if is_mine(name) or len(pieces) > 1:
            chosen[name] = key
    return {name: wanted_of(metadata, key) for name, key in chosen.items()}


def load_tensors(reader: Reader, metadata: Metadata, keys: list[str]) -> dict[str, torch.Tensor]:
    """The tensors of these keys, in new memory."""
    loaded: dict[str, torch.Tensor] = {}
    for key in keys:
        dtype, shape = wanted_of(metadata, key)
        loaded[key] = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
    load_with_dcp(loaded, storage_reader=reader, no_dist=True)
    return loaded


def check_alike(
    reader: Reader,
    metadata: Metadata,
    keys: dict[tuple[Name, int], str],
    writers: int,
    readers: int,
) -> None:
    """Checks that all ranks have written the same of all that is no DTensor.

    Raises:
        ValueError: A value differs among them, or only some have it: it cannot be divided anew.
    """
    what = f"{reader.path} was written by {writers} ranks and this replica has {readers}"
    for name, rank in keys:
        if (name, 0) not in keys:
            raise ValueError(
                f"{what}: only rank {rank} has {name!r}; expected a replica of {writers} ranks"
            )
    pairs = [(name, key, keys[name, 0]) for (name, rank), key in keys.items() if rank > 0]
    loaded = load_tensors(reader, metadata, sorted({key for _, *pair in pairs for key in pair}))
    for name, key, first in pairs:
        if not torch.equal(_raw(loaded[key]), _raw(loaded[first])):
            which = "a plain value" if name is None else repr(name)
            raise ValueError(
                f"{what}: {which} is no DTensor and differs among them; expected a replica of "
                f"{writers} ranks"
            )


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _open_file(path: str, flags: int) -> int:
    """Opens a file, and nothing that would be waited for, as a pipe."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise RuntimeError(f"{path} is not a file")


def _metadata_in(said: Any) -> Metadata:
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    tensors: dict[str, Any] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for entry in list_in(said.get("tensors")):
        name, dtype, size, chunks = list_in(entry, 4)
        found = []
        for chunk in list_in(chunks):
            offsets, sizes, file, start, length = list_in(chunk, 5)
            found.append(ChunkStorageMetadata(offsets=_size(offsets), sizes=_size(sizes)))
            index = MetadataIndex(text_in(name), _size(offsets))
            storage[index] = _StorageInfo(_file_name(file), count_in(start), count_in(length))
        if name in tensors:
            raise ValueError(f"it has {name!r} twice")
        if sum(math.prod(chunk.sizes) for chunk in found) != math.prod(_size(size)):
            raise ValueError(f"its parts of {name!r} are not the whole tensor")
        properties = TensorProperties(dtype=_dtype_in(dtype))
        tensors[text_in(name)] = TensorStorageMetadata(properties, _size(size), found)
    return Metadata(tensors, {name: (name,) for name in tensors}, storage)


def _size(value: Any) -> torch.Size:
    numbers = [count_in(one) for one in list_in(value)]
    if len(numbers) > DIMENSIONS_MAX:
        raise ValueError(f"a tensor has {len(numbers)} dimensions, more than {DIMENSIONS_MAX}")
    return torch.Size(numbers)


def _file_name(value: Any) -> str:
    """Of a data file in the folder of the checkpoint, and nowhere else."""
    if not isinstance(value, str) or not _FILE.fullmatch(value):
        raise ValueError("a file of data has no name of such a file")
    return value


def _dtype_out(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_in(name: Any) -> torch.dtype:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a dtype is none of torch's")
    return dtype
