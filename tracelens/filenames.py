"""What trace files are called."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".zip", ".trace", ".trace.gz")
"""What is taken from a directory; a file that is named is read whatever its suffix."""

SIDECAR = "run.json"
"""What the recorder writes beside the traces of a run."""

CAPTURES = "capture_traces"
"""Folder beside the traces of a run, with those of its captures of graphs, as serving engines write it."""

LADDER = "ladder.json"
"""The index of a ladder of runs, beside their folders."""

SIDE_FILES = (SIDECAR, LADDER, "replay.json")
"""What tracelens itself writes into directories."""

RANK_FILE = re.compile(r"rank(\d+)\.json(?:\.(?:gz|zst))?")
"""The trace of a rank."""
PACE_FILE = re.compile(r"rank\d+\.pace\.json")
"""What it writes for the other ranks, of which run.json says nothing."""
VALUES = ".values.json.zst"
"""Ending, behind that of a rank's name, of what the profiler leaves out of its calls."""


def kinds_among(files: Iterable[str]) -> str:
    """The commonest kinds of files, as '2 .csv, 1 without suffix'."""
    kinds = Counter(os.path.splitext(file)[1] or "without suffix" for file in files)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))


def named_like_a_trace(file: str) -> bool:
    """Whether a file is taken from a directory.

    A leading dot is for what other systems leave beside files (._rank0.json).
    """
    name = os.path.basename(file).lower()
    beside = name.endswith(VALUES) or PACE_FILE.fullmatch(name)
    return name.endswith(TRACE_SUFFIXES) and not name.startswith(".") and not beside


def traces_among(files: Iterable[str]) -> list[str]:
    """The files of a directory that are read as traces."""
    named = [file for file in files if named_like_a_trace(file)]
    # A trace may be called so, but not among others.
    return [file for file in named if len(named) == 1 or os.path.basename(file) not in SIDE_FILES]
