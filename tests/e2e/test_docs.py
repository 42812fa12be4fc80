"""What README and docs say a reader can type works, as far as one machine can run it.

A block of a page that is run, here or in test_snippets.py, has a mark before it,
`<!-- test: NAME -->`, and stands in RUN. Every other block is parsed: Python, bash, YAML, and the
options of pccl-master. Programs run as on the page, but for ports, addresses and pauses, in a
folder of their own.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from chaos.run import why_not
from conftest import PATIENCE_S, ROOT, free_port, wait_until

from pccl_backend import _cli
from pccl_backend.launch import arguments

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
RUN = {
    "README.md": {"plain", "plain-command", "elastic", "run"},
    "docs/explanation/losses.md": {"hook"},
    "docs/how-to/checkpoints.md": {"by-hand", "elastic", "final"},
    "docs/how-to/diloco.md": {"master", "member"},
    "docs/how-to/elastic-ddp.md": {"master", "workers"},
    "docs/how-to/hang.md": {"status", "ask"},
    "docs/how-to/install.md": {"installed"},
    "docs/how-to/own-loop.md": {"loop", "state", "writer"},
    "docs/how-to/test-a-loop.md": {"test"},
    "docs/reference/pccl-master.md": {"runs"},
    "docs/tutorials/first-run.md": {"program", "master", "member"},
    "docs/tutorials/two-machines.md": {"master", "token", "member"},
    "docs/tutorials/spot-fleet.md": {"master", "worker"},
    "docs/tutorials/hsdp.md": {"program", "master", "west", "east"},
}
PORT = "48148"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its mark ("": none), language and text."""

    page: str
    mark: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    fence = r"^(?:<!-- test: ([\w-]+) -->\n)?```(\w*)\n(.*?)^```$"
    return [
        Block(page, mark, language, included(code))
        for mark, language, code in re.findall(fence, text, re.M | re.S)
    ]


def included(text: str) -> str:
    """The text with the files that `--8<--` names (in code as a block, which ruff leaves alone)."""
    named = r'^--8<-- "(.+)"$|^--8<--\n(.+)\n--8<--$'
    return re.sub(named, lambda m: (ROOT / (m[1] or m[2])).read_text().rstrip(), text, flags=re.M)


def block(page: str, mark: str) -> str:
    [found] = [b.text for b in blocks(page) if b.mark == mark]
    return found


# ------------------------------------------------------------------------------ what is parsed

EVERY = [b for page in PAGES for b in blocks(page)]


def name(item: Block) -> str:
    return f"{item.page}:{item.text.splitlines()[0][:40]}"


def test_what_is_marked_is_run_here() -> None:
    marks: dict[str, set[str]] = {}
    for item in EVERY:
        if item.mark:
            marks.setdefault(item.page, set()).add(item.mark)
    assert marks == RUN


def test_what_a_page_includes_is_included() -> None:
    """`ruff format` takes a line of Python fences that is no Python for an expression."""
    assert not [page for page in PAGES if re.search(r"--8\b", included((ROOT / page).read_text()))]


@pytest.mark.parametrize("item", [b for b in EVERY if b.language == "python"], ids=name)
def test_python_on_a_page_is_python(item: Block) -> None:
    ast.parse(item.text)


@pytest.mark.parametrize("item", [b for b in EVERY if b.language == "bash"], ids=name)
def test_bash_on_a_page_is_bash(item: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=item.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("item", [b for b in EVERY if b.language == "yaml"], ids=name)
def test_manifests_on_a_page_are_manifests(item: Block) -> None:
    documents = list(yaml.safe_load_all(item.text))
    assert documents
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(d) for d in documents)


def commands(program: str) -> list[str]:
    """Lines of all pages that begin with `program`, perhaps behind variables or a supervisor."""
    text = "".join(b.text for b in EVERY if b.language == "bash").replace("\\\n", " ")
    lines = [line.partition("  #")[0].rstrip(" &") for line in text.splitlines()]
    return sorted({line for line in lines if re.search(rf"(?:^|[ /]){program} ", line)})


def test_the_options_of_the_master_on_the_pages_exist() -> None:
    parser = _cli.build_parser()
    lines = [line for line in commands("pccl-master") if "--version" not in line]
    assert len(lines) >= 5
    for line in lines:
        given = line.replace("$master", "a:1").partition("pccl-master")[2]
        try:
            parser.parse_args(shlex.split(given))
        except (SystemExit, argparse.ArgumentTypeError) as error:
            pytest.fail(f"{line}: {error}")


