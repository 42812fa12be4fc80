"""Modules, optimizers and schedulers as shared state: what a newcomer gets, and that it goes on."""

import collections
import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_state import BreaksOff, Sources, agree, hasher
from torch import nn

from pccl_backend import PeerLostError, ProtocolError, SharedState
from pccl_backend._shared_state import TENSOR
from pccl_backend._state import Exchange, SourceFailedError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 7, bias=False)
        self.out.weight = self.embed.weight  # tied
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.seen = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]

    def forward(self, x_B: torch.Tensor) -> torch.Tensor:
        self.seen += len(x_B)
        y: torch.Tensor = self.out(self.norm(self.embed(x_B)))
        return y


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "of a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.5}, {"params": p[1:]}]),
}


class Trainer:
    def __init__(self, optimizer: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5])
        self.state = SharedState(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, step=0
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            torch.manual_seed(self.state["step"])
            x_B = torch.randint(7, (5,))
            nn.functional.cross_entropy(self.model(x_B), x_B).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.state["step"] += 1

    def offer(self) -> Any:
        return Exchange(self.state, hasher).snapshot()


def receive(mine: Trainer, theirs: Trainer) -> None:
    offer = theirs.offer()
    got = Exchange(mine.state, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert got.digest == offer.digest


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_newcomer_goes_on_bit_for_bit_as_the_others(optimizer: str) -> None:
    old, new = Trainer(optimizer, seed=1), Trainer(optimizer, seed=2)
    old.train(3)
    receive(new, old)
    assert new.state["step"] == 3
    assert new.model.seen == old.model.seen
    for trainer in (old, new):
        trainer.train(4)  # past the next milestone of the scheduler
    assert new.offer().digest == old.offer().digest
    assert [g["lr"] for g in new.optimizer.param_groups] == [
        g["lr"] for g in old.optimizer.param_groups
    ]


class Warming(torch.optim.SGD):
    """Counts its steps where torch lets an optimizer keep what is of no parameter."""

    def step(self, closure: Any = None) -> Any:
        mine = self.state["warming"]  # type: ignore[index]
        mine["steps"] = mine.get("steps", 0) + 1
        self.state["seen"] = torch.full((2,), float(mine["steps"]))  # type: ignore[index]
        for group in self.param_groups:
            group["lr"] = 0.01 * mine["steps"]
        return super().step(closure)


OPTIMIZERS["warming"] = lambda p: Warming(p, lr=0.1, momentum=0.9)


def test_what_an_optimizer_keeps_of_no_parameter_comes_and_goes() -> None:
    old, new = Trainer("warming", seed=1), Trainer("warming", seed=2)
    old.train(3)
    receive(new, old)
    assert new.optimizer.state_dict()["state"]["warming"] == {"steps": 3}
    for trainer in (old, new):
        trainer.train(2)
    assert new.offer().digest == old.offer().digest
    fresh = Trainer("warming", seed=3)
    receive(new, fresh)
    assert set(new.optimizer.state) <= set(new.model.parameters())
    old.state.keep()()
    assert old.optimizer.state["warming"] == {"steps": 5}  # type: ignore[index]


def test_what_the_run_does_not_have_yet_is_given_up() -> None:
    old, new = Trainer("adamw", seed=1), Trainer("adamw", seed=2)
    new.train(2)  # before it joined
    receive(new, old)
    assert not any(new.optimizer.state.values())
    for trainer in (old, new):
        trainer.train(2)
    assert new.offer().digest == old.offer().digest


@pytest.mark.parametrize("error", [PeerLostError("gone"), KeyboardInterrupt()])
@pytest.mark.parametrize("trained", [0, 2])
def test_a_fetch_that_breaks_off_leaves_the_optimizer_as_it_was(
    error: BaseException, trained: int
) -> None:
    old, new = Trainer("adamw", seed=1), Trainer("momentum" if trained else "adamw", seed=2)
    old.train(1)
    new.train(trained)
    before = new.offer().digest
    states = {p: dict(state) for p, state in new.optimizer.state.items()}
    offer = old.offer()
    shared = Exchange(new.state, hasher, BreaksOff(error, 4, a=offer))
    with pytest.raises((SourceFailedError, KeyboardInterrupt)):
        shared.fetch(offer.digest, ["a"], agree)
    assert new.offer().digest == before
    assert new.optimizer.state == states


def test_a_replacement_that_breaks_off_gives_the_optimizer_its_state_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = Trainer("adamw", seed=1), Trainer("momentum", seed=2)
    old.train(1)
    new.train(2)
    before = new.offer().digest
    offer = old.offer()

    kind = type(new.scheduler)
    load = kind.load_state_dict

    def breaks_off(scheduler: Any, state: dict[str, Any]) -> None:
        monkeypatch.undo()
        load(scheduler, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "load_state_dict", breaks_off)
    shared = Exchange(new.state, hasher, Sources(a=offer))
    with pytest.raises(KeyboardInterrupt):
        shared.fetch(offer.digest, ["a"], agree)
    assert new.offer().digest == before
    assert [set(state) for state in new.optimizer.state.values()] == [{"momentum_buffer"}] * 3


def test_names_say_what_they_are_and_nothing_is_copied() -> None:
    trainer = Trainer("momentum", seed=1)
    trainer.train(1)
    state = trainer.state
    assert set(state) == {
        *("model.embed.weight", "model.norm.weight", "model.norm.bias"),
        *("model.norm.running_mean", "model.norm.running_var", "model.norm.num_batches_tracked"),
        *("model._extra_state", "optimizer.0.momentum_buffer", "optimizer.1.momentum_buffer"),
        *("optimizer.2.momentum_buffer", "optimizer.groups", "scheduler", "step"),
    }
    assert len(state) == len(dict(state))
    assert state["model.embed.weight"].data_ptr() == trainer.model.embed.weight.data_ptr()
    assert not state["model.embed.weight"].requires_grad


def test_what_differs_is_named_and_nothing_changes() -> None:
    old, new = Trainer("adamw", seed=1), Trainer("adamw", seed=2)
    old.train(1)
    new.model.embed = nn.Embedding(8, 6)
    before = copy.deepcopy(dict(new.state))
    offer = old.offer()
    with pytest.raises(
        ValueError, match=r"state\['model.embed.weight'\] is float32 of shape \(8, 6\)"
    ):
        Exchange(new.state, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    after = dict(new.state)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else True
    assert not any(new.optimizer.state.values())


def test_what_differed_is_told_but_for_buffers_which_are_of_a_members_own_batches() -> None:
    mine, theirs = Trainer("momentum", seed=1), Trainer("momentum", seed=1)
    for trainer in (mine, theirs):
        trainer.train(1)
    with torch.no_grad():
        mine.model.norm.running_mean += 1.0
    offer = theirs.offer()
    exchange = Exchange(mine.state, hasher, Sources(a=offer))
    exchange.fetch(offer.digest, ["a"], agree)
    assert exchange.differed == []
    assert torch.equal(mine.model.norm.running_mean, theirs.model.norm.running_mean)
    with torch.no_grad():
        mine.model.norm.running_mean += 1.0
        mine.model.norm.bias += 1.0
    mine.scheduler.step()
    exchange = Exchange(mine.state, hasher, Sources(a=offer))
    exchange.fetch(offer.digest, ["a"], agree)
    assert exchange.differed == ["model.norm.bias", "optimizer.groups", "scheduler"]


def test_an_object_that_the_run_does_not_share_is_named_and_stays() -> None:
    offer = Exchange(SharedState(w=torch.ones(2), step=5), hasher).snapshot()
    mine = SharedState(w=torch.zeros(2), loader=Meter(), step=0)
    with pytest.raises(ValueError, match=r"state\['loader'\] is of an object here and missing in"):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert "loader" in mine
    assert mine["w"].tolist() == [0.0, 0.0]


def test_a_group_of_parameters_that_was_added_in_the_middle_of_the_run_is_named() -> None:
    others, newcomer = Trainer("adamw", seed=1), Trainer("adamw", seed=2)
    new = torch.nn.Parameter(torch.ones(3))
    others.optimizer.add_param_group({"params": [new], "lr": 0.1})
    new.grad = torch.ones(3)
    others.optimizer.step()
    offer = Exchange(others.state, hasher).snapshot()
    with pytest.raises(
        ValueError, match=r"'optimizer' has 1 groups of parameters here and 2 in the run.*add_param"
    ):
        Exchange(newcomer.state, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)


def test_what_cannot_be_set_or_named_raises() -> None:
    trainer = Trainer("sgd", seed=1)
    with pytest.raises(ValueError, match="cannot be set"):
        trainer.state["model"] = 3
    with pytest.raises(ValueError, match="cannot be set"):
        trainer.state["more.of.it"] = 3
    with pytest.raises(ValueError, match="has a point"):
        SharedState(**{"a.b": 1})
    with pytest.raises(ValueError, match="1 groups of parameters here and 2 in the run"):
        trainer.state["optimizer.groups"] = [{}, {}]
    with pytest.raises(KeyError):
        trainer.state["nothing"]
    trainer.state["note"] = "x"
    del trainer.state["note"]
    assert "note" not in trainer.state


Point = collections.namedtuple("Point", "x y")


class Named(dict[str, int]):
    """It cannot be made of a mapping."""

    def __init__(self, *, name: str) -> None:
        self.name = name


class Meter:
    """Its values are of classes that no manifest has, and it needs these classes."""

    def __init__(self) -> None:
        self.counts: Any = collections.defaultdict(int)
        self.order: Any = collections.OrderedDict()
        self.seen: Any = collections.Counter()
        self.named: Any = Named(name="m")
        self.point: Any = Point(0, [collections.defaultdict(list)])
        self.pair: Any = (0, Point(0, 0))

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def test_plain_values_of_an_object_come_in_the_classes_that_it_has() -> None:
    theirs, mine = Meter(), Meter()
    theirs.counts["a"] += 3
    theirs.order.update(b=1, c=2)
    theirs.seen.update("aab")
    theirs.named["d"] = 4
    theirs.point = Point(5, [collections.defaultdict(list, e=[6])])
    theirs.pair = (1, Point(2, 3))
    before = mine.state_dict()
    offer = Exchange(SharedState(meter=theirs, step=5), hasher).snapshot()
    shared = Exchange(SharedState(meter=mine, step=3), hasher, Sources(a=offer))
    assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest
    assert vars(mine) == vars(theirs)
    for name, value in vars(theirs).items():
        assert type(vars(mine)[name]) is type(value)
    mine.counts["new"] += 1
    mine.point.y[0]["new"].append(1)
    mine.seen.update("a")
    assert mine.seen["a"] == 3
    assert mine.pair[1].y == 3
    assert mine.named.name == "m"
    assert before["counts"] == {}, "what the object had is unchanged"


class Late(Meter):
    """Takes what it is given when it is used next, as some data loaders do."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state


def test_an_object_that_takes_its_value_later_is_named() -> None:
    theirs = Late()
    theirs.seen.update("ab")
    offer = Exchange(SharedState(loader=theirs, w=torch.ones(2), step=5), hasher).snapshot()
    mine = SharedState(loader=Late(), w=torch.zeros(2), step=0)
    text = r"members agreed on: state\['loader'\] is not what it was set to"
    with pytest.raises(ProtocolError, match=text):
        Exchange(mine, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert mine["w"].tolist() == [0.0, 0.0]


def test_keys_keep_the_order_that_they_have_here() -> None:
    theirs, mine = Meter(), Meter()
    theirs.order.update(wiki=5, code=3, books=2)
    mine.order.update(wiki=1, code=1, books=1)
    plain = {"z": [{"y": 1, "x": 2}], "b": 1, "a": 2}
    offer = Exchange(SharedState(meter=theirs, plain=plain, step=5), hasher).snapshot()
    begun = {"z": [{"y": 0, "x": 0}], "old": 1, "a": 0}
    state = SharedState(meter=mine, plain=begun, step=3)
    Exchange(state, hasher, Sources(a=offer)).fetch(offer.digest, ["a"], agree)
    assert mine.order == theirs.order, "an OrderedDict, which knows its order"
    assert list(state["plain"]) == ["z", "a", "b"]
    assert list(state["plain"]["z"][0]) == ["y", "x"]


class Scaled(nn.Module):
    """Makes its buffer anew when its plain value is set."""

    def __init__(self, bits: int, fill: float) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("scale", torch.full((4,), fill))

    def get_extra_state(self) -> dict[str, int]:
        return {"bits": self.bits}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.bits = state["bits"]
        self.scale = torch.zeros(4)


def test_a_tensor_that_is_made_anew_when_a_value_is_set_holds_what_was_fetched() -> None:
    mine = Scaled(8, 1.0)
    offer = Exchange(SharedState(m=Scaled(4, 7.0), step=5), hasher).snapshot()
    shared = Exchange(SharedState(m=mine, step=3), hasher, Sources(a=offer))
    assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest
    assert mine.scale.tolist() == [7.0] * 4
    assert mine.bits == 4


class Fp8(nn.Module):
    """Its extra state is made of tensors, which are new ones each time, as FP8 libraries make."""

    def __init__(self, amax: torch.Tensor) -> None:
        super().__init__()
        self.amax = amax

    def get_extra_state(self) -> dict[str, Any]:
        return {"amax": self.amax.clone(), "of": (1, self.amax[:0].clone())}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.amax, (_, none) = state["amax"], state["of"]
        assert none.dtype == self.amax.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_extra_state_of_tensors_comes_to_the_module_that_made_them(dtype: torch.dtype) -> None:
    def fp8(last: int) -> Fp8:
        return Fp8(torch.tensor([[0, 1], [0, last]]).to(dtype).T)

    mine, theirs = fp8(0), fp8(1)
    offer = Exchange(SharedState(m=theirs, step=5), hasher).snapshot()
    shared = Exchange(SharedState(m=mine, step=3), hasher, Sources(a=offer))
    assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest
    assert mine.amax.dtype == dtype
    assert torch.equal(mine.amax, theirs.amax)


class Metric:
    def __init__(self, history: torch.Tensor) -> None:
        self.history = history

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "last": self.history[-1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = state["history"]
        assert state["last"].dtype == self.history.dtype


def test_tensors_of_an_object_come_as_its_plain_value() -> None:
    mine, theirs = Metric(torch.zeros(3).double()), Metric(torch.arange(3).double())
    offer = Exchange(SharedState(metric=theirs, step=5), hasher).snapshot()
    shared = Exchange(SharedState(metric=mine, step=3), hasher, Sources(a=offer))
    assert shared.fetch(offer.digest, ["a"], agree).digest == offer.digest
    assert torch.equal(mine.history, theirs.history)


@pytest.mark.parametrize(
    "plain",
    [["float32", [2], b"123"], ["float3", [1], b"1234"], ["float32", [3], b"1234"], 1, [1, 2, 3]],
)
def test_a_tensor_that_no_member_can_have_made_is_refused(plain: Any) -> None:
    state = SharedState(metric=Metric(torch.zeros(3)), step=0)
    with pytest.raises(ValueError, match="of the run"):
        state["metric"] = {"history": {TENSOR: plain}, "last": 1.0}


@pytest.mark.parametrize("mine", [None, [], [1], {"a": 0}])
def test_tensors_come_as_tensors_wherever_they_stand_and_whatever_was_there(mine: Any) -> None:
    def held(value: Any) -> Metric:
        metric = Metric(torch.zeros(1))
        metric.state_dict = lambda: {"held": value}  # type: ignore[method-assign]
        metric.load_state_dict = loaded.append  # type: ignore[method-assign]
        return metric

    loaded: list[Any] = []
    theirs = [torch.arange(3), {"b": (torch.ones(2, dtype=torch.bfloat16),)}]
    offer = Exchange(SharedState(metric=held(theirs), step=5), hasher).snapshot()
    shared = Exchange(SharedState(metric=held(mine), step=3), hasher, Sources(a=offer))
    with contextlib.suppress(RuntimeError):  # the object has not taken it
        shared.fetch(offer.digest, ["a"], agree)
    assert repr(loaded[0]) == repr({"held": theirs})


def test_a_dict_that_looks_like_a_tensor_is_refused() -> None:
    metric = Metric(torch.zeros(1))
    metric.state_dict = lambda: {"of": {TENSOR: 1}}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="alone cannot be shared"):
        SharedState(metric=metric, step=0).items()
