"""Collectives of hand-drawn ranks as scripts; those that need torch run them with gloo."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens
from tests.builders import aligned, draw, draw_run, records
from tests.reproducers.fake_torch import checked
from tests.reproducers.torch_process import run_script
from tracelens.reproducers.collectives import CollectiveMessage, collectives
from tracelens.reproducers.folder import Script
from tracelens.reproducers.scripts import COLLECTIVE_KINDS, NAMES
from tracelens.reproducers.verify import RUNNER
from tracelens.table import Skip
from tracelens.trace import make_run, union

HEADER = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}


def record(
    name: str, *, size: int = 2, sent: int = 50, received: int = 50, dtype: str = "Half", **more: Any
) -> str:
    """The label of a recorded collective; sizes in elements."""
    ranks = more.pop("ranks", list(range(size)))
    options = "".join(f" {key}={value}" for key, value in more.items())
    text = f"{name} group=0 ranks={ranks} size={size} in={sent} out={received} dtype={dtype}{options}"
    return "op record_param_comms collective=" + text.replace(", ", ",")


def rank(what: str, kernels: str = "    aaaa") -> str:
    """A rank with one collective a letter in `kernels`."""
    letters = "".join(dict.fromkeys(letter for letter in kernels if letter.isalnum()))
    return aligned(f"""
        {what} | {"- " * len(letters)}
        launch | {"".join(f"{letter} " for letter in letters)}
        s9 ncclDevKernel_Generic(args) | {kernels}
    """)


def made(*ranks: str, **options: Any) -> tuple[list[Script], list[Skip]]:
    return collectives(draw_run(*ranks, **HEADER), **options)


def only(*ranks: str, **options: Any) -> Script:
    scripts, skips = made(*ranks, **options)
    assert skips == []
    (script,) = scripts
    return script


def constant(script: Script, name: str) -> Any:
    """What a constant of a script is."""
    for line in ast.parse(script.text).body:
        if isinstance(line, ast.Assign):
            target, values = line.targets[0], line.value
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            if name in names:
                one = values.elts[names.index(name)] if isinstance(target, ast.Tuple) else values  # type: ignore[attr-defined]
                return ast.literal_eval(one)
    raise KeyError(name)


def test_same_collectives_are_one_script_with_the_shortest_duration_over_ranks() -> None:
    what = record("allreduce", dtype="BFloat16")
    script = only(rank(what, "    aaaaaa bbbb cc"), rank(what, "      aaaa  bbb cc"))
    # The later rank's: 4, 3 and 2 us.
    assert (script.count, script.traced_us, script.total_us) == (3, 3.0, 9.0)
    assert (script.name, script.kind, script.subject, script.processes) == (
        "allreduce",
        "collective",
        "allreduce",
        2,
    )
    assert script.shapes == "100 bytes bfloat16, 2 ranks"
    assert constant(script, "COUNT") == 50
    assert constant(script, "TRACED_US") == 3.0
    assert constant(script, "TRACED_ON") == "AMD Instinct MI300X"
    assert (
        "3 calls of 3.0 us (median; 2.0 to 4.0) on AMD Instinct MI300X: ncclDevKernel_Generic" in script.text
    )


def test_only_collectives_that_run_at_a_time_of_any_of_their_ranks() -> None:
    what = record("allreduce", dtype="BFloat16")
    drawn = rank(what, "    aaaaaa bbbb cc"), rank(what, "      aaaa  bbb cc")

    def count(when: dict[int, tuple[int, int]]) -> int:
        during = {number: union(np.array([start]), np.array([end])) for number, (start, end) in when.items()}
        scripts, _ = made(*drawn, during=during)
        return sum(script.count for script in scripts)

    assert count({0: (4000, 18_000)}) == 3
    assert count({0: (10_000, 12_000)}) == 1  # b, of which rank 1's begins at 12 us
    assert count({1: (10_000, 12_000)}) == 0
    assert count({1: (4000, 7000), 0: (17_000, 18_000)}) == 2
    assert count({}) == 0


def test_what_differs_is_another_script() -> None:
    ranks = [
        aligned(f"""
            {record("allreduce")}                | -
            {record("allreduce", dtype="Float")} |   -
            {record("broadcast")}                |     -
            launch                               | a b c
            s9 ncclKernel                        |       aa bbbb ccc
        """)
    ] * 2
    scripts, _ = made(*ranks)
    assert [(script.subject, script.shapes) for script in scripts] == [
        ("allreduce", "200 bytes float32, 2 ranks"),
        ("broadcast", "100 bytes float16, 2 ranks"),
        ("allreduce", "100 bytes float16, 2 ranks"),
    ]


def test_starts_are_those_of_the_median_call_after_the_clocks_are_aligned() -> None:
    what = record("allreduce")
    script = only(
        rank(what, "    aaaaaaa  bbbbbbb cc"),
        # 1 ms later by its own clock: each end says so.
        rank(what, "        aaa     bbbb cc").replace("| ", "| " + " " * 1000),
    )
    assert constant(script, "TRACED_US") == 3.0
    assert constant(script, "START_US") == [0.0, 4.0]
    assert constant(script, "TRACED_RANK_US") == [7.0, 3.0]


def uneven(sent: Sequence[int], received: Sequence[int], width: int = 4) -> str:
    """A record of an all_to_allv of rows of `width` elements."""
    rows = {"insplit": str([*sent]).replace(" ", ""), "outsplit": str([*received]).replace(" ", "")}
    size = len(sent)
    return record("all_to_allv", size=size, sent=sum(sent) * width, received=sum(received) * width, **rows)


MATRIX = [[1, 2, 0], [0, 3, 5], [7, 0, 4]]


def exchange(matrix: Sequence[Sequence[int]]) -> list[str]:
    columns = zip(*matrix, strict=True)
    return [rank(uneven(row, column)) for row, column in zip(matrix, columns, strict=True)]


def test_the_matrix_of_all_ranks() -> None:
    script = only(*exchange(MATRIX))
    assert constant(script, "COUNT") == [[4, 8, 0], [0, 12, 20], [28, 0, 16]]
    # The third rank sends 11 rows of 4 halves, no rank receives more.
    assert constant(script, "BYTES") == 88
    assert constant(script, "FACTOR") == pytest.approx(2 / 3)
    assert script.processes == 3


def test_a_rank_that_sends_nothing() -> None:
    assert constant(only(*exchange([[0, 0], [3, 1]])), "COUNT") == [[0, 0], [12, 4]]


def test_the_matrix_needs_all_ranks() -> None:
    scripts, skips = made(*exchange(MATRIX)[:2])
    assert scripts == []
    (skip,) = skips
    assert skip.subject == "1 all_to_allv of group 0"
    assert skip.reason == "split sizes known for 2 of 3 ranks (missing: 2); pass all traces"


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([rank(uneven([1, 2], [1, 3])), rank(uneven([2, 4], [2, 4]))], "split sizes disagree"),
        ([rank(record("all_to_allv"))] * 2, "not all ranks recorded their split sizes"),
        ([rank(record("barrier"))] * 2, "moves no data"),
        ([rank(record("allreduce", sent=0, received=0))] * 2, "moves no data"),
        ([rank(record("gossip"))] * 2, "unknown collective"),
        ([rank(record("allreduce", dtype="Quantum"))] * 2, "'Quantum'"),
        ([rank(record("allreduce", size=1))], "single-rank group"),
        (
            [rank(record("_allgather_base", sent=50, received=90))] * 2,
            "100 bytes per rank do not match 180",
        ),
        (
            [rank(record("all_to_all", sent=51, received=51))] * 2,
            "102 bytes do not divide evenly among 2 ranks",
        ),
        ([rank(record("allreduce")), rank(record("allreduce", sent=60, received=60))], "ranks disagree"),
    ],
)
def test_what_cannot_be_made_says_why(ranks: list[str], reason: str) -> None:
    scripts, skips = made(*ranks)
    assert scripts == []
    assert [reason in skip.reason for skip in skips] == [True], skips


def test_kernels_without_a_record_are_told() -> None:
    scripts, skips = made("s9 ncclDevKernel_AllReduce | ---- ===")
    assert scripts == []
    assert [skip.subject for skip in skips] == ["2 communication kernel(s) of rank 0"]


def test_records_of_gloo_have_no_kernels() -> None:
    scripts, (skip,) = made("op c10d::allreduce_ | ----\nlaunch              |     --")
    assert scripts == []
    assert "gloo" in skip.reason


def test_what_only_one_rank_of_several_recorded_in_a_group_is_left() -> None:
    what = record("allreduce")
    scripts, skips = made(rank(what, "    aa bb cc"), rank(what, "    aa bb   "))
    assert [script.count for script in scripts] == [2]
    assert [skip.subject for skip in skips] == ["1 collective(s) of group 0 on rank 0"]


def test_one_rank_is_enough_where_all_do_the_same() -> None:
    script = only(rank(record("_reduce_scatter_base", size=8, sent=80, received=10)))
    assert script.processes == 8
    assert constant(script, "COUNT") == 10
    assert "Recorded only on rank 0 of 8: the traced time may include waiting" in script.text
    assert constant(script, "NOTE") == "traced_us may include waiting"
    assert "START_US" not in script.text


def test_a_cut_keeps_what_the_first_ranks_send_each_other() -> None:
    script = only(*exchange(MATRIX), ranks=2)
    assert constant(script, "COUNT") == [[4, 8], [0, 12]]
    assert constant(script, "BYTES") == 40
    assert constant(script, "TRACED_US") is None
    assert (script.processes, script.traced_us) == (2, 0.0)
    assert "The group has 3 ranks; messages are cut to the first 2" in script.text
    gathered = only(rank(record("_allgather_base", size=8, sent=10, received=80)), ranks=2)
    assert (constant(gathered, "COUNT"), constant(gathered, "BYTES")) == (10, 40)


def test_a_cut_that_leaves_nothing_is_a_skip() -> None:
    scripts, (skip,) = made(*exchange([[0, 0, 1], [0, 0, 2], [3, 4, 5]]), ranks=2)
    assert scripts == []
    assert skip.reason == "no messages among the first 2 ranks of its group"


def p2p(kind: str, kernels: str) -> str:
    return rank(record(kind), kernels)


def test_a_send_with_its_receive() -> None:
    # The receiver has waited 4 us when the sender comes.
    script = only(p2p("recv", "    aaaaaa"), p2p("send", "        aa"))
    assert (script.subject, script.name, script.processes, script.traced_us) == (
        "send/recv",
        "send_recv",
        2,
        2.0,
    )
    assert constant(script, "COUNT") == [[0, 50], [0, 0]]
    # The sender is the first rank of the script.
    assert constant(script, "START_US") == [4.0, 0.0]


def test_either_side_alone_is_the_same_message() -> None:
    texts = [only(p2p(kind, "    aaaa")).text for kind in ("send", "recv")]
    assert texts[0] == texts[1]


def test_sends_and_receives_that_share_a_kernel_are_one_exchange() -> None:
    ranks = [
        aligned(f"""
            {record("send", sent=30 + 10 * number, received=30 + 10 * number)} | -
            {record("recv", sent=40 - 10 * number, received=40 - 10 * number)} |  -
            scope nccl:coalesced | {"  ---"}
            launch               | {"   a"}
            s9 ncclKernel        | {"      " + kernels}
        """)
        for number, kernels in enumerate(["  aaa", "aaaaa"])
    ]
    script = only(*ranks)
    assert (script.count, script.total_us) == (1, 3.0)
    there, back = constant(script, "COUNT")
    assert {there[1], back[0]} == {30, 40}
    assert there[0] == back[1] == 0


def test_nothing_of_a_trace_becomes_code() -> None:
    evil = 'x\\n"""\\nimport os; os.abort() #'
    trace = rank(record("allreduce", description="DESCRIPTION").replace("allreduce", "allreduce"))
    run = make_run(
        [draw(trace, rank=0, deviceProperties=[{"id": 0, "name": f'"; raise SystemExit(7) # {evil}'}])]
    )
    ((script,), _) = collectives(run)
    assert constant(script, "TRACED_ON") == f'"; raise SystemExit(7) # {evil}'
    compile(script.text, "script", "exec")
    assert not [
        line
        for line in script.text.splitlines()
        if line.lstrip().startswith(("import os;", "raise SystemExit(7)"))
    ]


