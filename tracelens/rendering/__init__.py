"""Report in, bytes out: one format a module, which knows nothing but tables."""

from tracelens.rendering.renderer import (
    RENDERERS,
    SUFFIXES,
    Renderer,
    by_path,
    check,
    prepared,
    rendered,
    renderer,
    write,
)

__all__ = [
    "RENDERERS",
    "SUFFIXES",
    "Renderer",
    "by_path",
    "check",
    "prepared",
    "rendered",
    "renderer",
    "write",
]
