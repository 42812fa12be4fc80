"""The shared state of a run: named tensors and plain values, their manifest, and the fetch of it.

The manifest is the canonical description of a state: equal states give equal bytes, and the SHA-256
of those bytes is the root that members compare. It names each tensor with dtype, shape and digest,
and holds the plain values. It is JSON; values that JSON would change are tagged (see `_encode`).
Nothing received is ever unpickled: types, sizes and nesting of a received manifest are checked
before it is used, and no byte of it is trusted before its digest has been compared.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ._checked import count_in, list_in, text_in
from ._errors import ProtocolError
from ._shared_state import dtype_of, state_of

FORMAT = "pccl-state-1"
MANIFEST_BYTES_MAX = 64 << 20
NAMES_MAX = 1 << 20
DEPTH_MAX = 32
REVISION_MAX = (1 << 63) - 1
INTERRUPTS_MAX = 100  # of the way back to the state from before; more are no user's
TENSOR_BYTES_MAX = (1 << 63) - 1

Item = tuple[int, int]
"""Address and bytes of memory."""
Hasher = Callable[[list[Item]], list[bytes]]
Adopt = Callable[[], bool]
"""May the state that has been fetched replace the own one?"""


Wanted = tuple[int, bytes, int | None]
"""Index, digest and bytes of an item; None: the source says how many."""


class StateFetch(Protocol):
    """The interface of `_C.StateFetch`, see _C.pyi: items fetched and checked, not yet used."""

    @property
    def bytes_received(self) -> int: ...
    def run(self, root: bytes, sources: Sequence[str], items: Sequence[Wanted]) -> bool: ...
    def at(self, digest: bytes) -> bytes: ...
    def replace(self, targets: list[tuple[bytes, int, int]]) -> None: ...
    def take_back(self) -> None: ...
    def clear(self) -> None: ...


class SourceFailedError(Exception):
    """No source of a proposal could deliver; the next proposal names others. Handled in refresh."""


class RunMovedOnError(Exception):
    """The run does not want the fetched state any more. Handled in refresh."""


@dataclass
class Snapshot:
    """The state that a member offers while it stands at a boundary.

    Attributes:
        revision: Revision of the state.
        digest: The root: SHA-256 of the manifest.
        items: Address and bytes of each item that others may pull: the manifest, then the tensors
            by name.
        keep: Objects that keep that memory alive.
    """

    revision: int
    digest: bytes
    items: list[Item]
    keep: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as the manifest names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True)
class Manifest:
    """A manifest that has been read and checked."""

    tensors: tuple[TensorEntry, ...]
    values: dict[str, Any]


class Exchange:
    """The shared state of one `refresh` call: hashed, offered, made equal to the others'."""

    def __init__(
        self,
        mapping: MutableMapping[str, Any],
        hasher: Hasher,
        fetched: StateFetch | None = None,
    ) -> None:
        """Checks names, tensors and values. Fetched items go to `fetched`, and stay there.

        Raises:
            ValueError: A name, tensor or value cannot be shared; the text names it.
        """
        self._mapping = state_of(mapping)
        self._hasher = hasher
        self._fetched = fetched
        items = list(mapping.items())  # once: each boundary comes here, and a mapping may be a view
        self._tensors = _tensors_of(items)
        self._hosts: dict[str, torch.Tensor] = {}
        self._digests: dict[str, bytes] = {}  # of tensors that nobody has written since
        self.differed: list[str] = []  # names of what `fetch` has found to, and which should not
        revision_of(mapping)
        characters = 0
        for name, value in items:
            if not isinstance(value, torch.Tensor):
                characters += _characters(_encode(value, f"state[{name!r}]", 0))
        # At each boundary: at one that votes all members would fail at once.
        _check_size(characters)

    @property
    def bytes_received(self) -> int:
        """Bytes of state that have been fetched at this boundary."""
        return 0 if self._fetched is None else self._fetched.bytes_received

    def settle(self, contributors: tuple[int, ...] | None) -> None:
        """Settles, before hashing, who contributed to the ended step (None: not known yet)."""
        self._mapping.settle(contributors)

    def snapshot(self) -> Snapshot:
        """Hashes the state as it is now."""
        self._hosts, self._digests = {}, {}
        return self._offer()

    def fetch(self, digest: bytes, sources: Sequence[str], adopt: Adopt) -> Snapshot:
        """Makes this state equal to the state with root `digest`, which the sources have.

        Tensors that differ are fetched into memory beside the state, and checked there. When all of
        them have come, and `adopt` agrees, tensors and plain values are replaced together. Checked
        items are kept for the next call: after the loss of a source the fetch goes on where it
        was.

        Returns:
            The snapshot of the state as it is now; its digest is `digest`.

        Raises:
            ValueError: Names, dtypes or shapes differ; the text names the first difference.
            SourceFailedError: No source delivered.
            RunMovedOnError: `adopt` did not agree.
            NoMemoryError: There is no memory for an item that has to be fetched.
            ProtocolError: After the plain values were set, they are not those of the run.

            After any error the values of the state are those from before the call, except those
            of a tensor into which the setter of a plain value has written in place.
        """
        fetched = self._fetched
        assert fetched is not None
        if not fetched.run(digest, sources, [(0, digest, None)]):
            raise SourceFailedError
        manifest = decode_manifest(fetched.at(digest))
        self._compare(manifest)
        self._hash([e.name for e in manifest.tensors if self._is_like(e)])
        differ = [
            (item, entry)
            for item, entry in enumerate(manifest.tensors, start=1)
            if not self._is_like(entry) or self._digests[entry.name] != entry.digest
        ]
        wanted = [(item, entry.digest, _bytes_of(entry)) for item, entry in differ]
        if not fetched.run(digest, sources, wanted):
            raise SourceFailedError
        others = _that_differ(plain_of(self._mapping), manifest.values)
        may = self._mapping.of_own_batches()
        self.differed = [n for n in (*(e.name for _, e in differ), *others) if n not in may]
        if not adopt():
            raise RunMovedOnError
        return self._commit(fetched, manifest, [entry for _, entry in differ], digest)

    def _commit(
        self, fetched: StateFetch, manifest: Manifest, new: list[TensorEntry], digest: bytes
    ) -> Snapshot:
        """Replaces tensors and plain values; any exception, Ctrl-C too, takes all of it back."""
        from ._C import or_back  # not before there is an engine

        plain = copy.deepcopy(plain_of(self._mapping))
        before = dict(self._tensors)
        targets: list[str] = []

        def replace() -> Snapshot:
            self._mapping.adopt({e.name: (e.dtype, e.shape) for e in manifest.tensors})
            values = {n: in_order_of(plain.get(n), v) for n, v in manifest.values.items()}
            replace_plain(self._mapping, values)
            self._look()  # both may have made tensors anew
            memory = [(e.digest, *_memory(self._host_of(e.name))) for e in new]
            targets.extend(e.name for e in new)
            fetched.replace(memory)
            self._write_devices(targets)
            self._digests = {}  # tensors may share memory, and setting a value may write one
            snapshot = self._offer()
            if snapshot.digest != digest:
                raise ProtocolError(
                    "the state that was fetched does not have the root that the members agreed "
                    f"on: {self._other_than(manifest)}"
                )
            return snapshot

        way_back: list[Callable[[], None]] = [
            functools.partial(setattr, self, "_digests", {}),
            fetched.take_back,
            lambda: self._write_devices(targets),
            self._mapping.keep(),
            self._look,
            *steps_to_plain(self._mapping, plain),
            lambda: self._hold_again(before),
        ]
        snapshot: Snapshot = or_back(replace, way_back, INTERRUPTS_MAX)
        fetched.clear()
        return snapshot

    def _other_than(self, manifest: Manifest) -> str:
        """What is other than in `manifest`, of which this state was made, and why that may be."""
        for name in _that_differ(plain_of(self._mapping), manifest.values):
            return (
                f"state[{name!r}] is not what it was set to; expected a load_state_dict after "
                "which state_dict returns the same at once, and the same objects and options "
                "at all members"
            )
        for entry in manifest.tensors:
            if self._digests.get(entry.name) != entry.digest:
                return (
                    f"state[{entry.name!r}] is not what was written to it: it shares memory with "
                    "another tensor here and not there, or something else wrote to it"
                )
        return "something else wrote to the state"

    def _write_devices(self, names: Iterable[str]) -> None:
        """Tensors whose host memory is a copy get what it holds."""
        for name in names:
            host, tensor = self._host_of(name), self._tensors[name]
            if tensor.data_ptr() != host.data_ptr():
                with torch.no_grad():
                    tensor.copy_(host)

    def _host_of(self, name: str) -> torch.Tensor:
        if name not in self._hosts:
            self._hosts[name] = _host(self._tensors[name])
        return self._hosts[name]

    def _hash(self, names: Iterable[str]) -> None:
        """Hashes the tensors that have not been hashed yet."""
        new = [name for name in names if name not in self._digests]
        digests = self._hasher([_memory(self._host_of(name)) for name in new])
        self._digests.update(zip(new, digests, strict=True))

    def _offer(self) -> Snapshot:
        """The snapshot of the state; hashes what has not been hashed yet."""
        names = sorted(self._tensors)
        self._hash(names)
        hosts = [self._host_of(name) for name in names]
        entries = [
            TensorEntry(name, dtype_name(host), tuple(host.shape), self._digests[name])
            for name, host in zip(names, hosts, strict=True)
        ]
        text = encode_manifest(entries, plain_of(self._mapping))
        manifest = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        items = [_memory(tensor) for tensor in (manifest, *hosts)]
        digest = hashlib.sha256(text).digest()
        return Snapshot(revision_of(self._mapping), digest, items, [manifest, *hosts])

    def _is_like(self, entry: TensorEntry) -> bool:
        """Is there a tensor of this name, dtype and shape here?"""
        mine = self._tensors.get(entry.name)
        return mine is not None and (dtype_name(mine), tuple(mine.shape)) == (
            entry.dtype,
            entry.shape,
        )

    def _look(self) -> None:
        """Looks at the tensors that the mapping has now."""
        self._tensors = _tensors_of(self._mapping.items())
        self._hosts = {}

    def _hold_again(self, before: dict[str, torch.Tensor]) -> None:
        """Copies what a tensor holds into the new one where setting a value has made it anew."""
        self._look()
        for name, held in before.items():
            now = self._tensors.get(name)
            if now is None or (now.dtype, now.shape) != (held.dtype, held.shape):
                self._mapping[name] = held
            elif now.data_ptr() != held.data_ptr():
                with torch.no_grad():
                    now.copy_(held)
        self._look()

    def _compare(self, manifest: Manifest) -> None:
        if lacks := sorted(self._mapping.objects() - manifest.values.keys()):
            raise ValueError(
                f"state[{lacks[0]!r}] is of an object here and missing in the run's shared state; "
                "expected the same objects at all members"
            )
        self._mapping.check(manifest.values)
        theirs = {entry.name: entry for entry in manifest.tensors}
        for name in sorted(theirs.keys() | self._tensors.keys()):
            if self._mapping.adopts(name):
                continue
            tensor, entry = self._tensors.get(name), theirs.get(name)
            mine = None if tensor is None else (dtype_name(tensor), tuple(tensor.shape))
            run = None if entry is None else (entry.dtype, entry.shape)
            if mine != run:
                raise ValueError(
                    f"state[{name!r}] is {describe(mine)} here and {describe(run)} in the run's "
                    "shared state; expected the same names, dtypes and shapes at all members"
                )


