"""JSON: a whole report, or one result as `tracelens analyze NAME --json` prints it; raw and in full."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import to_builtins

from tracelens.guard import Failure
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import encodable
from tracelens.table import Report, Result

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE

_COMMAND = re.compile(rb"##(?=\w*\[)")
# Controls, invisible and bidirectional characters, line separators, tags.
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffc\ufffe\uffff\U000e0000-\U000e007f]"
)


SCHEMA_VERSION = 1
"""Of all JSON that is written here; goes up when a table or column is renamed or removed, see CHANGELOG."""


@renderer("json", suffix=".json", doc="one object with every table in full, for programs")
def files(report: Report) -> Mapping[str, bytes]:
    """{"schema_version", "results": {analyzer: {"tables", "skips", "meta"}}, "findings", "meta"} in one file.

    Where something sums up, it has "summary": {"verdict", "tiles"}, too.
    `findings` are the rows of that analyzer's table, empty when it is not part of the report.
    `meta.failures` names the parts that failed because of a bug. An unknown number and an infinite
    one are null.
    """
    results: dict[str, dict[str, Any]] = {
        result.analyzer: {"tables": _tables(result), "skips": _skips(result), "meta": dict(result.meta)}
        for result in report.results
    }
    findings = results.get("findings", {}).get("tables", {}).get("findings", [])
    meta = _meta(report.meta, report.failures)
    content = {"schema_version": SCHEMA_VERSION, "results": results, "findings": findings, "meta": meta}
    if report.summary:
        content["summary"] = to_builtins(report.summary, enc_hook=lambda number: number.item())
    return {"report.json": dumps(content)}


def one_result(result: Result, meta: Mapping[str, Any]) -> bytes:
    """One result: {"schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"}.

    Of `meta`, as in `Report.meta`, `version` and `inputs` stand apart, the rest joins the result's meta.
    Inputs by side, as those of two runs, stand apart as one list and remain in the meta as well.
    """
    inputs, report_meta = meta.get("inputs", []), dict(meta)
    if isinstance(inputs, Mapping):
        inputs = [path for paths in inputs.values() for path in paths]
    else:
        report_meta.pop("inputs", None)
    report_meta.pop("version", None)
    return dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "analyzer": result.analyzer,
            "version": meta.get("version", ""),
            "inputs": inputs,
            "tables": _tables(result),
            "skips": _skips(result),
            "meta": _meta(report_meta | dict(result.meta), result.failures),
        }
    )


def _meta(meta: Mapping[str, Any], failures: Sequence[Failure]) -> dict[str, Any]:
    """`meta`, with `failures` where parts failed because of a bug: part to class of the exception."""
    named = {failure.part: failure.error for failure in failures}
    return {**meta, "failures": named} if named else {**meta}


def dumps(value: Any, *, indent: bool = False) -> bytes:
    """UTF-8 JSON with a final newline; numpy scalars are numbers, anything unknown is its `str`.

    Texts are whole, but for lone surrogates, which become U+FFFD. What a terminal or a CI runner would
    act on, invisible characters and `##[`, is written as an escape of JSON: a reader gets the same texts.
    """
    options = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        text = orjson.dumps(value, default=str, option=options)
    except orjson.JSONEncodeError:
        # A lone surrogate from a trace; rare, so only then every string is looked at.
        text = orjson.dumps(_clean(value), default=str, option=options)
    if b"##" in text:
        text = _COMMAND.sub(rb"\\u0023#", text)
    if text.isascii() and b"\x7f" not in text:
        return text

    def escaped(char: re.Match[str]) -> str:
        units = char[0].encode("utf-16-be")
        return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))

    return _HIDDEN.sub(escaped, text.decode()).encode()


def _tables(result: Result) -> dict[str, list[dict[str, Any]]]:
    records: dict[str, list[dict[str, Any]]] = {}
    for name, table in result.exported.items():
        columns = [table.cells(column) for column in table.schema.names]
        rows = zip(*columns, strict=True)
        records[name] = [dict(zip(table.schema.names, row, strict=True)) for row in rows]
    return records


def _skips(result: Result) -> list[dict[str, str]]:
    return [{"subject": skip.subject, "reason": skip.reason} for skip in result.skips]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(element) for element in value]
    return value
