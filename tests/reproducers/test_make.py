"""From a run to a directory: how many, in which order, and what is told of the rest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.builders import aligned, draw, draw_run
from tests.reproducers.calls import H100, called, trace_of
from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.reproducers import ReplaySelection, replay
from tracelens.reproducers.arguments import INDICES_UNKNOWN, LONG_LIST
from tracelens.reproducers.folder import read
from tracelens.reproducers.make import TOP
from tracelens.table import Result
from tracelens.trace import Run, make_run

MM = ("aten::mm", "bf16 4096 4096", "bf16 4096 4096")
RELU = ("aten::relu", f"bf16 {1 << 20}")
LIBRARY = ("mylib::f", "fp32 4")
MANY = called("aten::_foreach_add_", [], [], -0.001, us=3)
INDEX = called("aten::index", "fp32 100 8", None, us=2)


def run_of(*calls: Any, **options: Any) -> Run:
    return make_run([trace_of(*calls, **options)])


def subjects(found: Result) -> list[str]:
    return found.data["scripts"].texts("subject")


def numbers(found: Result, column: str) -> list[Any]:
    return found.data["scripts"].array(column).tolist()


def test_scripts_come_in_order_of_time(tmp_path: Path) -> None:
    run = run_of(called(*LIBRARY, us=1), called(*MM, us=120), called(*RELU, us=40), called(*RELU, us=42))
    found = replay(run, tmp_path / "new" / "folder")
    assert subjects(found) == ["aten::mm", "aten::relu", "mylib::f"]
    names = ["01_aten_mm.py", "02_aten_relu.py", "03_mylib_f.py"]
    assert found.data["scripts"].texts("file") == names
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [*names, "replay.json"]
    assert numbers(found, "count") == [1, 2, 1]
    assert numbers(found, "traced_ns") == [120_000, 41_000, 1000]
    assert numbers(found, "total_ns") == [120_000, 82_000, 1000]
    assert numbers(found, "fraction_of_gpu_time") == pytest.approx([120 / 203, 82 / 203, 1 / 203])
    assert found.meta["fraction_of_gpu_time"] == pytest.approx(1)
    assert (found.analyzer, found.meta["not_written"], found.skips) == ("replay", 0, ())


def test_the_list_says_the_same(tmp_path: Path) -> None:
    replay(run_of(called(*MM, us=120), called(*RELU, us=40), INDEX), tmp_path)
    first, second = read(tmp_path)
    assert asdict(first) == {
        "file": "01_aten_mm.py",
        "kind": "op",
        "subject": "aten::mm",
        "shapes": "bf16[4096,4096] bf16[4096,4096]",
        "count": 1,
        "traced_us": 120.0,
        "total_us": 120.0,
        "processes": 1,
        "sha256": hashlib.sha256((tmp_path / first.file).read_bytes()).hexdigest(),
        "ages": (),
        "source": "",
    }
    assert second.file == "02_aten_relu.py"
    (skip,) = json.loads((tmp_path / "replay.json").read_text())["skips"]
    assert INDICES_UNKNOWN in skip["reason"]


def test_the_first_ones_only(tmp_path: Path) -> None:
    calls = [called("aten::exp", f"bf16 {size}", us=size) for size in range(1, 31)]
    found = replay(run_of(*calls), tmp_path / "a")
    assert (len(subjects(found)), TOP, found.meta["not_written"]) == (20, 20, 10)
    assert numbers(found, "total_ns") == [1000 * size for size in range(30, 10, -1)]
    assert found.meta["fraction_of_gpu_time"] == pytest.approx(sum(range(11, 31)) / sum(range(1, 31)))
    found = replay(run_of(*calls), tmp_path / "b", top=3)
    assert (len(subjects(found)), found.meta["not_written"]) == (3, 27)
    found = replay(run_of(*calls), tmp_path / "c", top=None)
    assert (len(subjects(found)), found.meta["not_written"]) == (30, 0)


def test_what_cannot_be_made_leaves_room_for_others(tmp_path: Path) -> None:
    calls = [called("aten::index", f"fp32 {size} 8", None, us=9) for size in (7, 8)]
    found = replay(run_of(*calls, called(*MM, us=5), called(*RELU, us=4)), tmp_path, top=1)
    assert (subjects(found), found.meta["not_written"]) == (["aten::mm"], 1)


def test_what_could_be_won_back(tmp_path: Path) -> None:
    # The product: 2 * 4096 ** 3 operations at 1307.4e12 a second are 105.1 us, of 120 it could lose 14.9.
    # The relu: 4 MiB at 5.325e12 bytes a second are 0.8 us, of 2 * 20 it could lose 38.4.
    run = run_of(called(*MM, us=120), called(*RELU, us=20), called(*RELU, us=20), called(*LIBRARY, us=500))
    assert subjects(replay(run, tmp_path / "a")) == ["mylib::f", "aten::mm", "aten::relu"]
    found = replay(run, tmp_path / "b", order="recoverable")
    # Of the last one nothing is known.
    assert subjects(found) == ["aten::relu", "aten::mm"]
    # A hundred times slower product is worth more.
    slow = run_of(called(*MM, us=12_000), called(*RELU, us=20))
    assert subjects(replay(slow, tmp_path / "c", order="recoverable")) == ["aten::mm", "aten::relu"]


def test_of_another_device(tmp_path: Path) -> None:
    # On an MI355X the product takes 2 * 4096 ** 3 / 2516.6e12 = 54.6 of 100 us, on an MI300X more than all.
    run = run_of(called(*MM, us=100), called(*RELU, us=30))
    assert subjects(replay(run, tmp_path / "a", order="recoverable")) == ["aten::relu", "aten::mm"]
    found = replay(run, tmp_path / "b", order="recoverable", device=device("mi355x"))
    assert subjects(found) == ["aten::mm", "aten::relu"]


def test_an_unknown_device_has_no_roofline(tmp_path: Path) -> None:
    run = run_of(called(*MM), device="Some GPU")
    with pytest.raises(TracelensError, match=r"no roofline: .*no known device.*--device"):
        replay(run, tmp_path, order="recoverable")
    assert len(subjects(replay(run, tmp_path, order="recoverable", device=device("h100")))) == 1


def test_nothing_with_a_roofline(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="roofline"):
        replay(run_of(called(*LIBRARY)), tmp_path, order="recoverable")


def test_all_time_without_a_script_is_told(tmp_path: Path) -> None:
    graph = aligned("""
        launch cudaGraphLaunch | a
        s7 k                   |  aaaaa
    """)
    run = make_run([draw(graph, rank=1), trace_of(called(*MM, us=90), MANY, INDEX, rank=0)])
    found = replay(run, tmp_path)
    assert [skip.subject.partition(" (")[0] for skip in found.skips] == [
        "3.2% of GPU time",  # 3 of 95 us
        "2.1% of GPU time",
        "100.0% of GPU time",
    ]
    assert LONG_LIST in found.skips[0].subject + found.skips[0].reason
    assert INDICES_UNKNOWN in found.skips[1].reason
    assert "graph" in found.skips[2].subject
    assert found.meta["fraction_of_gpu_time"] == pytest.approx(90 / 100)


def test_of_what_was_asked_for_each_refusal_is_told(tmp_path: Path) -> None:
    more = [called("aten::index", f"fp32 {size} 8", None, us=1) for size in (50, 60)]
    run = run_of(called(*MM, us=90), MANY, INDEX, *more)
    found = replay(run, tmp_path, ReplaySelection(op="aten::index"))
    (skip,) = found.skips
    assert skip.subject == "aten::index fp32[100,8] and 2 more of other shapes"
    assert skip.reason == INDICES_UNKNOWN
    assert subjects(found) == []
    assert read(tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (ReplaySelection(op="aten::relu"), ["aten::relu"]),
        (ReplaySelection(op="aten::*", shapes=((4096, 4096),)), ["aten::mm"]),
        (ReplaySelection(module="experts"), ["aten::mm"]),
        (ReplaySelection(rank=0), ["aten::mm", "aten::relu"]),
        (ReplaySelection(at_ns=0), ["aten::mm"]),
        (ReplaySelection(shapes=((1 << 20,),)), ["aten::relu"]),
    ],
)
def test_what_is_asked_for(wanted: ReplaySelection, left: list[str], tmp_path: Path) -> None:
    run = run_of(called(*MM, us=120, scope="experts"), called(*RELU, us=40), rank=0)
    assert subjects(replay(run, tmp_path, wanted)) == left


def test_nothing_is_what_was_asked_for(tmp_path: Path) -> None:
    calls = [called(f"aten::{name}", "fp32 4", us=us) for us, name in enumerate("abcdefg", start=1)]
    with pytest.raises(TracelensError) as error:
        replay(run_of(*calls), tmp_path / "none", ReplaySelection(op="aten::mm"))
    assert str(error.value) == (
        "no call matches; the largest are aten::g, aten::f, aten::e, aten::d, aten::c"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("drawing", "said"),
    [
        ("launch | ---", "nothing can be replayed: there is no GPU work"),
        (
            "s7 k | ---",
            "nothing can be replayed: 100.0% of GPU time .3.0 µs.: launched before the recording",
        ),
    ],
)
def test_nothing_to_run_again(drawing: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=said):
        replay(make_run([draw(drawing)]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_scaled_sizes_have_no_traced_time(tmp_path: Path) -> None:
    found = replay(run_of(called(*MM, us=120), called(*LIBRARY, us=7)), tmp_path, max_elements=1 << 16)
    assert subjects(found) == ["aten::mm", "mylib::f"]
    assert numbers(found, "traced_ns") == [0, 7000]
    assert numbers(found, "total_ns") == [120_000, 7000]
    assert found.data["scripts"].texts("shapes") == ["bf16[4096,4096] bf16[4096,4096]", "fp32[4]"]
    assert [entry.traced_us for entry in read(tmp_path)] == [0.0, 7.0]


RECORD = "op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=50 out=50 dtype=BFloat16"
RANK = aligned(f"""
    {RECORD}                                                        | --
    op aten::mm shapes=[[4,4],[4,4]] types=["float","float"]        |    --
    launch                                                          | a  b
    s9 ncclDevKernel_AllReduce                                      |  aaaaaa
    s7 gemm                                                         |     bbb
