"""Rules that would rot if nothing checked them: who may use whom, documents that tell the truth.

Each test reads the sources as text; nothing is built. CONTRIBUTING.md says what each rule is for.
A rule that is broken names the file and what to do; it is mended there, and not here.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import pccl_backend
from pccl_backend import _cli, _config
from pccl_backend.launch import arguments as launcher
from pccl_backend.launch import environment as launcher_environment
from pccl_backend.launch import spot as launcher_spot

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
TESTS = ROOT / "tests" / "cpp"

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


def sources(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def cpp_sources() -> list[Path]:
    return sources(CSRC, ".h", ".cpp")


def folder_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(CSRC))


def without_comments(text: str) -> str:
    """C++ without its comments and texts."""
    token = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(token, lambda m: '""' if m[0][0] == '"' else " ", text, flags=re.S)


def includes(path: Path) -> list[tuple[str, str]]:
    """('<' or '"', header) of each include."""
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.M)


def none_of(wrong: list[str], what_to_do: str) -> None:
    assert not wrong, what_to_do + ":\n  " + "\n  ".join(wrong)


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


def test_no_type_of_one_file_has_the_name_of_one_in_a_header() -> None:
    """Code for newer versions of torch is not built here, and would be ambiguous in a batch."""
    type_ = re.compile(r"^(?:struct|class|enum class) (\w+)", re.MULTILINE)
    own = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
    shared = {n for p in cpp_sources() if p.suffix == ".h" for n in type_.findall(p.read_text())}
    wrong = [
        f"{name_of(path)}: {name}"
        for path in cpp_sources()
        if path.suffix == ".cpp"
        for block in own.findall(path.read_text())
        for name in type_.findall(block)
        if name in shared
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


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    wrong = [name for name in pccl_backend.__all__ if not re.search(rf"`[^`]*\b{name}\b", page)]
    none_of(wrong, "docs/reference/api.md does not name")


def test_every_error_that_a_program_can_catch_is_in_the_reference() -> None:
    from pccl_backend import _errors

    names = {name for name in vars(_errors) if name.endswith("Error")} - {"DistBackendError"}
    classes = first_column("docs/reference/errors.md", "Classes")
    assert classes - {"LeftRun"} == names - {"PcclError"}


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


# ------------------------------------------------------------------------------ documents


def first_column(document: str, heading: str) -> set[str]:
    """The code in the first cells of the tables of a section."""
    return {cells[0] for cells in rows(document, heading)}


def rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the tables of a section (with those below it), whose first cell is code."""
    table = []
    for line in section(document, heading).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        code = re.match(r"`([^`]+)`", cells[0]) if line.startswith("|") else None
        if code:
            table.append([code[1].replace("\\|", "|"), *cells[1:]])
    return table


