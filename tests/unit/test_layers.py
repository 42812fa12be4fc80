"""Which torch layer is taken, and what the engine's library shows of itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from pccl_backend import _layers


def folder_with(tmp_path: Path, *versions: str) -> Path:
    for version in versions:
        name = f"_torch_{version.replace('.', '_')}.cpython-311-x86_64-linux-gnu.so"
        (tmp_path / name).touch()
    (tmp_path / "_core.cpython-311-x86_64-linux-gnu.so").touch()
    return tmp_path


def test_a_layer_serves_all_releases_of_a_minor_version(tmp_path: Path) -> None:
    there = _layers.layers(folder_with(tmp_path, "2.9", "2.11", "2.13"))
    assert list(there) == ["2.9", "2.11", "2.13"]
    for version in ("2.13.0", "2.13.1+cpu", "2.13.0a0+git1234"):
        assert _layers.layer_for(version, there) == "_torch_2_13"
    assert _layers.layer_for("2.9.1+cu130", there) == "_torch_2_9"


@pytest.mark.parametrize("version", ["2.10.0", "2.1.3", "3.13.0"])
def test_a_torch_without_a_layer_is_an_error_with_both_versions(
    tmp_path: Path, version: str
) -> None:
    there = _layers.layers(folder_with(tmp_path, "2.11", "2.13"))
    with pytest.raises(ImportError, match=r"2\.11, 2\.13, and this is torch") as caught:
        _layers.layer_for(version, there)
    assert version in str(caught.value)
    assert "--no-build-isolation" in str(caught.value)


def test_a_package_that_was_not_built_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="it is not built"):
        _layers.layer_for("2.13.0", _layers.layers(tmp_path))


def test_the_error_of_a_missing_layer_reaches_the_program() -> None:
    code = (
        "import torch; torch.__version__ = '2.7.0'\n"
        "import pccl_backend\n"
        "try: pccl_backend.counters()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert "and this is torch 2.7.0" in done.stdout, done.stderr


def symbols(library: Path, *options: str) -> list[str]:
    done = subprocess.run(
        ["nm", "-D", "--demangle", *options, str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [re.sub(r"^\S* *\w ", "", line) for line in done.stdout.splitlines()]


def elf(library: Path) -> str:
    """Segments and dynamic entries, as readelf shows them."""
    done = subprocess.run(
        ["readelf", "-W", "-l", "-d", str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_libraries_are_hardened() -> None:
    folder = Path(_layers.__file__).parent
    libraries = list(folder.glob("*.so"))
    assert len(libraries) >= 3
    for library in libraries:
        text = elf(library)
        assert re.search(r"^ +GNU_RELRO ", text, re.M), library
        assert re.search(r"\(FLAGS\) +.*BIND_NOW|\(FLAGS_1\) +Flags:.* NOW", text), library
        stack = re.search(r"^ +GNU_STACK .* (\S+) +0x", text, re.M)
        assert stack, library
        assert "E" not in stack[1], library
        assert not re.search(r"^ +LOAD .* RWE ", text, re.M), library
        names = symbols(library, "--undefined-only")
        assert any(name.startswith("__stack_chk_fail") for name in names), library
    names = symbols(folder / "libpccl_engine.so", "--undefined-only")
    assert any(re.match(r"__\w+_chk", name) for name in names), "no checked copies"


def test_the_engine_shows_what_the_layers_use_and_nothing_else() -> None:
    folder = Path(_layers.__file__).parent
    shown = set(symbols(folder / "libpccl_engine.so", "--defined-only"))
    assert any(name.startswith("pccl::Engine::create(") for name in shown)
    assert {name for name in shown if not name.startswith("pccl::")} == set()  # no uv_, no EVP_
    extensions = [p for p in folder.glob("*.so") if p.name != "libpccl_engine.so"]
    used = {name for p in extensions for name in symbols(p, "--undefined-only")}
    listed = (ROOT / "csrc" / "engine.exports").read_text()
    patterns = re.findall(r"^\s+pccl::([\w:]+)\*;$", listed, re.M)
    assert patterns
    unused = [p for p in patterns if not any(name.startswith(f"pccl::{p}") for name in used)]
    assert unused == []
