"""The templates of HTML pages, compiled when the package was built.

Compiling them takes longer than reading a small trace. `hatch_build.py` writes what jinja2 makes of them to a
folder whose name is a digest of the templates, of these settings, and of the compiler; where there is none of
that name, because one of them has changed since, they are compiled when they are needed.

This module is run by the build hook, too, where the package and numpy are not installed: it imports nothing.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment

ASSETS = Path(__file__).with_name("assets")
COMPILED = ASSETS / "compiled"
"""A folder of modules for each digest."""

_SUFFIX = ".j2"


@cache
def environment() -> Environment:
    """Of the templates; what they write is escaped."""
    from jinja2 import FileSystemLoader, ModuleLoader

    folder = COMPILED / digest()
    return _settings(ModuleLoader(folder) if folder.is_dir() else FileSystemLoader(ASSETS))


def compile_into(folder: Path) -> None:
    """Write a module for each template, below their digest."""
    from jinja2 import FileSystemLoader

    compiler = _settings(FileSystemLoader(ASSETS))
    compiler.compile_templates(
        folder / digest(), extensions=[_SUFFIX.removeprefix(".")], zip=None, ignore_errors=False
    )  # fmt: skip


def digest() -> str:
    """Of all that compiled templates depend on."""
    import jinja2.compiler

    names = sorted(name for name in os.listdir(ASSETS) if name.endswith(_SUFFIX))
    seen = hashlib.sha256()
    for path in (Path(jinja2.compiler.__file__), Path(__file__), *(ASSETS / name for name in names)):
        seen.update(path.read_bytes() + b"\0")
    return seen.hexdigest()[:16]


def _settings(loader: BaseLoader) -> Environment:
    from jinja2 import Environment, StrictUndefined

    return Environment(
        loader=loader,
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Text without characters that cannot be seen; what is HTML already as it is."""
    if type(value) is not str or value.isprintable():
        return value
    from tracelens.rendering.tables import one_line

    return one_line(value)
