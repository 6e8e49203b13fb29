"""Every kernel, copy and memset of a rank with what the program says of it: op, shapes, module, stage."""

from __future__ import annotations

import re
import sys

import numpy as np

from tracelens.analysis.moe import STAGES, UNATTRIBUTED_NAME, regions
from tracelens.analysis.overview import MODULE_MARK, NO_SHAPE, module_frames, program_scopes, shape_texts
from tracelens.arrays import Bool, lookup
from tracelens.table import Coded, nearest
from tracelens.trace import Trace, Work

_FRAME = re.compile(r"^(?P<path>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3[^/]*)/")
_LIBRARIES = sys.stdlib_module_names | {"torch", "triton"}


def activity_texts(trace: Trace, work: Work) -> dict[str, Coded]:
    """What is known of each activity, one row each, "" where it is not.

    Args:
        trace: of the rank.
        work: any of its GPU work.

    Returns:
        name, category, op, shapes, module, stage and source; see the schema KERNELS.
    """
    events = trace.arrays
    names, unnamed = [*events.names, ""], len(events.names)
    shape, shapes = shape_texts(trace, work)
    columns = {
        "name": Coded.used(work.name, work.names),
        "category": Coded.used(work.category, work.categories),
        "op": Coded.used(lookup(events.name, work.op, unnamed), names),
        "shapes": Coded.used(shape, ["" if text == NO_SHAPE else text for text in shapes]),
        "module": _around(trace, work, _modules(trace), [_module(name) for name in names]),
        "stage": _stage(trace, work),
        "source": _source(trace, work),
    }
    return {
        name: Coded(column.codes.astype(np.int32, copy=False), column.values)
        for name, column in columns.items()
    }


def _modules(trace: Trace) -> Bool:
    frames = module_frames(trace)
    return frames if frames.any() else program_scopes(trace)


def _module(name: str) -> str:
    return name.removeprefix(MODULE_MARK)


def _around(trace: Trace, work: Work, marked: Bool, texts: list[str]) -> Coded:
    """Text of the innermost marked event around each piece's forward op, else around its call.

    Args:
        trace: of the rank.
        work: its work.
        marked: of each event.
        texts: of each name of events, and "" behind them.
    """
    events = trace.arrays
    around = nearest(events.parent, events.depth, marked)
    of_call, of_forward = (lookup(around, event, -1) for event in (work.host_call, work.forward))
    event = np.where(of_forward >= 0, of_forward, of_call)
    return Coded.used(lookup(events.name, event, len(texts) - 1), texts)


def _stage(trace: Trace, work: Work) -> Coded:
    texts = [*STAGES, UNATTRIBUTED_NAME, ""]
    positions = trace.arrays.places(trace.work.event)[work.event]
    stage = trace.once(regions).stage[positions]
    return Coded.used(np.where(stage >= 0, stage, len(texts) - 1), texts)


def _source(trace: Trace, work: Work) -> Coded:
    events = trace.arrays
    if not events.where("python").any():
        return Coded(np.zeros(len(work.event), dtype=np.int64), [""])
    texts = [user_frame(name) for name in events.names]
    is_user_code = np.array([text != "" for text in texts], dtype=bool)[events.name]
    return _around(trace, work, is_user_code & events.where("python"), [*texts, ""])


def user_frame(name: str) -> str:
    """A Python frame as "model.py:12 forward"; "" for one of Python, torch or Triton, and for other names.

    >>> user_frame("/venv/lib/python3.12/site-packages/megatron/core/router.py(91): forward")
    'megatron/core/router.py:91 forward'
    """
    frame = _FRAME.match(name)
    if frame is None:
        return ""
    path = _INSTALLED.sub("", frame["path"])
    if path.partition("/")[0].removesuffix(".py") in _LIBRARIES or path.startswith("<"):
        return ""
    return f"{path}:{frame['line']} {frame['function']}"
