"""Builds the two extensions; metadata is in pyproject.toml.

`pccl_backend._core` is the master and the pure parts, and does not know torch; `pccl_backend._C` is
the engine with csrc/python/ and csrc/torch/ on top, compiled against the installed torch. The
engine's sources are compiled once and shared by both. A ninja file does the work: all cores, only
what has changed. Several sources of a folder are compiled in one go: reading the headers is what
takes the time.
Must not import torch (two seconds), and must not fetch anything.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
BUILD = ROOT / "build" / "ext"
ENGINE_FOLDERS = [
    "base",
    "wire",
    "membership",
    "collectives",
    "kernels",
    "state",
    "transport",
    "engine",
    "master",
]
SOURCES_IN_ONE_GO = {"torch": 3}  # torch's headers are most of it, and a source takes long
COMMON_FLAGS = "-std=c++20 -fPIC -ffp-contract=off -Wall -Wextra -Wshadow -Wconversion"

# Header, and where it comes from: package of apt, brew, conda.
SYSTEM_HEADERS = {
    "uv.h": ("libuv1-dev", "libuv", "libuv"),
    "openssl/ssl.h": ("libssl-dev", "openssl", "openssl"),
    "Python.h": ("python3-dev", "python", "python"),
}

RULES = [
    "rule compile",
    "  command = $cxx $flags -MD -MF $out.d -c $in -o $out",
    "  depfile = $out.d",
    "  deps = gcc",
    "  description = compile $name",
    "rule archive",
    "  command = rm -f $out && ar crs $out $in",
    "  description = archive $name",
    "rule link",
    "  command = $cxx -shared -Wl,-s -o $out $in $libs",
    "  description = link $name",
]


def compiler() -> list[str]:
    """The C++ compiler: $CXX, else the first of g++, c++, clang++."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    sys.exit("pccl: no C++ compiler found (g++ >= 12); install one or set CXX")


def prefixes() -> list[Path]:
    """Where conda and brew keep headers and libraries, if one of them is active."""
    names = (os.environ.get("CONDA_PREFIX"), os.environ.get("HOMEBREW_PREFIX"))
    return [Path(name) for name in names if name and (Path(name) / "include").is_dir()]


def system_includes() -> list[str]:
    """Include flags of Python and of the libraries."""
    folders = [Path(sysconfig.get_path("include")), *(p / "include" for p in prefixes())]
    return [f"-isystem{folder}" for folder in folders]


