"""The boundary conversation and the rank tables, against a fake extension."""

import time
from collections.abc import Callable, Iterator
from threading import Barrier, Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_state import Sources, hasher
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from pccl_backend import _C, _extension, _group, _models, _rank_tables, _session
from pccl_backend._config import Options
from pccl_backend._errors import EvictedError, GroupClosedError, MismatchError, PeerLostError
from pccl_backend._group import ElasticGroup
from pccl_backend._state import Exchange


class FakeExtension:
    """Plays the events of a boundary from a list; an exception in it is raised."""

    def __init__(self, *events: Any) -> None:
        self.events = list(events)
        self.calls: list[tuple[Any, ...]] = []
        self.adopts: list[bool] = []  # answers; afterwards yes
        self.view: dict[str, Any] = {
            "rank": 0,
            "size": 2,
            "epoch": "1.1",
            "step": 4,
            "numbering": ["aa", "bb"],
            "admitted": True,
            "without_master": False,
            "told": "",
        }
        self.after: dict[str, Any] = {}
        self.late_failure: Exception | None = None
        self.sources = Sources()
        self.sha256 = hasher

    def __getattr__(self, name: str) -> Any:
        """Of the extension itself, with time for another thread."""
        if name.lower() != "turn":
            raise AttributeError(name)
        time.sleep(0.002)
        return getattr(_C, name)

    def group_view(self) -> dict[str, Any]:
        return dict(self.view)

    def is_elastic(self, group: object) -> bool:
        return group is dist.group.WORLD

    def boundary_begin(
        self, kind: str, verify: bool, timeout_s: float, talk: Any, finish: int | None = None
    ) -> None:
        more = () if finish is None else (finish,)
        self.calls.append(("begin", kind, verify, timeout_s, *more))
        talk.is_open = True

    def boundary_next(self, timeout_s: float, talk: Any) -> bool:
        event = self.events.pop(0)
        if isinstance(event, BaseException):
            raise event
        if event is None:
            return False
        if event["what"] == "finished":
            self.view.update(self.after)
        talk.unanswered = event
        return True

    def copy_results(self) -> None:
        self.calls.append(("copy",))

    def boundary_root(self, *arguments: Any) -> None:
        self.calls.append(("root", *arguments))

    def boundary_adopt(self, *arguments: Any) -> bool:
        self.calls.append(("adopt", *arguments))
        return self.adopts.pop(0) if self.adopts else True

    def boundary_fetched(self, *arguments: Any) -> None:
        self.calls.append(("fetched", *arguments))

    def raise_late_failure(self) -> None:
        error, self.late_failure = self.late_failure, None
        if error is not None:
            raise error

    def leave(self, at_once: bool) -> None:
        self.calls.append(("leave", at_once))

    def StateFetch(self) -> Sources:
        return self.sources


def finished(**changes: Any) -> dict[str, Any]:
    root = {"present": False, "revision": 0, "digest": b"\0" * 32}
    event = {"what": "finished", "step": 5, "voted": False, "admitted": False, "left": False}
    return {**event, "root": root, "contributors": [0, 1], **changes}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeExtension]:
    module = FakeExtension()
    _session.talk.end()
    _session.talk.left = None
    monkeypatch.setattr(_extension, "_module", module)
    monkeypatch.setattr(_extension, "_options", Options(step_timeout_s=9.0))
    monkeypatch.setattr(_rank_tables, "_of_run", _rank_tables._GroupsOfRun())
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield module
    dist.destroy_process_group()


def test_a_boundary_without_a_vote_asks_for_no_hash(fake: FakeExtension) -> None:
    fake.events = [None, finished()]
    boundary = ElasticGroup(None).refresh({"step": 1})
    assert fake.calls == [("begin", "refresh", False, 9.0)]
    assert (boundary.step, boundary.rank, boundary.size) == (5, 0, 2)
    assert not boundary.voted
    assert not boundary.size_changed
    assert boundary.bytes_received == 0
    assert boundary.paused_s >= 0


@pytest.mark.parametrize(
    ("view", "line"),
    [
        ({}, "refresh of step 4 waits for others of 2 members, 9 s at most"),
        ({"told": "why"}, "refresh of step 4 waits, 9 s at most; the master says: why"),
        ({"without_master": True, "told": "old"}, "refresh of step 4 waits for a master in charge"),
        ({"admitted": False}, "this process becomes a member at the run's next boundary"),
    ],
)
def test_a_wait_is_said_without_a_level_that_somebody_has_set(
    fake: FakeExtension,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    view: dict[str, Any],
    line: str,
) -> None:
    monkeypatch.setattr(_group, "SAY_WAITING_S", 0.0)
    monkeypatch.setattr(_group, "SAY_AT_DOOR_S", 0.0)
    fake.view.update(view)
    fake.events = [None, None, finished()]
    ElasticGroup(None).refresh({"step": 1})
    [said] = [record for record in caplog.records if line in record.getMessage()]
    assert said.levelname == "WARNING"


