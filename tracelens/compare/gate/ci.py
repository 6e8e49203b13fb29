"""A verdict for CI systems: annotations of GitHub Actions, and JUnit XML with one test case per rule."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from tracelens.compare.gate.gate import Verdict
from tracelens.compare.gate.verdict import cause_text, headline, knowledge, sentence
from tracelens.printable import printable


def commands(verdict: Verdict) -> Iterator[str]:
    """The verdict as GitHub Actions workflow commands, one line each: errors, warnings, and a notice."""
    for outcome in verdict.outcomes:
        if outcome.status != "pass":
            level = "error" if outcome.status == "fail" else "warning"
            title = _escaped(f"tracelens gate: {outcome.rule}").replace(":", "%3A").replace(",", "%2C")
            yield f"::{level} title={title}::{_escaped(sentence(outcome))}"
    for cause in verdict.causes:
        yield f"::notice title=tracelens gate%3A cause::{_escaped(cause_text(cause))}"
    yield f"::notice title=tracelens gate::{_escaped(headline(verdict))}"


def _escaped(text: str) -> str:
    """Text for workflow commands; it has no line ends."""
    return printable(text).replace("%", "%25")


def junit(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML, which CI systems show as tests.

    A failed rule is a failure, an inconclusive one an error (so that no CI system shows it as a success), a
    rule that could not be checked is skipped; the values are each case's output, the causes the suite's.
    `printable` leaves the characters that XML 1.0 allows (https://www.w3.org/TR/xml/#charsets).
    """
    counts = {
        "tests": str(len(verdict.outcomes) + len(verdict.skips)),
        "failures": str(len(verdict.failed)),
        "errors": str(len(verdict.inconclusive)),
        "skipped": str(len(verdict.skips)),
        "time": "0",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "tracelens gate", **counts})
    for outcome in verdict.outcomes:
        case = _case(suite, str(outcome.rule))
        text = printable(sentence(outcome))
        if outcome.status == "fail":
            failure = ElementTree.SubElement(case, "failure", {"message": text, "type": "regression"})
            failure.text = text
        if outcome.status == "inconclusive":
            error = ElementTree.SubElement(case, "error", {"message": text, "type": "inconclusive"})
            error.text = text
        ElementTree.SubElement(case, "system-out").text = f"{outcome.status}: {text}"
    for skip in verdict.skips:
        ElementTree.SubElement(_case(suite, skip.subject), "skipped", {"message": printable(skip.reason)})
    lines = [headline(verdict), knowledge(verdict), *map(cause_text, verdict.causes)]
    ElementTree.SubElement(suite, "system-out").text = printable("\n".join(filter(None, lines)))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    attributes = {"classname": "tracelens.gate", "name": printable(name), "time": "0"}
    return ElementTree.SubElement(suite, "testcase", attributes)
