"""Texts that users read keep to the field's terms, idiomatic English and American spelling.

The lists name what each retired wording is replaced by; STYLE of this project: short, active, present tense.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.rendering import sample
from tracelens.rendering.formats.console import console
from tracelens.rendering.formats.html import files as html_files
from tracelens.rendering.formats.markdown import markdown
from tracelens.table.result import Report

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tracelens"
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/how-to/extend.md",
    "SECURITY.md",
    "sample_traces/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)
PER = r"[kMG]?B|times?|ones?|rows?|runs?|recordings?|values?|calls?|kernels|tokens|lanes?|files?|draws|bars?"
OF = r"rank|step|side|layer|call|core|second|stage|process|column|cell|name|file|value|thread|kernel"

RETIRED = {
    r"\bmeanwhile\b": "at that time, during",
    r"\bbeside\b": "next to, overlapped by, in addition to",
    r"\bso that\b": "a semicolon, or to",
    r"(?<!no )\bsuch (?:a|an|calls?|steps?|ranks?|traces?|kernels?|rows?|times?)\b": "this, these",
    r"\bwould do\b|\bwhich nobody\b|\bfor the eye\b": "a plain statement",
    r"\btold\b|\b(?:is|are|was|were) (?:asked|given)\b|\bgiven\b": "known, passed, specified",
    r"\b(?:the|of|token|tokens') exchange\b": "all-to-all",
    r"\bmatrix products?\b|\bproducts of matrices\b": "GEMM",
    r"\b(?:in|no|a|of) fills?\b": "memset",
    r"\bpieces? of (?:GPU )?work\b": "kernels and copies",
    r"\bcache of keys\b": "KV cache",
    r"\bby chance\b|\b(?:a|the) chance\b": "p-value, by coincidence",
    r"\blockstep\b|\bclimbs?\b|\bhinders?\b": "global steps, ladder runner, fault injection",
    r"\blasts\b|\btakes in\b|\btakes longest\b": "takes, runs",
    r"\bin all(?=[;,.)]|$)": "in total",
    r"\b(?:the|its|their|a|at|of) begin\b(?! with)": "start",
    r"\bone after the other\b": "sequential",
    r"(?:^|[,;] )of it\b": "part of it, of that",
    r"\bmend(?:s|ed)?\b": "repaired, fixed",
    r"\banew\b": "again",
    r"\bbelieve[sd]?\b": "trusted",
    r"\bquickest\b": "fastest",
    r"\bby levels\b": "hierarchical",
    r"\b(?:is|are) not whole\b(?! elements)": "incomplete",
    r"\b(?:that|which|who) (?:is|are) no (?!longer)\w+\b": "not a",
    r"\bis not known\b|\bare not known\b|\bin a layout that\b": "unknown",
    r"\bhas to be\b|\bhave to be\b": "must be",
    r"\boutside of\b|\binside of\b": "outside, inside",
    r"\bhold (?:rules )?against\b|\bheld against\b": "compare with, check",
    rf"\b(?:{PER}) an? (?:{OF})\b": "per",
    r"\bdoes? the rest\b|\bsays? (?:why|what) and\b": "a plain statement",
    r"\bwith most\b(?! of)": "with the most",
}
SPELLING = {
    r"(?<![-\w])(?:un)?(?:optimi|utili|normali|synchroni|seriali|initiali|summari|organi|recogni|minimi|maximi|"
    r"vectori|quanti|paralleli|generali|materiali)s(?:e[drs]?|ing|ations?)\b": "-ize",
    r"\banaly(?:sed|ser|sers|sing)\b": "analyze",
    r"\b(?:colou|behaviou|neighbou|favou)r\w*": "-or",
    r"\b(?:label|model|cancel|travel)l(?:ed|ing)\b": "one l",
    r"\b(?:centres?|licences?|artefacts?|programmes?|catalogues?|grey|whilst)\b": "American spelling",
    r"\b(?:seperat|occured|recieve|existan|neccess|accross|refered|transfered|begining|comparision|paralel|"
    r"lenght|explicitely|succesful|agains\b|recomend|wich\b|teh\b|maximun|threshhold|sucess|independan)\w*": (
        "a misspelling"
    ),
}
ALLOWED = ("reason given", "reasons given", "modelled fraction", "time  modelled")
"""Names in JSON, as they are shown; they change only with its version."""

CODE = re.compile(
    r"\\[bdswWDS]|\(\?|^\s*(?:from|import|def|return|for|dist|torch)\b|[=\[({]\w+\(|[\w)] [*+] \w+\["
)
SHOWN_DOCSTRINGS = ("analyzer", "detector", "scenario", "command", "parser", "renderer")


def complaints(text: str) -> list[str]:
    """What is wrong with a text: the wording and what to write instead."""
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    text = re.sub(r"`[^`\n]*`", "`", text)
    return [
        f"{match[0]!r} in {text[max(match.start() - 50, 0) : match.end() + 40]!r}: write {instead}"
        for pattern, instead in (RETIRED | SPELLING).items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def _text(node: ast.AST) -> str | None:
    """A string as written; what an f-string inserts is an ellipsis."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def _docstring(node: ast.AST) -> ast.AST | None:
    body = getattr(node, "body", None)
    return body[0].value if isinstance(body, list) and body and isinstance(body[0], ast.Expr) else None


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of a module that users can meet: all but docstrings, names, patterns and code.

    Docstrings of decorated functions count where they are shown: by `list`, in reports and as help.
    """
    tree = ast.parse(source)
    hidden: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for line in body if isinstance(body, list) else ():
            if isinstance(line, ast.Expr):
                hidden.add(id(line.value))
        decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
        if (doc := _docstring(node)) and any(k in each for each in decorators for k in SHOWN_DOCSTRINGS):
            yield doc.lineno, str(_text(doc)).split("\n\n")[0]
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        text = _text(node)
        if text is None:
            waiting.extend(ast.iter_child_nodes(node))
        elif id(node) not in hidden and " " in text.strip() and not CODE.search(text):
            yield node.lineno, text  # type: ignore[attr-defined]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def prose(page: str) -> str:
    """A Markdown page without code; of the changelog what is not released."""
    page = page.split("\n## [0")[0]
    return re.sub(r"^```.*?^```|^<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "wrong", ["it runs beside it", "3 runs a side", "20 ms, of it 3", "optimised", "the exchange"]
)
def test_retired_wordings_are_reported(wrong: str) -> None:
    assert complaints(wrong)


@pytest.mark.parametrize(
    "right", ["such as 3", "a `beside_ns` column", "--optimised", "reason given", "analyses"]
)
def test_names_and_idioms_are_not(right: str) -> None:
    assert not complaints(right)


def test_what_counts_as_a_text() -> None:
    function = '@analyzer("b")\ndef f():\n    """Why?\n\n    No."""\n    raise E(f"c {x} d")\n'
    source = f'"""No."""\nx = "a name"\n{function}'
    assert sorted(texts(source)) == [(2, "a name"), (5, "Why?"), (8, "c … d")]


@pytest.mark.parametrize("room", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name[0] != "_"))
def test_texts_of_the_package(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in files
        for line, text in texts(path.read_text())
        for complaint in complaints(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_texts_of_modules_outside_the_rooms() -> None:
    found = [(path.name, text) for path in PACKAGE.glob("*.py") for _, text in texts(path.read_text())]
    assert found
    wrong = [f"{name}: {complaint}" for name, text in found for complaint in complaints(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.toml")), ids=lambda path: path.name)
def test_texts_in_toml_files(path: Path) -> None:
    shown = [
        text for text in _strings(tomllib.loads(path.read_text())) if " " in text and not CODE.search(text)
    ]
    wrong = [complaint for text in shown for complaint in complaints(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    wrong = complaints(prose((ROOT / page).read_text()))
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def recorded() -> Report:
    return tracelens.report(tracelens.load(ROOT / "sample_traces/one_gpu/loop/rank0.json.gz"))


def visible(page: str) -> str:
    """The text of an HTML page, and its titles and labels."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    hints = re.findall(r'(?:title|aria-label)="([^"]*)"', page)
    return "\n".join([re.sub(r"<[^>]*>", "\n", page), *hints])


def test_rendered_reports(recorded: Report) -> None:
    for report in (sample.report(), recorded):
        page = html_files(report)["report.html"].decode()
        shown = {"console": console(report, width=100), "markdown": markdown(report), "html": visible(page)}
        wrong = [f"{name}: {complaint}" for name, text in shown.items() for complaint in complaints(text)]
        assert not wrong, "\n".join(wrong)