def test_what_failed_after_its_wait_is_raised_when_the_boundary_has_been_passed(
    fake: FakeExtension,
) -> None:
    fake.events = [finished(), finished()]
    fake.late_failure = PeerLostError("gone")
    with pytest.raises(PeerLostError, match="gone"):
        ElasticGroup(None).refresh({"step": 1})
    assert len(fake.events) == 1
    assert ElasticGroup(None).refresh({"step": 1}).step == 5


def in_a_thread(call: Callable[[], None]) -> None:
    thread = Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("run", [lambda call: call(), in_a_thread])
def test_a_second_call_says_that_the_first_one_has_not_returned(
    fake: FakeExtension, run: Callable[[Callable[[], None]], None]
) -> None:
    said: list[str] = []

    def second() -> None:
        try:
            ElasticGroup(None).refresh({"step": 7})
        except RuntimeError as error:
            said.append(str(error))

    def called(timeout_s: float, talk: Any) -> bool:  # as by a handler of a signal meanwhile
        run(second)
        return FakeExtension.boundary_next(fake, timeout_s, talk)

    fake.events = [finished(), finished()]
    fake.boundary_next = called  # type: ignore[method-assign]
    assert ElasticGroup(None).refresh({"step": 1}).step == 5
    assert len(fake.calls) == 1
    assert len(said) == 1
    assert "another call" in said[0]
    fake.events = [KeyboardInterrupt(), finished()]
    with pytest.raises(KeyboardInterrupt):
        ElasticGroup(None).refresh({"step": 1})
    assert ElasticGroup(None).refresh({"step": 1}).step == 5


