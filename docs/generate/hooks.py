"""What mkdocs calls while it builds the site: adds the pages that are made from the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import reference  # noqa: E402
import rooms  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The written pages and, beside them, those of the registries."""
    generated: dict[str, str | bytes] = {**reference.pages(), "images/rooms.svg": rooms.svg()}
    for path, content in generated.items():
        files.append(File.generated(config, path, content=content))
    return files
