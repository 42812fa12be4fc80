"""The documents as pages: what leads from one to another, and where each stands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_readme_is_one_page() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= 150, "the pages are under docs"


def test_every_page_is_in_the_table_of_contents() -> None:
    """`make docs` checks it too, and all links; this is for those who do not build the site."""
    contents = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", contents, re.M)
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    made = set(re.findall(r'"([\w/-]+\.md)",$', (ROOT / "docs/_hooks.py").read_text(), re.M))
    assert made
    assert len(named) == len(set(named))
    assert set(named) == {page for page in pages if not page.startswith("_")} | made


def test_links_between_documents_lead_to_files() -> None:
    """Also for those who read the documents in the repository, without the site."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(((?!\w+:)[\w./-]+)(?:#[\w.-]+)?\)", page.read_text())
    ]
    assert len(links) > len(pages)
    wrong = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links
        if not (page.parent / target).exists()
    ]
    assert wrong == []


def test_decisions_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [name[:4] for name in names] == [f"{i + 1:04}" for i in range(len(names))]
    for name in names:
        text = (ROOT / "docs" / "decisions" / name).read_text()
        sections = re.findall(r"^## (.+)$", text, re.M)
        assert sections == ["Context", "Decision", "Alternatives", "Consequences"], name