def test_of_two_threads_in_their_first_refresh_one_gets_in(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[int] = []
    most: list[int] = []
    refused = Event()

    def called(timeout_s: float, talk: Any) -> bool:
        inside.append(1)
        most.append(len(inside))
        assert refused.wait(60)  # the other thread
        inside.pop()
        return FakeExtension.boundary_next(fake, timeout_s, talk)

    def first(start: Barrier) -> None:
        start.wait()
        try:
            ElasticGroup(None).refresh({"step": 7})
        except RuntimeError:
            refused.set()

    fake.boundary_next = called  # type: ignore[method-assign]
    monkeypatch.setattr(_group, "_talk", _session.Talk())
    fake.events = [finished(), finished()]
    start = Barrier(2)
    threads = [Thread(target=first, args=(start,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_vote_is_answered_with_root_and_memory_of_the_state(fake: FakeExtension) -> None:
    state = {"w": torch.arange(4.0), "step": 3}
    fake.events = [{"what": "hash"}, finished(voted=True)]
    fake.after = {"size": 3, "numbering": ["aa", "bb", "cc"], "epoch": "1.2", "step": 5}
    boundary = ElasticGroup(None).refresh(state, verify=True, timeout_s=2.0)
    begin, copy, root = fake.calls
    assert begin == ("begin", "refresh", True, 2.0)
    assert copy == ("copy",), "before the state is read"
    _, present, revision, digest, items, keep = root
    assert (present, revision) == (True, 3)
    assert digest == Exchange(dict(state), hasher).snapshot().digest
    assert items[1] == (state["w"].data_ptr(), 16)
    assert keep
    assert boundary.size_changed
    assert boundary.epoch == "1.2"


def test_a_state_that_differs_is_fetched_and_answered(fake: FakeExtension) -> None:
    theirs = {"w": torch.ones(4), "step": 8}
    offer = Exchange(theirs, hasher).snapshot()
    fake.sources = Sources(aa=PeerLostError("gone"), bb=offer)
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa", "bb"], "root": root, "why": "most"}
    mine = {"w": torch.zeros(4), "step": 0}
    fake.events = [{"what": "hash"}, ask, None, finished(voted=True, admitted=True)]
    boundary = ElasticGroup(None).refresh(mine)
    assert fake.calls[-2] == ("adopt", 8, offer.digest)
    assert fake.calls[-1][:4] == ("fetched", True, 8, offer.digest)
    assert torch.equal(mine["w"], theirs["w"])
    assert mine["step"] == 8
    assert boundary.admitted
    assert boundary.bytes_received > 16


@pytest.mark.parametrize("had_state", [False, True])
def test_a_member_whose_state_is_replaced_is_warned(
    fake: FakeExtension, caplog: pytest.LogCaptureFixture, *, had_state: bool
) -> None:
    weights = {f"w{number}": torch.ones(4) for number in range(6)}
    offer = Exchange({**weights, "scale": 2.0, "step": 8}, hasher).snapshot()
    fake.sources = Sources(aa=offer)
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa"], "root": root, "why": "two of three"}
    fake.view.update(admitted=True, step=8)
    fake.events = [finished(), ask, None, finished(voted=True)]
    group = ElasticGroup(None)
    group.refresh({"step": 7} if had_state else None)
    others = {name: torch.zeros(4) for name in ("w0", "w2", "w3", "w4", "w5")}
    group.refresh({**others, "w1": torch.ones(4), "scale": 1.0, "step": 8})
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if had_state:
        assert "after step 8 this member's differed from that with which the run goes on" in said[0]
        assert "was replaced (w0, w2, w3, w4, w5 and 1 more): its program has" in said[0]
        assert "(two of three)" in said[0]
    else:
        assert said == [], "members begin with different parameters"


def test_a_fetch_without_a_source_waits_for_the_next_proposal(fake: FakeExtension) -> None:
    theirs = {"w": torch.ones(4), "step": 8}
    offer = Exchange(theirs, hasher).snapshot()
    fake.sources = Sources(aa=GroupClosedError("no such snapshot"), bb=offer)
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa"], "root": root, "why": "most"}
    mine = {"w": torch.zeros(4), "step": 0}
    later = {**ask, "epoch": 78, "sources": ["bb"]}
    fake.events = [ask, None, later, finished(voted=True)]
    ElasticGroup(None).refresh(mine)
    assert [call[0] for call in fake.calls] == ["begin", "adopt", "fetched"]
    assert [source for source, _ in fake.sources.asked] == ["aa", "aa", "bb", "bb"]


def test_a_wrong_state_is_refused_before_anything_is_sent(fake: FakeExtension) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        ElasticGroup(None).refresh({"w": torch.zeros(2, 3).t()})
    with pytest.raises(ValueError, match="timeout_s"):
        ElasticGroup(None).refresh({}, timeout_s=0.0)
    assert fake.calls == []


def test_a_boundary_that_was_interrupted_goes_on_in_the_next_call(fake: FakeExtension) -> None:
    theirs = {"w": torch.ones(4), "step": 8}
    offer = Exchange(theirs, hasher).snapshot()
    fake.sources = Sources(aa=offer)
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa"], "root": root, "why": "most"}
    fake.events = [KeyboardInterrupt(), ask, None, finished(voted=True)]
    group = ElasticGroup(None)
    with pytest.raises(KeyboardInterrupt):
        group.refresh({"w": torch.zeros(4)})
    with pytest.raises(ValueError, match="expected the same names"):
        group.refresh({"w": torch.zeros(5)})
    mine = {"w": torch.zeros(4)}
    group.refresh(mine)
    assert torch.equal(mine["w"], theirs["w"])
    assert [call[0] for call in fake.calls] == ["begin", "adopt", "fetched"]


def test_a_state_that_the_run_does_not_ask_for_any_more_is_not_adopted(
    fake: FakeExtension,
) -> None:
    theirs = {"w": torch.ones(4), "step": 8}
    offer = Exchange(theirs, hasher).snapshot()
    fake.sources = Sources(aa=offer)
    fake.adopts = [False]
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa"], "root": root, "why": "most"}
    mine = {"w": torch.zeros(4), "step": 3}
    fake.events = [ask, None, None, finished(voted=True)]
    ElasticGroup(None).refresh(mine)
    assert [call[0] for call in fake.calls] == ["begin", "adopt"]
    assert torch.equal(mine["w"], torch.zeros(4))
    assert mine["step"] == 3


class Interrupts(dict[str, Any]):
    """Ctrl-C comes while plain values are replaced."""

    left = 1

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("adopted", [False, True])
def test_after_an_interruption_the_engine_is_told_which_state_is_held(
    fake: FakeExtension, adopted: bool
) -> None:
    theirs = {"w": torch.ones(4), "step": 8}
    offer = Exchange(theirs, hasher).snapshot()
    fake.sources = Sources(aa=offer)
    root = {"present": True, "revision": 8, "digest": offer.digest}
    ask = {"what": "fetch", "epoch": 77, "sources": ["aa"], "root": root, "why": "most"}
    mine = Interrupts(w=torch.zeros(4), step=3)
    before = Exchange(mine, hasher).snapshot().digest
    fake.events = [ask, None]
    group = ElasticGroup(None)
    with pytest.raises(KeyboardInterrupt):
        group.refresh(mine)
    assert [call[0] for call in fake.calls] == ["begin", "adopt"]
    assert Exchange(mine, hasher).snapshot().digest == before
    if adopted:  # as if it had come a line later
        mine["w"].fill_(1.0)
        mine["step"] = 8
    fake.adopts = [not adopted]  # it holds that state
    fake.events = [None, finished(voted=True)]
    group.refresh(mine)
    told = [call for call in fake.calls[2:] if call[0] == "fetched"]
    assert fake.calls[2] == told[0]
    assert told[0][3] == (offer.digest if adopted else before)
    assert torch.equal(mine["w"], theirs["w"])
    assert _session.talk.adopts is False


def test_a_passed_boundary_is_not_lost_to_an_interruption(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.events = [finished(step=5), finished(step=6)]
    fake.after = {"size": 3, "numbering": ["aa", "bb", "cc"], "epoch": "1.2", "step": 5}
    interruptions = [KeyboardInterrupt]

    def sync_tables(module: Any, *, new_numbers: bool) -> None:
        assert new_numbers
        if interruptions:
            raise interruptions.pop()

    monkeypatch.setattr(_rank_tables, "sync_tables", sync_tables)
    with pytest.raises(KeyboardInterrupt):
        ElasticGroup(None).refresh({"step": 1})
    boundary = ElasticGroup(None).refresh({"step": 1})
    assert (boundary.step, boundary.size, boundary.size_changed) == (5, 3, True)
    assert [call[0] for call in fake.calls] == ["begin"]


def test_an_error_of_the_boundary_reaches_the_caller(fake: FakeExtension) -> None:
    fake.events = [EvictedError("the run goes on without this peer")]
    with pytest.raises(EvictedError):
        ElasticGroup(None).refresh({})


def test_resume_carries_no_state(fake: FakeExtension) -> None:
    fake.events = [{"what": "hash"}, finished(voted=True)]
    ElasticGroup(None).resume()
    assert fake.calls[0] == ("begin", "resume", False, 9.0)
    assert fake.calls[1][1] is False


def test_who_has_left_is_told_so(fake: FakeExtension) -> None:
    group = ElasticGroup(None)
    group.leave()
    fake.events = [finished(left=True, voted=True)]
    assert group.refresh({}).left
    assert fake.calls[0] == ("leave", True)
    group.leave(at_once=False)
    assert fake.calls[-1] == ("leave", False)


def test_rank_tables_follow_the_members(fake: FakeExtension) -> None:
    world = distributed_c10d._world
    pair = dist.new_group([0, 1])
    name = world.pg_names[pair]
    _rank_tables._of_run.peers[name] = ["aa", "bb"]
    _rank_tables.sync_tables(fake)
    assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1]
    fake.view.update(numbering=["bb", "cc", "dd"], rank=0, size=3, step=6)
    assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1, 2]
    assert dict(world.pg_group_ranks[pair]) == {0: 1}
    assert dist.get_group_rank(pair, 0) == 1
    assert dist.get_global_rank(pair, 1) == 0
    _rank_tables.sync_tables(fake, new_numbers=True)
    assert world.group_count == 6 * _rank_tables.GROUPS_PER_STEP


def test_a_rank_table_is_whole_while_another_thread_brings_it_up_to_date() -> None:
    members = ["aa", "bb"]
    seen = []

    def ranks(numbering: list[str]) -> dict[int, int]:
        seen.append(list(held))  # what another thread reads that has looked a moment ago
        return {rank: rank for rank in range(len(numbering))}

    held: Any = ()
    table = _rank_tables.LiveRanks(lambda: list(members), ranks)
    held = table.keys()
    members.append("cc")
    assert dict(table) == {0: 0, 1: 1, 2: 2}
    assert seen == [[], [0, 1]]


def test_groups_that_are_gone_are_forgotten(fake: FakeExtension) -> None:
    pair = dist.new_group([0, 1])
    name = distributed_c10d._world.pg_names[pair]
    _rank_tables.note_made(name, ["aa", "bb"])
    for number in range(100):
        _rank_tables.note_made(f"gone {number}", ["aa"])
    assert set(_rank_tables._of_run.peers) == {name, "gone 99"}


def test_a_number_of_a_group_never_comes_twice_and_does_not_depend_on_the_epoch(
    fake: FakeExtension,
) -> None:
    def number(name: str = "3", *peers: str) -> str:
        return _rank_tables.number_of_group(fake.view, name, list(peers))

    seen = [number(), number(), number("4"), number("3", "aa")]
    fake.view.update(step=5)
    seen.append(number())
    fake.view.update(numbering=["aa"])
    seen.append(number())
    assert len(set(seen)) == len(seen)
    fake.view.update(step=6)
    at_another_member = number()
    _rank_tables._of_run.where = ""
    fake.view.update(epoch="9.9", epoch_number=99)
    assert number() == at_another_member


def test_a_group_shows_where_it_stands(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = fake.group_view()
    shown = ", ".join(f"{name}={view[name]!r}" for name in ("rank", "size", "epoch", "step"))
    assert repr(ElasticGroup(None)) == f"ElasticGroup({shown})"

    def closed() -> None:
        raise GroupClosedError("over")

    monkeypatch.setattr(fake, "group_view", closed)
    assert repr(ElasticGroup(None)) == "ElasticGroup(closed)"


def test_a_fixed_group_is_not_elastic(fake: FakeExtension) -> None:
    with pytest.raises(ValueError, match="fixed"):
        _group.group(dist.new_group([0, 1]))
    assert _group.group(None).rank == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "pccl://a"}, "url is 'pccl://a'"),
        ({"url": "pccl://a:1", "replica": "torchrun"}, "TORCHELASTIC_RUN_ID, RANK"),
        ({"url": "pccl://a:1", "replica": "mine"}, "replica is 'mine'"),
        ({"url": "pccl://a:1", "on_loss": "ignore"}, "on_loss is 'ignore'"),
        ({"url": "pccl://a:1", "timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"url": "pccl://a:1"}, "an elastic group already"),
        ({}, "an elastic group already"),
    ],
)
def test_join_says_what_is_wrong(fake: FakeExtension, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        _group.join(**options)
    assert text in str(caught.value)


def test_the_mesh_of_hsdp_needs_a_group_of_the_replica_beside_the_elastic_one(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="the elastic group is the default one"):
        _models.hsdp_mesh(device_type="cpu")
    with pytest.raises(ValueError, match="the group is fixed"):
        _models.hsdp_mesh(dist.new_group([0, 1]))
    mesh = dist.device_mesh.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("a", "b"))
    with pytest.raises(ValueError, match="the elastic group is the default one"):
        _models.hsdp_mesh(shard=mesh)
    elastic = SimpleNamespace(process_group=dist.new_group([0, 1]))
    monkeypatch.setattr(_models, "group_of", lambda group: elastic)
    with pytest.raises(ValueError, match="shard has 2 ranks, and the replica of this process has"):
        _models.hsdp_mesh(shard=mesh)
    monkeypatch.setattr(_models.talk, "replica_size", 2)
    with pytest.raises(ValueError, match="expected a name for each, that of the replicas first"):
        _models.hsdp_mesh(shard=mesh, mesh_dim_names=("replicate", "shard"))


def test_the_mesh_of_hsdp_has_no_more_ranks_than_the_replica(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_models.dist, "get_process_group_ranks", lambda group: [0, 1])
    with pytest.raises(
        ValueError, match="shard has 2 ranks, and the replica of this process has 1"
    ):
        _models.hsdp_mesh(shard=dist.new_group([0]))


def test_finish_knows_nothing_of_the_state_of_an_earlier_run(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = _group.group()
    fake.events += [finished(), finished(ended="the run is finished")]
    group.refresh({"step": 7})
    fake.calls.clear()
    monkeypatch.setattr(fake, "set_event_sink", lambda _: None, raising=False)
    _session.watch(fake)  # it has joined another run, and passes no state there
    group.finish(timeout_s=3.0)
    assert fake.calls == [("begin", "refresh", False, 3.0, fake.group_view()["step"])]


def test_finish_says_how_far_the_run_has_come(fake: FakeExtension) -> None:
    group = _group.group()
    fake.events += [
        finished(),
        finished(ended="the run is finished"),
        finished(),
        finished(left=True),
    ]
    group.refresh({"step": 7})
    fake.calls.clear()
    boundary = group.finish(timeout_s=3.0)
    assert (boundary.finished, boundary.left) == (True, False)
    assert fake.calls == [("begin", "refresh", False, 3.0, 7)]
    with pytest.raises(MismatchError, match="other members called refresh"):
        group.finish()
    left = group.finish()
    assert left.left
    assert group.finish() is left, "it has left, and waits for nobody"


def test_finish_among_members_that_refresh_a_shared_state_is_a_mismatch(
    fake: FakeExtension,
) -> None:
    group = _group.group()
    fake.events += [{"what": "hash"}, {"what": "fetch", "root": {}, "sources": []}]
    with pytest.raises(MismatchError, match="other members called refresh"):
        group.finish()
