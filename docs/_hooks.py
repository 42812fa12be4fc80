"""Hooks of mkdocs: documents of the repository's root become pages of the site.

README.md and the others stay where people and tools look for them, and are written once. Here their
links into docs/ are made relative to the page that they become, links between them, and those of
other pages to them, lead to their pages, and links to other files of the repository become plain
words.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import relpath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture/index.md",
    "PROTOCOL.md": "reference/protocol.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}


LEADS_TO = PAGES | {"examples/diloco/README.md": "how-to/diloco.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds one page for each document of the root."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=_as_page(name, page)))
    return files


def _as_page(name: str, page: str) -> str:
    folder = str(PurePosixPath(page).parent)

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if target in LEADS_TO:
            target = LEADS_TO[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return words  # a file of the repository that is no page
        return f"[{words}]({relpath(target, folder)}{anchor})"

    text = (ROOT / name).read_text()
    return re.sub(r"\[([^\]]*)\]\(([\w./-]+)(#[\w-]+|)\)", moved, text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links of a page to a document of the root to the page that it becomes."""
    folder = str(PurePosixPath(page.file.src_uri).parent)

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if target not in PAGES:
            return link[0]
        return f"[{words}]({relpath(PAGES[target], folder)}{anchor})"

    return re.sub(r"\[([^\]]*)\]\((?:\.\./)+([\w.-]+)(#[\w-]+|)\)", moved, markdown)
