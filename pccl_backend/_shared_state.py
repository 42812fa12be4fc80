"""The state that the members of a run share: a plain mapping, or the objects of a training script.

`State` is a flat mapping of names to tensors and plain values, as `refresh` takes it. `SharedState`
is such a mapping over modules, optimizers and schedulers: its tensors are theirs, not copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

Wanted = tuple[str, tuple[int, ...]]
"""dtype by name, and shape."""
OTHERS = "others"  # the name of the state of an optimizer that is of no parameter
TENSOR = "pccl tensor"  # the key of a dict that stands for one among plain values
Take = Callable[[torch.Tensor], torch.Tensor]
"""What of a tensor is meant: the part that lies here, or the whole."""


@runtime_checkable
class Stateful(Protocol):
    """A scheduler, a GradScaler, a data loader that remembers where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Takes what `state_dict` gave."""


class State(MutableMapping[str, Any]):
    """Named tensors and plain values that members share, and which of the names may change.

    The defaults are those of a state whose names are always the same.
    """

    def settle(self, contributors: tuple[int, ...] | None) -> None:
        """The step is over: these ranks contributed to all that succeeded (None: not known yet).

        Called at a boundary before the state is hashed: a newcomer is given what members have
        after the boundary.
        """

    def adopts(self, name: str) -> bool:
        """May a tensor of this name come and go?"""
        return False

    def adopt(self, wanted: Mapping[str, Wanted]) -> None:
        """Makes the tensors for which `adopts` says so exactly those of `wanted`, as zeros.

        Raises:
            ValueError: A dtype that this torch does not have.
        """

    def keep(self) -> Callable[[], None]:
        """Returns a function that takes back what `adopt` and the setting of values change."""
        return lambda: None

    def objects(self) -> set[str]:
        """Names of the values without which a part is not whole: one of each object."""
        return set()

    def check(self, values: Mapping[str, Any]) -> None:
        """May these plain values be set, beside the tensors that belong to them?

        Raises:
            ValueError: They are of other objects. Nothing has changed.
        """

    def of_own_batches(self) -> set[str]:
        """Names of what may differ between members whose programs do the same."""
        return set()

    def wholes(self) -> dict[str, Any]:
        """Returns `items` with whole DTensors, for a checkpoint, which divides them anew."""
        return dict(self.items())

    def adopt_wholes(self, wanted: Mapping[str, Wanted]) -> None:
        """Does what `adopt` does, for shapes that are those of whole DTensors."""
        self.adopt(wanted)


class PlainState(State):
    """A mapping of the program's, a dict for example, as a State."""

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        """Takes `mapping`, which all reads and writes go to."""
        self._mapping = mapping

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getitem__(self, name: str) -> Any:
        return self._mapping[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._mapping[name] = value

    def __delitem__(self, name: str) -> None:
        del self._mapping[name]

    def items(self) -> ItemsView[str, Any]:
        """Asks the mapping, which may make all of them at one go."""
        return self._mapping.items()

    def get(self, name: str, default: Any = None) -> Any:
        """Asks the mapping: a defaultdict would make what is not there."""
        return self._mapping.get(name, default)


def state_of(mapping: MutableMapping[str, Any]) -> State:
    """The mapping itself where it is a State."""
    return mapping if isinstance(mapping, State) else PlainState(mapping)


class SharedState(State):
    """The objects of a script as one mapping that `refresh` makes equal at all members.

        state = SharedState(model=model, optimizer=optimizer, scheduler=scheduler, step=0)
        ...
        state["step"] += 1
        group.refresh(state)

    The mapping holds the parameters, persistent buffers and extra state of a module; the groups of
    an optimizer, and its state by the number of the parameter (what it keeps under other keys is
    the plain value "optimizer.others"); one plain value for each other
    object that has `state_dict` and `load_state_dict` (tensors in it, or in an extra state, are
    part of that value); and of a DTensor the local part (one shard
    for each rank of a replica). An optimizer that has not stepped yet receives the state of the
    run's optimizer. Names are like "model.layer.weight" and "optimizer.3.exp_avg"; a plain value
    has the name of its argument, and "step" is the revision. All members give the same objects with
    the same hyperparameters. After this call a model's parameters must not be replaced by others.
    """

    def __init__(self, **parts: Any) -> None:
        """Takes objects and plain values, by name.

        Raises:
            ValueError: A name with a point.
        """
        self._parts: dict[str, Any] = {}
        for name, part in parts.items():
            if "." in name:
                raise ValueError(f"the name {name!r} has a point; expected the name of an argument")
            self._parts[name] = part

    def __iter__(self) -> Iterator[str]:
        return iter(self._flat())

    def __len__(self) -> int:
        return len(self._flat())

    def __getitem__(self, name: str) -> Any:
        part = self._parts.get(name, self)
        if part is not self and not isinstance(part, (nn.Module, torch.optim.Optimizer, Stateful)):
            return part
        return self._flat()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        head, _, tail = name.partition(".")
        part = self._parts.get(head)
        if isinstance(part, nn.Module) and tail:
            inner = part.get_submodule(tail.rpartition(".")[0])
            inner.set_extra_state(_as(inner.get_extra_state(), value))
        elif isinstance(part, torch.optim.Optimizer) and tail:
            _set_in_optimizer(part, tail, value)
        elif tail or isinstance(part, (nn.Module, torch.optim.Optimizer)):
            raise ValueError(f"{name!r} cannot be set; expected the name of a plain value")
        elif isinstance(part, Stateful):
            part.load_state_dict(_as(part.state_dict(), value))
        else:
            self._parts[name] = value

    def __delitem__(self, name: str) -> None:
        head, _, tail = name.partition(".")
        part = self._parts[head]
        if isinstance(part, torch.optim.Optimizer) and tail:
            _delete_in_optimizer(part, tail)
        elif not tail:
            del self._parts[head]

    def items(self) -> ItemsView[str, Any]:
        """Returns what a dict's `items` returns, made at one go."""
        return self._flat().items()

    def objects(self) -> set[str]:
        """Names of the values without which a part is not whole: one of each object.

        Schedulers, scalers and samplers give one plain value each. Of an optimizer, whose tensors
        may be missing, it is that of its options.
        """
        none = (nn.Module, torch.Tensor)
        return {
            f"{name}.groups" if isinstance(part, torch.optim.Optimizer) else name
            for name, part in self._parts.items()
            if isinstance(part, Stateful) and not isinstance(part, none)
        }

    def check(self, values: Mapping[str, Any]) -> None:
        """Optimizers with other groups of parameters have state of other parameters, too."""
        for name, part in self._parts.items():
            groups = values.get(f"{name}.groups")
            if isinstance(part, torch.optim.Optimizer) and isinstance(groups, list):
                _check_groups(part, groups, f"the optimizer {name!r}")

    def adopts(self, name: str) -> bool:
        """State of an optimizer comes and goes."""
        head, _, tail = name.partition(".")
        part = self._parts.get(head)
        if not isinstance(part, torch.optim.Optimizer):
            return False
        number, point, _ = tail.partition(".")
        return bool(point) and number.isdecimal() and int(number) < len(_parameters(part))

    def of_own_batches(self) -> set[str]:
        """Buffers of modules: BatchNorm's are of the batches that a member has seen."""
        modules = {name: p for name, p in self._parts.items() if isinstance(p, nn.Module)}
        return {f"{name}.{key}" for name, p in modules.items() for key, _ in p.named_buffers()}

    def keep(self) -> Callable[[], None]:
        """Returns what gives the optimizers back the tensors and options that they have now."""
        optimizers = [p for p in self._parts.values() if isinstance(p, torch.optim.Optimizer)]
        states = [{p: dict(o.state[p]) for p in o.state if _is_tensor(p)} for o in optimizers]
        groups = [[dict(group) for group in o.param_groups] for o in optimizers]

        def put_back() -> None:
            for optimizer, before, options in zip(optimizers, states, groups, strict=True):
                for parameter in [p for p in optimizer.state if _is_tensor(p) and p not in before]:
                    del optimizer.state[parameter]
                for parameter, state in before.items():
                    _make(optimizer.state[parameter], state)
                for group, option in zip(optimizer.param_groups, options, strict=True):
                    _make(group, option)

        return put_back

    def adopt(self, wanted: Mapping[str, Wanted]) -> None:
        """Makes the tensors for which `adopts` says so exactly those of `wanted`, as zeros.

        Raises:
            ValueError: A dtype that this torch does not have.
        """
        for name, value in self._flat().items():
            if isinstance(value, torch.Tensor) and self.adopts(name) and name not in wanted:
                del self[name]
        for name, (dtype, shape) in wanted.items():
            if not self.adopts(name):
                continue
            head, number, key = name.split(".", 2)
            optimizer = self._parts[head]
            parameter = _parameters(optimizer)[int(number)]
            there = optimizer.state[parameter].get(key)
            if there is None or _dtype_and_shape(_local(there)) != (dtype, shape):
                group = _group_of(optimizer, parameter)
                optimizer.state[parameter][key] = _zeros(parameter, group, key, dtype, shape)

    def wholes(self) -> dict[str, Any]:
        """Returns `items` with whole DTensors, for a checkpoint, which divides them anew."""
        return self._flat(torch.Tensor.detach)

    def adopt_wholes(self, wanted: Mapping[str, Wanted]) -> None:
        """Does what `adopt` does, for shapes that are those of whole DTensors.

        Raises:
            ValueError: A dtype that this torch does not have.
        """
        self.adopt({n: (dtype, self._shape_here(n, shape)) for n, (dtype, shape) in wanted.items()})

    def _shape_here(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of this rank's part: optimizer state is divided as its parameter."""
        if not self.adopts(name):
            return shape
        head, number, key = name.split(".", 2)
        parameter = _parameters(self._parts[head])[int(number)]
        divided = key != "step" and tuple(parameter.shape) == shape
        return tuple(_local(parameter).shape) if divided else shape

    def _flat(self, take: Take | None = None) -> dict[str, Any]:
        take = take or _local
        flat: dict[str, Any] = {}
        for name, part in self._parts.items():
            if isinstance(part, nn.Module):
                flat.update((f"{name}.{key}", value) for key, value in _of_module(part, take))
            elif isinstance(part, torch.optim.Optimizer):
                flat.update((f"{name}.{key}", value) for key, value in _of_optimizer(part, take))
            elif isinstance(part, torch.Tensor):
                flat[name] = take(part)
            elif isinstance(part, Stateful):
                flat[name] = _plain(part.state_dict(), numbers=True)
            else:
                flat[name] = part
        return flat


# ------------------------------------------------------------------------------ modules


def _of_module(module: nn.Module, take: Take) -> Iterator[tuple[str, Any]]:
    for name, parameter in module.named_parameters():
        yield name, take(parameter)
    seen: set[int] = set()
    for prefix, inner in module.named_modules():
        lead = f"{prefix}." if prefix else ""
        for name, buffer in inner.named_buffers(recurse=False):
            if name not in inner._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield lead + name, take(buffer)
        if type(inner).get_extra_state is not nn.Module.get_extra_state:
            yield f"{lead}_extra_state", _plain(inner.get_extra_state())


# ------------------------------------------------------------------------------ optimizers


def _make(mapping: dict[str, Any], values: dict[str, Any]) -> None:
    """The mapping has exactly these values afterwards."""
    mapping.clear()
    mapping.update(values)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _group_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


def _of_optimizer(optimizer: torch.optim.Optimizer, take: Take) -> Iterator[tuple[str, Any]]:
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{number}.{key}", take(value) if isinstance(value, torch.Tensor) else value
    plain = []
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        for key, value in options.items():
            if isinstance(value, torch.Tensor):  # a learning rate that compiled code reads
                yield f"groups.{number}.{key}", take(value)
        plain.append({k: v for k, v in options.items() if not isinstance(v, torch.Tensor)})
    yield "groups", plain
    if others := _others(optimizer):
        yield OTHERS, _plain(others)


def _others(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """The state of an optimizer that is of no parameter: torch lets it have keys of any kind."""
    return {key: value for key, value in optimizer.state.items() if not _is_tensor(key)}


def _is_tensor(key: Any) -> bool:
    return isinstance(key, torch.Tensor)


def _delete_in_optimizer(optimizer: torch.optim.Optimizer, tail: str) -> None:
    if tail == OTHERS:
        for key in _others(optimizer):
            del optimizer.state[key]
        return
    number, _, key = tail.partition(".")
    del optimizer.state[_parameters(optimizer)[int(number)]][key]


def _check_groups(optimizer: torch.optim.Optimizer, theirs: list[Any], which: str) -> None:
    mine = optimizer.param_groups
    if len(mine) != len(theirs):
        raise ValueError(
            f"{which} has {len(mine)} groups of parameters here and {len(theirs)} in the run; "
            "expected all of them when the program starts: a newcomer does not see an "
            "add_param_group in the middle of the run"
        )


def _set_in_optimizer(optimizer: torch.optim.Optimizer, tail: str, value: Any) -> None:
    if tail == OTHERS:
        fitted = _as(_others(optimizer), value)
        _delete_in_optimizer(optimizer, tail)
        optimizer.state.update(fitted)
        return
    if tail == "groups":
        _check_groups(optimizer, value, "an optimizer")
        for group, options in zip(optimizer.param_groups, value, strict=True):
            group.update({key: _as(group.get(key), option) for key, option in options.items()})
        return
    number, _, key = tail.partition(".")
    optimizer.state[_parameters(optimizer)[int(number)]][key] = value


def _zeros(
    parameter: torch.Tensor, group: dict[str, Any], key: str, dtype: str, shape: tuple[int, ...]
) -> torch.Tensor:
    kind = dtype_of(dtype)
    local = _local(parameter)
    counts = key == "step" and not (group.get("capturable") or group.get("fused"))
    zeros = torch.zeros(shape, dtype=kind, device="cpu" if counts else local.device)
    if not hasattr(parameter, "to_local") or shape != tuple(local.shape) or key == "step":
        return zeros
    whole: Any = parameter  # a DTensor: its state is sharded as it is
    made: torch.Tensor = type(whole).from_local(
        zeros,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
    return made


# ------------------------------------------------------------------------------ values


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that lies here; the same memory."""
    part: torch.Tensor = tensor.detach()
    return part.to_local() if hasattr(part, "to_local") else part


def dtype_of(name: str) -> torch.dtype:
    """The dtype that manifests write so.

    Raises:
        ValueError: This torch has none of that name.
    """
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"the state of the run has the dtype {name!r}; expected one of torch's")
    return kind


def _dtype_and_shape(tensor: torch.Tensor) -> Wanted:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def plain_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """The plain value that stands for a tensor."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype, shape = _dtype_and_shape(dense)
    octets = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {TENSOR: [dtype, list(shape), octets]}


def is_plain_tensor(value: Any) -> bool:
    """Does this plain value stand for a tensor?"""
    return isinstance(value, dict) and value.keys() == {TENSOR}


def _plain(value: Any, *, numbers: bool = False) -> Any:
    """`value` with plain values for tensors; `numbers`: with numbers for those of one element.

    An object may make such tensors anew whenever it is asked, so they cannot be written to.
    """
    if isinstance(value, torch.Tensor):
        if numbers and value.numel() == 1:
            return value.item()
        if value.layout != torch.strided or value.is_quantized or hasattr(value, "to_local"):
            return value  # refused with its name
        return plain_tensor(value)
    if isinstance(value, dict):
        if is_plain_tensor(value):
            raise ValueError(f"a dict with the key {TENSOR!r} alone cannot be shared")
        return {key: _plain(item, numbers=numbers) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item, numbers=numbers) for item in value]
        return items if isinstance(value, list) else getattr(type(value), "_make", tuple)(items)
    return value


def _tensor_of(plain: Any) -> torch.Tensor:
    """The tensor of which `_plain` has made this.

    Raises:
        ValueError: It has made nothing like it; or this torch lacks the dtype.
    """
    try:
        name, shape, octets = plain
        if octets:
            flat = torch.frombuffer(bytearray(octets), dtype=torch.uint8)
        else:
            flat = torch.zeros(0, dtype=torch.uint8, device="cpu")
        return flat.view(dtype_of(name)).reshape(shape)
    except (TypeError, RuntimeError, MemoryError, OverflowError) as error:
        raise ValueError(f"a tensor of the run's state cannot be made: {error}") from error


def _with_tensors(value: Any) -> Any:
    """`value` with the tensors of which `_plain` has made plain values."""
    if isinstance(value, dict):
        if is_plain_tensor(value):
            return _tensor_of(value[TENSOR])
        made = copy.copy(value)
        made.clear()
        made.update({key: _with_tensors(item) for key, item in value.items()})
        return made
    if isinstance(value, (list, tuple)):
        return getattr(type(value), "_make", type(value))(map(_with_tensors, value))
    return value


def _as(template: Any, value: Any) -> Any:
    """What `_plain` was given, with the types that `template` has: a Counter, a namedtuple."""
    return _fitted(template, _with_tensors(value))


def _fitted(template: Any, value: Any) -> Any:
    if isinstance(template, torch.Tensor) and isinstance(value, torch.Tensor):
        return value.to(template.device)
    if isinstance(template, torch.Tensor) and isinstance(value, (bool, int, float)):
        return torch.full_like(template, value)
    if isinstance(template, dict) and isinstance(value, dict):
        made = copy.copy(template)  # of the same class: a defaultdict keeps its factory
        made.clear()
        made.update({key: _fitted(template.get(key), item) for key, item in value.items()})
        return made
    for kind in (list, tuple):
        alike = isinstance(template, kind) and isinstance(value, kind)
        if alike and len(template) == len(value):
            items = [_fitted(mine, item) for mine, item in zip(template, value, strict=True)]
            return getattr(type(template), "_make", kind)(items)  # a namedtuple has `_make`
    return value
