"""A source distribution builds and works in an environment of its own, and warns of nothing."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.long

# Neither PYTHONPATH, which shows the checkout, nor what makes setuptools warn.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PCCL_", "PYTHON"))}
BUILD_S = 1800  # compiles everything, on a machine with other work
PROGRAM = """
import sys
import torch
import torch.distributed as dist

rank = int(sys.argv[1])
dist.init_process_group("pccl", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
x = torch.full((1000,), float(rank + 1))
dist.all_reduce(x)
import pccl_backend
print(pccl_backend.__file__, x.sum().item())
dist.destroy_process_group()
"""


def run(*command: str | Path, cwd: Path, timeout_s: float = 120) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=CLEAN,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a copy of what git knows, so that nothing else can get into it."""
    tree = tmp_path_factory.mktemp("tree")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    said = run(sys.executable, "setup.py", "--quiet", "sdist", cwd=tree)
    assert "warning" not in said.lower()
    (made,) = (tree / "dist").glob("*.tar.gz")
    return made


def test_the_sdist_holds_what_the_build_needs_and_no_more(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert metadata is not None
        about = email.message_from_bytes(metadata.read())
    assert {"csrc/CMakeLists.txt", "csrc/engine.exports", "csrc/base/ids.h", "LICENSE"} <= names
    assert {"licenses/libuv.txt", "licenses/openssl.txt"} <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]
    assert not [name for name in names if name.startswith(("tests", "build", "docs"))]
    assert about["License-Expression"] == "MIT"
    text = str(about.get_payload())
    assert "# pccl" in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == [], "dead links on an index"


def test_an_sdist_installs_and_two_ranks_sum_over_it(sdist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=tmp_path).strip())
    # torch, pip and the tools of the build; a line of a .pth file reads no .pth files there.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    said = run(
        *(*pip, "install", "--no-build-isolation", "--no-deps", "--no-index", "--verbose"),
        *("--ignore-installed", "--no-cache-dir", sdist),
        cwd=tmp_path,
        timeout_s=BUILD_S,
    )
    assert not re.search(r"deprecat|warning:", said, re.I), said
    (tmp_path / "sum.py").write_text(PROGRAM)
    ranks = [
        subprocess.Popen(
            [python, "sum.py", str(rank), str(tmp_path / "meet")],
            cwd=tmp_path,
            env=CLEAN,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            text, _ = rank.communicate(timeout=120)
            assert rank.returncode == 0
            assert text.split() == [str(site / "pccl_backend" / "__init__.py"), "3000.0"]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    run(python, "-m", "pccl_backend.check", cwd=tmp_path, timeout_s=300)