""")


def test_collectives_are_among_them(tmp_path: Path) -> None:
    run = draw_run(RANK, RANK)
    found = replay(run, tmp_path)
    # Of the collective 6 us, which both ranks spend together; of the product 3 us on each.
    assert subjects(found) == ["aten::mm", "allreduce"]
    assert numbers(found, "total_ns") == [6000, 6000]
    table = {entry.subject: entry for entry in read(tmp_path)}
    assert (table["allreduce"].kind, table["allreduce"].processes) == ("collective", 2)
    assert (table["aten::mm"].kind, table["aten::mm"].processes, table["aten::mm"].count) == ("op", 1, 2)
    assert sorted(numbers(found, "processes")) == [1, 2]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (ReplaySelection(op="all*"), {"allreduce"}),
        (ReplaySelection(op="aten::*"), {"aten::mm"}),
        (ReplaySelection(op="*"), {"aten::mm", "allreduce"}),
        # These are about arguments, or one rank's own.
        (ReplaySelection(shapes=((4, 4),)), {"aten::mm"}),
        (ReplaySelection(rank=1), {"aten::mm"}),
    ],
)
def test_collectives_by_name(wanted: ReplaySelection, left: set[str], tmp_path: Path) -> None:
    assert set(subjects(replay(draw_run(RANK, RANK), tmp_path, wanted))) == left


def test_collectives_have_no_roofline(tmp_path: Path) -> None:
    run = draw_run(RANK, RANK, deviceProperties=[{"id": 0, "name": H100}])
    assert subjects(replay(run, tmp_path, order="recoverable")) == ["aten::mm"]


def test_progress_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    replay(run_of(called(*MM)), tmp_path, progress=said.append)
    assert said == ["finding calls", "finding collectives", "writing scripts"]


def test_the_same_trace_makes_the_same_files(tmp_path: Path) -> None:
    run = run_of(called(*MM, us=120), called(*RELU, us=40), called(*LIBRARY, us=40), INDEX)
    for name in ("a", "b"):
        replay(run, tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_without_notes_ages_come_from_what_ran_before(tmp_path: Path) -> None:
    """Bytes from the end of the call that wrote an argument, or touched it last, to the call.

    relu a     reads and writes 1 MiB                   a of none
    neg a      age 0
    mul a w    w is of 4 KiB, nobody wrote it
    relu B     reads and writes 128 MiB
    add a a    behind 256 MiB of others                 29 bits
    sqrt       behind 1 GiB more                        in no cache
    """
    a, w, big, huge = (f"fp32 {n}" for n in (1 << 18, 1 << 10, 1 << 25, 1 << 27))
    calls = (
        called("aten::relu", a), called("aten::neg", a), called("aten::mul", a, w),
        called("aten::relu", big), called("aten::add", a, a, 1), called("aten::relu", huge),
        called("aten::sqrt", a),
    )  # fmt: skip
    replay(run_of(*calls), tmp_path, top=None)
    ages = {(entry.subject, entry.shapes): entry.ages for entry in read(tmp_path)}
    assert ages["aten::neg", "fp32[262144]"] == (0,)
    assert ages["aten::mul", "fp32[262144] fp32[1024]"] == (0, None)
    assert ages["aten::add", "fp32[262144] fp32[262144]"] == (29, 29, None)
    assert all(age == () for (op, _), age in ages.items() if op in ("aten::relu", "aten::sqrt"))