def script_of(name: str, ranks: int, dtype: str) -> Script:
    """A script of any kind, from records that a group of so many ranks would leave."""
    if name == "all_to_allv":
        matrix = [[(row + 2) * (column + 1) % 7 for column in range(ranks)] for row in range(ranks)]
        text = only(*exchange(matrix))
    elif name == "send/recv":
        text = only(p2p("send", "    aa"), p2p("recv", "    aa"))
    else:
        kind = COLLECTIVE_KINDS[NAMES[name]]
        sent, received = (60 * (ranks if "RANKS" in side else 1) for side in (kind.sent, kind.received))
        text = only(rank(record(name, size=ranks, sent=sent, received=received, dtype=dtype)))
    return text


EACH_KIND = list({kind: name for name, kind in reversed(NAMES.items())}.values())


def test_every_kind_is_recorded_under_some_name() -> None:
    assert {NAMES[name] for name in EACH_KIND} == set(COLLECTIVE_KINDS) - {"all_to_allv"}


@pytest.mark.parametrize("name", [*EACH_KIND, "all_to_allv"])
def test_scripts_are_short(name: str) -> None:
    lines = script_of(name, 8, "BFloat16").text.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 110


def test_bytes_are_what_nccl_tests_counts() -> None:
    sizes = {
        name: CollectiveMessage(name, kind, 4, "float32", 10).bytes
        for name, kind in NAMES.items()
        if kind != "send/recv"
    }
    assert sizes["allreduce"] == sizes["broadcast"] == sizes["reduce"] == 40
    assert sizes["_allgather_base"] == sizes["reduce_scatter"] == sizes["gather"] == sizes["scatter"] == 160
    assert CollectiveMessage("send/recv", "send/recv", 2, "int64", ((0, 5), (3, 0))).bytes == 40


