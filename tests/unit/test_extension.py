"""What the extension is told when the program ends; what is said when it is loaded."""

import logging
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pccl_backend import _extension
from pccl_backend._config import NAME
from pccl_backend._errors import BY_CODE, GroupClosedError, PcclError
from pccl_backend._extension import (
    FAILURE_CHARACTERS_MAX,
    RUN_ENDED,
    failure_of_program,
    note_end_of_run,
    note_finished,
)


class NoText(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes either")


def syntax() -> SyntaxError:
    with pytest.raises(SyntaxError) as raised:
        compile("a b", "a.py", "exec")
    return raised.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ArithmeticError("it diverged\nhere"), "ArithmeticError: it diverged"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("\udcff"), r"ValueError: \udcff"),  # of a file name that is no UTF-8
        (syntax(), "SyntaxError: invalid syntax"),
        (NoText(), "NoText"),
        (ValueError("x" * 1000), ("ValueError: " + "x" * 1000)[:FAILURE_CHARACTERS_MAX]),
    ],
)
def test_any_error_that_ends_the_program_is_one_line_of_text(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, text: str
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    assert failure_of_program() == text
    assert failure_of_program().encode()


def test_a_session_that_goes_on_after_an_error_ends_in_good_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("typed"), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert failure_of_program() == ""


def test_the_launcher_is_told_of_the_end_of_the_run_and_of_no_other_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = tmp_path / "note"
    monkeypatch.setitem(BY_CODE, RUN_ENDED, GroupClosedError)
    monkeypatch.setattr(sys, "last_value", GroupClosedError("at step 7"), raising=False)
    monkeypatch.delenv("PCCL_RUN_NOTE", raising=False)
    note_end_of_run()  # no launcher
    monkeypatch.setenv("PCCL_RUN_NOTE", str(note))
    monkeypatch.setattr(sys, "last_value", PcclError("another"))
    note_end_of_run()
    monkeypatch.delattr(sys, "last_value")
    note_end_of_run()
    assert not note.exists()
    monkeypatch.setattr(sys, "last_value", GroupClosedError("at step 7"), raising=False)
    note_end_of_run()
    assert note.exists()
    monkeypatch.setenv("PCCL_RUN_NOTE", str(tmp_path / "missing" / "note"))
    with caplog.at_level(logging.WARNING, NAME):
        note_end_of_run()
    assert "pccl-run is not told" in caplog.text


def test_the_launcher_is_told_that_this_process_has_finished_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PCCL_RUN_FINISHED", raising=False)
    note_finished()  # no launcher
    monkeypatch.setenv("PCCL_RUN_FINISHED", str(tmp_path / "finished-0-0"))
    note_finished()
    assert [file.name for file in tmp_path.iterdir()] == ["finished-0-0"]


@pytest.mark.parametrize(("level", "said"), [("off", False), ("warning", True)])
def test_variables_that_nobody_reads_are_said_at_the_level_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: str, said: bool
) -> None:
    for name in ("_module", "_options"):
        monkeypatch.setattr(_extension, name, None)
    for name in ("_load", "_say_goodbye_at_exit", "_patches"):
        monkeypatch.setattr(_extension, name, Mock())
    monkeypatch.setenv("PCCL_LOG_LEVEL", level)
    monkeypatch.setenv("PCCL_LOGLEVEL", "debug")
    before = logging.getLogger(NAME).level
    try:
        _extension.extension()
    finally:
        logging.getLogger(NAME).setLevel(before)
    assert ("PCCL_LOGLEVEL" in caplog.text) is said
