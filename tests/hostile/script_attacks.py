"""Traces whose text wants to become code in a script: each text in each place from which scripts take any.

A place is a function of one text; `PLAIN` in the place of an attack makes the trace that the hostile one is
held against.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tests.analysis.moe_traces import Model, record
from tests.builders import aligned, events, read
from tests.reproducers.calls import MI300X, called, trace_of
from tracelens.trace import Run, make_run

Event = dict[str, Any]
Place = Callable[[str], Run]

PLAIN = "plain"
CODE = "import os; os.system('touch PWNED')"
COOKIES = [
    "coding:raw_unicode_escape", "coding=unicode_escape", "-*- coding: utf-7 -*-", "vim:fileencoding=utf_16",
    "coding: punycode", "coding:rot13", "coding: no_such_codec", "coding:utf-8",
]  # fmt: skip
"""Declarations of an encoding, by which Python reads what stands behind them (PEP 263)."""
ATTACKS = [
    *COOKIES,
    f"\\u000a{CODE}\\u000a#", f"\\x0a{CODE}\\x0a", f"\\N{{LINE FEED}}{CODE}", f"+AAo-{CODE}+AAo-#",
    f"\n{CODE}\n", f"\r{CODE}\r", f"\r\n{CODE}\r\n#", f"\x0c{CODE}", f"\x0b\x1c\x1d\x1e\x85{CODE}",
    f"\u2028{CODE}\u2029", f'"; {CODE} #', f"'; {CODE} #", f'"""\n{CODE}\n"""', f"'''\n{CODE}\n'''",
    f'"); {CODE} #', f'\\"); {CODE} #', "\\", "\\\n", '\\"', "\\'", f'",\n]\n{CODE}\nABOUT = ["', "#",
    "# type: ignore", f"{{{{ cycler.__init__.__globals__.os.system({CODE!r}) }}}}", "{#", "{% raw %}",
    "{% include '/etc/passwd' %}", f"{{__import__('os').system({CODE!r})}}", "{0.__class__}", "%%(prog)",
    "%(prog)s %s %n %", "$(touch PWNED)`touch PWNED`", "../../../../PWNED", "__import__", "DATA",
    "DATA, DATA", "yield DATA", "strided", "n", "float", "\x00\x07\x1b[2J\x1b]0;PWNED\x07", "\ud800\udfff",
    "\ufeff", "é日本😀", "None", "1" * 900, "(" * 300, "a" * 5000, "", " ", "aten::mm", "lambda: 0",
    "exit()",
]  # fmt: skip
"""Of texts that are code, end a literal, a comment or a line, or mean something to Python or a template."""


def _call(change: Callable[[Event, str], None]) -> Place:
    """A place in the record of a call."""

    def place(text: str) -> Run:
        call = called("aten::sum", "fp32 4 4", 1, False)
        change(call.recorded, text)
        return make_run([trace_of(call)])

    return place


def _item(column: str, row: int, wrap: Callable[[str], Any] = str) -> Place:
    def change(recorded: Event, text: str) -> None:
        recorded[column][row] = wrap(text)

    return _call(change)


def cookie_and_code(text: str) -> Run:
    """A declared encoding by which text behind it, harmless as it stands, is a line of code."""
    call = called("aten::sum", "fp32 4 4", 1, False, kernel=f"k\\u000a{CODE}\\u000a#")
    call.recorded["Input Dims"][1] = [text]
    return make_run([trace_of(call)])


def _named(**names: str) -> Place:
    """The text as part of a name; {} is where."""

    def place(text: str) -> Run:
        given = {key: name.replace("{}", text) for key, name in names.items()}
        device, op = given.pop("device", MI300X), given.pop("op", "aten::mm")
        return make_run([trace_of(called(op, "bf16 64 32", "bf16 32 16", **given), device=device)])

    return place


def _library(text: str) -> Run:
    return make_run([trace_of(called(f"{text}::f", "fp32 4"), called("mylib::f", "fp32 4"))])


def _in_a_header(text: str) -> Run:
    found = events(aligned('op aten::relu shapes=[[4]] types=["float"] | --\nlaunch | a\ns7 k | aaa'))
    header: dict[str, Any] = {"trace_id": text, "displayTimeUnit": text, "distributedInfo": {"rank": text}}
    devices = [{"id": text, "name": text}, {"id": 0, "name": text}]
    return make_run([read(found, deviceProperties=devices, **{text: text, **header})])


OPS: dict[str, Place] = {
    "op": _named(op="aten::mm{}"),
    "op alone": _named(op="{}"),
    "namespace": _library,
    "kernel": _named(kernel="gemm{}"),
    "kernel alone": _named(kernel="{}"),
    "scope": _named(scope="{}"),
    "device": _named(device=MI300X + "{}"),
    "device alone": _named(device="{}"),
    "op, kernel, scope and device": _named(op="{}", kernel="{}", scope="{}", device="{}"),
    "shapes of a scalar": _item("Input Dims", 1, lambda text: [text]),
    "shape": _item("Input Dims", 0, lambda text: [text, 4]),
    "shape as text": _item("Input Dims", 0),
    "shapes": _call(lambda recorded, text: recorded.update({"Input Dims": text})),
    "type": _item("Input type", 0),
    "part of a type": _item("Input type", 0, lambda text: f"float{text}"),
    "type of a scalar": _item("Input type", 1),
    "types": _call(lambda recorded, text: recorded.update({"Input type": text})),
    "stride": _item("Input Strides", 0, lambda text: [text, 1]),
    "value": _item("Concrete Inputs", 1),
    "value in a list": _item("Concrete Inputs", 1, lambda text: f"[1, {text}]"),
    "cookie and code": cookie_and_code,
    "header": _in_a_header,
}  # fmt: skip

_RECORD = "op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=50 out=50 dtype=Half"


@cache
def _reduction() -> str:
    return json.dumps(events(aligned(f"""
        {_RECORD}                      | ---
        launch                         |  a
        s9 ncclDevKernel_AllReduce     |   aaa
    """)))  # fmt: skip


def _collective(*names: str, wrap: Callable[[str], Any] = str, kernel: str = "") -> Place:
    """A place in the record of a collective, on both of its ranks; or the name of its kernel."""

    def place(text: str) -> Run:
        found: list[Event] = json.loads(_reduction())
        for event in found:
            if event["name"] == "record_param_comms":
                event["args"] |= {name: wrap(text) for name in names}
            if kernel and event["cat"] == "kernel":
                event["name"] = kernel.replace("{}", text)
        device = MI300X + (text if kernel else "")
        header = {"deviceProperties": [{"id": 0, "name": device}]}
        return make_run(read(found, rank=rank, **header) for rank in (0, 1))

    return place


COLLECTIVES: dict[str, Place] = {
    "group": _collective("Process Group Name"),
    "description": _collective("Process Group Description"),
    "both, and a kernel": _collective(
        "Process Group Name", "Process Group Description", kernel="ncclDevKernel_AllReduce{}"
    ),
    "collective": _collective("Collective name"),
    "part of a collective": _collective("Collective name", wrap=lambda text: f"allreduce{text}"),
    "element type": _collective("dtype"),
    "ranks": _collective("Process Group Ranks"),
    "size": _collective("Group size", "In msg nelems"),
    "split sizes": _collective("In split size", "Out split size", wrap=lambda text: f"[{text}, 1]"),
}

_MODEL = Model(layers=1, order="F0", tokens=4, experts=4, shared="after", naming="torchtitan")


@cache
def _layer() -> Sequence[Event]:
    return record(_MODEL).events


def _sequence(change: Callable[[Event, str], None]) -> Place:
    """A place in each event of an MoE layer."""

    def place(text: str) -> Run:
        found = copy.deepcopy(list(_layer()))
        for event in found:
            change(event, text)
        return make_run([read(found, deviceProperties=[{"id": 0, "name": text}])])

    return place


def _kernel(event: Event, text: str) -> None:
    if event["cat"] == "kernel":
        event["name"] += text


def _frame(event: Event, text: str) -> None:
    if event["cat"] in ("user_annotation", "python_function"):
        event["name"] += text


def _silu(event: Event, text: str) -> None:
    if event["name"] == "aten::silu":
        event["name"] += text


def _scalar(event: Event, text: str) -> None:
    if event["name"] == "aten::topk":
        event["args"]["Input Dims"][1] = [text]


def _values(event: Event, text: str) -> None:
    if event["name"] == "aten::mm":
        event["args"]["Concrete Inputs"] = [text, text]


SEQUENCES: dict[str, Place] = {
    "kernels": _sequence(_kernel),
    "frames": _sequence(_frame),
    "an op": _sequence(_silu),
    "shape of a scalar": _sequence(_scalar),
    "values": _sequence(_values),
}


def traces(places: dict[str, Place], count: int) -> list[tuple[str, str]]:
    """So many pairs of a place and a text: all COOKIES and some more in each place, each text somewhere."""
    each = -(-count // len(places))
    rest = [text for text in ATTACKS if text not in COOKIES]
    pairs = [
        (place, text)
        for number, place in enumerate(places)
        for text in [*COOKIES, *(rest[(number * 11 + at) % len(rest)] for at in range(each - len(COOKIES)))]
    ]
    return pairs[:count]
