"""Whether the native core and Python read the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict

from tracelens.errors import ParseError
from tracelens.native import PURE
from tracelens.read import open_source
from tracelens.read.json import Encoded, Splitter, decode_all


def plain(encoded: Encoded) -> dict[str, Any]:
    """All of it, codes of phases as phases: they are numbered as they come."""
    content = asdict(encoded)
    columns, ops = content.pop("columns"), content.pop("ops")
    phases = content.pop("phases")
    rows = {f"columns.{key}": getattr(columns, key) for key in columns._fields}
    rows |= {f"ops.{key}": getattr(ops, key) for key in ops._fields}
    rows["columns.phase"] = np.array([phases[code] for code in rows["columns.phase"].tolist()], dtype=object)
    return content | {key: (column.dtype, column.tolist()) for key, column in rows.items()}


def contents(path: Path, threads: int = 0) -> list[Any]:
    """All that is read of the traces in a file, or why it is refused."""
    try:
        splitters = [Splitter(source) for source in open_source(str(path))]
        return [
            plain(decode_all(splitter, threads=threads))
            | {"header": splitter.header, "tail": splitter.tail, "problems": splitter.problems}
            for splitter in splitters
        ]
    except ParseError as error:
        return [str(error)]


def check_cores(path: Path) -> None:
    """Read a file in pure Python, with the native core, and with that in two threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE, "1")
        expected = contents(path)
        patch.setenv(PURE, "")
        # Not equal by `==`: a header may hold NaN.
        assert repr(contents(path)) == repr(expected)
        assert repr(contents(path, threads=1)) == repr(expected)