def run(folder: Path, texts: Sequence[str], *options: str) -> tuple[list[tuple[int, dict[str, Any]]], str]:
    """(Exit status, result) of each script on the CPU, and what they wrote to stderr."""
    found: list[tuple[int, dict[str, Any]]] = []
    errors = ""
    for number, text in enumerate(texts):
        file = folder / f"{number}.py"
        file.write_text(text, encoding="utf-8")
        done = run_script(file, "--device", "cpu", "--json", *options)
        found.append((done.returncode, json.loads(done.stdout or "{}")))
        errors += done.stderr
    return found, errors


@pytest.mark.torch
def test_verify_measures_them(tmp_path: Path) -> None:
    found = checked(tmp_path, script_of("allreduce", 2, "Float"), device="cpu", iters=1)
    assert records(found["scripts"], "status", "check") == [("ran", "ok")]
    assert found["scripts"]["replayed_ns"][0] > 0


@pytest.mark.torch
def test_every_kind_runs_and_is_right(tmp_path: Path) -> None:
    scripts = [script_of(name, 2, "BFloat16") for name in [*EACH_KIND, "all_to_allv"]]
    scripts += [
        script_of(name, 3, "Float8_e4m3fn") for name in ("broadcast", "_allgather_base", "all_to_all")
    ]
    scripts += [
        script_of("allreduce", 3, dtype) for dtype in ("Float", "Long", "Int", "Byte", "Bool", "Double")
    ]
    found, errors = run(tmp_path, [script.text for script in scripts], "--iters", "2")
    assert errors == ""
    assert [(status, said["check"]) for status, said in found] == [(0, "ok")] * len(scripts)
    for script, (_, said) in zip(scripts, found, strict=True):
        assert said["op"] == script.subject
        assert said["ranks"] == script.processes == len(said["rank_us"])
        assert said["bytes"] == constant(script, "BYTES")
        assert said["busbw_bytes_per_s"] == pytest.approx(
            said["algbw_bytes_per_s"] * constant(script, "FACTOR")
        )
        assert said["ratio"] == pytest.approx(said["median_us"] / script.traced_us)
    notes = {said["note"] for _, said in found}
    assert any("float8_e4m3fn" in note for note in notes)
    assert any("one tensor, not a list" in note for note in notes)


