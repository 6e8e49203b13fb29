"""Mutants, hostile and damaged traces are the same to the native core and to Python."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.effort import THOROUGH, effort
from tests.fuzz.mutate import mutant
from tests.fuzz.sources import SOURCES
from tests.hostile.traces import write_run
from tests.read.cores import check_cores
from tracelens.native import core

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(core() is None, reason="the native core is not built")


# Whatever a mutation does, it leaves JSON, which the cores rarely read differently: damage has more numbers.
@pytest.mark.parametrize("number", range(effort(10, 500)))
def test_mutants(tmp_path: Path, number: int) -> None:
    names = [name for name in SOURCES if not SOURCES[name].missing]
    path = tmp_path / "mutant.json"
    for document in mutant(11, number, names).documents():
        path.write_text(json.dumps(document))
        check_cores(path)


def test_hostile_texts(tmp_path: Path) -> None:
    for path in sorted(write_run(tmp_path / "run").glob("rank*.json")):
        check_cores(path)


@pytest.mark.parametrize("number", range(effort(20, 500)))
def test_damage(tmp_path: Path, number: int) -> None:
    """Some bytes of a recording are lost, repeated or changed; or it ends."""
    rng = random.Random(number)
    (document, *_) = mutant(12, number, [name for name in SOURCES if not SOURCES[name].missing]).documents()
    text = bytearray(json.dumps(document, indent=rng.choice((None, 1))).encode())
    for _ in range(rng.choice((1, 3, 30))):
        begin = rng.randrange(len(text))
        end = begin + rng.choice((0, 1, 1, 100))
        text[begin:end] = rng.choice((b"", b'"', b"\\", b"]", b"\xff", text[begin : begin + 300]))
    path = tmp_path / "damaged.json"
    path.write_bytes(text[: rng.choice((len(text), rng.randrange(len(text))))])
    check_cores(path)


@pytest.mark.rare
def test_recordings(corpus: Path) -> None:
    # The ranks of a run are written by one program: the first stands for them.
    files = sorted(
        path
        for path in corpus.rglob("*.json*")
        if THOROUGH or (path.stat().st_size < 2_000_000 and re.match(r"rank0\.|(?!rank\d)", path.name))
    )
    assert files
    for path in files:
        check_cores(path)
