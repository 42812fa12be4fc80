"""Documents that tell the truth: what they list is what the code has.

Each test reads the sources as text; nothing is built. CONTRIBUTING.md says what each rule is for.
"""

from __future__ import annotations

import argparse
import re

import pytest
from conftest import ROOT
from source_text import CSRC, cpp_sources, folder_of, none_of, sources, without_comments

import pccl_backend
from pccl_backend import _cli, _config
from pccl_backend.launch import arguments as launcher
from pccl_backend.launch import environment as launcher_environment
from pccl_backend.launch import spot as launcher_spot


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
    assert own == {
        launcher_environment.NOTE,
        launcher_environment.FINISHED,
        launcher_spot.ENDPOINT,
    }
    assert own <= first_column(page, "Variables")


def test_every_counter_has_its_row_and_every_row_its_counter() -> None:
    text = (CSRC / "engine" / "view.h").read_text()
    struct = re.search(r"struct EngineCounters \{(.*?)\};", text, re.S)
    assert struct
    counters = set(re.findall(r"std::uint64_t (\w+) = 0;", struct[1]))
    assert counters
    schedule = (CSRC / "collectives" / "schedule.h").read_text()
    named = re.search(r"algorithm_name\(.*?\n\}", schedule, re.S)
    assert named
    algorithms = set(re.findall(r'return "(\w+)";', named[0])) - {"unknown"}
    assert first_column("docs/reference/counters.md", "Counters of the engine") == counters
    assert first_column("docs/reference/counters.md", "Algorithms") == algorithms


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
    inner = "|".join(sorted({folder_of(path) for path in cpp_sources()}))
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


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    wrong = [name for name in pccl_backend.__all__ if not re.search(rf"`[^`]*\b{name}\b", page)]
    none_of(wrong, "docs/reference/api.md does not name")


def test_every_error_that_a_program_can_catch_is_in_the_reference() -> None:
    from pccl_backend import _errors

    names = {name for name in vars(_errors) if name.endswith("Error")} - {"DistBackendError"}
    classes = first_column("docs/reference/errors.md", "Classes")
    assert classes - {"LeftRun"} == names - {"PcclError"}
