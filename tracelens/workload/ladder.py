"""The rungs of an optimization ladder: which toggles each adds to those before. No torch here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tracelens.config_files import read_toml
from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config import Config, Toggles, override

BASELINE = "baseline"
_KEYS = ("name", "adds", "purpose")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LIKE = "example: 'grouped: experts=grouped'"


@dataclass(frozen=True)
class LadderRung:
    """One rung."""

    name: str  # also of its folder
    adds: tuple[str, ...] = ()  # texts `toggle=value`, on top of what the rungs before it changed
    purpose: str = ""  # what it is for, one line

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TracelensError(
                f"rung {self.name!r}: a name may only have letters, digits and _.- (it names a "
                f"folder); {_LIKE}"
            )
        known = [item.name for item in fields(Toggles)]
        for text in self.adds:
            toggle, separator, _ = text.partition("=")
            if not separator:
                raise TracelensError(f"rung {self.name!r}: {text!r} is not of the form toggle=value; {_LIKE}")
            if toggle not in known:
                raise TracelensError(f"rung {self.name!r}: {UnknownName('toggle', toggle, known)}")


@dataclass(frozen=True)
class SkippedRung:
    """A rung that cannot run here, and why."""

    rung: LadderRung
    reason: str


@dataclass(frozen=True)
class PlannedRung:
    """A rung with the config of all rungs up to it."""

    rung: LadderRung
    config: Config


def bundled() -> tuple[LadderRung, ...]:
    """The ladder that comes with the workload: training with experts spread over ranks."""
    return from_file(Path(__file__).with_name("ladder.toml"))


def from_file(path: Path) -> tuple[LadderRung, ...]:
    """Rungs from a TOML file of tables [[rung]] with name, adds ("toggle=value ...") and purpose.

    Raises:
        TracelensError: it cannot be read, or is no such file.
    """
    tables = read_toml(path).get("rung")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise TracelensError(f"{path}: no [[rung]] tables; write one per rung, with name and adds")
    rungs = []
    for table in tables:
        if unknown := [key for key in table if key not in _KEYS]:
            raise TracelensError(f"{path}: [[rung]] has no key {unknown[0]!r}; known: {', '.join(_KEYS)}")
        texts = {key: table.get(key, "") for key in _KEYS}
        if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
            raise TracelensError(f"{path}: {wrong[0]} of a [[rung]] is not text; write {wrong[0]} = '...'")
        try:
            rungs.append(LadderRung(texts["name"], tuple(texts["adds"].split()), texts["purpose"]))
        except TracelensError as error:
            raise TracelensError(f"{path}: {error}") from None
    return with_baseline(rungs)


def from_texts(texts: Iterable[str]) -> tuple[LadderRung, ...]:
    """Rungs from texts "name: toggle=value ...".

    Raises:
        TracelensError: a text is not of that form.
    """
    rungs = []
    for text in texts:
        name, separator, adds = text.partition(":")
        if not separator:
            raise TracelensError(f"rung {text!r}: missing the name before a colon; {_LIKE}")
        rungs.append(LadderRung(name.strip(), tuple(adds.split())))
    return with_baseline(rungs)


def with_baseline(rungs: Sequence[LadderRung]) -> tuple[LadderRung, ...]:
    """The rungs, with one that adds nothing in front where there is none.

    Raises:
        TracelensError: two have one name, or there is none above it.
    """
    complete = tuple(rungs) if rungs and not rungs[0].adds else (LadderRung(BASELINE), *rungs)
    names = [rung.name for rung in complete]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TracelensError(f"rung {twice[0]!r}: two rungs have this name; rename one")
    if len(complete) < 2:
        raise TracelensError("a ladder needs a rung above its baseline: add one that changes a toggle")
    return complete


def plan_ladder(
    config: Config, rungs: Sequence[LadderRung], lacks: Callable[[Config], str], *, strict: bool
) -> tuple[list[PlannedRung], list[SkippedRung]]:
    """The rungs to run, each with the toggles of all before it, and those left out.

    Args:
        config: of the first rung.
        rungs: from the baseline up.
        lacks: what a machine lacks for a config, "" for nothing; such a rung is left out, and those above
            it go on without it.
        strict: whether toggles that do not fit the config are an error, or leave the rung out as well.

    Raises:
        TracelensError: strict, and a rung does not fit; or no baseline, or nothing above it, can be run.
    """
    steps: list[PlannedRung] = []
    skipped: list[SkippedRung] = []
    for rung in rungs:
        try:
            rung_config = override(steps[-1].config if steps else config, rung.adds)
        except TracelensError as error:
            if strict or not steps:
                raise TracelensError(f"rung {rung.name!r}: {error}") from None
            skipped.append(SkippedRung(rung, str(error)))
            continue
        if reason := lacks(rung_config):
            if not steps:
                raise TracelensError(f"rung {rung.name!r}: {reason}")
            skipped.append(SkippedRung(rung, reason))
        else:
            steps.append(PlannedRung(rung, rung_config))
    if len(steps) < 2:
        reasons = "; ".join(f"{skip.rung.name}: {skip.reason}" for skip in skipped)
        raise TracelensError(f"no rung above the baseline can run here: {reasons}")
    return steps, skipped


def chosen_rungs(
    texts: Sequence[str], file: Path | None, without: Sequence[str]
) -> tuple[tuple[LadderRung, ...], bool]:
    """The rungs of texts or of a file, else the bundled ones, without some; and whether they are custom."""
    if texts and file is not None:
        raise TracelensError("use --rung or --rungs, not both")
    rungs = from_texts(texts) if texts else from_file(file) if file else bundled()
    names = [rung.name for rung in rungs]
    for name in without:
        if name not in names:
            raise UnknownName("rung", name, names)
    return with_baseline([rung for rung in rungs if rung.name not in without]), bool(texts or file)
