"""Lets CMake build what the package loads (csrc/extensions.cmake); metadata is in pyproject.toml.

Finds cmake, ninja and torch, builds in build/ext, and copies the results to where setuptools wants
them. Must not import torch (two seconds), and must not fetch anything.

CXX, CXXFLAGS, CMAKE_CXX_COMPILER_LAUNCHER, CMAKE_PREFIX_PATH  as CMake has them
MAX_JOBS     how many compilers run at once
PCCL_TORCH   folders of the package torch, with ":" between: a layer for each (default: the one of
             this Python)
PCCL_STATIC  1: libuv and OpenSSL go into the engine's library
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "ext"
PACKAGE = "pccl_backend"
FOR_CMAKE = (
    *("CXX", "CXXFLAGS", "CMAKE_CXX_COMPILER_LAUNCHER"),
    *("CMAKE_PREFIX_PATH", "CONDA_PREFIX", "HOMEBREW_PREFIX"),
)


def program(name: str, folder: str) -> str:
    """A program of the Python package of its name, else the one in PATH."""
    try:
        return str(Path(getattr(importlib.import_module(name), folder)) / name)
    except (ImportError, AttributeError):
        found = shutil.which(name)
    if not found:
        sys.exit(f"pccl: {name} is needed to build: pip install {name}")
    return found


def torch_folders() -> list[Path]:
    """Folders of the package torch to build for; torch is not imported."""
    if os.environ.get("PCCL_TORCH"):
        return [
            Path(os.path.abspath(folder)) for folder in os.environ["PCCL_TORCH"].split(os.pathsep)
        ]
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "pccl: the environment that builds has no torch. By default pip hides an installed "
            "torch from the build. With torch installed, run: pip install --no-build-isolation ."
        )
    return [Path(next(iter(spec.submodule_search_locations)))]


def configure(cmake: str, torches: list[Path]) -> None:
    """Makes build.ninja. Only if what it depends on differs: it takes longer than all the rest."""
    command = [
        *(cmake, "-S", str(ROOT / "csrc"), "-B", str(BUILD), "-G", "Ninja"),
        *("--log-level=WARNING", "-DPCCL_EXTENSIONS=ON"),
        f"-DCMAKE_MAKE_PROGRAM={program('ninja', 'BIN_DIR')}",
        f"-DPCCL_TORCH={';'.join(map(str, torches))}",
        f"-DPCCL_PYTHON_INCLUDE={sysconfig.get_path('include')}",
        f"-DPCCL_SUFFIX={sysconfig.get_config_var('EXT_SUFFIX')}",
        f"-DPCCL_STATIC={os.environ.get('PCCL_STATIC', 'OFF')}",
    ]
    settings = [f"{name}={os.environ.get(name, '')}" for name in FOR_CMAKE]
    settings.append(f"ccache={shutil.which('ccache')}")
    versions = [(folder / "version.py").read_text() for folder in torches]
    made_for = BUILD / "made_for"
    text = "\n".join([*command, *settings, *versions])
    if made_for.exists() and made_for.read_text() == text:
        return
    # What CMake remembers of another compiler or another Python goes; the objects stay.
    (BUILD / "CMakeCache.txt").unlink(missing_ok=True)
    for folder in (*BUILD.glob("CMakeFiles/[0-9]*"), BUILD / "lib"):
        shutil.rmtree(folder, ignore_errors=True)
    made_for.unlink(missing_ok=True)
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit("pccl: the build cannot begin; the reason is above")
    made_for.write_text(text)


def replace_files(source: Path, target: Path) -> None:
    """Makes the libraries in `target` those of `source`: a stale one would meet a new engine."""
    target.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in source.glob("*.so")}
    for path in target.glob("*.so"):
        if path.name not in names:
            path.unlink()
    for name in names:
        # A new file: a running process keeps the one that it has mapped.
        temporary = target / f"{name}.new"
        shutil.copyfile(source / name, temporary)
        temporary.replace(target / name)


class BuildExtensions(build_ext):
    """Runs CMake, then copies what it made to where setuptools wants it."""

    def build_extensions(self) -> None:
        """Builds everything at once; one build at a time in a checkout."""
        torches = torch_folders()
        cmake = program("cmake", "CMAKE_BIN_DIR")
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            configure(cmake, torches)
            command = [cmake, "--build", str(BUILD)]
            if os.environ.get("MAX_JOBS"):
                command += ["--parallel", os.environ["MAX_JOBS"]]
            environment = {"NINJA_STATUS": "[%f/%t] ", **os.environ}
            if subprocess.run(command, env=environment).returncode != 0:
                sys.exit("pccl: the build has failed; the first error is above")
            replace_files(BUILD / "lib", Path(self.build_lib) / PACKAGE)

    def copy_extensions_to_source(self) -> None:
        """For --inplace and editable installations."""
        replace_files(BUILD / "lib", ROOT / PACKAGE)


def readme() -> str:
    """README.md without what leads to other files of the repository: an index shows it alone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n", "", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension(f"{PACKAGE}._core", [])],  # it stands for all of them
    cmdclass={"build_ext": BuildExtensions},
)
