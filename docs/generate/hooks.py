"""What mkdocs calls while it builds the site: adds the pages and pictures that are made from the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import pictures  # noqa: E402
import reference_pages  # noqa: E402
import rooms  # noqa: E402
import timelines  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

PICTURE = re.compile(r"!\[([^\]]*)\]\(((?:\.\./)*images/([\w-]+)\.(webp|svg))\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The written pages and, beside them, those of the registries, pictures and drawings."""
    try:
        shots = pictures.pictures()
    except pictures.NoPictures as error:
        raise PluginError(str(error)) from None
    images = {f"images/{name}": content for name, content in (shots | timelines.drawings()).items()}
    generated: dict[str, str | bytes] = {**reference_pages.pages(), "images/rooms.svg": rooms.svg(), **images}
    for path, content in generated.items():
        if committed := files.get_file_from_path(path):
            files.remove(committed)  # a picture of the README: here it is as new as the code
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Every picture twice: for light and for dark pages."""
    return PICTURE.sub(_both, markdown)


def _both(match: re.Match[str]) -> str:
    alt, link, name, kind = match.groups()
    if name not in pictures.PICTURES and name not in timelines.TIMELINES:
        return match[0]
    look = "shot" if kind == "webp" else "drawing"
    dark = link.replace(f".{kind}", f"-dark.{kind}")
    return f"![{alt}]({link}#only-light){{.{look}}}![{alt}]({dark}#only-dark){{.{look}}}"
