"""The sources of the project as text: what the tests of its rules read."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import ROOT

CSRC = ROOT / "csrc"
TESTS = ROOT / "tests" / "cpp"


def sources(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def cpp_sources() -> list[Path]:
    return sources(CSRC, ".h", ".cpp")


def folder_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(CSRC))


def without_comments(text: str) -> str:
    """C++ without its comments and texts."""
    token = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(token, lambda m: '""' if m[0][0] == '"' else " ", text, flags=re.S)


def includes(path: Path) -> list[tuple[str, str]]:
    """('<' or '"', header) of each include."""
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.M)


def none_of(wrong: list[str], what_to_do: str) -> None:
    assert not wrong, what_to_do + ":\n  " + "\n  ".join(wrong)
