"""Labels of serving steps, read by grammars that are data: serving_labels.toml beside this file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from tracelens.bundled import bundled_toml
from tracelens.config_files import read_toml
from tracelens.costs import Lengths, ServingBatch
from tracelens.errors import TracelensError

KINDS = ("prefill", "decode", "mixed", "idle", "draft", "other")
RUNS = ("", "eager", "graph")
FILE_VARIABLE = "TRACELENS_SERVING_LABELS"
"""Environment variable that names a file with the grammars of further engines."""

_NUMBER = re.compile("[0-9]{1,15}")  # what is longer counts nothing that a batch can have
_BUNDLED = Path(__file__).with_name("serving_labels.toml")
_PHASES = ("prefill", "decode")
_SUMS = ("keys", "squares", "products")
_NUMBERS = (
    "requests",
    "graph_requests",
    "tokens",
    "prefill_requests",
    "decode_requests",
    "prefill_tokens",
    "decode_tokens",
    "tbo",
    "micro_batch",
    *_SUMS,
    *(f"{phase}_{name}" for phase in _PHASES for name in _SUMS),
)
_ENGINE_KEYS = ("name", "source", "frames", "ops", "fields", "step", "micro_batch")
_RULE_KEYS = ("pattern", "kind", "run", "dummy", "tokens_per_request", "also", "examples")


class Label(NamedTuple):
    """What one label says; numbers that it does not give are -1."""

    engines: tuple[str, ...]  # that write such labels, mostly one
    kind: str  # one of KINDS
    run: str  # "eager", "graph", or "" where the label does not tell
    dummy: bool  # no request is served, the rank only takes part in what the others do
    tbo: bool  # the step is run as two overlapped batches
    requests: int  # in the batch
    graph_requests: int  # what the replayed graph is made for, padding included
    tokens: int  # that the model is run on, without padding
    batch: ServingBatch | None = (
        None  # lengths of the requests, None where the label does not give their sums
    )
    prefill_tokens: int = -1  # of prompts, among `tokens`
    decode_requests: int = -1  # among `requests`
    decode_tokens: int = -1  # of these, among `tokens`: more than requests where drafts are verified


class Half(NamedTuple):
    """The label of one half of a step under two-batch overlap: which one, and its tokens."""

    number: int
    tokens: int


class _Rule(Struct, frozen=True):
    engine: str
    pattern: re.Pattern[str]
    fields: tuple[tuple[str, re.Pattern[str]], ...]
    values: Mapping[str, Any]

    def numbers(self, text: str) -> dict[str, int] | None:
        """The numbers in a label, None where it is another one's."""
        matched = self.pattern.fullmatch(text)
        if matched is None:
            return None
        digits = matched.groupdict()
        for name, pattern in self.fields:
            if digits.get(name) is None and (field_match := pattern.search(text)):
                digits[name] = field_match[1]
        return {
            name: int(digit_text)
            for name, digit_text in digits.items()
            if digit_text and _NUMBER.fullmatch(digit_text)
        }


class Engine(Struct, frozen=True):
    """By what an engine is told, whoever's labels it writes; None where nothing of the kind tells it."""

    name: str  # of the engine
    frames: re.Pattern[str] | None  # searched in the names of Python frames
    ops: re.Pattern[str] | None  # searched in the names of ops


class Grammar(Struct, frozen=True, eq=False):
    """The rules of all engines, in the order in which they are asked."""

    engines: tuple[Engine, ...]
    steps: tuple[_Rule, ...]
    halves: tuple[_Rule, ...]
    # What `step` made of each text: the ranks of a job have the same names.
    _labels: dict[str, Label | None] = field(default_factory=dict)

    def step(self, text: str) -> Label | None:
        """What the label of a step says, None for a text that is none."""
        if text not in self._labels:
            self._labels[text] = self._read_step(text)
        return self._labels[text]

    def _read_step(self, text: str) -> Label | None:
        for rule in self.steps:
            numbers = rule.numbers(text)
            if numbers is not None:
                return _label(rule, numbers)
        return None

    def half(self, text: str) -> Half | None:
        """What the label of half a step says, None for a text that is none."""
        for rule in self.halves:
            numbers = rule.numbers(text)
            if numbers is not None:
                return Half(numbers.get("micro_batch", 0), numbers.get("tokens", -1))
        return None


def grammar() -> Grammar:
    """The grammars of this package, after those of the file that FILE_VARIABLE names.

    Raises:
        TracelensError: that file cannot be read, or a rule in it cannot be used; the message says which.
    """
    return _grammar(os.environ.get(FILE_VARIABLE, ""))


