"""What the chaos test does with the processes of its members."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.run import why_not
from chaos.world import NO_MASTER, Member, Options, Span, World

from pccl_backend.demo.growing_file import GrowingFile


def test_a_rank_that_found_no_master_ends_its_replica(tmp_path: Path) -> None:
    fake: Any = SimpleNamespace(hosts=range(1, 9), address=str)
    world = World(tmp_path, Options(replica_size=2, masters=1), fake, 2)
    now = time.time()
    for number, replica in enumerate(["one", "one", "two"]):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        log = tmp_path / f"member-{number}.log"
        log.write_text("")
        records = GrowingFile(tmp_path / f"member-{number}.jsonl")
        world.members.append(
            Member(number, 3, process, records, log, now, replica=replica, heard=now)
        )
    first, mate, other = world.members
    world.outages.append(Span(now - 1, now + 60))
    first.process.kill()
    first.process.wait()
    first.ended = True
    world._judge(first, NO_MASTER)
    assert mate.process.wait(timeout=60) == -signal.SIGKILL
    world._judge(mate, mate.process.returncode)
    assert other.process.poll() is None
    assert world.wrong == []
    world.close()


def test_a_compiler_with_a_launcher_is_looked_for_by_its_first_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name == "ccache" else None)
    monkeypatch.setenv("CXX", "ccache g++")
    assert "ccache" not in why_not()