def test_the_options_of_the_launcher_on_the_pages_exist() -> None:
    parser = arguments.build_parser()
    lines = commands("pccl-run")
    assert len(lines) >= 5
    for line in lines:
        try:
            parser.parse_args(shlex.split(line.partition("pccl-run")[2]))
        except SystemExit as error:
            pytest.fail(f"{line}: {error}")


def test_the_programs_that_pages_start_exist() -> None:
    named = {m for b in EVERY for m in re.findall(r"\bexamples/[\w/]+\.(?:py|sh)\b", b.text)}
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_targets_and_scripts_that_pages_name_exist() -> None:
    text = "".join((ROOT / page).read_text() for page in PAGES)
    targets = set(re.findall(r"(?:^|`)make (\w+)", text, re.M))
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    scripts = set(re.findall(r"\bscripts/\w+", text))
    assert "setup" in targets
    assert not [script for script in scripts if not (ROOT / script).exists()]


def test_no_command_of_a_page_lets_strangers_in() -> None:
    assert not [name(b) for b in EVERY if "--insecure" in b.text]


def test_the_elastic_program_of_readme_is_the_example() -> None:
    assert block("README.md", "elastic") == (ROOT / "examples/first/train.py").read_text()


# ------------------------------------------------------------------------------ what is run


class Terminal:
    """A terminal of the reader: one command, in a session of its own, and what it prints."""

    def __init__(self, command: list[str], folder: Path, number: int) -> None:
        self._path = folder / f"terminal-{number}.log"
        shims = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent)])
        with self._path.open("w") as out:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={
                    **os.environ,
                    "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                    "XDG_STATE_HOME": str(folder / "state"),
                    "TMPDIR": str(folder),  # a killed launcher leaves its folder there
                },
            )

    def text(self) -> str:
        return self._path.read_text(errors="replace")

    def sees(self, pattern: str) -> None:
        def look() -> Any:
            assert self.process.poll() in (None, 0), self.text()[-4000:]
            return re.search(pattern, self.text())

        wait_until(look, what=f"{pattern!r} in\n{self.text()[-2000:]}")

    def ends(self, status: int = 0) -> None:
        assert self.process.wait(PATIENCE_S) == status, self.text()[-4000:]

    def workers(self, program: str) -> list[psutil.Process]:
        """The Python processes below it that run `program`."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        found = []
        for process in below:
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if "python" in "".join(words[:1]) and any(w.endswith(program) for w in words[1:3]):
                found.append(process)
        return found

    def close(self) -> None:
        for process in [*self._all(), self.process]:
            try:
                process.kill()
            except (psutil.Error, ProcessLookupError):
                continue
        self.process.wait()

    def _all(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []


class Desk:
    """A folder with our examples, and terminals in it. A port takes the place of 48148."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(free_port())
        self._terminals: list[Terminal] = []
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "bin").mkdir()
        for command, module in (("pccl-master", "_cli"), ("pccl-run", "launch")):
            shim = folder / "bin" / command
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m pccl_backend.{module} "$@"\n')
            shim.chmod(0o755)

    def make_endless(self) -> None:
        """The first program goes on until it is asked to leave; its pauses are shorter."""
        path = self.folder / "examples/first/train.py"
        wanted = "STEPS, PAUSE_S = 100000, 0.1"
        text, count = re.subn(r"STEPS, PAUSE_S = \d+, [\d.]+", wanted, path.read_text())
        assert count == 1
        path.write_text(text)

    def type(self, text: str, *, inside: Callable[[list[str]], list[str]] = list) -> Terminal:
        """Types what a page says, in a terminal of its own."""
        command = inside(["bash", "-c", text.strip().replace(PORT, self.port)])
        terminal = Terminal(command, self.folder, len(self._terminals))
        self._terminals.append(terminal)
        return terminal

    def close(self) -> None:
        for terminal in reversed(self._terminals):
            terminal.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def weights(terminal: Terminal) -> dict[str, str]:
    """Of each step that a member has printed, its weight."""
    return dict(re.findall(r"^step +(\d+) .* weight (\[.*\])$", terminal.text(), re.M))


def leave_with_equal_weights(*members: Terminal) -> None:
    """Asks all to leave; in the steps that they have in common they held the same bits."""
    for member in members:
        member.process.terminate()
    for member in members:
        member.ends()
    seen = [weights(member) for member in members]
    common = set.intersection(*map(set, seen))
    assert len(common) >= 2
    assert len({tuple(s[step] for step in sorted(common)) for s in seen}) == 1


def test_an_installation_is_seen(desk: Desk) -> None:
    look = desk.type(block("docs/how-to/install.md", "installed"))
    look.ends()
    assert re.fullmatch(r"(?s).*True\npccl \d+\.\d+\S*\n", look.text())


