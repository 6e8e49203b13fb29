"""Which calls of a trace are worth a script."""

from tracelens.reproducers.select.cases import Call, Case, cases, merged
from tracelens.reproducers.select.select import Selection, fits, selected_work, sizes, time_of

__all__ = ["Call", "Case", "Selection", "cases", "fits", "merged", "selected_work", "sizes", "time_of"]
