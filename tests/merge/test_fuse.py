"""All ranks in one file: nothing lost, nothing mixed up, and shown by a viewer."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.builders import draw, draw_run, events, read
from tests.merge.reading import check_for_viewer, check_same, load_json, process_names, read_back, slices
from tracelens.errors import TracelensError
from tracelens.merge import Slice, Track, fuse
from tracelens.trace import Run

RANK0 = """
    step 1                                            | -------------------
    step 2                                            |                    ----------
    op aten::mm shapes=[[2,3],[3,4]] types=["c10::BFloat16","c10::BFloat16"] | ----------
    launch                                            |  a     b              c
    driver                                            |  a
    s7 gemm                                           |     aaaaaa
    s7 unlinked                                       |           ---
    s9 ncclDevKernel_AllReduce                        |               bbbbbbbbb
    s7 copy bytes=64                                  |                       cc
"""
RANK1 = """
    step 1           | -------------------
    op aten::mm      |   ------------
    launch           |   a     b
    s7 gemm          |       aaaaaa
    s7 relu          |             bb
"""


def drawn(**options: Any) -> Run:
    """Two ranks whose processes, threads, streams, GPUs and correlation ids are the same."""
    texts = [line_up(text) for text in (RANK0, RANK1)]
    return draw_run(*texts, **options)


def line_up(text: str) -> str:
    """The bars of a drawing in one column."""
    rows = [line.partition("|") for line in text.splitlines() if line.strip()]
    width = max(len(label.rstrip()) for label, _, _ in rows)
    return "\n".join(f"{label.rstrip():{width}} |{line}" for label, _, line in rows)


def arguments(path: Path, process: str, name: str) -> list[dict[str, Any]]:
    """The arguments of every event of this name in a process."""
    events = load_json(path)["traceEvents"]
    names = process_names(events)
    return [
        event.get("args", {})
        for event in events
        if event["ph"] == "X" and event["name"] == name and names[event["pid"]] == process
    ]


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_every_event_of_every_rank_is_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / name
    run = drawn(start_ns=5_000_001)
    fuse(run, path)
    check_for_viewer(load_json(path))
    check_same(path, run)
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_processes_and_threads_are_named_in_order_of_rank(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    fuse(drawn(), path)
    data = load_json(path)
    assert list(slices(data)) == [
        ("rank 0: overview", "steps"),
        ("rank 0: host", "thread 1"),
        ("rank 0: GPU 0", "stream 7"),
        ("rank 0: GPU 0", "stream 9"),
        ("rank 1: overview", "steps"),
        ("rank 1: host", "thread 1"),
        ("rank 1: GPU 0", "stream 7"),
    ]
    order = {
        event["pid"]: event["args"]["sort_index"]
        for event in data["traceEvents"]
        if event["name"] == "process_sort_index"
    }
    names = process_names(data["traceEvents"])
    assert [names[pid] for pid in sorted(order, key=order.__getitem__)] == list(names.values())


def test_threads_keep_the_names_that_the_profiler_gave_them(tmp_path: Path) -> None:
    def op(pid: int | str, tid: int | str) -> dict[str, Any]:
        return {"ph": "X", "cat": "cpu_op", "name": "f", "pid": pid, "tid": tid, "ts": 1, "dur": 1}

    def name(pid: int, tid: int, text: str) -> dict[str, Any]:
        return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": text}}

    found = [op(5, 8), op(5, 5), op("Spans", "a"), name(5, 5, "main "), name(5, 8, "autograd")]
    fuse(Run((read(found, rank=3),)), tmp_path / "one.json")
    assert [thread for _, thread in slices(load_json(tmp_path / "one.json"))] == ["main", "autograd", "other"]
    found += [op(6, 5)]
    fuse(Run((read(found, rank=3),)), tmp_path / "two.json")
    assert list(slices(load_json(tmp_path / "two.json"))) == [
        ("rank 3: host", "main, process 5"),
        ("rank 3: host", "autograd, process 5"),
        ("rank 3: host", "thread 5, process 6"),
        ("rank 3: host", "other"),
    ]


def test_what_is_shown_of_an_event(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    fuse(drawn(), path)
    assert arguments(path, "rank 0: host", "aten::mm") == [{"shapes": "bf16[2,3] bf16[3,4]"}]
    (kernel,) = arguments(path, "rank 0: GPU 0", "gemm")
    (launch, *_) = arguments(path, "rank 0: host", "cudaLaunchKernel")
    assert kernel == {
        "correlation": launch["correlation"],
        "recorded correlation": ord("a"),
        "op": "aten::mm",
    }
    (copy,) = arguments(path, "rank 0: GPU 0", "Memcpy HtoD (Pinned -> Device)")
    assert copy["bytes"] == 64


def test_collectives_are_described_at_their_kernels_or_records(tmp_path: Path) -> None:
    record = "op record_param_comms collective={0} group=7 ranks=[0,1] size=2 dtype=Int in=6 out=8"
    text = line_up(f"""
        {record.format("all_to_allv")} | -----
        launch                         |  a
        s9 ncclDevKernel_SendRecv      |    aaaa
        {record.format("allreduce")}   |          ----
    """)
    path = tmp_path / "merged.json"
    fuse(draw_run(text, text), path)
    common = {"group": "7", "group ranks": "[0, 1]", "group size": 2, "dtype": "Int"}
    sizes = {"in bytes": 24, "out bytes": 32}
    (kernel,) = arguments(path, "rank 1: GPU 0", "ncclDevKernel_SendRecv")
    assert kernel.items() >= (common | sizes | {"collective": "all_to_allv", "order in group": 0}).items()
    found = arguments(path, "rank 1: host", "record_param_comms")
    assert found == [{}, common | sizes | {"collective": "allreduce", "order in group": 1}]
    # The ranks' parts are not the collectives of one rank.
    assert len(read_back(path).collectives) == 0


EPOCH = 1_712_195_495_000_000_001


def test_clocks_agree_by_their_epochs(tmp_path: Path) -> None:
    """1.7e15 us since 1970 leaves a double a quarter of a us; nothing may be rounded."""
    traces = [
        draw(line_up(RANK0), rank=0, baseTimeNanoseconds=EPOCH, start_ns=2_000_003),
        draw(line_up(RANK1), rank=1, start_ns=EPOCH + 77_777_778),
    ]
    fuse(Run(tuple(traces)), tmp_path / "merged.json")
    data = load_json(tmp_path / "merged.json")
    assert data["baseTimeNanoseconds"] == EPOCH + 2_000_003
    check_same(tmp_path / "merged.json", Run(tuple(traces)))


def test_a_base_beside_times_since_1970_is_not_added_again(tmp_path: Path) -> None:
    trace = draw(line_up(RANK1), rank=0, baseTimeNanoseconds=EPOCH, start_ns=EPOCH + 5)
    fuse(Run((trace,)), tmp_path / "merged.json")
    assert load_json(tmp_path / "merged.json")["baseTimeNanoseconds"] == EPOCH + 5


def test_offsets_set_the_clocks_whatever_the_epochs(tmp_path: Path) -> None:
    traces = [
        draw(line_up(text), rank=rank, baseTimeNanoseconds=EPOCH + rank, start_ns=10_000)
        for rank, text in enumerate((RANK0, RANK1))
    ]
    fuse(Run(tuple(traces)), tmp_path / "merged.json", offsets={1: -777})
    found = slices(load_json(tmp_path / "merged.json"))
    assert found["rank 0: overview", "steps"][0][1] == EPOCH + 10_000
    assert found["rank 1: overview", "steps"][0][1] == EPOCH + 10_000 - 777
    check_same(tmp_path / "merged.json", Run(tuple(traces)), {0: 0, 1: -777 - 1})


def test_steps_are_a_row_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    fuse(drawn(), path)
    found = slices(load_json(path))
    assert found["rank 0: overview", "steps"] == [
        ("ProfilerStep#1", 0, 23_000),
        ("ProfilerStep#2", 23_000, 6_000),
    ]
    assert found["rank 1: overview", "steps"] == [("ProfilerStep#1", 0, 19_000)]


def test_waits_and_other_tracks_never_overlap(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    run = drawn(start_ns=10_000)
    waits = [
        (0, "waits for rank 1 in all_to_allv", 1_000, 4_000),
        (0, "waits for rank 1 in allreduce", 3_000, 4_000),
        (0, "waits for rank 1 in broadcast", 2_000, 500),
        (4, "of a rank that is not there", 0, 1),
    ]
    findings = Track("findings", [Slice("slow expert", 8_000, 500, {"tokens": 7})])
    fuse(run, path, waits=waits, tracks={1: [findings]}, offsets={0: 10})
    data = load_json(path)
    check_for_viewer(data)
    check_same(path, run, {0: 10})
    found = {key: rows for key, rows in slices(data).items() if key[1] != "steps" and "overview" in key[0]}
    assert found == {
        ("rank 0: overview", "waits"): [(waits[0][1], 1_010, 4_000)],
        ("rank 0: overview", "waits (2)"): [
            (waits[2][1], 2_010, 500),
            (waits[1][1], 3_010, 4_000),
        ],
        ("rank 1: overview", "findings"): [("slow expert", 8_000, 500)],
    }
    assert arguments(path, "rank 1: overview", "slow expert") == [{"tokens": 7}]
    assert data["baseTimeNanoseconds"] == 1_010


@pytest.mark.parametrize("cpu", [True, False])
def test_a_window_shows_what_runs_in_it_and_cuts_the_rest(tmp_path: Path, cpu: bool) -> None:
    run, begin, end = drawn(), 8_000, 15_000
    fuse(run, tmp_path / "all.json", cpu=cpu)
    waits = [(0, "waits", 2_000, 7_000), (0, "over", 2_000, 6_000)]
    fuse(run, tmp_path / "part.json", cpu=cpu, waits=waits, windows=dict.fromkeys((0, 1), (begin, end)))
    whole, part = load_json(tmp_path / "all.json"), load_json(tmp_path / "part.json")
    check_for_viewer(part)
    assert part["baseTimeNanoseconds"] == begin
    expected = {("rank 0: overview", "waits"): [("waits", begin, 1_000)]}
    for row, pieces in slices(whole).items():
        cut = [(name, max(at, begin), min(at + dur, end)) for name, at, dur in pieces]
        if inside := [(name, low, high - low) for name, low, high in cut if low < high]:
            expected[row] = inside
    assert slices(part) == expected
    # The first GEMM of rank 0 runs from 5 to 11 us, launched before.
    shown = arguments(tmp_path / "part.json", "rank 0: GPU 0", "gemm")
    assert [args["recorded dur_ns"] for args in shown] == [6_000]
    arrows = {event["id"] for event in part["traceEvents"] if event["ph"] == "s"}
    assert arrows < {event["id"] for event in whole["traceEvents"] if event["ph"] == "s"} or not cpu


def test_nothing_runs_in_the_window(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="at this time"):
        fuse(drawn(), tmp_path / "merged.json", windows={0: (90_000, 91_000), 1: (90_000, 91_000)})


def test_without_the_host(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    fuse(drawn(), path, cpu=False)
    data = load_json(path)
    check_for_viewer(data)
    assert {process for process, _ in slices(data)} == {
        f"rank {rank}: {part}" for rank in (0, 1) for part in ("overview", "GPU 0")
    }
    assert {event["ph"] for event in data["traceEvents"]} == {"X", "M"}
    assert read_back(path).tables["links"].array("launch_id").tolist() == [-1] * 6


def test_each_kernel_of_a_graph_has_its_arrow(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    text = line_up("""
        launch cudaGraphLaunch | a
        s7 one                 |   aa
        s7 two                 |      aa
        s8 three               |      aaa
    """)
    fuse(draw_run(text, text), path)
    data = load_json(path)
    check_for_viewer(data)
    assert sum(event["ph"] == "f" for event in data["traceEvents"]) == 6
    check_same(path, draw_run(text, text))
    assert read_back(path).arrays.linked.sum() == 6


def test_arrows_alone_link_as_well(tmp_path: Path) -> None:
    run = drawn(correlations=False)
    fuse(run, tmp_path / "merged.json")
    check_same(tmp_path / "merged.json", run)


def test_what_crosses_gets_a_row_of_its_own(tmp_path: Path) -> None:
    """Perfetto drops an event that begins inside another one and ends behind it."""
    text = line_up("""
        scope begun in one op, ended in the next |   -------
        op first                                 | -----
        op inside                                |      --
        op second                                |        ------
        s7 early                                 | -----
        s7 late                                  |    -----
    """)
    path = tmp_path / "merged.json"
    fuse(draw_run(text), path)
    data = load_json(path)
    check_for_viewer(data)
    found = {place: [name for name, _, _ in rows] for place, rows in slices(data).items()}
    assert found == {
        ("rank 0: host", "thread 1"): ["first", "inside", "second"],
        ("rank 0: host", "thread 1 (2)"): ["begun in one op, ended in the next"],
        ("rank 0: GPU 0", "stream 7"): ["early"],
        ("rank 0: GPU 0", "stream 7 (2)"): ["late"],
    }
    trace = read_back(path)
    assert sorted(trace.arrays.start.tolist()) == sorted(draw(text).arrays.start.tolist())


def test_a_child_that_overruns_its_parent_is_cut_there(tmp_path: Path) -> None:
    """Its own duration is kept as an argument."""
    text = line_up("""
        op outer | ------
        op inner |    ----
        op leaf  |     ---
    """)
    run = draw_run(text, ns_per_char=100)
    fuse(run, tmp_path / "merged.json")
    data = load_json(tmp_path / "merged.json")
    check_for_viewer(data)
    assert slices(data) == {
        ("rank 0: host", "thread 1"): [("outer", 0, 600), ("inner", 300, 300), ("leaf", 400, 200)]
    }
    assert arguments(tmp_path / "merged.json", "rank 0: host", "leaf") == [{"recorded dur_ns": 300}]
    assert read_back(tmp_path / "merged.json").arrays.depth.tolist() == run.traces[0].arrays.depth.tolist()


def test_what_stands_on_gpu_rows_without_being_work(tmp_path: Path) -> None:
    """It goes with the GPU of its process, whatever number that has."""

    def on_gpu(category: str, name: str, ts: int, dur: int, **args: int) -> dict[str, Any]:
        place = {"pid": 40, "tid": 7, "ts": ts, "dur": dur}
        return {"ph": "X", "cat": category, "name": name, **place, "args": args}

    found = [
        on_gpu("kernel", "gemm", 1, 4, device=2, stream=7),
        on_gpu("gpu_user_annotation", "forward", 0, 6),
        on_gpu("cuda_sync", "Stream Synchronize", 2, 4),
    ]
    fuse(Run((read(found, rank=0),)), tmp_path / "merged.json", cpu=False)
    assert slices(load_json(tmp_path / "merged.json")) == {
        ("rank 0: GPU 2", "stream 7"): [("forward", 0, 6_000), ("gemm", 1_000, 4_000)],
        ("rank 0: GPU 2", "stream 7 waits"): [("Stream Synchronize", 2_000, 4_000)],
    }


def test_of_events_that_start_together_the_outer_one_comes_first(tmp_path: Path) -> None:
    """A viewer takes events that start together in the order of the file."""
    text = line_up("""
        op inner    | ----
        scope outer | ----
        s7 kernel   |      --
        gpu forward |      ---
    """)
    fuse(draw_run(text), tmp_path / "merged.json")
    names = [event["name"] for event in load_json(tmp_path / "merged.json")["traceEvents"]]
    assert names[-4:] == ["outer", "inner", "forward", "kernel"]


def test_work_without_a_launch_call_does_not_take_its_neighbour_s(tmp_path: Path) -> None:
    """Two pieces of work begin at once on one stream; an arrow points at both."""
    text = line_up("""
        launch            | a
        s7 earlier corr=z |     !
        s7 gemm           |     aaa
    """)
    found = events(text)
    run = Run((read(found, rank=0),))
    fuse(run, tmp_path / "merged.json")
    check_same(tmp_path / "merged.json", run)


def test_names_of_any_kind(tmp_path: Path) -> None:
    names = ['a"b\\c', "</script>", "line\nbreak", "ü漢", "x" * 9000]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 1}
        for at, name in enumerate(names)
    ]
    run = Run((read(events, rank=0),))
    fuse(run, tmp_path / "merged.json.gz")
    check_same(tmp_path / "merged.json.gz", run)


EVENT = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(["cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "user_annotation", "odd"]),
        "name": st.sampled_from(["a", "b", "cudaGraphLaunch"]),
        "pid": st.integers(0, 2),
        "tid": st.integers(0, 2),
        "ts": st.integers(0, 20).map(lambda number: number * 2),
        "dur": st.integers(0, 10).map(lambda number: number * 2),
        "args": st.integers(-1, 4).map(lambda number: {"correlation": number}),
    }
)


@given(st.lists(st.lists(EVENT, min_size=1, max_size=20), min_size=1, max_size=3), st.integers(-9, 9))
def test_any_run_survives(ranks: list[list[dict[str, Any]]], offset: int) -> None:
    """Times are whole steps of 2 us, so that no child overruns its parent by what is cut."""
    run = Run(tuple(read(found, rank=rank) for rank, found in enumerate(ranks)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "merged.json"
        fuse(run, path, offsets={0: 1_000_000, 1: 1_000_000 + offset, 2: 1_000_000})
        check_for_viewer(load_json(path))
        check_same(path, run, {0: 1_000_000, 1: 1_000_000 + offset, 2: 1_000_000}, nesting=False)


def test_every_analyzer_takes_the_fused_file_as_one_rank(tmp_path: Path) -> None:
    fuse(drawn(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]), tmp_path / "merged.json")
    run = tracelens.load(tmp_path / "merged.json")
    assert run.ranks == [0]
    report = tracelens.report(run)
    assert report.meta["devices"] == ["NVIDIA H200"]
    assert len(report.results) > 5


def test_ranks_far_apart_in_number_do_not_share_ids(tmp_path: Path) -> None:
    """A rank with more threads than its block of ids holds moves the next one."""
    many = [
        {"ph": "X", "cat": "cpu_op", "name": "f", "pid": 1, "tid": tid, "ts": 1, "dur": 1}
        for tid in range(1500)
    ]
    run = Run(tuple(read(many, rank=rank) for rank in (0, 1, 9)))
    fuse(run, tmp_path / "merged.json")
    data = load_json(tmp_path / "merged.json")
    check_for_viewer(data)
    assert len(slices(data)) == 4500
    check_same(tmp_path / "merged.json", run)


@pytest.mark.parametrize("name", ["merged", "merged.html", "merged.json.zst", "folder/"])
def test_a_path_that_does_not_say_how(name: str, tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=r"a fused trace is written as \.json or \.json\.gz"):
        fuse(drawn(), f"{tmp_path}/{name}")


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TracelensError, match=r"cannot write .*file/merged\.json: "):
        fuse(drawn(), tmp_path / "file" / "merged.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TracelensError, match=r"cannot write .*folder\.json: "):
        fuse(drawn(), tmp_path / "folder.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json"]


def test_the_inputs_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    fuse(drawn(), path)
    before = path.read_bytes()
    with pytest.raises(TracelensError, match="is the input"):
        fuse(tracelens.load(path), tmp_path / "." / "rank0.json")
    assert path.read_bytes() == before


def test_nothing_to_draw(tmp_path: Path) -> None:
    run = draw_run("op aten::mm | ---")
    with pytest.raises(TracelensError, match="nothing to draw"):
        fuse(run, tmp_path / "merged.json", cpu=False)


def test_clocks_that_have_nothing_in_common(tmp_path: Path) -> None:
    run = Run((draw(RANK1, rank=0), draw(RANK1, rank=1, baseTimeNanoseconds=4 * 10**18)))
    with pytest.raises(TracelensError, match="nothing in common"):
        fuse(run, tmp_path / "merged.json")
