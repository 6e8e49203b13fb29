"""What was measured of a ladder, as `tracelens workload ladder` notes it in ladder.json beside the traces.

One JSON object; `schema` grows with every change that a reader must know of.

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
    """One rung as it was run.

    Attributes:
        name: of the rung.
        folder: with the traces of its ranks.
        adds: what it changed, "toggle=value ...".
        purpose: what that is for.
        timed_ms: each step that was timed without the profiler, its slowest rank; may be empty.
        peak_bytes: of device memory of the rank with most, -1 where it was not measured.
    """

    name: str
    folder: Path
    adds: str = ""
    purpose: str = ""
    timed_ms: tuple[float, ...] = ()
    peak_bytes: int = -1


@dataclass(frozen=True)
class LadderRun:
    """A ladder as it was run.

    Attributes:
        rungs: from the baseline up, two at least.
        tokens: of a step on all ranks.
        preset: name of the model.
        left: (name, reason) of rungs that were not run.
    """

    rungs: tuple[Rung, ...]
    tokens: int
    preset: str = ""
    left: tuple[tuple[str, str], ...] = ()


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
            f"{folder}: no {NAME}, so there are no rungs; make them: tracelens workload ladder {folder}"
        ) from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TracelensError(f"{path}: is no JSON ({error}); run the ladder again") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise TracelensError(f"{path}: its schema is {found!r}, not {SCHEMA!r}; run the ladder again")
    try:
        climbed = _climb(folder, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TracelensError(f"{path}: is damaged ({error!r}); run the ladder again") from None
    if len(climbed.rungs) < 2:
        raise TracelensError(f"{path}: has no rung above the baseline, so nothing to compare; run it again")
    return climbed


def _climb(folder: Path, document: Mapping[str, Any]) -> LadderRun:
    rungs = tuple(
        Rung(
            str(one["name"]),
            # A name, not a path: what is read lies beside the file.
            folder / Path(one["folder"]).name,
            " ".join(one["adds"]),
            str(one["purpose"]),
            tuple(float(ms) for ms in one["timed_ms"]),
            -1 if one["peak_bytes"] is None else int(one["peak_bytes"]),
        )
        for one in document["rungs"]
    )
    left = tuple((str(one["name"]), str(one["reason"])) for one in document["left"])
    return LadderRun(rungs, int(document["tokens_a_step"]), str(document["preset"]), left)
