"""A verdict as JUnit XML: one test case per rule."""

from __future__ import annotations

from xml.etree import ElementTree

from tracelens.compare.gate.gate import Verdict
from tracelens.compare.gate.verdict import sentence
from tracelens.printable import printable


def junit(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML, which CI systems show as tests.

    A failed rule is a failure, a rule that could not be checked is skipped; the values are each case's
    output.
    """
    counts = {
        "tests": str(len(verdict.outcomes) + len(verdict.skips)),
        "failures": str(len(verdict.failed)),
        "errors": "0",
        "skipped": str(len(verdict.skips)),
        "time": "0",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "tracelens gate", **counts})
    for outcome in verdict.outcomes:
        case = _case(suite, str(outcome.rule))
        text = _plain(sentence(outcome))
        if outcome.status == "fail":
            failure = ElementTree.SubElement(case, "failure", {"message": text, "type": "regression"})
            failure.text = text
        ElementTree.SubElement(case, "system-out").text = f"{outcome.status}: {text}"
    for skip in verdict.skips:
        ElementTree.SubElement(_case(suite, skip.subject), "skipped", {"message": _plain(skip.reason)})
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", {"classname": "tracelens.gate", "name": _plain(name), "time": "0"}
    )


def _plain(text: str) -> str:
    """Text of characters that XML 1.0 allows (https://www.w3.org/TR/xml/#charsets)."""
    return printable(text)
