"""The shared state: a canonical manifest, nothing received is trusted, only differences move."""

import collections
import ctypes
import hashlib
import json
import math
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pccl_backend import GroupClosedError, NoMemoryError, PeerLostError, ProtocolError
from pccl_backend._shared_state import SharedState
from pccl_backend._state import (
    DEPTH_MAX,
    FORMAT,
    MANIFEST_BYTES_MAX,
    Exchange,
    Item,
    Snapshot,
    SourceFailedError,
    decode_manifest,
    encode_manifest,
    revision_of,
)


def hasher(items: list[Item]) -> list[bytes]:
    return [hashlib.sha256(ctypes.string_at(address, size)).digest() for address, size in items]


def agree() -> bool:
    return True


class Sources:
    """Stands for `_C.StateFetch`, and for the peers that it asks: who offers what, or fails how."""

    def __init__(self, **offers: Any) -> None:
        self.offers = offers
        self.asked: list[tuple[str, int]] = []
        self.bytes_received = 0
        self.here: dict[bytes, bytes] = {}
        self.replaced: list[tuple[int, bytes]] = []  # address, what was there

    def pull(self, source: str, item: int) -> bytes | None:
        self.asked.append((source, item))
        offer = self.offers[source]
        if isinstance(offer, (PeerLostError, GroupClosedError)):
            return None
        assert isinstance(offer, Snapshot)
        return ctypes.string_at(*offer.items[item])

    def run(
        self, root: bytes, sources: Sequence[str], items: Sequence[tuple[int, bytes, int | None]]
    ) -> bool:
        for item, digest, size in items:
            for source in sources if digest not in self.here else []:
                got = self.pull(source, item)
                if got is not None:
                    assert size in (None, len(got))
                    assert hashlib.sha256(got).digest() == digest
                    self.bytes_received += len(got)
                    self.here[digest] = got
                    break
            if digest not in self.here:
                return False
        return True

    def at(self, digest: bytes) -> bytes:
        return self.here[digest]

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        for digest, address, size in targets:
            assert len(self.here[digest]) == size
            self.replaced.append((address, ctypes.string_at(address, size)))
            ctypes.memmove(address, self.here[digest], size)

    def take_back(self) -> None:
        while self.replaced:
            address, before = self.replaced.pop()
            ctypes.memmove(address, before, len(before))

    def clear(self) -> None:
        self.replaced.clear()
        self.here.clear()


def example() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "w": torch.randn(3, 5, generator=generator),
        "b": torch.arange(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "step": 12,
        "plain": {"lr": 0.1, 3: [None, True, b"\x00\xff", "ü\ud800", (1, 2)], "inf": -math.inf},
    }


def test_a_tensor_that_is_not_at_the_top_is_refused_with_what_to_do() -> None:
    state = {"step": 0, "model": torch.nn.Linear(2, 2).state_dict()}
    with pytest.raises(
        ValueError, match=r"state\['model'\]\['.*'\] is a tensor inside of a .*SharedState"
    ):
        Exchange(state, hasher)


def test_equal_states_have_equal_roots_whatever_the_order_of_names() -> None:
    one, two = example(), dict(reversed(example().items()))
    two["plain"] = dict(reversed(two["plain"].items()))
    first, second = Exchange(one, hasher).snapshot(), Exchange(two, hasher).snapshot()
    assert first.digest == second.digest
    assert first.revision == 12
    assert len(first.items) == 1 + 4


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["w"].view(-1)[3].add_(1e-6),
        lambda s: s.update(step=13),
        lambda s: s.update(w=s["w"].double()),
        lambda s: s.update(w=s["w"].view(5, 3)),
        lambda s: s.update(more=None),
        lambda s: s["plain"].update(lr=0.1 + 1e-17 + 1e-16),
        lambda s: s["plain"].update(inf=math.inf),
        lambda s: s.update(plain=list(s["plain"])),
        lambda s: s["plain"].update({3: [None, 1, b"\x00\xff", "ü\ud800", (1, 2)]}),
        lambda s: s["plain"].update({3: [None, True, b"\x00\xff", "ü\ud800", [1, 2]]}),
    ],
)
def test_any_difference_changes_the_root(change: Any) -> None:
    state = example()
    change(state)
    assert (
        Exchange(state, hasher).snapshot().digest != Exchange(example(), hasher).snapshot().digest
    )


