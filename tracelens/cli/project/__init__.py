"""`tracelens project`: memory, pipeline and what-if projections."""

from tracelens.cli.project.app import app

__all__ = ["app"]