def plain_of(mapping: MutableMapping[str, Any]) -> dict[str, Any]:
    """The values of a state that are not tensors."""
    return {n: v for n, v in mapping.items() if not isinstance(v, torch.Tensor)}


def _that_differ(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Names of the plain values that are not the same, or that one side lacks."""
    for name in sorted(mine.keys() | theirs.keys()):
        values = [of.get(name, ...) for of in (mine, theirs)]
        if ... in values or _encode(values[0], name, 0) != _encode(values[1], name, 0):
            yield name


def in_order_of(mine: Any, theirs: Any) -> Any:
    """`theirs`, a plain value, with the keys of each dict in the order that they have in `mine`.

    Manifests hold keys in their own order. Keys that are not in `mine` come last.
    """
    if isinstance(theirs, dict) and isinstance(mine, dict):
        keys = [
            *(key for key in mine if key in theirs),
            *(key for key in theirs if key not in mine),
        ]
        return {key: in_order_of(mine.get(key), theirs[key]) for key in keys}
    for kind in (list, tuple):
        alike = isinstance(theirs, kind) and isinstance(mine, kind)
        if alike and len(theirs) == len(mine):
            return kind(in_order_of(*pair) for pair in zip(mine, theirs, strict=True))
    return theirs


def replace_plain(mapping: MutableMapping[str, Any], values: dict[str, Any]) -> None:
    """Makes the plain values of a state exactly `values`."""
    for step in steps_to_plain(mapping, values):
        step()


def steps_to_plain(
    mapping: MutableMapping[str, Any], values: dict[str, Any], kept: Collection[str] = ()
) -> list[Callable[[], None]]:
    """`replace_plain` as steps, so that a failing step stops no other.

    The first step drops the values of other names, but those of `kept`; each of the rest sets one
    value, in their order.
    """

    def drop_others() -> None:
        for name in plain_of(mapping):
            if name not in values and name not in kept:
                del mapping[name]

    sets = [functools.partial(mapping.__setitem__, name, values[name]) for name in values]
    return [drop_others, *sets]


def _tensors_of(items: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, value in items:
        if not isinstance(name, str):
            raise ValueError(f"the state has the name {name!r}; expected str")
        if isinstance(value, torch.Tensor):
            tensors[name] = check_tensor(name, value)
    return tensors


def revision_of(mapping: MutableMapping[str, Any]) -> int:
    """The integer under the name "step"; 0 without one.

    Raises:
        ValueError: There is something else under that name.
    """
    step = mapping.get("step", 0)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= REVISION_MAX:
        raise ValueError(
            f"state['step'] is {step!r}; expected the revision of the state, an int from 0 on"
        )
    return step


def check_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` if its memory can be shared as it is.

    Raises:
        ValueError: It cannot; the text says why and what to pass instead.
    """
    if hasattr(tensor, "to_local"):
        raise ValueError(f"state[{name!r}] is a DTensor; expected its part: tensor.to_local()")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"state[{name!r}] has layout {tensor.layout}; expected a dense tensor")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"state[{name!r}] is on {tensor.device}; expected cpu or cuda")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"state[{name!r}] is a lazy view; expected tensor.resolve_conj()")
    if not tensor.is_contiguous():
        raise ValueError(
            f"state[{name!r}] with shape {tuple(tensor.shape)} and strides {tensor.stride()} is "
            "not contiguous; expected a contiguous tensor"
        )
    if tensor.numel() > 0 and tensor.data_ptr() == 0:
        raise ValueError(
            f"state[{name!r}] is a {type(tensor).__name__} without memory of its own (a subclass "
            "that holds other tensors, or a storage that was freed); expected a dense tensor"
        )
    return tensor