def test_a_manifest_comes_back_as_it_was() -> None:
    state = example()
    values = {name: v for name, v in state.items() if not isinstance(v, torch.Tensor)}
    text = encode_manifest([], values)
    assert decode_manifest(text).values == values
    assert encode_manifest([], decode_manifest(text).values) == text
    not_a_number = decode_manifest(encode_manifest([], {"x": math.nan})).values["x"]
    assert math.isnan(not_a_number)


def test_fetching_writes_only_what_differs_and_in_place() -> None:
    theirs, mine = example(), example()
    mine["w"].zero_()
    mine["step"], mine["gone"] = 3, "x"
    w = mine["w"]
    offer = Exchange(theirs, hasher).snapshot()
    sources = Sources(a=offer)
    shared = Exchange(mine, hasher, sources)
    got = shared.fetch(offer.digest, ["a"], agree)
    assert got.digest == offer.digest
    assert got.revision == 12
    assert mine["w"] is w
    assert torch.equal(w, theirs["w"])
    assert mine["plain"] == theirs["plain"]
    assert "gone" not in mine
    names = ["b", "empty", "scalar", "w"]
    assert sources.asked == [("a", 0), ("a", 1 + names.index("w"))]
    assert shared.bytes_received == offer.items[0][1] + 60


def test_parameters_that_require_gradients_can_be_fetched() -> None:
    theirs = {"p": torch.nn.Parameter(torch.ones(4))}
    mine = {"p": torch.nn.Parameter(torch.zeros(4))}
    offer = Exchange(theirs, hasher).snapshot()
    Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert torch.equal(mine["p"], theirs["p"])
    assert mine["p"].is_leaf
    assert mine["p"].requires_grad


def test_a_mapping_that_makes_what_is_not_there_is_only_read() -> None:
    mine: dict[str, Any] = collections.defaultdict(list, w=torch.ones(3))
    assert Exchange(mine, hasher).snapshot().revision == 0
    assert list(mine) == ["w"]


def test_without_a_source_the_next_proposal_is_waited_for() -> None:
    theirs, mine = example(), example()
    mine["b"].zero_()
    offer = Exchange(theirs, hasher).snapshot()
    sources = Sources(a=PeerLostError("gone"))
    shared = Exchange(mine, hasher, sources)
    with pytest.raises(SourceFailedError):
        shared.fetch(offer.digest, ["a"], agree)
    sources.offers["b"] = offer
    assert shared.fetch(offer.digest, ["a", "b"], agree).digest == offer.digest
    assert torch.equal(mine["b"], theirs["b"])


def test_a_state_is_hashed_for_its_vote_and_once_when_it_has_been_replaced() -> None:
    theirs, mine = example(), example()
    mine["w"].zero_()
    offer = Exchange(theirs, hasher).snapshot()
    hashed: list[Item] = []

    def counts(items: list[Item]) -> list[bytes]:
        hashed.extend(items)
        return hasher(items)

    shared = Exchange(mine, counts, Sources(a=offer))
    shared.snapshot()
    assert len(hashed) == 4
    got = shared.fetch(offer.digest, ["a"], agree)
    assert len(hashed) == 8
    assert got.digest == Exchange(mine, hasher).snapshot().digest == offer.digest


