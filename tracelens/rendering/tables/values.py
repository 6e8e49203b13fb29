"""How values look to people, the same in every human format: units, decimals, headers, tiles and names.

Names of kernels, ops and shapes are demangled and shortened, and still different from each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from msgspec import Struct
from numpy.typing import NDArray

from tracelens.symbols import demangled
from tracelens.table import Column, Result, Rows, Table, Tile
from tracelens.units import EXPLAIN_ABOVE, PERCENT, SCALES, Unit, amount, largest_scale, scale_of

ABSENT = "–"
"""What stands for a number that is not known, to people."""
_MOST_DECIMALS = 6
_UNIT_OF_SUFFIX: tuple[tuple[str, Unit], ...] = (
    ("flops_per_byte", "flops/byte"),
    ("flops_per_s", "flops/s"),
    ("bytes_per_s", "bytes/s"),
    ("fraction", "fraction"),
    ("fraction_of_gpu_time", "fraction"),
    ("coverage", "fraction"),
    ("reasons_given", "fraction"),
    ("profiler_cost", "ratio"),
    ("bytes", "bytes"),
    ("flops", "flops"),
    ("ns", "ns"),
)
_SUFFIX = re.compile(r"(^|_)(flops_per_byte|flops_per_s|bytes_per_s|bytes|flops|ns)$")
_BARE: Mapping[Unit, str] = {
    "ns": "time",
    "bytes": "size",
    "bytes/s": "bandwidth",
    "flops": "work",
    "flops/s": "rate",
    "flops/byte": "intensity",
}
_LIST_WIDTH = 160
EFFICIENCY_BEYOND = "beyond the peak: cached input, another device, or less work than counted"
_WORDS = {"dur": "time", "ts": "start", "gpu": "GPU"}
_SIDES = ("base", "cand", "delta", "projected")
_PERCENTILE = re.compile(r"p\d+")
_STATISTICS = ("median", "mean", "min", "max")


class _Printable(dict[int, str]):
    """Characters by number as people see them, for `str.translate`.

    Controls move a terminal's cursor or break a file, bidirectional marks reorder a line, characters without
    width hide in names.
    """

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = " " if char.isspace() else char if char.isprintable() else "\ufffd"
        return self[code]


_PRINTABLE = _Printable(dict.fromkeys(range(28, 32), "�"))


class ColumnFormat(Struct, frozen=True):
    """How one column is written: built from the whole column, so that every cut of it has the same unit."""

    column: Column
    divisor: float
    unit: str
    decimals: int

    @property
    def header(self) -> str:
        """What stands above the column: `dur_ns` becomes 'time (ms)'."""
        return f"{label(self.column)} ({self.unit})" if self.unit else label(self.column)

    def texts(self, values: list[Any]) -> list[str]:
        """The cells as text; names are whole, on one line and without control characters."""
        if self.column.dtype == "bool":
            return ["yes" if value else "no" for value in values]
        if not self.column.is_number:
            return [one_line(value) for value in values]
        if None in values:
            known = iter(self.texts([value for value in values if value is not None]))
            return [ABSENT if value is None else next(known) for value in values]
        if self.column.unit in PERCENT:
            return [f"{value:,.{self.decimals}%}" for value in values]
        if self.decimals == 0 and self.divisor == 1:
            return [f"{value:,.0f}" if isinstance(value, float) else f"{value:,}" for value in values]
        divisor, spec = self.divisor, f",.{self.decimals}f"
        return [format(value / divisor, spec) for value in values]


_SECTIONS = ("trust", "setup", "covers")

_HIDDEN = re.compile(r"\(anonymous namespace\)::|\bat::native::|^void ")
_BRACKETS = re.compile("[<>(]")
_NAMESPACES = re.compile(r"\b(?:\w+::)+(?=\w)")
_CONTEXT = 6
"""Characters of the word that is different, which stand before the difference."""


def format_for(column: Column, numbers: Iterable[float], least: float = 0.0) -> ColumnFormat:
    """Choose unit and decimals for a column from its largest magnitude, or from `least` if that is more.

    The smallest and the largest of its known `numbers` are enough.
    """
    if not column.is_number:
        return ColumnFormat(column, 1, "", 0)
    peak = max((abs(float(number)) for number in (*numbers, least) if isfinite(number)), default=0.0)
    if column.unit in SCALES:
        scale = scale_of(column.unit, peak)
        # Whole numbers of a unit without parts, such as bytes, are never cut.
        decimals = _enough(scale.decimals, peak / scale.size) if scale.decimals else 0
        return ColumnFormat(column, scale.size, scale.name, decimals)
    if column.unit in PERCENT:
        return ColumnFormat(column, 1, "", _enough(1 if peak >= 0.1 else 2, 100 * peak))
    if column.dtype == "int64":
        return ColumnFormat(column, 1, "", 0)
    decimals = _enough(1 if peak >= 1000 else 2 if peak >= 10 else 3, peak)
    return ColumnFormat(column, 1, "", decimals)


def _enough(decimals: int, peak: float) -> int:
    """So many decimals, or as many as the largest number of a column needs not to be shown as zero."""
    while 0 < peak < 0.5 * 10**-decimals and decimals < _MOST_DECIMALS:
        decimals += 1
    return decimals


def explained(table: Table, column: Column, rows: Rows, texts: list[str]) -> list[str]:
    """Cells, and behind each efficiency beyond what the hardware allows its reason: '853.0% (cached input)'.

    The reason is the first part of the row's note; tables without notes have one reason for all.
    """
    if column.unit != "efficiency":
        return texts
    values = table.cells(column.name, rows)
    notes = table.texts("note", rows) if "note" in table.columns else [""] * len(values)
    reasons = [one_line(note.partition("; ")[0]) or EFFICIENCY_BEYOND for note in notes]
    return [
        f"{text} ({reason})" if value is not None and value > EXPLAIN_ABOVE else text
        for value, reason, text in zip(values, reasons, texts, strict=True)
    ]


def label(column: Column) -> str:
    """The column's name in words, without the unit: 'exclusive' of `exclusive_ns`, 'of step' of fractions."""
    stem, _ = stem_and_suffix(column)
    stem = stem.replace("fraction_of_", "of_")
    words = [_WORDS.get(word, word) for word in stem.split("_") if word]
    return " ".join(words) or _BARE[column.unit]


