"""Output format `.prom`: headline numbers for Prometheus' textfile collector."""

from collections.abc import Mapping

from tracelens.rendering import renderer
from tracelens.table import Report


def quoted(text: str) -> str:
    """A label's value in the exposition format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@renderer("prometheus", suffix=".prom", doc="headline numbers, for Prometheus")
def files(report: Report) -> Mapping[str, bytes]:
    """One gauge; unknown numbers are left out."""
    lines = ["# TYPE tracelens_headline gauge"]
    for tile in report.summary.tiles if report.summary else ():
        if tile.value is not None:
            labels = f"name={quoted(tile.name)},unit={quoted(tile.unit)}"
            lines.append(f"tracelens_headline{{{labels}}} {tile.value:g}")
    return {"report.prom": "\n".join([*lines, ""]).encode()}
