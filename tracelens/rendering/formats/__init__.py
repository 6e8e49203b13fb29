"""Output formats: console, HTML, Markdown, JSON, CSV, XLSX, notebooks; each is imported when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.rendering.formats.console import answered, brief, console_text
    from tracelens.rendering.formats.json import one_result
    from tracelens.rendering.formats.markdown import code, escaped, markdown_text
    from tracelens.rendering.formats.notebook import fragment

__all__ = ["answered", "brief", "code", "console_text", "escaped", "fragment", "markdown_text", "one_result"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "answered": "rendering.formats.console",
        "brief": "rendering.formats.console",
        "code": "rendering.formats.markdown",
        "console_text": "rendering.formats.console",
        "escaped": "rendering.formats.markdown",
        "fragment": "rendering.formats.notebook",
        "markdown_text": "rendering.formats.markdown",
        "one_result": "rendering.formats.json",
    },
)