WRONG = {
    "allreduce": ("dist.all_reduce(send)", "dist.all_reduce(send, dist.ReduceOp.MAX)"),
    "broadcast": ("dist.broadcast(send, 0)", "dist.broadcast(send, 1)"),
    "reduce": ("dist.reduce(send, 0)", "pass"),
    "_allgather_base": ("gather(out, send)", "gather(out, send.flip(0))"),
    "_reduce_scatter_base": ("scatter(out, send)", "scatter(out, send.roll(1))"),
    "gather": ("dist.gather(send,", "dist.gather(send * 2,"),
    "scatter": ("list(send.chunk(RANKS)), 0)", "list(send.chunk(RANKS))[::-1], 0)"),
    "all_to_all": ("single(out, send)", "single(out, send.roll(1))"),
    "all_to_allv": ("single(out, send,", "single(out, send.roll(1),"),
    "send/recv": ("dist.isend, send,", "dist.isend, send + 1,"),
}
"""What a script does, and what would be wrong."""


@pytest.mark.torch
def test_a_wrong_result_is_found(tmp_path: Path) -> None:
    texts = []
    for name, (right, wrong) in WRONG.items():
        text = script_of(name, 2, "Half").text
        assert text.count(right) == 1
        texts.append(text.replace(right, wrong))
    found, errors = run(tmp_path, texts, "--iters", "1")
    assert errors == ""
    for name, (status, said) in zip(WRONG, found, strict=True):
        assert (name, status, said["check"][:6]) == (name, 1, "wrong:")
        assert re.fullmatch(r"wrong: \d+ of \d+ bytes on rank [01]", said["check"])