def section(document: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    text = (ROOT / document).read_text()
    begin = re.search(rf"^(#+) {re.escape(heading)}\s*$", text, re.M)
    assert begin, f"{document} has no section {heading!r}"
    rest = text[begin.end() :]
    end = re.search(rf"^#{{1,{len(begin[1])}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def headings(text: str, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} `?([^`\n]+?)`?\s*$", text, re.M)


def described_structs() -> dict[str, tuple[str, list[str]]]:
    """Struct of those headers -> its name on the wire ("" for a part), its fields."""
    found = {}
    for header in (
        "base/handle.h",
        "base/process_name.h",
        "base/trips.h",
        "base/lines.h",
        "wire/parts.h",
        "wire/messages.h",
        "wire/peer_messages.h",
    ):
        text = (CSRC / header).read_text()
        for struct in re.finditer(r"^struct (\w+) \{$(.*?)^\};$", text, re.M | re.S):
            wire_name = re.search(r'kName = "(\w+)"', struct[2])
            fields = re.findall(r'visit\("(\w+)"', struct[2])
            if wire_name or fields:
                found[struct[1]] = (wire_name[1] if wire_name else "", fields)
    return found


def test_every_message_and_every_part_has_its_section_in_the_protocol() -> None:
    structs = described_structs()
    messages = {wire_name for wire_name, _ in structs.values() if wire_name}
    parts = {struct for struct, (wire_name, _) in structs.items() if not wire_name}
    assert sorted(headings(section("PROTOCOL.md", "Messages"), 4)) == sorted(messages)
    assert sorted(headings(section("PROTOCOL.md", "Parts of messages"), 3)) == sorted(parts)


@pytest.mark.parametrize("struct", sorted(described_structs()))
def test_every_field_of_a_message_has_its_row(struct: str) -> None:
    wire_name, fields = described_structs()[struct]
    heading = f"`{wire_name}`" if wire_name else struct
    assert [cells[0] for cells in rows("PROTOCOL.md", heading)] == fields


def listed_in(variant: str) -> set[str]:
    header = "wire/peer_messages.h" if variant == "PeerToPeer" else "wire/messages.h"
    text = re.search(
        rf"using {variant} =\s+std::variant<(.*?)>;", (CSRC / header).read_text(), re.S
    )
    assert text
    return {described_structs()[struct][0] for struct in re.findall(r"\w+", text[1])}


def test_the_protocol_says_who_sends_each_message() -> None:
    directions = {
        "Peer to master": listed_in("PeerToMaster"),
        "Master to peer": listed_in("MasterToPeer"),
        "Peer to peer": listed_in("PeerToPeer"),
    }
    both = directions["Peer to master"] & directions["Master to peer"]
    directions["Both ways"] = both
    directions["Peer to master"] -= both
    directions["Master to peer"] -= both
    for heading, names in directions.items():
        assert set(headings(section("PROTOCOL.md", heading), 4)) == names, heading


def error_table() -> dict[str, int]:
    text = (CSRC / "base" / "error.h").read_text()
    return {name: int(number) for name, number in re.findall(r"^\s*X\((\w+), (\d+),", text, re.M)}


def test_every_error_code_has_a_class_and_its_row() -> None:
    from pccl_backend import _errors

    codes = error_table()
    assert codes
    assert len(set(codes.values())) == len(codes)
    assert set(_errors.BY_CODE) == set(codes)
    documented = {
        cells[0]: (int(cells[1]), cells[2].strip("`")) for cells in rows("PROTOCOL.md", "Errors")
    }
    assert documented == {
        name: (number, _errors.BY_CODE[name].__name__) for name, number in codes.items()
    }


def test_every_limit_has_its_row_with_its_value() -> None:
    text = (CSRC / "base" / "limits.h").read_text()
    limits = {}
    for name, value in re.findall(r"inline constexpr [\w:]+ (k\w+) =\s+([^;]+);", text):
        value = " ".join(value.split())
        terms = re.fullmatch(r"(\d+)U?L*(?: << (\d+))?", value)
        assert terms, f"{name} = {value}: write it as a number or as NU << M"
        limits[name] = int(terms[1]) << int(terms[2] or 0)
    documented = {cells[0]: amount(cells[1]) for cells in rows("PROTOCOL.md", "Limits")}
    assert documented == limits


def amount(text: str) -> int:
    """ "64 MiB", "5 s", "500 ms", "4096" as bytes, milliseconds, a number."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "s": 1000, "ms": 1, "bytes": 1, "": 1}
    number, _, unit = text.partition(" ")
    return int(number) * units[unit]


def test_every_variable_has_its_row_and_every_row_its_variable() -> None:
    read = set(
        re.findall(r'"(PCCL_[A-Z_]*[A-Z])"', (ROOT / "pccl_backend" / "_config.py").read_text())
    )
    read -= {_config.TOKEN, _config.ETCD_PASSWORD}  # secrets, and no options
    assert read == set(_config.VARIABLES.values())
    page = "docs/reference/options.md"
    assert first_column(page, "Options") == read
    fields = {cells[0]: cells[1].strip("`") for cells in rows(page, "Options")}
    assert fields == {variable: field for field, variable in _config.VARIABLES.items()}


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """As a page names them; a second spelling with underscores is torchrun's, and has no row."""
    return {
        [name for name in a.option_strings if "_" not in name][-1]
        + (f" {a.metavar}" if a.metavar else "")
        for a in parser._actions
        if a.option_strings and a.help != argparse.SUPPRESS
        if not isinstance(a, argparse._HelpAction)
    }


def test_every_flag_of_the_master_has_its_row_and_every_row_its_flag() -> None:
    documented = first_column("docs/reference/pccl-master.md", "Options")
    assert {row.replace(" LEVEL", "") for row in documented} == flags(_cli.build_parser())


def test_every_flag_of_the_launcher_has_its_row_and_every_row_its_flag() -> None:
    page = "docs/reference/pccl-run.md"
    assert first_column(page, "Options") == flags(launcher.build_parser())
    assert first_column(page, "Flags of torchrun's that pccl-run refuses") == set(launcher.INSTEAD)


def test_every_variable_of_the_launcher_has_its_row() -> None:
    page = "docs/reference/pccl-run.md"
    text = "".join(p.read_text() for p in (ROOT / "pccl_backend" / "launch").glob("*.py"))
    own = set(re.findall(r'"(PCCL_RUN_[A-Z]+)"', text))
    assert own == {launcher_environment.NOTE, launcher_spot.ENDPOINT}
    assert own <= first_column(page, "Variables")


def test_every_counter_has_its_row_and_every_row_its_counter() -> None:
    text = (CSRC / "engine" / "view.h").read_text()
    struct = re.search(r"struct EngineCounters \{(.*?)\};", text, re.S)
    assert struct
    counters = set(re.findall(r"std::uint64_t (\w+) = 0;", struct[1]))
    assert counters
    assert first_column("docs/reference/counters.md", "Counters of the engine") == counters


def test_every_invariant_has_its_row_and_every_row_its_checker() -> None:
    text = (ROOT / "tests" / "sim" / "invariants.cpp").read_text()
    checkers = set(re.findall(r"^std::string (\w+)\(const World& ", text, re.M))
    checkers -= {"safety", "excuse"}  # the list of the others; who may stand still
    assert first_column("docs/architecture/invariants.md", "Invariants") == checkers


def test_the_map_names_every_folder() -> None:
    above = ("csrc", "pccl_backend", "tests", "tests/labs")
    folders = {
        f"{folder}/{path.name}"
        for folder in above
        for path in (ROOT / folder).iterdir()
        if path.is_dir() and any(path.glob("*.*")) and not path.name.startswith(("__", "."))
    }
    wrong = sorted(folders - first_column("ARCHITECTURE.md", "The map"))
    none_of(wrong, "ARCHITECTURE.md does not name the folders")


def test_documents_name_only_files_that_are_there() -> None:
    """A path in code quotes that begins with a folder of ours exists."""
    folders = "csrc|pccl_backend|tests|examples|benchmarks|scripts|docs"
    inner = "|".join(MAY_USE)
    wrong = []
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for path in re.findall(rf"`((?:{folders}|{inner})/[\w./-]+)[` ]", document.read_text()):
            places = [ROOT / path, CSRC / path]
            if not re.search(r"NAME|NNNN", path) and not any(p.exists() for p in places):
                wrong.append(f"{document.relative_to(ROOT)}: {path}")
    none_of(wrong, "documents name files that are not there")


def test_nothing_cites_a_document_that_is_not_there() -> None:
    folders = ("csrc", "pccl_backend", "tests", "examples", "benchmarks", "docs", "scripts")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix not in (".so", ".pyc")]
    wrong = []
    for path in [*ROOT.glob("*.md"), *(p for p in files if p.is_file())]:
        text = path.read_text(errors="replace")
        for name in sorted(set(re.findall(r"\b[A-Z]{4,}\.md\b", text))):
            if not any((place / name).exists() for place in (ROOT, path.parent)):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    none_of(wrong, "cite a page of docs, or the paper")


