"""What the extension is told when the program ends."""

import sys

import pytest

from pccl_backend._extension import FAILURE_CHARACTERS_MAX, failure_of_program


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
