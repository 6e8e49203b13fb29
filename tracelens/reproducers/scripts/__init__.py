"""Scripts: text of a trace enters them as data only."""

from tracelens.reproducers.scripts.collective_kinds import COLLECTIVE_KINDS, NAMES
from tracelens.reproducers.scripts.outline import DATA, SIZES
from tracelens.reproducers.scripts.render import UNFAITHFUL, render
from tracelens.reproducers.scripts.scripts import script
from tracelens.reproducers.scripts.source import WIDTH, Source, about, code, in_graph, literal, plain, timed

__all__ = [
    "COLLECTIVE_KINDS",
    "DATA",
    "NAMES",
    "SIZES",
    "UNFAITHFUL",
    "WIDTH",
    "Source",
    "about",
    "code",
    "in_graph",
    "literal",
    "plain",
    "render",
    "script",
    "timed",
]
