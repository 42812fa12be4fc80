"""The recipe of the container image is one that could be built: it is read here, and not run."""

import re
import shlex

from conftest import ROOT

INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "RUN", "USER", "WORKDIR"}


def recipe() -> list[tuple[str, str]]:
    """(instruction, the rest of its line) of the Containerfile, without comments."""
    text = (ROOT / "examples" / "container" / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in lines]


def test_every_instruction_is_one_and_every_command_parses() -> None:
    lines = recipe()
    assert lines[0][0] == "FROM"
    assert {word for word, _ in lines} <= INSTRUCTIONS
    for word, rest in lines:
        if word == "RUN":
            assert shlex.split(rest)
        if word == "COPY" and not rest.startswith("--from="):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])


def test_it_installs_the_packages_and_the_torch_that_make_setup_does() -> None:
    installed = " ".join(rest for word, rest in recipe() if word == "RUN")
    setup = (ROOT / "scripts" / "setup").read_text()
    needed = re.search(r"^needs\(\) \{(.*?)\[ \"\$1\" = dev \]", setup, re.M | re.S)
    assert needed
    packages = re.findall(r"^  require (?:'[^']*'|\"[^\"]*\"|\S+) (\S+)", needed[1], re.M)
    assert "libuv1-dev" in packages
    assert [name for name in packages if name not in installed.split()] == []
    torch = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert torch
    assert ("ARG", f"TORCH={torch[1]}") in recipe()
