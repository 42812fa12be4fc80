"""Rules of the code that would rot if nothing checked them: who may use whom, names, sizes.

Each test reads the sources as text; nothing is built. CONTRIBUTING.md says what each rule is for.
A rule that is broken names the file and what to do; it is mended there, and not here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT
from source_text import (
    CSRC,
    TESTS,
    cpp_sources,
    folder_of,
    includes,
    name_of,
    none_of,
    sources,
    without_comments,
)

import pccl_backend

# Folder of csrc -> the folders that it may include, besides itself.
MAY_USE = {
    "base": set(),
    "wire": {"base"},
    "membership": {"base", "wire"},
    "collectives": {"base"},
    "kernels": {"base"},
    "state": {"base"},
    "trust": {"base"},
    "transport": {"base", "trust"},
    "engine": {
        "base",
        "wire",
        "membership",
        "collectives",
        "kernels",
        "state",
        "trust",
        "transport",
    },
    "master": {"base", "wire", "membership", "trust", "transport"},
    "python": {"base", "wire", "collectives", "kernels", "state", "trust", "engine", "master"},
    "torch": {
        *("base", "wire", "collectives", "kernels", "state", "trust", "engine", "master"),
        "python",
    },
}
PURE = ("base", "wire", "membership", "collectives", "kernels", "state")
NOT_PURE = {"base/log.h", "base/log.cpp"}  # the sink and the level of the process

# What a pure folder does not contain: headers, then words of the code (comments do not count).
IMPURE_HEADERS = re.compile(
    r"thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token"
    r"|chrono|ctime|time\.h|random|fstream|filesystem|iostream"
    r"|unordered_map|unordered_set|unistd\.h|fcntl\.h|poll\.h|netdb\.h|dirent\.h|dlfcn\.h"
    r"|pthread\.h|sys/.*|netinet/.*|arpa/.*|linux/.*"
)
IMPURE_WORDS = re.compile(
    r"\b(unordered_\w+|std::thread|std::jthread|mutex|thread_local|getenv|setenv|environ|fopen"
    r"|[io]?fstream|random_device|mt19937\w*|std::rand|chrono|steady_clock|system_clock"
    r"|clock_gettime|gettimeofday|sleep\w*|socket|recvmsg|sendmsg)\b"
)
# Who may include a library, by a pattern for the header.
HOMES = {
    r"uv\.h|uv/.*": {"transport"},
    r"nlohmann/.*": {"wire"},
    r"openssl/.*": {"transport", "trust", "state"},
    r"openssl/(hmac|rand|kdf)\.h": {"transport", "trust"},
    r"openssl/(ssl|bio|x509.*)\.h": {"transport"},
    r"torch/.*|ATen/.*|c10/.*|caffe2/.*": {"torch"},
    r"pybind11/.*|Python\.h": {"python", "torch"},
}

LINES_MAX = 700
# Files that are longer, with the number of their lines: a number may fall and not rise.
LONGER = {
    "tests/labs/wan/wan_forwarder.cpp": 709,
}


# ------------------------------------------------------------------------------ who uses whom


def test_every_folder_of_csrc_has_its_place_among_the_others() -> None:
    assert {folder_of(p) for p in cpp_sources()} == set(MAY_USE)


def test_a_folder_includes_only_those_below_it() -> None:
    wrong = []
    for path in cpp_sources():
        for quote, header in includes(path):
            if quote != '"':
                continue
            if not (CSRC / header).exists():
                wrong.append(f'{name_of(path)}: "{header}" is no path from csrc/')
                continue
            used = header.split("/")[0]
            if used != folder_of(path) and used not in MAY_USE[folder_of(path)]:
                wrong.append(f"{name_of(path)} includes {header}")
    none_of(wrong, "dependencies point downwards only (ARCHITECTURE.md, who may include whom)")


def test_membership_knows_messages_and_no_bytes() -> None:
    wrong = [
        f"{name_of(path)} includes {header}"
        for path in cpp_sources()
        for _, header in includes(path)
        if folder_of(path) == "membership"
        if header.startswith("wire/") and header not in ("wire/messages.h", "wire/parts.h")
    ]
    none_of(wrong, "membership uses wire/messages.h, never the codec")


def test_a_library_has_one_home() -> None:
    wrong = [
        f"{name_of(path)} includes <{header}>: it belongs to {', '.join(sorted(home))}"
        for path in cpp_sources()
        for quote, header in includes(path)
        for pattern, home in HOMES.items()
        if quote == "<" and re.fullmatch(pattern, header) and folder_of(path) not in home
    ]
    none_of(wrong, "a library is used in one folder")


def test_pure_folders_touch_nothing_of_the_outside_world() -> None:
    wrong = []
    for path in cpp_sources():
        if folder_of(path) not in PURE or name_of(path) in NOT_PURE:
            continue
        wrong += [
            f"{name_of(path)} includes <{header}>"
            for quote, header in includes(path)
            if quote == "<" and IMPURE_HEADERS.fullmatch(header)
        ]
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            wrong += [f"{name_of(path)}:{number}: {m[0]}" for m in IMPURE_WORDS.finditer(line)]
    none_of(wrong, "no threads, sockets, files, environment, clocks, chance or unordered_* here")


def test_the_thread_sanitizer_is_given_each_test_with_threads() -> None:
    cmake = (CSRC / "CMakeLists.txt").read_text()
    quoted = re.search(r'string\(CONCAT SEVERAL_THREADS\n((?: *"[^"]*"\n?)+)\)', cmake)
    assert quoted
    given = re.compile("".join(re.findall(r'"([^"]*)"', quoted[1])))
    threads = re.compile(r"\b(std::j?thread|std::async|fork|in_background|Engine|MasterThread)\b")
    wrong = []
    for folder in ("transport", "engine"):
        texts = {path: path.read_text() for path in (TESTS / folder).glob("*_test.cpp")}
        named = {path for path, text in texts.items() if given.search(text)}
        assert 0 < len(named) < len(texts)
        wrong += [name_of(path) for path in texts.keys() - named if threads.search(texts[path])]
    none_of(wrong, "SEVERAL_THREADS of csrc/CMakeLists.txt does not find these tests with threads")


def test_nothing_but_gil_h_takes_pythons_lock_or_gives_it() -> None:
    words = re.compile(r"gil_scoped_|PyGILState_Release|PyEval_RestoreThread")
    wrong = [
        f"{name_of(path)}: {found[0]}"
        for path in cpp_sources()
        if path.name != "gil.h"
        for found in words.finditer(without_comments(path.read_text()))
    ]
    none_of(wrong, "a thread that meets the end of the interpreter in there ends the process")


def test_nothing_in_csrc_reads_the_environment() -> None:
    wrong = [
        name_of(path)
        for path in cpp_sources()
        if name_of(path) != "trust/token_file.cpp"  # overwrites a secret there
        if re.search(r"\b(getenv|secure_getenv|environ)\b", without_comments(path.read_text()))
    ]
    none_of(wrong, "options come from pccl_backend/_config.py, as arguments")


def test_nothing_waits_by_the_clock_on_the_wall() -> None:
    in_cpp = re.compile(
        r"CLOCK_REALTIME|system_clock|high_resolution_clock|\bgettimeofday\b|\bftime\b"
        r"|pthread_\w*timed\w+|sem_timedwait|\bstd::time\b|[^\w:.>]time\("
    )
    in_python = re.compile(
        r"\btime\.time(_ns)?\b|\b(now|utcnow|today)\(|from time import .*\btime\b"
    )
    wrong = [
        f"{name_of(path)}: {match[0]}"
        for path in cpp_sources()
        if name_of(path) != "base/log.cpp"  # the time of day in front of a line
        for match in in_cpp.finditer(without_comments(path.read_text()))
    ]
    wrong += [
        f"{path.name}: {match[0]}"
        for path in sources(ROOT / "pccl_backend", ".py")
        for match in in_python.finditer(path.read_text())
    ]
    none_of(wrong, "it jumps: deadlines and durations are of the monotonic clock")


# ------------------------------------------------------------------------------ files and tests


def test_every_source_of_a_pure_folder_has_a_test_of_its_name() -> None:
    wrong = [
        str((TESTS / folder_of(path) / f"{path.stem}_test.cpp").relative_to(ROOT))
        for path in cpp_sources()
        if path.suffix == ".cpp" and folder_of(path) in PURE and name_of(path) not in NOT_PURE
        if not (TESTS / folder_of(path) / f"{path.stem}_test.cpp").exists()
    ]
    none_of(wrong, "test files are missing")


# At the beginning of a line, so neither in a class nor in a function.
DEFINED_TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)[^;(]*?\{", re.M)
DEFINED_VALUE = re.compile(
    r"^(?=\w)(?!using|return|namespace|typedef|struct|class|enum|template)"
    r"[\w:<>,&* ]+?[>&* ](\w+)(?:\[[^\]\n]*\])*(?: = |\{|;)",
    re.M,
)
DEFINED_FUNCTION = re.compile(
    r"^(?=\w)(?!using|return|namespace|TEST)[\w:<>,&*\[\] ]*?[\w>&*] [&*]*"
    r"(\w+)\(([^{};]*?)\)\s*(?:const|noexcept|\s)*\{",
    re.M,
)


def own_part(path: Path) -> str:
    """What a file keeps to itself, without its comments."""
    blocks = re.findall(r"^namespace \{\n(.*?)^\}  // namespace$", path.read_text(), re.M | re.S)
    return without_comments("\n".join(blocks))


def own_names(path: Path) -> set[str]:
    code = own_part(path)
    functions = {
        name + "(" + ", ".join(re.sub(r" ?\b\w+$", "", p.strip()) for p in given.split(",")) + ")"
        for name, given in DEFINED_FUNCTION.findall(code)
    }
    return {*DEFINED_TYPE.findall(code), *DEFINED_VALUE.findall(code), *functions}


def test_no_two_files_of_a_folder_have_a_name_of_their_own_in_common() -> None:
    """Which of them are compiled together changes with each file that is added."""
    folders = (CSRC, TESTS, ROOT / "tests" / "sim")
    homes: dict[tuple[Path, str], list[str]] = {}
    for path in (p for folder in folders for p in sources(folder, ".cpp")):
        for name in own_names(path):
            homes.setdefault((path.parent, name), []).append(path.name)
    assert len(homes) > 1500  # the patterns find what the code has
    wrong = [
        f"{folder.relative_to(ROOT)}: {name} in {', '.join(names)}"
        for (folder, name), names in homes.items()
        if len(names) > 1
    ]
    none_of(sorted(wrong), "give one of them another name, or both a common home")


def test_no_type_of_one_file_has_the_name_of_one_in_a_header() -> None:
    """Code for newer versions of torch is not built here, and would be ambiguous in a batch."""
    type_ = re.compile(r"^(?:struct|class|enum class) (\w+)", re.MULTILINE)
    files = [*cpp_sources(), *sources(TESTS, ".h", ".cpp")]
    homes: dict[str, set[Path]] = {}
    for path in files:
        for name in type_.findall(path.read_text()) if path.suffix == ".h" else ():
            homes.setdefault(name, set()).add(path.parent)
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        if path.suffix == ".cpp"
        for name in type_.findall(own_part(path))
        if any(home.is_relative_to(CSRC) or home == path.parent for home in homes.get(name, ()))
    ]
    none_of(wrong, "types of one file have names that a header declares")


def test_no_file_grows_out_of_hand() -> None:
    folders = ("csrc", "pccl_backend", "tests", "examples", "benchmarks")
    files = [p for f in folders for p in sources(ROOT / f, ".h", ".cpp", ".py", ".pyi")]
    lines = {str(p.relative_to(ROOT)): p.read_text().count("\n") for p in files}
    wrong = [
        f"{name}: {count} lines, at most {LONGER.get(name, LINES_MAX)}: which second subject is it?"
        for name, count in lines.items()
        if count > LONGER.get(name, LINES_MAX)
    ]
    wrong += [
        f"{name} is no longer over {LINES_MAX} lines: take it out of LONGER"
        for name in LONGER
        if lines.get(name, 0) <= LINES_MAX
    ]
    none_of(wrong, "files of one subject")


# ------------------------------------------------------------------------------ Python


def imported_for_types() -> set[str]:
    """The names under `if TYPE_CHECKING:` in __init__.py."""
    tree = ast.parse((ROOT / "pccl_backend" / "__init__.py").read_text())
    blocks = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_what_the_package_offers() -> None:
    names = pccl_backend.__all__
    assert names == sorted(names)
    assert set(names) == imported_for_types()
    for name in names:
        value = getattr(pccl_backend, name)
        if not isinstance(value, (dict, str)):  # ddp_kwargs, __version__: data has no home
            assert value.__module__.partition(".")[0] == "pccl_backend", name


def test_no_two_test_modules_have_one_name() -> None:
    """Or pytest could not run them in one go, as scripts/torch_versions does."""
    names = [path.name for path in (ROOT / "tests").glob("*/test_*.py")]
    none_of(sorted({name for name in names if names.count(name) > 1}), "rename one of each")


def test_modules_are_private_but_for_the_commands_and_the_test_doubles() -> None:
    modules = {
        path.stem for path in (ROOT / "pccl_backend").glob("*") if path.suffix in ("", ".py")
    }
    public = {name for name in modules if not name.startswith("_")}
    assert public == {"check", "demo", "launch", "testing"}


def relative_imports(path: Path) -> set[str]:
    """Modules of ours that a module imports, at its head or later, but not for types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found