def stem_and_suffix(column: Column) -> tuple[str, str]:
    """The column's name without its unit, and the unit as the name has it: ('dur', 'ns')."""
    suffix = _SUFFIX.search(column.name) if column.unit in SCALES else None
    return (column.name[: suffix.start()], suffix[2]) if suffix else (column.name, "")


def one_line(text: str) -> str:
    """`text` on one line: breaks and tabs become spaces, whatever else cannot be seen U+FFFD."""
    return text if text.isprintable() else text.translate(_PRINTABLE)


def heading(result: Result) -> str:
    """The title of a section, with what its times are of where that is not the step of the report."""
    return f"{result.title} ({result.meta['covers']})" if "covers" in result.meta else result.title


def each_on_one_line(texts: Sequence[str]) -> list[str]:
    """The texts, each as `one_line` has it; rarely one of them changes."""
    return list(texts) if "".join(texts).isprintable() else list(map(one_line, texts))


def encodable(text: str) -> str:
    """`text` that UTF-8 can take: lone surrogates, which JSON may hold, become U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def shorten(text: str, width: int) -> str:
    """At most `width` characters: the middle is cut out, since C++ names differ at both ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 5
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def column_formats(table: Table) -> dict[str, ColumnFormat]:
    """How the columns of a table are written, by name; those that are read against each other have one unit.

    All times of a table are: parts of one whole, and apart from them what a single one of them takes.
    """
    durations: dict[bool, list[str]] = {False: [], True: []}
    alone = {}
    for column in filter(_is_duration, table.schema.columns):
        # The facts of an entry stand in one line.
        alone[column.name] = table.schema.kind != "entries" and _is_statistic(column)
        durations[alone[column.name]].append(column.name)

    ends = {
        column.name: _ends(table.known(column.name)) for column in table.schema.columns if column.is_number
    }
    formats = {}
    for column in table.schema.columns:
        compared = _compared(column)
        if column.name in alone:
            compared += durations[alone[column.name]]
        least = max((max(map(abs, ends[name])) for name in compared if name in ends), default=0.0)
        formats[column.name] = format_for(column, ends.get(column.name, ()), least)
    return formats