def encode_manifest(entries: Sequence[TensorEntry], values: dict[str, Any]) -> bytes:
    """The canonical bytes: equal states give equal bytes.

    Raises:
        ValueError: A value is of no plain type or nested too deeply, or all together are too large.
    """
    tensors = [[e.name, e.dtype, list(e.shape), e.digest.hex()] for e in entries]
    plain = [[name, _encode(values[name], f"state[{name!r}]", 0)] for name in sorted(values)]
    text = json.dumps([FORMAT, tensors, plain], ensure_ascii=True, separators=(",", ":")).encode()
    _check_size(len(text))
    return text


def _check_size(octets: int) -> None:
    if octets > MANIFEST_BYTES_MAX:
        raise ValueError(
            f"the plain values of the state take {octets} bytes; expected at most "
            f"{MANIFEST_BYTES_MAX}: put large data into tensors"
        )


def _characters(encoded: Any) -> int:
    """How many a manifest has of this value, which `_encode` has made, at least."""
    if isinstance(encoded, str):
        return len(encoded)
    if isinstance(encoded, list):
        return len(encoded) + sum(map(_characters, encoded))
    return 1


def decode_manifest(text: bytes) -> Manifest:
    """Reads what `encode_manifest` wrote, trusting nothing.

    Raises:
        ProtocolError: It is not a manifest.
    """
    if len(text) > MANIFEST_BYTES_MAX:
        raise ProtocolError(f"a manifest of {len(text)} bytes is longer than {MANIFEST_BYTES_MAX}")
    try:
        data = json.loads(text.decode("ascii"), parse_float=_no_float, parse_constant=_no_float)
        version, tensors, plain = list_in(data, 3)
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, expected {FORMAT!r}")
        entries = tuple(_read_entry(list_in(entry, 4)) for entry in list_in(tensors))
        names = [entry.name for entry in entries]
        values: dict[str, Any] = {}
        for pair in list_in(plain):
            name, value = list_in(pair, 2)
            values[text_in(name)] = _decode(value, 0)
        if names != sorted(set(names)) or set(names) & set(values):
            raise ValueError("its names are not in order")
        if len(values) != len(plain) or len(names) + len(values) > NAMES_MAX:
            raise ValueError("its names are not unique, or too many")
    except (
        ValueError,
        TypeError,
        OverflowError,  # a float that is too large
        RecursionError,
    ) as error:  # UnicodeError, JSONDecodeError: ValueError
        raise ProtocolError(f"a received manifest cannot be read: {error}") from None
    return Manifest(entries, values)