def check_headers(cxx: list[str]) -> None:
    """Stops with one message that names all missing packages."""
    probe = "".join(
        f"#if !__has_include(<{header}>)\nmissing:{header}\n#endif\n" for header in SYSTEM_HEADERS
    )
    run = subprocess.run(
        [*cxx, "-E", "-P", "-x", "c++", *system_includes(), "-"],
        input=probe,
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        sys.exit(f"pccl: the C++ compiler {cxx[0]} does not work:\n{run.stderr.strip()}")
    missing = re.findall(r"missing:(\S+)", run.stdout)
    if not missing:
        return
    apt, brew, conda = (" ".join(SYSTEM_HEADERS[h][i] for h in missing) for i in range(3))
    sys.exit(
        f"pccl: missing headers: {', '.join(missing)}. Install them with\n"
        f"  apt-get install {apt}\n  brew install {brew}\n  conda install -c conda-forge {conda}"
    )


def find_torch() -> tuple[Path, str]:
    """Folder and version of the installed torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "pccl: no torch here to build against; install torch first, then run: "
            "pip install --no-build-isolation ."
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    match = re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text())
    if match is None:
        sys.exit(f"pccl: {folder / 'version.py'} names no version")
    return folder, match[1]


def find_ninja() -> str:
    """The ninja of the Python package, else the one in PATH."""
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
        if not found:
            sys.exit("pccl: ninja is needed to build: pip install ninja")
        return found
    return str(Path(ninja.BIN_DIR) / "ninja")


def escape(path: Path | str) -> str:
    """A path as ninja files have it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def torch_flags(torch: Path, version: str) -> str:
    """Flags for csrc/torch/; the version is there so that another torch rebuilds all."""
    include = torch / "include"
    return shlex.join(
        [
            f"-isystem{include}",
            f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
            f'-DPCCL_TORCH_VERSION="{version}"',
            "-DTORCH_EXTENSION_NAME=_C",
        ]
    )


def units(folder: str, sources: list[Path]) -> list[Path]:
    """Writes files that include some of the sources of a folder each."""
    size = SOURCES_IN_ONE_GO.get(folder, 6)
    made = []
    for first in range(0, len(sources), size):
        unit = BUILD / "units" / f"{folder}_{first // size}.cpp"
        text = "".join(f'#include "{source}"\n' for source in sources[first : first + size])
        if not unit.exists() or unit.read_text() != text:
            unit.parent.mkdir(parents=True, exist_ok=True)
            unit.write_text(text)
        made.append(unit)
    return made


def write_ninja(cxx: list[str], torch: Path, version: str) -> dict[str, Path]:
    """Writes build.ninja; returns the file of each extension."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    outputs = {name: BUILD / (name + suffix) for name in ("_core", "_C")}
    common = f"{COMMON_FLAGS} {shlex.join([f'-I{CSRC}', *system_includes()])}"
    common += f" {os.environ.get('CXXFLAGS', '')}".rstrip()
    bundled = shlex.join([f"-isystem{torch / 'include'}"])  # pybind11 is torch's, headers only
    flags_torch = f"{common} -O2 {torch_flags(torch, version)}"

    lib_folders = [f"-L{p / 'lib'}" for p in prefixes()]
    lib_folders += [f"-Wl,-rpath,{p / 'lib'}" for p in prefixes()]
    system_libs = shlex.join([*lib_folders, "-luv", "-lssl", "-lcrypto", "-lpthread", "-ldl"])
    # libuv stands before torch: libtorch_cpu exports uv_* symbols of its own, ours must win.
    torch_libs = " ".join(
        [
            f"-Wl,--no-as-needed {system_libs}",
            shlex.join([f"-L{torch / 'lib'}"]),
            "-lc10 -ltorch_cpu -ltorch -ltorch_python",
        ]
    )

    lines = [
        f"builddir = {escape(BUILD)}",
        f"cxx = {shlex.join(cxx)}",
        f"common = {common}",
        f"torch = {flags_torch}",
        *RULES,
    ]

    def compile_all(folder: str, sources: list[Path], flags: str) -> list[str]:
        targets = []
        for unit in units(folder, sources):
            targets.append(escape(BUILD / "obj" / f"{unit.stem}.o"))
            lines.append(f"build {targets[-1]}: compile {escape(unit)}")
            lines.extend([f"  flags = {flags}", f"  name = {unit.stem}"])
        return targets

    objects = []
    for folder in ENGINE_FOLDERS:
        level = "-O3" if folder == "kernels" else "-O2"
        sources = sorted((CSRC / folder).glob("*.cpp"))
        flags = f"$common {level} -fvisibility=hidden"
        objects += compile_all(folder, sources, flags)
    archive = escape(BUILD / "libpccl.a")
    lines += [f"build {archive}: archive {' '.join(objects)}", "  name = engine"]

    python_flags = f"$common -O2 -fvisibility=hidden {bundled}"
    core_module = CSRC / "python" / "core_module.cpp"
    of_python = sorted(set((CSRC / "python").glob("*.cpp")) - {core_module})
    core_objects = compile_all("core", [core_module], python_flags)
    torch_objects = compile_all("python", of_python, python_flags)
    torch_objects += compile_all("torch", sorted((CSRC / "torch").glob("*.cpp")), "$torch")
    for name, own, libs in (
        ("_core", core_objects, system_libs),
        ("_C", torch_objects, torch_libs),
    ):
        lines.append(f"build {escape(outputs[name])}: link {' '.join(own)} {archive}")
        lines += [f"  libs = {libs}", f"  name = {name}"]
        lines.append(f"build {name}: phony {escape(outputs[name])}")

    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "build.ninja"
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return outputs


class BuildExtensions(build_ext):
    """Runs ninja, then copies what it made to where setuptools wants it."""

    def build_extensions(self) -> None:
        """Builds all extensions at once; one build at a time in a checkout."""
        cxx = compiler()
        torch, version = find_torch()
        check_headers(cxx)
        ninja = find_ninja()
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            outputs = write_ninja(cxx, torch, version)
            command = [ninja, "-C", str(BUILD)]
            if os.environ.get("MAX_JOBS"):
                command += ["-j", os.environ["MAX_JOBS"]]
            environment = {"NINJA_STATUS": "[%f/%t] ", **os.environ}
            if subprocess.run(command, env=environment).returncode != 0:
                sys.exit("pccl: the build has failed; the first error is above")
            for extension in self.extensions:
                target = Path(self.get_ext_fullpath(extension.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                # A new file: a running process keeps the one that it has mapped.
                temporary = target.with_name(target.name + ".new")
                shutil.copyfile(outputs[extension.name.rpartition(".")[2]], temporary)
                temporary.replace(target)


setup(
    ext_modules=[
        Extension("pccl_backend._core", ["csrc/python/core_module.cpp"]),
        Extension("pccl_backend._C", ["csrc/torch/bind.cpp"]),
    ],
    cmdclass={"build_ext": BuildExtensions},
)