def _ends(numbers: NDArray[Any]) -> tuple[float, float]:
    """The smallest and the largest number."""
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)


def _is_duration(column: Column) -> bool:
    return column.unit == "ns" and not re.search(r"(^|_)(ts|at)_ns$", column.name)


def _is_statistic(column: Column) -> bool:
    """Whether it says of the rows behind a row how long one is: `latency_median_ns`."""
    statistic = stem_and_suffix(column)[0].rpartition("_")[2]
    return statistic in _STATISTICS or bool(_PERCENTILE.fullmatch(statistic))


def _compared(column: Column) -> list[str]:
    """Names of the columns that are read against this one: base_ns, cand_ns; dur_median_ns, dur_max_ns."""
    if column.unit not in SCALES:
        return []
    side, _, rest = column.name.partition("_")
    if side in _SIDES:
        return [f"{other_side}_{rest}" for other_side in _SIDES]
    stem, suffix = stem_and_suffix(column)
    stem, _, statistic = stem.rpartition("_")
    if stem and statistic in _STATISTICS:
        return [f"{stem}_{other}_{suffix}" for other in _STATISTICS]
    return []


def meta_items(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, text) of the entries of a `meta` mapping; `step_ns` gets a unit as a column would.

    What a section of the report says in sentences is left to it.
    """
    items = []
    for key, value in meta.items():
        if key in _SECTIONS:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            items.append((one_line(key.replace("_", " ")), one_line(_plain(value))))
            continue
        units = (unit for suffix, unit in _UNIT_OF_SUFFIX if key == suffix or key.endswith(f"_{suffix}"))
        column = Column(key, "int64" if isinstance(value, int) else "float64", next(units, ""))
        compared = (meta.get(name) for name in _compared(column))
        peak = max((abs(number) for number in compared if isinstance(number, int | float)), default=0)
        items.append((label(column), quantity(column, value, float(peak))))
    return items


def quantity(column: Column, value: float, least: float = 0.0) -> str:
    """One number of a column with its unit: '12.300 ms'; `least` as in `format_for`."""
    fmt = format_for(column, [value], least)
    return f"{fmt.texts([value])[0]} {fmt.unit}".rstrip()


def rounded(column: Column, low: float, high: float) -> str:
    """A number, or a range of numbers, to about three digits: '412 ms', '86.6 – 88.4 ms', '62.0%'."""
    if column.unit in PERCENT:
        return " – ".join(dict.fromkeys(f"{value:,.1%}" for value in (low, high)))
    scale = largest_scale(column.unit, high)
    digits = 0 if high >= 100 * scale.size else 1 if high >= 10 * scale.size else 2
    ends = dict.fromkeys(f"{value / scale.size:,.{digits}f}" for value in (low, high))
    return f"{' – '.join(ends)} {scale.name}"


def _plain(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(element)}" for key, element in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        texts = list(map(_plain, value))
        if len(texts) > 3 and sum(map(len, texts)) > _LIST_WIDTH:
            return f"{texts[0]}, …, {texts[-1]} ({len(texts)})"
        return ", ".join(texts) or "none"
    return "none" if value is None else str(value)


def tile_value(tile: Tile) -> str:
    """The value with its unit: '58.4 ms'; a dash where it is not known."""
    if tile.text:
        return tile.text
    return ABSENT if tile.value is None else _amount(tile.value, tile.unit)


def tile_range(tile: Tile) -> str:
    """The range with its unit, '57.1 to 60.2 ms'; empty where there is none."""
    if tile.low is None or tile.high is None:
        return ""
    low, high = _amount(tile.low, tile.unit), _amount(tile.high, tile.unit)
    if low == high:
        return low
    number, unit = _split(low)
    return f"{number if unit == _split(high)[1] else low} to {high}"


def _split(text: str) -> tuple[str, str]:
    number = text.rstrip("%").partition(" ")[0]
    return number, text[len(number) :]


def _amount(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit in PERCENT else amount(value, unit)


def shortened_names(texts: Sequence[str], width: int) -> list[str]:
    """The texts of a column in at most `width` characters each; different texts stay different.

    Mangled symbols are demangled. A text that is too long loses, one after the other and only until it fits,
    its parameters, the namespaces of its template arguments and all other namespaces, then its middle. Where
    two of the column would look the same, the middle that is kept is where they differ.
    """
    names = {}
    for text in dict.fromkeys(texts):
        indent = len(text) - len(text.lstrip(" "))
        names[text] = text[:indent] + demangled(text[indent:])
    if len({*names.values()}) < len(names):
        names = {text: text for text in names}
    folded = dict(names)

    def without_inner_namespaces(name: str) -> str:
        function, bracket, arguments = name.partition("<")
        return f"{function}{bracket}{_without_namespaces(arguments)}"

    for fold in (_without_parameters, without_inner_namespaces, _without_namespaces):
        long = {text: fold(name) for text, name in folded.items() if len(name) > width}
        # A step that makes two names one is not taken.
        merged = {text for alike in _alike(folded | long) for text in alike}
        folded |= {text: name for text, name in long.items() if text not in merged}
    short = {text: shorten(name, width) for text, name in folded.items()}
    for alike in _alike(short):
        short |= _told_apart([(text, folded[text]) for text in alike], width)
    number = 1
    while repeated := [text for alike in _alike(short) for text in alike[1:]]:
        for text in repeated:
            number += 1
            mark = f" #{number}"
            short[text] = f"{shorten(folded[text], max(width - len(mark), 1))}{mark}"
    return [short[text] for text in texts]


def _alike(names: dict[str, str]) -> Iterable[list[str]]:
    """The keys whose names are the same, where there are several."""
    by_name: dict[str, list[str]] = {}
    for text, name in names.items():
        by_name.setdefault(name, []).append(text)
    return [texts for texts in by_name.values() if len(texts) > 1]


def _told_apart(names: list[tuple[str, str]], width: int) -> dict[str, str]:
    """Short texts of names that begin alike: the beginning, and a window where they differ."""
    short: dict[str, str] = {}
    groups = [names]
    while groups:
        group = dict(groups.pop())
        # How many characters all begin with: as many as the first and the last in order.
        first, last = min(group.values()), max(group.values())
        pairs = enumerate(zip(first, last, strict=False))
        start = next((index for index, (a, b) in pairs if a != b), len(first))
        made: dict[str, str] = {}
        for text, name in group.items():
            # The beginning of the name and what follows from `start`, in `width` characters.
            head = max(width // 3, 1)
            word = re.search(r"\w*$", name[max(start - _CONTEXT, 0) : start])
            begin = start - len(word[0] if word else "")
            made[text] = shorten(name, width)
            if begin > head and len(name) > width:
                made[text] = f"{name[:head]}…{shorten(name[begin:], width - head - 1)}"
        for alike in _alike(made):
            if len(alike) < len(group):  # these differ further behind
                groups.append([(text, group[text]) for text in alike])
        short |= made
    return short


@lru_cache(maxsize=4096)
def _without_parameters(name: str) -> str:
    """A C++ function with its template arguments and without its parameters and return type."""
    text = _HIDDEN.sub("", name)
    if not text.endswith(")"):
        return text
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += (bracket[0] == "<") - (bracket[0] == ">")
        before = text[: bracket.start()] if bracket[0] == "(" and depth == 0 else ""
        if before and not before.endswith((" ", "operator")):
            return before
    return text


def _without_namespaces(name: str) -> str:
    return _NAMESPACES.sub("", name)
