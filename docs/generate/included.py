"""Pages and parts of pages that have their source elsewhere: files of the repository, and its imports."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import rooms  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page to the file at the root that it shows."""

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
_FILE = re.compile(r"^\[`(?P<name>[^`]+)`\]\(\.\./\.\./(?P<path>examples/[\w./-]+)\)$", re.MULTILINE)
_MADE = {"<!-- picture of the rooms -->": rooms.svg, "<!-- table of the rooms -->": rooms.table}
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The pages of PAGES, with their links as seen from docs/."""
    for page, name in PAGES.items():
        text = _LINK.sub(_seen_from_docs, (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A line that is a link to a file in examples/ becomes the file, a comment what it names."""
    for comment, made in _MADE.items():
        if comment in markdown:
            markdown = markdown.replace(comment, made())
    return _FILE.sub(_shown, markdown)


def _seen_from_docs(link: re.Match[str]) -> str:
    """The link, or its text alone if it leads to a file that is no page."""
    text, target = link.groups()
    pages = {name: page for page, name in PAGES.items()}
    page = target.removeprefix("docs/") if target.startswith("docs/") else pages.get(target)
    return f"[{text}]({page})" if page else text


def _shown(line: re.Match[str]) -> str:
    path = ROOT / line["path"]
    code = path.read_text(encoding="utf-8").strip("\n")
    return f'```{_LANGUAGES[path.suffix]} title="{line["path"]}"\n{code}\n```'
