"""Output formats: console, HTML, Markdown, JSON, CSV, XLSX, notebooks."""

from tracelens.rendering.formats.console import brief, console
from tracelens.rendering.formats.json import one_result
from tracelens.rendering.formats.markdown import code, escaped, markdown

__all__ = ["brief", "code", "console", "escaped", "markdown", "one_result"]
