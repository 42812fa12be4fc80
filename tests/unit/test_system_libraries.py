"""What the build says of system libraries that it cannot use (csrc/system_libraries.cmake)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

PROJECT = f"""
cmake_minimum_required(VERSION 3.18)
project(libraries CXX)
include({ROOT / "csrc" / "system_libraries.cmake"})
message(STATUS "OpenSSL ${{OPENSSL_VERSION}} is taken")
"""


def configure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT)
    (folder / "Python.h").touch()
    beside = Path(sys.executable).parent
    return subprocess.run(
        [
            "cmake",
            "-S",
            folder,
            "-B",
            folder / "build",
            f"-DPCCL_PYTHON_INCLUDE={folder}",
            *arguments,
        ],
        env={**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_openssl_that_is_too_old_is_named_and_not_used(tmp_path: Path) -> None:
    found = configure(tmp_path / "good")
    assert found.returncode == 0, found.stderr
    assert "is taken" in found.stdout
    old = tmp_path / "old" / "openssl"
    old.mkdir(parents=True)
    (old / "opensslv.h").write_text("# define OPENSSL_VERSION_NUMBER  0x1010117fL\n")
    (old / "ssl.h").touch()
    refused = configure(tmp_path / "bad", f"-DOPENSSL_INCLUDE_DIR={old.parent}")
    assert refused.returncode != 0
    text = " ".join(refused.stderr.split())
    assert f"OpenSSL 3.0 or later, not the 1.1.1w in {old.parent}" in text
    assert "apt-get install libssl-dev" in text