class Alters(dict[str, Any]):
    """Does not hold the step that was set: seen when everything has been replaced."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, 11 if name == "step" and value == 12 else value)


@pytest.mark.parametrize("device", [False, True])
def test_what_has_been_replaced_is_taken_back_where_the_root_is_another(
    monkeypatch: pytest.MonkeyPatch, device: bool
) -> None:
    if device:  # the memory that is hashed and offered is a copy
        monkeypatch.setattr("pccl_backend._state._host", lambda tensor: tensor.detach().clone())
    theirs = example()
    tied, w = torch.arange(4.0), torch.zeros(3, 5)
    theirs.update(tied0=torch.ones(4), tied1=torch.ones(4))
    mine = Alters(example(), tied0=tied, tied1=tied, w=w, step=3)
    sources = Sources(a=Exchange(theirs, hasher).snapshot())
    shared = Exchange(mine, hasher, sources)
    before = shared.snapshot().digest
    with pytest.raises(ProtocolError, match="does not have the root"):
        shared.fetch(sources.offers["a"].digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before
    theirs["step"] = 13
    sources.offers["a"] = Exchange(theirs, hasher).snapshot()
    got = shared.fetch(sources.offers["a"].digest, ["a"], agree)
    assert mine["w"] is w
    assert torch.equal(w, theirs["w"])
    assert Exchange(mine, hasher).snapshot().digest == got.digest


class BreaksOff(Sources):
    """Is interrupted, or has no source any more, at the n-th tensor."""

    def __init__(self, error: BaseException, after: int, **offers: Snapshot | Exception) -> None:
        super().__init__(**offers)
        self.error, self.left = error, after

    def pull(self, source: str, item: int) -> bytes | None:
        self.left -= item > 0
        if self.left >= 0:
            return super().pull(source, item)
        if isinstance(self.error, PeerLostError):
            return None
        raise self.error


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    "error", [PeerLostError("gone"), KeyboardInterrupt(), NoMemoryError("none"), SystemExit(1)]
)
def test_a_fetch_that_breaks_off_leaves_the_state_as_it_was(
    error: BaseException, after: int
) -> None:
    theirs, mine = example(), example()
    for name in ("w", "b", "scalar"):
        mine[name].zero_()
    mine["step"], mine["gone"] = 3, [1]
    offer = Exchange(theirs, hasher).snapshot()
    sources = BreaksOff(error, after, a=offer)
    shared = Exchange(mine, hasher, sources)
    before = shared.snapshot().digest
    with pytest.raises((SourceFailedError, type(error))):
        shared.fetch(offer.digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before
    sources.left = 3
    assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest
    assert len(sources.asked) == 1 + 3  # the manifest, and what differs, each once


def test_tensors_that_share_memory_here_and_not_there_are_an_error_and_not_wrong_bits() -> None:
    theirs = {"a": torch.ones(4), "b": torch.full((4,), 2.0), "step": 5}
    for own in (0.0, 1.0):  # both differ, or one
        tied = torch.full((4,), own)
        mine = {"a": tied, "b": tied, "step": 3}
        offer = Exchange(theirs, hasher).snapshot()
        with pytest.raises(ProtocolError, match="shares memory"):
            Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
        assert tied.tolist() == [own] * 4
        assert mine["step"] == 3


class Meddling(dict[str, Any]):
    """Its step also writes a tensor, as a load_state_dict may."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "step" and value == 12:
            self["w"].fill_(9.0)


def test_a_value_that_writes_a_tensor_when_it_is_set_is_an_error() -> None:
    mine = Meddling(example())
    mine["step"] = 3
    offer = Exchange({**example(), "step": 12}, hasher).snapshot()
    with pytest.raises(ProtocolError, match="something else wrote to it"):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)


class Stubborn(dict[str, Any]):
    """Refuses one plain value, as a load_state_dict may."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "step" and value == 12:
            raise RuntimeError("no")
        super().__setitem__(name, value)


def test_a_value_that_cannot_be_set_takes_the_whole_fetch_back() -> None:
    theirs, mine = example(), Stubborn(example())
    mine["w"].zero_()
    mine["plain"] = 1
    mine["step"] = 3
    offer = Exchange(theirs, hasher).snapshot()
    before = Exchange(mine, hasher).snapshot().digest
    with pytest.raises(RuntimeError, match="no"):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before


class Impatient(Stubborn):
    """Ctrl-C comes again and again while a fetch is taken back."""

    refused = 0
    interrupts = 3

    def __setitem__(self, name: str, value: Any) -> None:
        if self.refused and self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        if name == "step" and value == 12:
            self.refused += 1
        super().__setitem__(name, value)


def test_ctrl_c_does_not_interrupt_the_way_back() -> None:
    theirs, mine = example(), Impatient(example())
    mine["w"].zero_()
    dict.update(mine, plain=1, step=3)
    offer = Exchange(theirs, hasher).snapshot()
    before = Exchange(mine, hasher).snapshot().digest
    with pytest.raises(RuntimeError, match="no"):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert mine.interrupts == 0
    assert Exchange(mine, hasher).snapshot().digest == before


class Interrupted(Sources):
    """Ctrl-C comes when all tensors have been replaced."""

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        super().replace(targets)
        raise KeyboardInterrupt


class TwiceInterrupted(Sources):
    """The exchange fails, and Ctrl-C comes before any instruction of Python runs after that."""

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        super().replace(targets)
        send = ctypes.CDLL(None)["raise"]
        send.restype = {}.__getitem__  # gets what raise(3) returns, and fails
        send(signal.SIGINT)


class Starved(Sources):
    """There is no memory for the exchange."""

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        raise NoMemoryError("none")


@pytest.mark.parametrize("kind", [Interrupted, TwiceInterrupted, Starved])
def test_a_replacement_that_breaks_off_takes_the_whole_fetch_back(kind: type[Sources]) -> None:
    theirs, mine = example(), example()
    mine["w"].zero_()
    mine["b"].zero_()
    mine["step"] = 3
    offer = Exchange(theirs, hasher).snapshot()
    shared = Exchange(mine, hasher, kind(a=offer))
    before = shared.snapshot().digest
    with pytest.raises((KeyboardInterrupt, KeyError, NoMemoryError)):
        shared.fetch(offer.digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before


class Renews(dict[str, Any]):
    """Its step makes a tensor anew and forgets another one, as a load_state_dict may."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "step":
            super().__setitem__("w", torch.full((3, 5), 9.0))
            self.pop("b", None)


