"""What is taken out of a recorded trace, without torch."""

from __future__ import annotations

import pytest

from tracelens.errors import TracelensError
from tracelens.recording.pack import import_path, scrub


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/v/lib/python3.12/site-packages/torch/nn/module.py", "torch/nn/module.py"),
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", "numpy/__init__.py"),
        ("/usr/lib/python3.12/contextlib.py", "contextlib.py"),
        ("/home/me/src/tracelens/workload/model.py", "tracelens/workload/model.py"),
        ("/home/me/mine.py", "mine.py"),
    ],
)
def test_a_path_is_cut_at_its_import_root(path: str, short: str) -> None:
    assert import_path(path) == short


def test_scrub_changes_names_and_nothing_else() -> None:
    text = """{"host_name": "node17", "traceEvents": [
  {"ph": "X", "cat": "python_function", "name": "/v/lib/python3.12/site-packages/torch/a.py(7): <listcomp>",
   "ts": 4366499063796.2891, "dur": 1.0},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 1.0}
  ],"traceName": "/home/me/x.json"}"""
    expected = """{"host_name": "host", "traceEvents": [
  {"ph": "X", "cat": "python_function", "name": "torch/a.py(7): <listcomp>",
   "ts": 4366499063796.2891, "dur": 1.0},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 1.0}
  ],"traceName": "x.json.gz"}"""
    assert scrub(text, "x.json.gz") == expected


def test_scrub_refuses_a_path_it_cannot_shorten() -> None:
    with pytest.raises(TracelensError, match="still contains a path of this machine: '/home/me/data'"):
        scrub('{"dataset": "/home/me/data"}', "x.json.gz")
