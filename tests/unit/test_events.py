"""Hooks on changes of the membership."""

from collections.abc import Iterator
from typing import Any

import pytest

from pccl_backend import _events
from pccl_backend._events import HOOKS, Change


@pytest.fixture
def seen() -> Iterator[list[Change]]:
    changes: list[Change] = []
    for what in HOOKS:
        _events.add(what, changes.append)
    yield changes
    _events.forget()


def event(what: str, **fields: Any) -> dict[str, Any]:
    return {
        **{"what": what, "epoch": "1.2", "members": 3, "joined": [], "lost": [], "text": ""},
        **{"joined_names": [], "lost_names": []},
        **fields,
    }


def test_an_epoch_tells_of_itself_and_of_who_came_and_went(seen: list[Change]) -> None:
    names: dict[str, Any] = {"joined_names": ["n1/7", "n2/8"], "lost_names": ["n3/9"]}
    _events.tell(event("epoch", joined=["aa", "bb"], lost=["cc"], **names))
    assert [change.what for change in seen] == ["epoch", "joined", "left"]
    assert {(c.epoch, c.members, c.joined, c.left) for c in seen} == {
        ("1.2", 3, ("aa", "bb"), ("cc",))
    }
    assert {(c.joined_names, c.left_names) for c in seen} == {(("n1/7", "n2/8"), ("n3/9",))}
    _events.tell(event("epoch"))
    assert [change.what for change in seen[3:]] == ["epoch"]


def test_the_others_come_as_they_are_and_ones_own_leaving_not_at_all(seen: list[Change]) -> None:
    for what in ("master_lost", "master_back", "evicted", "left"):
        _events.tell(event(what, text="because"))
    assert [(c.what, c.text) for c in seen] == [
        (what, "because") for what in ("master_lost", "master_back", "evicted")
    ]


def test_a_hook_that_fails_is_logged_and_one_that_is_removed_is_not_called(
    seen: list[Change], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(change: Change) -> None:
        raise ZeroDivisionError

    calls: list[Change] = []
    _events.add("epoch", fails)
    handle = _events.add("epoch", calls.append)
    _events.tell(event("epoch"))
    handle.remove()
    _events.tell(event("epoch"))
    assert len(calls) == 1
    assert len(seen) == 2
    assert "for 'epoch' has failed" in caplog.text


def test_an_event_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="what is 'evict'; expected one of epoch, joined"):
        _events.add("evict", print)
