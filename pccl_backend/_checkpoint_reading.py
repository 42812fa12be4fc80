"""Takes a checkpoint into a state that has objects of its own: all of it, or an error.

`_checkpoint_files.py` says by which keys a checkpoint holds its tensors.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_with_dcp

from ._checkpoint_files import Reader, check_alike, load_tensors, parse_key, wanted_at
from ._shared_state import State, Wanted, is_plain_tensor, plain_tensor
from ._state import (
    INTERRUPTS_MAX,
    decode_manifest,
    describe,
    dtype_name,
    in_order_of,
    plain_of,
    steps_to_plain,
)

_log = logging.getLogger("pccl")


def read(path: Path, state: State, *, rank: int, size: int, unpickle: bool) -> None:
    """Reads at each rank by itself, without the other ranks."""

    def reader() -> Reader:
        return Reader(path, unpickle=unpickle)

    from ._C import or_back  # not before there is an engine

    metadata = reader().read_metadata()
    keys = {parse_key(key): key for key in metadata.state_dict_metadata}
    writers = sum(name is None for name, _ in keys)
    own = rank if writers == size else 0
    if writers != size:
        check_alike(reader(), metadata, keys, writers, size)
    key = keys[None, own]
    text = load_tensors(reader(), metadata, [key])[key]
    values = decode_manifest(text.numpy().tobytes()).values
    tensors = {n for n, v in state.items() if isinstance(v, torch.Tensor)}
    wanted = wanted_at(own, metadata, keys, lambda name: name in tensors or state.adopts(name))
    for name in [n for n, v in plain_of(state).items() if n in wanted and is_plain_tensor(v)]:
        # An extra state that an older pccl wrote as a tensor of the state's own.
        key = keys.get((name, own)) or keys[name, 0]
        values[name] = plain_tensor(load_tensors(reader(), metadata, [key])[key])
        del wanted[name]
    _compare(path, wanted, state, but_adopted=True)
    if missing := sorted(state.objects() - values.keys()):
        raise ValueError(
            f"state[{missing[0]!r}] is not in {path}; expected the objects that it was written with"
        )

    mine = plain_of(state)
    values = {name: in_order_of(mine.get(name), value) for name, value in values.items()}

    def replace() -> None:
        state.adopt_wholes(wanted)
        _compare(path, wanted, state)
        drop_others, *sets = steps_to_plain(state, values, new)
        drop_others()
        for name, step in zip(values, sets, strict=True):
            _set(path, name, step)

    new = sorted(n for n in plain_of(state).keys() - values.keys() if not state.adopts(n))
    if new:
        _log.info("not in %s, and kept as it is: %s", path, ", ".join(map(repr, new)))
    way_back = [state.keep(), *steps_to_plain(state, copy.deepcopy(plain_of(state)))]
    or_back(replace, way_back, INTERRUPTS_MAX)
    targets = {}
    for name, tensor in state.wholes().items():
        if isinstance(tensor, torch.Tensor):
            targets[keys.get((name, own)) or keys[name, 0]] = tensor
    load_with_dcp(targets, storage_reader=reader(), no_dist=True)


def _set(path: Path, name: str, step: Callable[[], None]) -> None:
    """Sets a plain value; whatever its setter raises, the files are sound."""
    try:
        step()
    except Exception as error:
        raise ValueError(
            f"state[{name!r}] does not take its value in {path}: {type(error).__name__}: {error}"
        ) from error


def _compare(
    path: Path, wanted: dict[str, Wanted], state: State, *, but_adopted: bool = False
) -> None:
    mine = {
        name: (dtype_name(tensor), tuple(tensor.shape))
        for name, tensor in state.wholes().items()
        if isinstance(tensor, torch.Tensor)
    }
    for name in sorted(wanted.keys() | mine.keys()):
        if but_adopted and state.adopts(name):
            continue
        if mine.get(name) != wanted.get(name):
            raise ValueError(
                f"state[{name!r}] is {describe(mine.get(name))} here and "
                f"{describe(wanted.get(name))} in {path}; "
                "expected the same names, dtypes and shapes"
            )
