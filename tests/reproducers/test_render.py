"""A script that is more than its template and data is refused, whichever way the text came into it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from jinja2 import DictLoader, Environment, StrictUndefined, UndefinedError

from tests.reproducers.calls import called, case_of, trace_of
from tracelens.reproducers import replay
from tracelens.reproducers.arguments import Unreplayable
from tracelens.reproducers.scripts import UNFAITHFUL, Kit, SourceText, difference, is_outline, render, script
from tracelens.trace import make_run

rendering = import_module("tracelens.reproducers.scripts")  # the package exports its function

HEAD = "# -*- coding: utf-8 -*-\n"


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Renders a template that is given as text."""

    def rendered(source_text: str, /, **data: Any) -> str:
        environment = Environment(
            loader=DictLoader({"t": source_text}), undefined=StrictUndefined, keep_trailing_newline=True
        )
        monkeypatch.setattr(rendering, "_environment", lambda: environment)
        return render("t", {}, **data)

    return rendered


def test_data_stands_in_expressions(template: Any) -> None:
    data = {"text": "a\n# -*-", "number": -1.5, "items": [1, "x", (None, True)]}
    text = template(HEAD + "x = {{ text }}\ny, z = {{ number }}, f({{ items }})\n", **data)
    assert text == HEAD + 'x = "a\\n# -*-"\ny, z = -1.5, f([1, "x", (None, True)])\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# {{ text }}\n", "comments"),
        ("x = 1  # {{ text }}\n", "comments"),
        ('"""{{ text }}"""\n', "parse"),
        ("'''{{ text }}'''\n", "tree"),
        ("x = '{{ text }}'\n", "tree"),
        ("x = f'{{ text }}'\n", "tree"),
        ("{{ text }} = 1\n", "parse"),
        ("x.{{ text }} = 1\n", "parse"),
        ("import {{ text }}\n", "parse"),
        ("def {{ text }}(): pass\n", "parse"),
        ("f({{ text }}=1)\n", "parse"),
        ("x = {{ text[1:-1] }}\n", "tree"),
        ("x = {{ text | replace('\"', '') }}\n", "tree"),
        ("x = {{ text | upper | lower }}\n", "tree"),
        ("{% if 'pl' in text %}x = 1{% endif %}\n", "tree"),
        ("{% for letter in text %}f()\n{% endfor %}\n", "tree"),
    ],
)
def test_a_template_that_takes_text_in_another_way_is_refused(text: str, why: str, template: Any) -> None:
    with pytest.raises(Unreplayable, match=f"{UNFAITHFUL}.*{why}"):
        template(HEAD + text, text="plain")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n",
        "# -*- coding: utf-7 -*-\n",
    ],
)
def test_a_template_without_the_fixed_first_line_is_refused(head: str, template: Any) -> None:
    with pytest.raises(Unreplayable, match="first line"):
        template(f"{head}x = {{{{ text }}}}\n", text="plain")


@pytest.mark.parametrize(
    "text",
    [
        "f()",
        "x",
        "__import__('os')",
        "strided(open('x'))",
        "strided(x=1)",
        "float('1')",
        "1; import os",
        "1\nimport os",
        "1  # x",
        "lambda: 0",
        "[open(_) for _ in range(3)]",
        "[1 for _ in open('x')]",
        "[1 for x in range(3)]",
        "f'{x}'",
        "'a' + 'b'",
        "[1] + x",
        "[1] + open('x')",
        "1 if x else 2",
        "{**x}",
        "[*x]",
        "x.y",
        "x[0]",
        "(yield)",
        "1 and 2",
        "-x",
        "'\xe9'",
        "'\x00'",
        "(" * 500 + ")" * 500,
    ],
)
def test_source_that_is_no_data_is_refused(text: str, template: Any) -> None:
    with pytest.raises(Unreplayable, match=UNFAITHFUL):
        template(HEAD + "x = {{ source }}\n", source=SourceText(text))


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-1",
        'float("nan")',
        "[1] * 3",
        "[1] * 3 + [2]",
        "each(strided, 'a', 0) + each(strided, 'b', 1)",
        "[strided('a', (1,), ()) for _ in range(3)]",
        "{'a': 1.5}",
        "(n, m)",
    ],
)
def test_source_of_data_is_taken(text: str, template: Any) -> None:
    assert template(HEAD + "x = {{ source }}\n", source=SourceText(text)) == f"{HEAD}x = {text}\n"


def test_statements_are_those_of_their_outline(template: Any) -> None:
    good = SourceText(
        'for n in [1, 2]:\n    # experts\n    yield "a", n',
        "for n in DATA:\n    # experts\n    yield DATA, DATA",
    )
    assert template(HEAD + "{{ calls }}\n", calls=good)
    for text in (
        good.text + "\nimport os",
        good.text.replace("experts", "x"),
        good.text.replace("[1, 2]", "f()"),
    ):
        with pytest.raises(Unreplayable, match=UNFAITHFUL):
            template(HEAD + "{{ calls }}\n", calls=good._replace(text=text))


@pytest.mark.parametrize(
    "outline", ["import os", "# x", "f(DATA)", "DATA\\", "'x'", "yield_", "DATAx", "# router x"]
)
def test_an_outline_holds_no_data(outline: str, template: Any) -> None:
    assert not is_outline(outline)
    with pytest.raises(TypeError, match="the outline of source contains data"):
        template(HEAD + "{{ source }}\n", source=SourceText("1", outline))


@pytest.mark.parametrize("choice", ["text", 7, None, frozenset({"open"}), {"kit": True}])
def test_the_structure_depends_on_no_text(choice: Any) -> None:
    with pytest.raises(TypeError, match="kit may not affect the structure of a script"):
        render("op.py.j2", {"kit": choice})


def test_a_template_misses_nothing() -> None:
    with pytest.raises(UndefinedError):
        render(
            "op.py.j2",
            {"kit": Kit(), "library": False, "kinds": frozenset(), "complex": False},
            op="aten::mm",
        )


def test_encodings_are_read_as_python_reads_them() -> None:
    # Line 2 turns the comment behind it into code.
    script = "#!/usr/bin/env python3\n# coding:raw_unicode_escape\n# \\u000ax = 1\n"
    assert difference(script.encode(), script) != ""
    outline = HEAD + "# comment\n"
    assert (
        difference((HEAD + "# \\u000ax = 1\n").encode(), outline) == "its comments differ from the template's"
    )
    assert difference(outline.encode(), outline) == ""


def test_one_script_that_is_refused_is_a_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    real = rendering.difference
    monkeypatch.setattr(
        rendering,
        "difference",
        lambda text, outline: "it differs" if b"relu" in text else real(text, outline),
    )
    calls = called("aten::mm", "bf16 64 32", "bf16 32 16"), called("aten::relu", "fp32 4")
    found = replay(make_run([trace_of(*calls)]), tmp_path / "out")
    assert found.data["scripts"].texts("subject") == ["aten::mm"]
    (skip,) = found.skips
    assert (skip.subject, skip.reason) == (
        "aten::relu fp32[4]", f"{UNFAITHFUL}it differs; please report this as a bug"
    )  # fmt: skip
    with pytest.raises(Unreplayable, match="it differs"):
        script(case_of(calls[1]))