class RenewsBuffer(torch.nn.Module):
    """Its extra state makes a buffer anew."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra
        self.register_buffer("w", torch.full((4,), float(extra)))

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state
        self.w = torch.full((4,), 9.0)


@pytest.mark.parametrize("kind", [Interrupted, TwiceInterrupted, Starved])
@pytest.mark.parametrize("renews", ["mapping", "module"])
def test_tensors_that_a_value_makes_anew_hold_on_the_way_back_what_they_held(
    kind: type[Sources], renews: str
) -> None:
    mine: Any = SharedState(m=RenewsBuffer(3))
    theirs: Any = SharedState(m=RenewsBuffer(12))
    if renews == "mapping":
        mine, theirs = Renews(example()), example()
        dict.update(mine, w=torch.ones(3, 5), step=3)
    offer = Exchange(theirs, hasher).snapshot()
    shared = Exchange(mine, hasher, kind(a=offer))
    before = shared.snapshot().digest
    with pytest.raises((KeyboardInterrupt, KeyError, NoMemoryError)):
        shared.fetch(offer.digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before


class RefusesAlways(dict[str, Any]):
    """One value cannot be set at all, another one makes a tensor anew."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "plain":
            raise RuntimeError("no")
        super().__setitem__(name, value)
        if name == "count":
            super().__setitem__("w", torch.full((3, 5), 9.0))


def test_a_value_that_can_never_be_set_holds_up_no_other_on_the_way_back() -> None:
    mine = RefusesAlways(example(), plain=1, count=3, w=torch.ones(3, 5))
    offer = Exchange({**example(), "count": 12}, hasher).snapshot()
    before = Exchange(mine, hasher).snapshot().digest
    with pytest.raises(RuntimeError, match="no"):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert Exchange(mine, hasher).snapshot().digest == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.update(w=s["w"].double()), "state['w'] is float64 of shape (3, 5) here"),
        (lambda s: s.update(w=s["w"].view(5, 3)), "state['w'] is float32 of shape (5, 3) here"),
        (lambda s: s.pop("b"), "state['b'] is missing here"),
        (lambda s: s.update(a=torch.zeros(1)), "state['a'] is float32 of shape (1,) here"),
    ],
)
def test_another_structure_is_an_error_that_names_the_first_difference(
    change: Any, text: str
) -> None:
    offer = Exchange(example(), hasher).snapshot()
    mine = example()
    mine["scalar"].zero_()
    change(mine)
    with pytest.raises(ValueError, match="expected the same names") as caught:
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert text in str(caught.value)
    assert mine["scalar"].item() == 0