@pytest.mark.torch
def test_a_wrong_result_of_one_rank_is_that_of_all(tmp_path: Path) -> None:
    text = script_of("allreduce", 3, "Half").text
    marred = text.replace("dist.all_reduce(send)", "dist.all_reduce(send); send[7] += rank == 2")
    ((status, said),), _ = run(tmp_path, [marred], "--iters", "1")
    # The lower byte of a half that counts to 3 x 127 may change, or both.
    assert status == 1
    assert re.match("wrong: [12] of 120 bytes on rank 2$", said["check"])


@pytest.mark.torch
def test_scaled_down_there_is_no_ratio(tmp_path: Path) -> None:
    scripts = [
        *(script_of(name, 2, "Float") for name in ("allreduce", "_allgather_base")),
        only(*exchange(MATRIX)),
    ]
    found, _ = run(tmp_path, [script.text for script in scripts], "--iters", "1", "--max-bytes", "44")
    # 11 of 60 floats; 5 from each of two ranks; [[2, 4, 0], [0, 6, 10], [14, 0, 8]] halves.
    assert [said["bytes"] for _, said in found] == [44, 40, 44]
    assert [(status, said["check"], said["ratio"]) for status, said in found] == [(0, "ok", None)] * 3


@pytest.mark.torch
def test_skew_lets_ranks_start_as_late_as_they_did(tmp_path: Path) -> None:
    what = record("allreduce")
    script = only(rank(what, "    " + "a" * 300), rank(what, " " * 103 + "a" * 201))
    assert constant(script, "START_US") == [0.0, 99.0]
    late = script.text.replace("START_US = [0.0, 99.0]", "START_US = [0.0, 400000.0]")
    (_, said), (status, _) = run(tmp_path, [late, only(rank(what)).text], "--iters", "1", "--skew")[0]
    # The first rank waits 400 ms inside the call; the second for nobody.
    assert said["rank_us"][0] > 390_000
    assert said["median_us"] == said["rank_us"][1] < 390_000
    assert status == 2, "one rank alone does not show when the others started"


