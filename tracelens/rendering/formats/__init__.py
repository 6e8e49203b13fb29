"""Output formats: console, HTML, Markdown, JSON, CSV, XLSX, notebooks."""

from tracelens.rendering.formats.brief import brief
from tracelens.rendering.formats.console import console
from tracelens.rendering.formats.json import one_result
from tracelens.rendering.formats.markdown import markdown
from tracelens.rendering.formats.markdown_text import escaped

__all__ = ["brief", "console", "escaped", "markdown", "one_result"]
