"""Console, errors, progress, annotations, JUnit and JSON: no control character and no command."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from tests.compare.gate.gate_sides import side
from tests.effort import effort
from tests.hostile.conftest import Outputs
from tests.hostile.payloads import PAYLOADS, RICH
from tracelens.cli import output, run
from tracelens.compare.gate import Verdict, commands, gate, junit, read_rule
from tracelens.compare.gate import report as verdict_report
from tracelens.errors import ParseError, TracelensError, UnknownName
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import console_text
from tracelens.table import Report, Skip

json_files = RENDERERS.get("json").files


COLORS = re.compile(r"\x1b\[[0-9;]*m")
EACH = pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))


def check(text: str) -> None:
    """Nothing but printable lines, and none that a CI runner takes for a command."""
    wrong = {char for char in text if not char.isprintable() and char != "\n" and not char.isspace()}
    assert not wrong
    assert not re.search(r"[\r\t\v\f\x85\u2028\u2029]", text)
    assert not re.search(r"##\w*\[", text)


def no_commands(text: str) -> None:
    assert not re.search(r"^\s*::", text, re.MULTILINE)


def test_console(report: Report) -> None:
    for width in (40, 160):
        text = console_text(report, width=width)
        check(text)
        no_commands(text)
    colored = console_text(report, color=True)
    check(COLORS.sub("", colored))


def test_console_of_commands(outputs: Outputs) -> None:
    for text in (*outputs.out.values(), *outputs.err.values()):
        check(text)
    for name in ("console", "report", "diff", "fuse", "whatif"):
        no_commands(outputs.out[name] + outputs.err[name])
    assert len(outputs.out["console"].splitlines()) > 20
    for path in outputs.folder.glob("*.txt"):
        check(path.read_text())
        no_commands(path.read_text())


@EACH
def test_errors_are_one_printable_line(payload: str) -> None:
    for error in (
        TracelensError(payload),
        ParseError(payload, payload, 7),
        UnknownName("x", payload, [payload]),
    ):
        check(str(error))
        assert "\n" not in str(error)


@EACH
def test_error_lines_of_the_command_line(
    payload: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argument = payload.replace("\0", "").encode(
        "utf-8", "surrogateescape" if "\udce9" in payload else "replace"
    )[:200]
    path = argument.decode("utf-8", "surrogateescape")
    lines = (["report", "--", path], ["diff", "--", path, path], ["analyze", "--", path, "x"])
    for arguments in effort((lines[PAYLOADS.index(payload) % 3],), lines):
        assert run(arguments) == 2
        text = capfd.readouterr().err
        check(text)
        assert text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("payload", RICH)
def test_progress_shows_paths_as_they_are(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "PATIENCE_S", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress() as line:
        line(f"reading {payload}")
        line(f"reading {payload}.json")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert f"reading {payload}" in text
    assert "\x1b]8" not in stream.getvalue()


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    """A failed verdict with a skip for each payload."""
    sides = [side("a", metrics={"step.time": [10.0] * 5}), side("b", metrics={"step.time": [20.0] * 5})]
    found = gate(*sides, [read_rule("step.time<=1.03")])
    outcomes = tuple(replace(found.outcomes[0], notes=(payload,)) for payload in PAYLOADS)
    skips = tuple(Skip(payload, payload) for payload in PAYLOADS)
    return replace(found, outcomes=outcomes, skips=skips, base=PAYLOADS[0], candidate=PAYLOADS[1])


def test_junit(verdict: Verdict, outputs: Outputs) -> None:
    root = ElementTree.fromstring(junit(verdict))
    cases = list(root.iter("testcase"))
    assert len(cases) == 2 * len(PAYLOADS)
    assert {item.tag for item in root.iter()} == {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "system-out",
        "skipped",
    }
    assert {key for case in cases for key in case.keys()} == {"classname", "name", "time"}  # noqa: SIM118
    for item in root.iter():
        for text in (item.text or "", *item.attrib.values()):
            check(text.strip())
    written = ElementTree.fromstring((outputs.folder / "gate.xml").read_bytes())
    assert len(list(written.iter("failure"))) == 1


def test_annotations(verdict: Verdict) -> None:
    lines = list(commands(verdict))
    assert len(lines) == len(PAYLOADS) + 1
    for line in lines:
        check(line)
        assert re.match(r"::(error|warning|notice) title=[^:,]*(%3A[^:,]*)*::", line)
        assert not re.search(r"%(?!25|3A|2C)", line)


def test_a_verdict_is_printed(verdict: Verdict) -> None:
    text = console_text(verdict_report(verdict))
    check(text)
    no_commands(text)


def refuse(text: str) -> Any:
    raise ValueError(text)


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


def test_json_keeps_texts_and_is_inert(report: Report, outputs: Outputs) -> None:
    for content in (json_files(report)["report.json"], outputs.out["json"].encode()):
        text = content.decode()
        check(text)
        found = set(texts(json.loads(text, parse_constant=refuse)))
        assert not [one for one in found if re.search("[\ud800-\udfff]", one)]
    found = set(texts(json.loads(json_files(report)["report.json"])))
    whole = {payload for payload in PAYLOADS if not re.search("[\ud800-\udfff]", payload)}
    assert len(whole & found) > 100
