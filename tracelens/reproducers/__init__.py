"""Replay: minimal reproducers of what a trace holds, and whether they match it.

    trace ─cases─▶ OpCase (op + arguments, all its times) ─select─▶ ─scripts─▶ Script (text) ─folder─▶ DIR
    DIR ─verify─▶ Result (traced, replayed, ratio, status)

A script is one Python file that needs nothing but torch: no model, no weights, no trace. Nothing of a trace
is evaluated on the way: names of ops must be registered with torch, everything else is checked numbers.
"""

from tracelens.reproducers.calls import ReplaySelection, kernel_factors, sizes, time_of
from tracelens.reproducers.folder import LIST, check
from tracelens.reproducers.make import TABLES, replay, replay_layers
