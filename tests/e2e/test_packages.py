"""A source distribution builds without a warning, into a wheel that has all it needs inside and
works in an environment of its own."""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.long

# Neither PYTHONPATH, which shows the checkout, nor what makes setuptools warn.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PCCL_", "PYTHON"))}
BUILD_S = 1800  # compiles everything, on a machine with other work
TORCH = Path(sysconfig.get_path("purelib")) / "torch"
TORCHS = ("c10", "torch", "torch_cpu", "torch_python")
SYSTEM_LIBRARIES = {
    *("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1"),
    *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
}
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


def run(*command: str | Path, cwd: Path, timeout_s: float = 120, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=CLEAN | variables,
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
    assert about.get_all("Provides-Extra") is None, "an index shows tools of our own"
    text = str(about.get_payload())
    assert "# pccl" in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == [], "dead links on an index"


def test_a_build_without_torch_says_that_pip_may_have_hidden_it() -> None:
    code = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.argv = ["setup.py", "--quiet", "build_ext"]
runpy.run_path("setup.py", run_name="__main__")
"""
    environment = {name: value for name, value in os.environ.items() if name != "PCCL_TORCH"}
    built = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 1
    assert (
        "pip hides an installed torch from the build. With torch installed, run: " in built.stderr
    )
    assert "pip install --no-build-isolation ." in built.stderr


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the script that makes wheels, of what the sdist holds, for the torch that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        # Python 3.11 has filters from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder)
    (tree,) = folder.iterdir()
    (tree / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "wheel", tree / "scripts")
    said = run("scripts/wheel", TORCH, cwd=tree, timeout_s=BUILD_S, PYTHON=sys.executable)
    assert not re.search(r"[Dd]eprecat|warning:", said), said
    (made,) = (tree / "dist").glob("*.whl")
    return made


def test_a_wheel_has_libuv_and_openssl_inside_and_shows_neither(
    wheel: Path, tmp_path: Path
) -> None:
    auditwheel = wheel.parent.parent / "build" / "wheel" / "tools" / "bin" / "auditwheel"
    said = " ".join(run(auditwheel, "show", wheel, cwd=tmp_path).split())
    assert 'constrains the platform tag to "manylinux_' in said
    assert set(re.findall(r"(\S+) with versions", said)) <= SYSTEM_LIBRARIES, said
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert not [name for name in names if name.startswith("pccl.libs/")], "foreign libraries"
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert {"LICENSE", "libuv.txt", "openssl.txt"} <= licences
    libraries = sorted((tmp_path / "pccl_backend").glob("*.so"))
    layer = "_torch_" + "_".join(importlib.metadata.version("torch").split(".")[:2])
    assert [path.name.partition(".")[0] for path in libraries] == ["_core", layer, "libpccl_engine"]
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", library, cwd=tmp_path))
        ours = {"libpccl_engine.so"} if library.name != "libpccl_engine.so" else set()
        torchs = {f"lib{name}.so" for name in TORCHS} if library.name.startswith(layer) else set()
        assert set(needed) - SYSTEM_LIBRARIES == ours | torchs
        symbols = run("nm", "-D", library, cwd=tmp_path)
        assert not re.findall(r" \w (uv_\w+|EVP_\w+|OPENSSL_\w+|SSL_\w+)", symbols)


def test_a_wheel_installs_and_two_ranks_sum_over_it(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=tmp_path).strip())
    # torch and pip; a line of a .pth file reads no .pth files there.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        *(python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-index"),
        *("--ignore-installed", wheel),
        cwd=tmp_path,
    )
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