@cache
def _grammar(extra: str) -> Grammar:
    engines: list[tuple[Path, dict[str, Any]]] = []
    files = {Path(extra): read_toml(Path(extra), f"{FILE_VARIABLE} names this file")} if extra else {}
    for path, content in (*files.items(), (_BUNDLED, bundled_toml(_BUNDLED))):
        entries = content.get("engine")
        if not isinstance(entries, list) or set(content) != {"engine"}:
            raise TracelensError(f"{path}: must consist of [[engine]] tables; see serving_labels.toml")
        for number, engine in enumerate(entries, start=1):
            if not isinstance(engine.get("name"), str):
                raise TracelensError(f"{path}: [[engine]] {number} has no name; add one")
            _known(engine, _ENGINE_KEYS, f"{path}: engine {engine['name']!r}")
            engines.append((path, engine))
    signs = {}
    for path, engine in reversed(engines):
        where = f"{path}: engine {engine['name']!r}"
        frames, ops = (
            _compiled(engine[key], f"{where}, {key}", 0) if key in engine else None
            for key in ("frames", "ops")
        )
        signs[engine["name"]] = Engine(engine["name"], frames, ops)
    names = dict.fromkeys(engine["name"] for _, engine in engines)
    return Grammar(
        tuple(signs[name] for name in names),
        tuple(rule for path, engine in engines for rule in _rules(path, engine, "step")),
        tuple(rule for path, engine in engines for rule in _rules(path, engine, "micro_batch")),
    )


def _rules(path: Path, engine: Mapping[str, Any], table: str) -> list[_Rule]:
    """The rules in one table of an engine, compiled and tried on their examples."""
    where = f"{path}: engine {engine['name']!r}"
    fields = engine.get("fields", {})
    _known(fields, _NUMBERS, f"{where}, fields")
    compiled = tuple((name, _compiled(text, f"{where}, field {name!r}", 1)) for name, text in fields.items())
    rules = []
    for number, entry in enumerate(engine.get(table, ()), start=1):
        rule_place = f"{where}, {table} {number}"
        _known(entry, _RULE_KEYS, rule_place)
        pattern = _compiled(entry.get("pattern"), rule_place, 0)
        _known(pattern.groupindex, _NUMBERS, f"{rule_place}, groups")
        for key, allowed in (("kind", KINDS), ("run", RUNS)):
            if key in entry and entry[key] not in allowed:
                raise TracelensError(f"{rule_place}: {key} must be one of {', '.join(filter(None, allowed))}")
        also = entry.get("also", [])
        if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
            raise TracelensError(f"{rule_place}: also must be a list of engines")
        rules.append(_Rule(engine["name"], pattern, compiled, entry))
        for text in entry.get("examples", ()):
            if not pattern.fullmatch(text):
                raise TracelensError(f"{rule_place}: the pattern does not match the example {text!r}")
    return rules


def _compiled(text: Any, where: str, groups: int) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (TypeError, re.error) as error:
        raise TracelensError(f"{where}: not a regular expression ({error})") from error
    if groups and pattern.groups != groups:
        raise TracelensError(f"{where}: the expression needs exactly one group, around the number")
    return pattern


def _known(keys: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    wrong = sorted(set(keys) - set(allowed))
    if wrong:
        raise TracelensError(f"{where}: unknown {', '.join(wrong)}; known: {', '.join(allowed)}")


def _label(rule: _Rule, numbers: Mapping[str, int]) -> Label:
    kind = rule.values.get("kind")
    if not kind:  # by how many requests are in which phase
        prefill, decode = (numbers.get(f"{phase}_requests", 0) > 0 for phase in _PHASES)
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode" if decode else "idle"
    phases = [kind] if kind in _PHASES else _PHASES

    def both(counted: str) -> int:
        by_phase = [numbers.get(f"{phase}_{counted}", -1) for phase in phases]
        return numbers.get(counted, -1 if min(by_phase) < 0 else sum(by_phase))

    requests, tokens = both("requests"), both("tokens")
    if kind == "idle":
        requests = max(requests, 0)
    per_request = rule.values.get("tokens_per_request", -1)
    if tokens < 0 <= requests and per_request >= 0:
        tokens = requests * per_request
    # The lengths of the requests; unknown where the label lacks those of a phase or contradicts itself.
    lengths = []
    for phase in _PHASES:
        if phase not in phases:
            lengths.append(Lengths(0, 0, 0, 0))
            continue
        of_phase = numbers if kind in _PHASES else {}
        queries = numbers.get(f"{phase}_tokens", tokens if kind == phase else -1)
        sums = [numbers.get(f"{phase}_{name}", of_phase.get(name, -1)) for name in _SUMS]
        lengths.append(Lengths(queries, *sums))
    return Label(
        engines=(rule.engine, *rule.values.get("also", ())),
        kind=kind,
        run=rule.values.get("run", ""),
        dummy=bool(rule.values.get("dummy", False)) or kind == "idle",
        tbo=numbers.get("tbo", 0) > 0,
        requests=requests,
        graph_requests=numbers.get("graph_requests", -1),
        tokens=tokens,
        batch=ServingBatch(*lengths) if all(each.is_consistent for each in lengths) else None,
        prefill_tokens=_of_phase(numbers, "prefill", "tokens", kind, tokens),
        decode_requests=_of_phase(numbers, "decode", "requests", kind, requests),
        decode_tokens=_of_phase(numbers, "decode", "tokens", kind, tokens),
    )


def _of_phase(numbers: Mapping[str, int], phase: str, counted: str, kind: str, total: int) -> int:
    """What is counted of one phase: all in a step of this phase, nothing in one of the other."""
    if kind in (*_PHASES, "idle"):
        return total if kind == phase else 0
    return numbers.get(f"{phase}_{counted}", -1)