# Plain values. None, bool, int and str are themselves; everything else is a list whose first entry
# names its type: ["f", hex], ["b", hex], ["l", values...], ["t", values...] (a tuple),
# ["d", [key, value]...] with the keys in order.


def _encode(value: Any, where: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError(f"{where} is nested too deeply; expected at most {DEPTH_MAX} levels")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if value.bit_length() > 8192:
            raise ValueError(
                f"{where} is an int of {value.bit_length()} bits; expected 8192 at most"
            )
        return int(value)
    if isinstance(value, float):
        return ["f", "nan" if math.isnan(value) else float(value).hex()]
    if isinstance(value, bytes):
        return ["b", value.hex()]
    if isinstance(value, (list, tuple)):
        kind = "l" if isinstance(value, list) else "t"
        return [kind, *(_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value))]
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise ValueError(f"{where} has the key {key!r}; expected str or int")
        keys = sorted(value, key=lambda key: (isinstance(key, int), key))
        return ["d", *([k, _encode(value[k], f"{where}[{k!r}]", depth + 1)] for k in keys)]
    object_ = "an object of SharedState(name=object), " if hasattr(value, "state_dict") else ""
    if isinstance(value, torch.Tensor):
        raise ValueError(
            f"{where} is a tensor inside of a list or dict; expected tensors at the top of the "
            "state (state['name'] = tensor), or SharedState(model=model), which takes modules and "
            "optimizers whole"
        )
    raise ValueError(
        f"{where} is a {type(value).__name__}; expected {object_}a dense tensor, None, bool, int, "
        "float, str, bytes, or lists and dicts of them"
    )