class Coded(torch.Tensor):
    """Holds another tensor and no memory of its own, as torchao's 8-bit optimizer states do."""

    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3, 5))  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def freed() -> torch.Tensor:
    tensor = torch.zeros(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"w": torch.zeros(3, 5).t()}, "not contiguous"),
        ({"w": Coded()}, r"state\['w'\] is a Coded without memory of its own"),
        ({"w": freed()}, r"state\['w'\] is a Tensor without memory of its own"),
        ({"w": torch.zeros(3, 5).to_sparse()}, "layout"),
        ({"w": torch.zeros(3, device="meta")}, "meta"),
        ({"x": object()}, r"state\['x'\] is a object"),
        ({"x": [1, {"y": {1, 2}}]}, r"state\['x'\]\[1\]\['y'\] is a set"),
        ({"x": {1.5: 2}}, "the key 1.5"),
        ({"step": "3"}, "revision"),
        ({"step": -1}, "revision"),
        ({"step": True}, "revision"),
        ({3: torch.zeros(1)}, "the name 3"),
        ({"x": 1 << 9000}, "bits"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(state: dict[Any, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Exchange(state, hasher)


def test_plain_values_that_have_grown_too_large_are_refused_before_a_vote() -> None:
    state = {"log": [b"\0" * (MANIFEST_BYTES_MAX // 2 - 100)]}
    Exchange(state, hasher)
    state["log"].append(b"\0" * 100)
    with pytest.raises(ValueError, match="the plain values of the state take 67108"):
        Exchange(state, hasher)


def test_nesting_is_bounded_on_both_sides() -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX + 1):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        Exchange({"x": value}, hasher)
    deep = b'["%s",[],[["x",%s1%s]]]' % (FORMAT.encode(), b'["l",' * 100000, b"]" * 100000)
    with pytest.raises(ProtocolError):
        decode_manifest(deep)


def test_the_revision_is_the_integer_under_step() -> None:
    assert revision_of({}) == 0
    assert revision_of({"step": 7}) == 7


GOOD_DIGEST = "00" * 32
BAD_MANIFESTS = [
    b"",
    b"\xff",
    b"{}",
    b"[]",
    json.dumps(["pccl-state-2", [], []]).encode(),
    json.dumps([FORMAT, {}, []]).encode(),
    json.dumps([FORMAT, [["w", "float32", [3], GOOD_DIGEST[2:]]], []]).encode(),
    json.dumps([FORMAT, [["w", "float32", [-3], GOOD_DIGEST]], []]).encode(),
    json.dumps([FORMAT, [["w", "float32", [True], GOOD_DIGEST]], []]).encode(),
    json.dumps([FORMAT, [["w", "float32", 3, GOOD_DIGEST]], []]).encode(),
    json.dumps([FORMAT, [[1, "float32", [3], GOOD_DIGEST]], []]).encode(),
    json.dumps([FORMAT, [["w", "float32", [3], GOOD_DIGEST]] * 2, []]).encode(),
    json.dumps([FORMAT, [["w", "float32", [3], GOOD_DIGEST]], [["w", 1]]]).encode(),
    json.dumps([FORMAT, [], [["x", 1], ["x", 2]]]).encode(),
    json.dumps([FORMAT, [], [["x", 1.5]]]).encode(),
    json.dumps([FORMAT, [], [["x", {}]]]).encode(),
    json.dumps([FORMAT, [], [["x", []]]]).encode(),
    json.dumps([FORMAT, [], [["x", ["f"]]]]).encode(),
    json.dumps([FORMAT, [], [["x", ["f", 3]]]]).encode(),
    json.dumps([FORMAT, [], [["x", ["b", "0"]]]]).encode(),
    json.dumps([FORMAT, [], [["x", ["d", [[], 1]]]]]).encode(),
    json.dumps([FORMAT, [], [["x", ["pickle", "gASV"]]]]).encode(),
    b'["%s",[],[["x",NaN]]]' % FORMAT.encode(),
    b'["%s",[],[["x",%s]]]' % (FORMAT.encode(), b"9" * 5000),
]


@pytest.mark.parametrize("text", BAD_MANIFESTS)
def test_a_malformed_manifest_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="manifest"):
        decode_manifest(text)


def test_a_damaged_manifest_is_a_protocol_error_or_a_manifest() -> None:
    state = example()
    values = {name: v for name, v in state.items() if not isinstance(v, torch.Tensor)}
    text = encode_manifest([], values)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2000):
        damaged = bytearray(text)
        for _ in range(int(torch.randint(1, 4, (1,), generator=generator))):
            place = int(torch.randint(len(damaged), (1,), generator=generator))
            damaged[place] = int(torch.randint(256, (1,), generator=generator))
        try:
            decode_manifest(bytes(damaged))
        except ProtocolError:
            continue
