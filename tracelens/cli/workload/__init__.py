"""`tracelens workload`: run the bundled MoE workload and record traces of it."""

from tracelens.cli.workload.app import app

__all__ = ["app"]