@pytest.mark.torch
def test_profiles_of_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    run(tmp_path, [script_of("allreduce", 2, "Half").text], "--iters", "1", "--profile", str(file))
    for path in (file, tmp_path / "trace.json.rank1.json"):
        names = Counter(event.get("name") for event in json.loads(path.read_text())["traceEvents"])
        assert names["c10d::allreduce_"] >= 1


@pytest.mark.torch
def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    text = script_of("allreduce", 2, "Half").text
    ((status, _),), errors = run(tmp_path, [text.replace("dist.all_reduce(send)", "send.view(7)")])
    assert status == 2
    # Beside torch's own log: on a slow machine gloo tells of the rank that has gone.
    own = [line for line in errors.splitlines() if not re.match(r"\[[IWE]\d{4} ", line)]
    assert len(own) == 1
    assert "RuntimeError: shape '[7]' is invalid" in errors
    if not torch.cuda.is_available():
        ((status, _),), errors = run(tmp_path, [text], "--device", "cuda")
        assert (status, errors) == (2, "needs 2 GPUs, found 0; --device cpu needs none\n")


@pytest.mark.torch
@pytest.mark.slow
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(script_of("all_to_allv", 2, "Half").text, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = [str(RUNNER), str(file), "--device", "cpu", "--iters", "1", "--json"]
    ran = subprocess.run([*launcher, *options], capture_output=True, text=True, check=True, timeout=120)
    (line,) = ran.stdout.splitlines()
    assert json.loads(line)["check"] == "ok"


@pytest.mark.slow
def test_real_split_sizes_of_eight_ranks(corpus: Path) -> None:
    job = tracelens.load(str(corpus / "nvidia-h200-megatron" / "ep8"))
    scripts, skips = collectives(job)
    assert [skip.subject for skip in skips] == ["8 communication kernel(s) of rank 0, 1, 2, 3, 4, 5, 6, 7"]
    found: Counter[tuple[int, ...]] = Counter()
    for script in scripts:
        if script.subject == "all_to_allv":
            for number, row in enumerate(constant(script, "COUNT")):
                found[number, *row] += script.count
    # Straight from the table: rows times what is in a row.
    expected: Counter[tuple[int, ...]] = Counter()
    for trace in job.traces:
        table = trace.collectives
        for _, one in table[(table["collective"] == "all_to_allv") & (table["kernel_id"] >= 0)].iterrows():
            split = json.loads(str(one["in_split"]))
            width = one["in_bytes"] // 2 // sum(split)
            expected[trace.meta.rank, *(part * width for part in split)] += 1
    assert found == expected
    assert sum(found.values()) == 8 * 96


def test_one_rank_of_a_real_job(corpus: Path) -> None:
    (trace,) = tracelens.load(str(corpus / "mi300x" / "resnet_act_checkpoint.json.gz")).traces
    scripts, _ = collectives(make_run([trace]))
    assert Counter({(script.subject, script.shapes): script.count for script in scripts}) == {
        ("allreduce", "17,632,384 bytes bfloat16, 8 ranks"): 3,
        ("allreduce", "5,746,640 bytes bfloat16, 8 ranks"): 3,
        ("broadcast", "19,200 bytes bfloat16, 8 ranks"): 3,
        ("broadcast", "160 bytes int64, 8 ranks"): 3,
    }