@pytest.mark.long
def test_the_plain_script_of_readme(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(block("README.md", "plain"))
    run = desk.type(block("README.md", "plain-command"))
    run.ends()
    loss = re.search(r"^loss ([\d.]+)$", run.text(), re.M)
    assert loss
    assert float(loss[1]) < 0.1


@pytest.mark.long
def test_the_elastic_script_of_readme(desk: Desk) -> None:
    desk.make_endless()
    run = desk.type(block("README.md", "run"))
    run.sees(r"step +\d+  rank \d of 3")
    run.workers("first/train.py")[1].kill()
    run.sees(r"of 3\b(?s:.*)of 2\b(?s:.*)of 3\b")
    run.process.terminate()
    run.ends()
    assert run.text().count("ended after step") == 3


@pytest.mark.long
def test_a_first_run_that_survives_a_kill(desk: Desk) -> None:
    page = "docs/tutorials/first-run.md"
    desk.make_endless()
    desk.type(block(page, "master")).sees("Join it with")
    members = [desk.type(block(page, "member")) for _ in range(3)]
    for member in members:
        member.sees(r"step +\d+  rank \d of 3")
    members[0].process.kill()
    members[1].sees(r"rank \d of 2")
    newcomer = desk.type(block(page, "member"))
    newcomer.sees(r"step +\d+  rank \d of 3")
    members[1].process.terminate()
    members[1].ends()
    assert "ended after step" in members[1].text()
    members[2].sees(r"of 3\b(?s:.*)of 2\b(?s:.*)of 3\b(?s:.*)of 2\b")
    newcomer.sees(r"of 3\b(?s:.*)of 2\b")
    leave_with_equal_weights(members[2], newcomer)
    assert "1" not in weights(newcomer)


@pytest.mark.long
def test_a_run_on_two_machines_survives_its_master(desk: Desk) -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"no network can be emulated here: {reason}")
    from wan.wan import Wan

    page = "docs/tutorials/two-machines.md"
    desk.make_endless()
    with Wan(hosts=2, rtt_ms=5) as wan:

        def on(host: int, mark: str, without: str = "") -> Terminal:
            text = block(page, mark).replace("192.168.1.10", wan.address(1))
            text = text.replace(without, "")
            text = text.replace("~/.local/state", str(desk.folder / "state"))
            return desk.type(text, inside=lambda command: wan.command(host, command))

        master = on(1, "master")
        master.sees(r"Made the token 'default' in (?s:.*)Join it with")
        stranger = on(2, "member", "PCCL_TOKEN_FILE=pccl-token ")
        stranger.sees("this master takes processes with a token only")
        stranger.close()
        on(1, "token").ends()
        here, there = on(1, "member"), on(2, "member")
        there.sees(r"step +\d+  rank \d of 2")
        master.close()
        here.sees("connection to the master")
        on(1, "master").sees("Join it with")
        for member in (here, there):
            member.sees(r"connected to the master again(?s:.*)step +\d+  rank \d of 2")
        leave_with_equal_weights(here, there)


@pytest.mark.long
def test_a_spot_fleet(desk: Desk) -> None:
    page = "docs/tutorials/spot-fleet.md"
    desk.type(block(page, "master")).sees("Join it with")
    fleet = [desk.type(block(page, "worker")) for _ in range(2)]
    for terminal in fleet:
        terminal.sees(r"epoch 1\.\d+, 2 members")
    [victim] = fleet[1].workers("ddp_elastic.py")
    victim.kill()
    fleet[0].sees(" lost: ")
    fleet[1].sees(r"was ended by SIGKILL after .*; next start in 1 s(?s:.*)2 members: this peer is")
    for terminal in fleet:  # the machines are taken back, one after the other
        terminal.process.terminate()
        terminal.ends()
        line = r"\d{2}:\d{2}:\d{2}\.\d{3} pccl\[\d+\] WARNING SIGTERM: this process leaves"
        assert re.search(line, terminal.text())


@pytest.mark.long
def test_hsdp_loses_a_rank_and_gets_its_replica_back(desk: Desk) -> None:
    page = "docs/tutorials/hsdp.md"
    assert block(page, "program") == (ROOT / "examples/fsdp/hsdp.py").read_text()
    desk.type(block(page, "master")).sees("Join it with")
    west, east = (desk.type(block(page, side)) for side in ("west", "east"))
    wait_until(lambda: "2 replicas" in west.text() + east.text())
    survivor, loser = (west, east) if "2 replicas" in west.text() else (east, west)
    loser.workers("hsdp.py")[0].send_signal(signal.SIGKILL)
    survivor.sees("1 replicas")
    survivor.sees(r"1 replicas(?s:.*)2 replicas")
    assert (desk.folder / "checkpoints-hsdp").exists()