def _decode(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    kind, *rest = list_in(value)
    if kind == "f":
        (number,) = rest
        return float.fromhex(text_in(number))
    if kind == "b":
        (digits,) = rest
        return bytes.fromhex(text_in(digits))
    if kind == "l":
        return [_decode(v, depth + 1) for v in rest]
    if kind == "t":
        return tuple(_decode(v, depth + 1) for v in rest)
    if kind == "d":
        pairs = [list_in(pair, 2) for pair in rest]
        for key, _ in pairs:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise ValueError(f"it has the key {key!r}")
        return {key: _decode(v, depth + 1) for key, v in pairs}
    raise ValueError(f"it has a value of kind {kind!r}")


def _read_entry(fields: list[Any]) -> TensorEntry:
    name, dtype, shape, digest = fields
    sizes = tuple(count_in(n) for n in list_in(shape))
    raw = bytes.fromhex(text_in(digest))
    if len(raw) != 32:
        raise ValueError(f"the digest of {name!r} has {len(raw)} bytes")
    return TensorEntry(text_in(name), text_in(dtype), sizes, raw)


def _no_float(text: str) -> Any:
    raise ValueError(f"the number {text} is not written as the format says")


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a dtype in manifests."""
    return str(tensor.dtype).removeprefix("torch.")


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()  # the same memory where it is on the CPU already


def _memory(tensor: torch.Tensor) -> Item:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _bytes_of(entry: TensorEntry) -> int:
    """The bytes of a tensor's memory.

    Raises:
        ProtocolError: No tensor has so many.
    """
    size = math.prod(entry.shape) * dtype_of(entry.dtype).itemsize
    if size > TENSOR_BYTES_MAX:
        raise ProtocolError(f"{entry.name!r} of the run's shared state has {size} bytes")
    return size


def describe(what: tuple[str, tuple[int, ...]] | None) -> str:
    """Dtype and shape as messages say them."""
    return "missing" if what is None else f"{what[0]} of shape {what[1]}"
