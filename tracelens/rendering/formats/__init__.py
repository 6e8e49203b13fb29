"""Output formats: console, HTML, Markdown, JSON, CSV, XLSX, notebooks; each is imported when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.rendering.formats.console import answered, brief, console_text
    from tracelens.rendering.formats.json import one_result
    from tracelens.rendering.formats.markdown import code, escaped, markdown_text
    from tracelens.rendering.formats.notebook import fragment

__getattr__, __dir__ = lazy(
    __name__,
    {
        "rendering.formats.console": "answered brief console_text",
        "rendering.formats.json": "one_result",
        "rendering.formats.markdown": "code escaped markdown_text",
        "rendering.formats.notebook": "fragment",
    },
)