def missing_tests(rows: list[str]) -> list[str]:
    """Of tables whose last column names tests or files; a row that names none is missing, too."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cpp"))
    tests += "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = []
    for row in rows:
        names = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
        missing += [] if names else [row]
        for name in names:
            if "/" in name:
                found = (ROOT / name).is_file()
            elif "." in name:
                suite, test = name.split(".")
                found = bool(re.search(rf"TEST(_F)?\(\s*{suite},\s*{test}\)", tests))
            else:
                found = f"def {name}(" in tests
            missing += [] if found else [name]
    return missing


def test_every_claim_of_the_threat_model_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text()
    table = page.split("## What is defended")[1].split("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 5
    none_of(missing_tests(rows), "are named by the threat model")


def test_each_of_the_thirty_attacks_has_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture" / "attacks.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 31))
    none_of(missing_tests(rows), "are named by the page of attacks")


def test_every_script_has_its_row() -> None:
    scripts = {path.name for path in (ROOT / "scripts").iterdir()}
    rows = {
        row.split()[0].removeprefix("scripts/")
        for row in first_column("CONTRIBUTING.md", "Commands")
    }
    assert scripts <= rows


def test_the_map_names_only_functions_that_are_there() -> None:
    files = [*cpp_sources(), *sources(ROOT / "tests" / "sim", ".h", ".cpp")]
    code = [without_comments(path.read_text()) for path in files]
    pages = [ROOT / "ARCHITECTURE.md", *(ROOT / "docs" / "architecture").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"`(\w+)::(\w+)`", text))
    assert named
    wrong = [
        f"{scope}::{name}"
        for scope, name in sorted(named)
        if not any(re.search(rf"\b{scope}\b", c) and re.search(rf"\b{name}\b", c) for c in code)
    ]
    none_of(wrong, "the map or one of its pages names what is not there")


def test_nothing_of_ours_unpickles_what_a_member_sends() -> None:
    """Object collectives are for users; `check` tests that they work, `_patches` refuses them."""
    names = r"\b(all_gather_object|gather_object|(?:broadcast|scatter|send|recv)_object_list)\b"
    calling = rf"{names}\(|pickle\.loads?\(|torch\.load\((?![^)]*weights_only=True)"
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder in ("pccl_backend", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "check" not in path.relative_to(ROOT).parts
        for match in re.finditer(calling, path.read_text())
    ]
    assert found == []
