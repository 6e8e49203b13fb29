"""Measurements of a ladder, which `tracelens workload ladder` writes to ladder.json beside the traces.

One JSON object; `schema` changes with every incompatible change.

    schema          "tracelens.ladder/1"
    preset          name of the model
    device          "cuda" (NVIDIA and AMD) or "cpu"
    ranks           processes of each rung
    tokens_a_step   of all ranks, the same in each rung
    config          of the baseline: model, layout, toggles, training
    rungs           in order, the baseline first: folder (of its traces, beside this file), name, adds (texts
                    toggle=value), purpose, toggles (all that differ from the default), timed_ms (each timed
                    step, its slowest rank), typical_ms (their median), peak_bytes (of the rank with most;
                    null on a CPU), loss (of each step)
    left            rungs that were not run: name, adds, reason
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError

NAME, SCHEMA = "ladder.json", "tracelens.ladder/1"


@dataclass(frozen=True)
class Rung:
    """One rung as it was run."""

    name: str
    folder: Path  # with the traces of its ranks
    adds: str = ""  # what it changed, "toggle=value ..."
    purpose: str = ""  # of the change
    timed_ms: tuple[float, ...] = ()  # slowest rank of each step timed without the profiler; may be empty
    peak_bytes: int = -1  # device memory of the worst rank, -1 if not measured


@dataclass(frozen=True)
class LadderRun:
    """A ladder as it was run."""

    rungs: tuple[Rung, ...]  # from the baseline up, at least two
    tokens: int  # per step on all ranks
    preset: str = ""  # name of the model
    not_run: tuple[tuple[str, str], ...] = ()  # (name, reason) of rungs that were not run


def read(folder: Path) -> LadderRun:
    """The ladder in a folder.

    Raises:
        TracelensError: there is none, or its file is damaged, or it has no rung above the baseline.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TracelensError(
            f"{folder}: no {NAME}, no rungs; create them with: tracelens workload ladder {folder}"
        ) from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TracelensError(f"{path}: is not JSON ({error}); run the ladder again") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        schema = document.get("schema") if isinstance(document, dict) else None
        raise TracelensError(f"{path}: its schema is {schema!r}, not {SCHEMA!r}; run the ladder again")
    try:
        ladder_run = _from_document(folder, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TracelensError(f"{path}: is damaged ({error!r}); run the ladder again") from None
    if len(ladder_run.rungs) < 2:
        raise TracelensError(f"{path}: no rung above the baseline, nothing to compare; run it again")
    return ladder_run


def _from_document(folder: Path, document: Mapping[str, Any]) -> LadderRun:
    rungs = tuple(
        Rung(
            str(rung["name"]),
            # A name, not a path: the traces lie beside the file.
            folder / Path(rung["folder"]).name,
            " ".join(rung["adds"]),
            str(rung["purpose"]),
            tuple(float(ms) for ms in rung["timed_ms"]),
            -1 if rung["peak_bytes"] is None else int(rung["peak_bytes"]),
        )
        for rung in document["rungs"]
    )
    not_run = tuple((str(rung["name"]), str(rung["reason"])) for rung in document["left"])
    return LadderRun(rungs, int(document["tokens_a_step"]), str(document["preset"]), not_run)