def test_no_two_modules_of_the_package_import_each_other() -> None:
    folder = ROOT / "pccl_backend"
    uses = {path.stem: relative_imports(path) for path in folder.glob("_*.py")}
    uses.pop("__init__")  # it loads what is asked for
    while leaves := {name for name in uses if not uses[name] & uses.keys() - {name}}:
        for name in leaves:
            uses.pop(name)
    none_of(sorted(uses), "in a circle of imports, or above one")


def stub_functions(path: Path) -> dict[str, list[str]]:
    """Name -> names of the arguments, of a .pyi; other names -> none."""
    names: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names[node.name] = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        elif isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = []
        elif isinstance(node, ast.ClassDef):
            names[node.name] = []
    return names


def built_functions(module: ModuleType) -> dict[str, list[str]]:
    """The same of an extension; pybind11 writes signatures into the docstrings."""
    names: dict[str, list[str]] = {}
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        signature = re.match(rf"{name}\((.*)\) ->", inspect.getdoc(value) or "")
        arguments = signature[1] if signature else ""
        while "[" in arguments:  # of types: Sequence[tuple[int, int]]
            arguments = re.sub(r"\[[^\[\]]*\]", "", arguments)
        names[name] = re.findall(r"(?:^|, )(\w+):", arguments)
    return names


@pytest.mark.parametrize("name", ["_C", "_core"])
def test_the_types_of_an_extension_are_those_that_it_has(name: str) -> None:
    built = built_functions(importlib.import_module(f"pccl_backend.{name}"))
    assert stub_functions(ROOT / "pccl_backend" / f"{name}.pyi") == built
