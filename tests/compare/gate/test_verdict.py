"""A verdict as tables, XML and annotations, also of names that mean harm."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from tests.compare.gate.gate_sides import side
from tracelens.compare.gate import Verdict, commands, gate, headline, junit, read_rule, report
from tracelens.compare.gate.verdict import result, sentence
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import markdown_text

HOSTILE = "op[</failure>]]>&\"'\x00\x1b\ud800|`<img src=x>\n::error::%0A,\u202e].time"


def verdict_of(*rules: str) -> Verdict:
    base = side(
        "a|b.json", metrics={"step.time": [100e6, 102e6], "kernel.count": [5, 5], HOSTILE: [1e6, 1e6]}
    )
    metrics = {"step.time": [101e6, 103e6], "kernel.count": [6, 6], HOSTILE: [2e6, 2e6]}
    return gate(base, side("cand", metrics=metrics), [read_rule(rule) for rule in rules])


EVERY = ("step.time<=1.0", "kernel.count<=1.0", "kernel.count<=+2", f"{HOSTILE}<=1.5")


def test_failed_rules_stand_first() -> None:
    verdict_result = result(verdict_of(*EVERY))
    assert verdict_result["verdict"]["result"].tolist() == ["fail", "fail", "inconclusive", "pass"]
    assert verdict_result["figures"]["status"].tolist() == ["inconclusive", "fail", "pass", "fail"]
    assert verdict_result.meta["verdict"] == "fail"
    row = verdict_result["verdict"].iloc[0]
    assert (row["rule"], row["base"], row["candidate"], row["measured"]) == (
        "kernel.count<=1",
        "5",
        "6",
        "1.2",
    )
    words, _, parts = headline(verdict_of(*EVERY)).partition(": ")
    assert words == "regression, 2 of 4 rules failed, 1 inconclusive"
    assert parts.startswith("+1 kernels per step, op[")
    assert parts.endswith("; step time inconclusive")
    assert headline(verdict_of("kernel.count<=2")) == "no regression, 1 of 1 rule held"


@pytest.mark.parametrize(
    ("rule", "shown", "change", "may_show"),
    [
        ("step.time<=1.5", 4.39, "+339%", True),
        ("step.time<=1.5", 1.6012, "+60%", True),
        ("step.time<=1.5", 14.4, "+1,340%", True),
        ("idle.fraction<=+0.5", 0.61, "+61% of the step", True),
        ("idle.fraction<=+0.5", 1.3, "of the step", False),
    ],
)
def test_what_would_show_is_in_plain_numbers_and_possible(
    rule: str, shown: float, change: str, may_show: bool
) -> None:
    metrics = {"step.time": [100e6, 102e6], "idle.fraction": [0.1, 0.1]}
    verdict = gate(side("base", metrics=metrics), side("cand", metrics=metrics), [read_rule(rule)])
    noisy = replace(verdict, outcomes=(replace(verdict.outcomes[0], shown=shown, status="pass"),))
    for text in (headline(noisy), sentence(noisy.outcomes[0])):
        assert (f"from {change} on" in text) == may_show
        assert ("no change" in text) != may_show
        assert "e+0" not in text


def test_a_sentence_has_all_numbers() -> None:
    sentences = [sentence(outcome) for outcome in verdict_of(*EVERY).outcomes]
    assert sentences[0].startswith(
        "step.time: 101 ms to 102 ms per step, ratio 1.01, allowed at most 1; interval "
    )
    assert sentences[0].endswith(
        "from 1 and 1 runs of 2 and 2 steps; too noisy to tell; noise between runs assumed; "
        "more than 20 runs a side would be needed"
    )
    assert sentences[2] == "kernel.count: 5 to 6 per step, difference +1, allowed at most +2"


def test_junit_is_well_formed_whatever_the_names() -> None:
    verdict = verdict_of(*EVERY)
    root = ElementTree.fromstring(junit(verdict))
    (suite,) = root
    *cases, causes = list(suite)
    assert causes.text.startswith("regression, 2 of 4 rules failed")
    assert suite.attrib["tests"] == "4"
    assert (suite.attrib["failures"], suite.attrib["skipped"], suite.attrib["errors"]) == ("2", "0", "1")
    assert [[part.tag for part in case] for case in cases] == [
        ["error", "system-out"], ["failure", "system-out"], ["system-out"], ["failure", "system-out"],
    ]  # fmt: skip
    assert cases[1].attrib["name"] == "kernel.count<=1"
    assert "kernel.count: 5 to 6 per step, ratio 1.2" in cases[1][0].attrib["message"]
    assert "</failure>]]>&\"'" in cases[3].attrib["name"]


def test_junit_of_rules_that_were_left_out() -> None:
    run = side(metrics={"step.time": [1, 1]})
    (suite,) = ElementTree.fromstring(junit(gate(run, run)))
    assert (suite.attrib["tests"], suite.attrib["skipped"]) == ("9", "8")
    assert [case[0].tag for case in list(suite)[:-1]] == ["system-out"] + 8 * ["skipped"]


def test_annotations_are_one_line_each() -> None:
    lines = list(commands(verdict_of(*EVERY)))
    assert [line.partition(" ")[0] for line in lines] == ["::warning", "::error", "::error", "::notice"]
    assert lines[-1].startswith(
        "::notice title=tracelens gate::regression, 2 of 4 rules failed, 1 inconclusive: "
    )
    for line in lines:
        assert "\n" not in line
        assert "\r" not in line
        line.encode()
        head, _, _ = line[2:].partition("::")
        assert head.count(":") == head.count(",") == 0
    assert "%250A" in lines[2]


def test_markdown_of_hostile_names() -> None:
    text = markdown_text(report(verdict_of(*EVERY), version="1", inputs=["a|b.json", "c"]))
    assert text.startswith("# tracelens gate\n\n**Regression: 2 of 4 rules failed, 1 inconclusive: ")
    rows = [line for line in text.splitlines() if line.startswith("| fail")]
    assert len(rows) == 2
    assert "<img" not in text
    assert "a\\|b.json" in text


@pytest.mark.parametrize("name", [name for name, _ in RENDERERS.items()])
def test_every_renderer_takes_a_verdict(name: str) -> None:
    verdict_report = report(verdict_of(*EVERY, "step.time<=0"), version="1", inputs=["a", "b"])
    assert RENDERERS.get(name).files(verdict_report)
