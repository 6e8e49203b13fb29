"""`replay verify --counters` with small fakes of ncu and rocprofv3, which write what the real ones write.

Each runs the command that it is given, and writes the files of the script that it finds in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builders import records
from tests.reproducers.fake_torch import H100, MI300X, checked, listed, on_gpu, source
from tracelens.cli import run
from tracelens.errors import TracelensError
from tracelens.rendering.formats import console_text
from tracelens.reproducers.verify import TABLES, failed
from tracelens.table import Report, Result

# Two launches as Nsight Compute 2025.3 counts them on an H100: name, unit, values.
H100_COUNTERS = """
    ID                                                              |      | 0                 | 1
    Process Name                                                    |      | python3.12        | python3.12
    Kernel Name                                                     |      | gemm<a, b>(int *) | reduce<512>
    Block Size                                                      |      | (384, 1, 1)       | (512, 1, 1)
    Grid Size                                                       |      | (1320, 1, 1)      | (640, 1, 1)
    device__attribute_clock_rate                                    |      | 1,980,000         | 1,980,000
    device__attribute_multiprocessor_count                          |      | 132               | 132
    dram__bytes.sum                                                 | byte | 402,653,184       | 268,435,456
    dram__throughput.avg.pct_of_peak_sustained_elapsed              | %    | 30.50             | 90.50
    gpu__time_duration.sum                                          | ns   | 300,000           | 100,000
    launch__grid_size                                               |      | 1,320             | 640
    launch__occupancy_limit_blocks                                  | block| 32                | 32
    launch__occupancy_limit_registers                               | block| 1                 | 8
    launch__occupancy_limit_shared_mem                              | block| 2                 | 16
    launch__occupancy_limit_warps                                   | block| 5                 | 4
    lts__t_sector_hit_rate.pct                                      | %    | 71.25             | n/a
    sm__cycles_active.avg.pct_of_peak_sustained_elapsed             | %    | 97.50             | 99.00
    sm__cycles_elapsed.avg.per_second                               | hz   | 1,755,000,000     | 1,755,000,000
    sm__maximum_warps_per_active_cycle_pct                          | %    | 18.75             | 100
    sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed | %    | 82.00             | 0
    sm__warps_active.avg.pct_of_peak_sustained_active               | %    | 14.50             | 88.50
"""


def raw_page(rows: Sequence[Sequence[object]]) -> str:
    """A raw page as CSV between the lines that Nsight Compute writes for people."""
    return "\n".join(
        [
            "==PROF== Connected to process 1049 (/usr/bin/python3.12)",
            '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 4 passes',
            '==WARNING== A line with "quotes", and commas, that is no row',
            *(",".join(f'"{cell}"' for cell in row) for row in rows),
            "==PROF== Disconnected from process 1049\n",
        ]
    )


RAW_PAGE = raw_page(
    [
        *zip(
            *([cell.strip() for cell in line.split("|")] for line in H100_COUNTERS.strip().splitlines()),
            strict=True,
        )
    ]
)

PROFILER = """#!{python}
import os, subprocess, sys
from pathlib import Path
files, arguments = Path({files!r}), sys.argv[1:]
with open(files / "commands", "a") as commands:
    print(repr(arguments), os.environ["LC_ALL"], file=commands)
if arguments == ["--query-metrics"]:
    print((files / "metrics").read_text())
    sys.exit()
begin = arguments.index({python!r})
script = Path(next(word for word in arguments[begin:] if word.endswith("_s.py"))).stem
code = subprocess.run(arguments[begin:]).returncode
{writes}
sys.exit(code)
"""
NCU_WRITES = """
log = Path(arguments[arguments.index("--log-file") + 1])
text = (files / f"{script}.csv").read_text()
log.write_text(text)
if "==ERROR==" in text:
    sys.exit(1)
"""
ROCPROF_WRITES = """
folder = Path(arguments[arguments.index("-d") + 1])
counters = arguments[arguments.index("--pmc") + 1 : arguments.index("--output-format")]
table = files / f"{script}.{'+'.join(counters)}.csv"
if table.exists():
    (folder / "counters_counter_collection.csv").write_text(table.read_text())
    (folder / "counters_agent_info.csv").write_text((files / "agents").read_text())
else:
    print(f"Unable to find all counters for agent 4: {counters}", file=sys.stderr)
    sys.exit(1)
"""

METRICS = """
dram__bytes                     Counter         byte            # of bytes accessed in DRAM
dram__throughput                Throughput      %               DRAM throughput
gpu__time_duration              Counter         ns              equals to gpu__time_duration_measured_user
lts__t_sector_hit_rate          Ratio                           proportion of L2 sector lookups that hit
sm__cycles_active               Counter         cycle           # of cycles with at least one warp in flight
sm__cycles_elapsed              Counter         cycle           # of cycles elapsed on SM
sm__pipe_tensor_cycles_active   Counter         cycle           # of cycles where tensor pipe was active
sm__warps_active                Counter         warp            cumulative # of warps in flight
"""


@pytest.fixture
def profilers(tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what both write, on a machine with an H100 that has both on PATH."""
    files, programs = tmp_path / "files", tmp_path / "programs"
    files.mkdir()
    programs.mkdir()
    for name, writes in (("ncu", NCU_WRITES), ("rocprofv3", ROCPROF_WRITES)):
        text = PROFILER.format(python=sys.executable, files=str(files), writes=writes)
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (files / "metrics").write_text(METRICS)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("FAKE_GPUS", H100)
    return files


def commands(files: Path) -> list[list[str]]:
    lines = (files / "commands").read_text().splitlines()
    assert {line.rpartition(" ")[2] for line in lines} == {"C"}
    return [json.loads(line.rpartition(" ")[0].replace("'", '"')) for line in lines]


def skips(result: Result) -> list[tuple[str, str]]:
    return [(skip.subject, skip.reason) for skip in result.skips]


def test_what_nsight_compute_counts_stands_beside_the_roofline(tmp_path: Path, profilers: Path) -> None:
    (profilers / "01_s.csv").write_text(RAW_PAGE)
    result = checked(tmp_path, on_gpu(of_roofline=0.7), counters=True)
    assert not skips(result)
    [row] = result["counters"].to_dict("records")
    assert row == {
        # 300 us at 14.5%, 82% and 30.5%, 100 us at 88.5%, 0% and 90.5%; of one the hit rate is not known
        "file": "01_s.py", "roofline": 0.7, "cause": "matrix-bound, low clock",
        "occupancy": pytest.approx(0.33), "matrix": pytest.approx(0.615), "l2_hit": pytest.approx(0.7125),
        "hbm": pytest.approx(0.455), "hbm_bytes": 402_653_184 + 268_435_456, "clock_mhz": 1755,
        "kernels_ns": 400_000, "kernels": 2,
        "evidence": "matrix units at 82% of peak; 1.75 of 1.98 GHz",
    }  # fmt: skip
    gemm, reduction = result["counter_kernels"].to_dict("records")
    assert (gemm["kernel"], gemm["cause"]) == ("gemm<a, b>(int *)", "matrix-bound, low clock")
    assert (gemm["workgroups"], gemm["units"], gemm["boost_mhz"]) == (1320, 132, 1980)
    assert (gemm["occupancy_limit"], gemm["limiter"]) == (0.1875, "registers")
    assert (reduction["cause"], reduction["hbm"]) == ("HBM-bound, low clock", 0.905)
    assert (reduction["occupancy_limit"], reduction["limiter"]) == (1, "the size of a workgroup")
    text = console_text(Report((result,)), width=200)
    assert "matrix units at 82% of peak" in text
    assert "reduce<512>" not in text


def test_it_runs_the_unmodified_script_isolated(tmp_path: Path, profilers: Path) -> None:
    text = "import sys; assert sys.flags.isolated and sys.argv[1:] in {}, sys.argv".format(
        [["--json", "--ages=,12"], ["--device", "cuda", "--counters", "--ages=,12"]]
    )
    for number in (1, 2):
        (profilers / f"0{number}_s.csv").write_text(RAW_PAGE)
    script = listed(on_gpu(), ages=(None, 12))
    result = checked(tmp_path, script._replace(text=f"{text}\n{script.text}"), script, counters=True)
    assert len(result["counters"]) == 2
    query, *profiled = commands(profilers)
    assert query == ["--query-metrics"]
    assert len(profiled) == 2
    begin = profiled[0].index(sys.executable)
    options, command = profiled[0][:begin], profiled[0][begin:]
    assert command[1] == "-I"
    assert command[3].endswith("/01_s.py")
    assert not command[3].startswith(str(tmp_path / "replay"))  # a copy
    assert options[options.index("--profile-from-start") + 1] == "off"
    assert options[options.index("--clock-control") + 1] == "none"


def test_only_metrics_that_the_gpu_has_are_asked_for(tmp_path: Path, profilers: Path) -> None:
    (profilers / "metrics").write_text(METRICS.replace("sm__pipe_tensor_cycles_active ", "sm__other "))
    (profilers / "01_s.csv").write_text(RAW_PAGE)
    checked(tmp_path, on_gpu(), counters=True)
    _, options = commands(profilers)
    metrics = options[options.index("--metrics") + 1].split(",")
    assert "dram__bytes.sum" in metrics
    assert "launch__occupancy_limit_registers" in metrics  # computed, not counted
    assert not [name for name in metrics if "tensor" in name]
    (profilers / "metrics").write_text("==ERROR== no list\n")
    checked(tmp_path, on_gpu(), counters=True)
    options = commands(profilers)[-1]
    assert len(options[options.index("--metrics") + 1].split(",")) == len(metrics) + 1


BALANCED = {"hbm": 40, "matrix": 20, "occupancy": 50, "busy": 95, "grid": 1320, "clock": 1.95}
DRAWN: Mapping[str, tuple[Mapping[str, float], str]] = {
    # HBM and matrix units, % of peak
    "at the peak of HBM": ({"hbm": 86}, "HBM-bound"),
    "and of few workgroups": ({"hbm": 86, "grid": 66}, "HBM-bound"),
    "at that of matrix units": ({"matrix": 75}, "matrix-bound"),
    "waiting for HBM": ({"hbm": 70, "matrix": 20}, "memory waits"),
    "both half busy": ({"hbm": 70, "matrix": 55}, ""),
    "no matrices": ({"hbm": 70, "matrix": 0}, ""),
    # workgroups for 132 SMs
    "few workgroups": ({"grid": 66, "busy": 48}, "unfilled"),
    "one for nearly each": ({"grid": 128, "busy": 94}, ""),
    "a last wave": ({"grid": 140, "busy": 55}, "uneven"),
    "few us": ({"us": 4, "grid": 140, "busy": 55}, "short"),
    "busy within few us": ({"us": 4}, ""),
    # warps
    "few warps": ({"occupancy": 12, "matrix": 0}, "low occupancy"),
    "few warps of a GEMM": ({"occupancy": 12, "matrix": 20}, ""),
    "few warps are enough": ({"occupancy": 12, "matrix": 0, "hbm": 75}, ""),
    # clocks
    "throttled": ({"clock": 1.3}, "low clock"),
    "throttled and bound": ({"clock": 1.3, "hbm": 90}, "HBM-bound, low clock"),
    "nothing special": ({}, ""),
}
METRIC_OF = {
    "hbm": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "matrix": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "busy": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "grid": "launch__grid_size",
    "clock": "sm__cycles_elapsed.avg.per_second",
    "us": "gpu__time_duration.sum",
}


def drawn_page(*launches: Mapping[str, float]) -> str:
    """A raw page of these launches in the units of an older version; what a launch lacks is n/a."""
    metrics = [*METRIC_OF.values(), "device__attribute_clock_rate", "device__attribute_multiprocessor_count"]
    units = ["%", "%", "%", "%", "", "cycle/nsecond", "usecond", "", ""]
    return raw_page(
        [
            ["ID", "Kernel Name", *metrics],
            ["", "", *units],
            *(
                [number, "kernel", *(launch.get(name, "n/a") for name in METRIC_OF), "1,980,000", 132]
                for number, launch in enumerate(launches)
            ),
        ]
    )


def test_a_cause_is_named_where_counters_suggest_it(tmp_path: Path, profilers: Path) -> None:
    for number, (counted, _) in enumerate(DRAWN.values(), 1):
        (profilers / f"{number:02}_s.csv").write_text(drawn_page({"us": 100, **BALANCED, **counted}))
    (profilers / f"{len(DRAWN) + 1:02}_s.csv").write_text(drawn_page({"us": 100}))
    result = checked(tmp_path, *[on_gpu()] * (len(DRAWN) + 1), counters=True)
    rows = records(result["counters"].sort_values("file"), "cause", "clock_mhz")
    assert dict(zip(DRAWN, (cause for cause, _ in rows), strict=False)) == {
        name: cause for name, (_, cause) in DRAWN.items()
    }
    assert rows[0][1] == 1950
    assert rows[-1] == ("", None)
    for cause, evidence in records(result["counters"], "cause", "evidence"):
        assert bool(cause) == bool(evidence)


@pytest.mark.parametrize(
    ("launches", "cause"),
    [
        ([("HBM", 60), ("HBM", 10), ("other", 30)], "HBM-bound"),
        ([("HBM", 40), ("other", 60)], ""),
        ([("HBM", 40), ("matrix", 60)], "matrix-bound"),
        ([("HBM", 50), ("matrix", 50)], "HBM-bound, matrix-bound"),
    ],
)
def test_a_cause_of_several_kernels_holds_for_half_of_their_time(
    tmp_path: Path, profilers: Path, launches: Sequence[tuple[str, int]], cause: str
) -> None:
    figures = {"HBM": {"hbm": 90}, "matrix": {"matrix": 80}, "other": {}}
    page = drawn_page(*({**BALANCED, **figures[name], "us": us} for name, us in launches))
    (profilers / "01_s.csv").write_text(page)
    result = checked(tmp_path, on_gpu(), counters=True)
    assert records(result["counters"], "cause", "kernels", "kernels_ns") == [
        (cause, len(launches), pytest.approx(1e3 * sum(us for _, us in launches)))
    ]


# rocprofv3 of ROCm 6.4 on a MI300X. The call's kernels are those between the last two fences.
COLUMNS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"'
)
FENCE = "at::cuda::(anonymous namespace)::spin_kernel(long)"
LAUNCHES = ("fill", FENCE, "warm up", FENCE, "Cijk_Ailk_Bljk<a, b>", "reduce", FENCE, "copy")
AGENTS = """\
"Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Count","Num_Xcc","Cu_Count","Max_Engine_Clk_Fcompute"
0,0,"CPU",96,0,1,96,3700
4,1,"GPU",0,1216,8,304,2100
"""


def counter_collection(values: Mapping[str, Sequence[float]], names: Sequence[str] = LAUNCHES) -> str:
    """A row for each launch and counter, the last one first; the GEMM takes 100 us, the reduction 25."""
    rows = [COLUMNS]
    for number, name in reversed([*enumerate(names, 1)]):
        dur_ns = {"Cijk_Ailk_Bljk<a, b>": 100_000, "reduce": 25_000}.get(name, 2_000)
        for counter, (gemm, reduction) in values.items():
            value = gemm if name.startswith("Cijk") else reduction if name == "reduce" else 99
            grid, group = (77_824, 256) if name.startswith("Cijk") else (1_048_576, 512)
            rows.append(
                f'{number},{number},"Agent 4",1,225,225,{grid},10,"{name}",{group},0,0,128,4,16,"{counter}",'
                f"{value:.6f},{7_000_000 * number},{7_000_000 * number + dur_ns}"
            )
    return "\n".join(rows)


PASSES: Mapping[str, Mapping[str, Sequence[float]]] = {
    # cycles of 8 dies together: 1.89 and 1.26 GHz
    "OccupancyPercent+GRBM_GUI_ACTIVE": {
        "OccupancyPercent": (20, 60), "GRBM_GUI_ACTIVE": (8 * 189_000, 8 * 31_500),
    },
    # KiB
    "MfmaUtil+FETCH_SIZE": {"MfmaUtil": (72, 0), "FETCH_SIZE": (100_000, 90_000)},
    "L2CacheHit+WRITE_SIZE": {"L2CacheHit": (80, 5), "WRITE_SIZE": (50_000, 20_000)},
}  # fmt: skip


@pytest.fixture
def mi300x(profilers: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same on a machine with a MI300X."""
    monkeypatch.setenv("FAKE_GPUS", MI300X)
    monkeypatch.setenv("FAKE_HIP", "6.4")
    (profilers / "agents").write_text(AGENTS)
    for name, values in PASSES.items():
        (profilers / f"01_s.{name}.csv").write_text(counter_collection(values))
    return profilers


def on_mi300x() -> str:
    return source({"device": MI300X, "traced_on": MI300X, "of_roofline": 0.4})


def test_what_rocprofv3_counts_in_several_runs_is_joined(tmp_path: Path, mi300x: Path) -> None:
    result = checked(tmp_path, on_mi300x(), counters=True)
    assert not skips(result)
    gemm, reduction = result["counter_kernels"].to_dict("records")
    assert (gemm["kernel"], gemm["dur_ns"], gemm["workgroups"], gemm["units"]) == (
        "Cijk_Ailk_Bljk<a, b>", 100_000, 304, 304,
    )  # fmt: skip
    assert [gemm[name] for name in ("occupancy", "matrix", "l2_hit")] == pytest.approx([0.2, 0.72, 0.8])
    assert (gemm["clock_mhz"], gemm["boost_mhz"]) == (1890, 2100)
    assert gemm["hbm_bytes"] == 150_000 * 1024
    assert gemm["hbm"] == pytest.approx(150_000 * 1024 / 100e-6 / 5.325e12)
    assert (gemm["cause"], reduction["cause"]) == ("matrix-bound", "HBM-bound, low clock")
    [row] = result["counters"].to_dict("records")
    assert (row["cause"], row["kernels"], row["kernels_ns"]) == ("matrix-bound", 2, 125_000)
    assert row["occupancy"] == pytest.approx((100 * 0.2 + 25 * 0.6) / 125)
    assert row["clock_mhz"] == round((100 * 1890 + 25 * 1260) / 125)
    for command in commands(mi300x):
        assert command[command.index("--") + 1 :][:2] == [sys.executable, "-I"]


def test_a_pass_that_fails_or_launches_other_kernels_leaves_its_figures_unknown(
    tmp_path: Path, mi300x: Path
) -> None:
    first, second, third = (f"01_s.{name}.csv" for name in PASSES)
    (mi300x / second).unlink()
    others = [name.replace("reduce", "sum") for name in LAUNCHES]
    (mi300x / third).write_text(counter_collection(PASSES["L2CacheHit+WRITE_SIZE"], others))
    result = checked(tmp_path, on_mi300x(), counters=True)
    [row] = result["counters"].to_dict("records")
    assert row["occupancy"] == pytest.approx(0.28)
    assert [row[name] is None or row[name] != row[name] for name in ("matrix", "l2_hit", "hbm", "hbm_bytes")]
    (mi300x / first).unlink()
    (mi300x / third).unlink()
    assert skips(checked(tmp_path, on_mi300x(), counters=True)) == [
        (
            "counters of 01_s.py",
            "rocprofv3: Unable to find all counters for agent 4: ['OccupancyPercent', 'GRBM_GUI_ACTIVE']",
        )
    ]


def test_without_fences_no_launch_is_the_calls(tmp_path: Path, mi300x: Path) -> None:
    for name, values in PASSES.items():
        (mi300x / f"01_s.{name}.csv").write_text(counter_collection(values, ["fill", "reduce"]))
    [(_, reason)] = skips(checked(tmp_path, on_mi300x(), counters=True))
    assert reason == "rocprofv3 counted no kernel of the call"
    for name in PASSES:
        (mi300x / f"01_s.{name}.csv").write_text("a,b\n1,2\n")
    [(_, reason)] = skips(checked(tmp_path, on_mi300x(), counters=True))
    assert reason == "rocprofv3 wrote a table that cannot be read: 'Counter_Value'"


# ====================
# What goes wrong

NO_PERMISSION = """\
==PROF== Connected to process 11156 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on
==PROF== Disconnected from process 11156
==WARNING== No kernels were profiled.
"""
NOTHING = """\
==PROF== Connected to process 11156 (/usr/bin/python3.12)
==PROF== Disconnected from process 11156
==WARNING== No kernels were profiled.
"""


def test_who_may_not_read_counters_is_told_once(tmp_path: Path, profilers: Path) -> None:
    for number in (1, 2):
        (profilers / f"0{number}_s.csv").write_text(NO_PERMISSION)
    result = checked(tmp_path, on_gpu(), on_gpu(), counters=True)
    [(subject, reason)] = skips(result)
    assert subject == "counters"
    assert reason.startswith("ERR_NVGPUCTRPERM: ")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in reason
    assert len(result["counters"]) == 0
    assert [status for (status,) in records(result["scripts"], "status")] == ["match", "match"]
    assert not failed(result, strict=True)
    assert len(commands(profilers)) == 2  # the metrics, and one script


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (NOTHING, "ncu counted no kernel of the call"),
        ("", "ncu counted no kernel of the call"),
        (
            '==ERROR== Failed to profile "ampere_gemm" in process 7\n==ERROR== An error was reported\n',
            'ncu: Failed to profile "ampere_gemm" in process 7',
        ),
        ('"ID","Kernel Name"\n"",""\n', "ncu counted no kernel of the call"),
        ('\x00\xff,,,\n"', "ncu counted no kernel of the call"),
        (
            RAW_PAGE.replace('"300,000"', '"n/a"').replace('"100,000"', '""'),
            "ncu counted no kernel of the call",
        ),
        (f'"Kernel Name","{"x" * 200_000}"', "ncu wrote a table that cannot be read: field larger than "),
    ],
)
def test_a_script_without_counters_says_why_and_the_next_has_them(
    tmp_path: Path, profilers: Path, page: str, reason: str
) -> None:
    (profilers / "01_s.csv").write_text(page)
    (profilers / "02_s.csv").write_text(RAW_PAGE)
    result = checked(tmp_path, on_gpu(), on_gpu(), counters=True)
    [(subject, told)] = skips(result)
    assert subject == "counters of 01_s.py"
    assert told.startswith(reason)
    assert records(result["counters"], "file") == [("02_s.py",)]
    assert not failed(result)


def test_scripts_that_fail_or_hang_when_counted(tmp_path: Path, profilers: Path) -> None:
    counted = "import sys; counted = '--counters' in sys.argv"
    fails = f"{counted}\nif counted: raise RuntimeError('out of memory')\n{on_gpu()}"
    hangs = f"{counted}\nif counted: import time; time.sleep(600)\n{on_gpu()}"
    for number in (1, 2):
        (profilers / f"0{number}_s.csv").write_text(RAW_PAGE)
    result = checked(tmp_path, fails, hangs, counters=True, timeout_s=5)
    assert skips(result) == [
        ("counters of 01_s.py", "RuntimeError: out of memory"),
        ("counters of 02_s.py", "ncu exceeded the time limit of 5 s: raise it with --timeout"),
    ]
    assert [status for (status,) in records(result["scripts"], "status")] == ["match", "match"]


def test_only_right_ops_are_counted(tmp_path: Path, profilers: Path) -> None:
    for number in range(1, 5):
        (profilers / f"0{number}_s.csv").write_text(RAW_PAGE)
    sequence = listed(on_gpu())._replace(kind="sequence")
    wrong = on_gpu(check="wrong: 3 of 4 differ")
    slower = on_gpu(median_us=90.0)
    result = checked(tmp_path, sequence, wrong, "raise ValueError", slower, counters=True)
    assert records(result["counters"], "file") == [("04_s.py",)]
    assert [subject for subject, _ in skips(result)] == ["counters of 1 scripts"]
    assert failed(result)


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ({"FAKE_GPUS": H100}, {}, ("ncu is not installed", "CUDA toolkit")),
        ({"FAKE_GPUS": MI300X, "FAKE_HIP": "6.4"}, {}, ("rocprofv3 is not installed", "ROCm")),
        ({"FAKE_GPUS": ""}, {}, ("needs a GPU",)),
        ({"FAKE_GPUS": H100}, {"device": "cpu"}, ("needs a GPU",)),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(
    tmp_path: Path,
    torch: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    words: Sequence[str],
) -> None:
    if any(Path(place).exists() for place in ("/usr/local/cuda/bin/ncu", "/opt/rocm/bin/rocprofv3")):
        pytest.skip("this machine has a profiler")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TracelensError) as caught:
        checked(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n{on_gpu()}", counters=True, **options)
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "ran").exists()


def test_the_command_prints_the_tables_and_ends_as_without_counters(
    tmp_path: Path, profilers: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (profilers / "01_s.csv").write_text(RAW_PAGE)
    (profilers / "02_s.csv").write_text(NOTHING)
    folder = str(tmp_path / "replay")
    checked(tmp_path, on_gpu(), on_gpu())
    assert run(["replay", "verify", folder, "--counters", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert set(document["tables"]) == set(TABLES)
    assert len(document["tables"]["counter_kernels"]) == 2
    assert [skip["subject"] for skip in document["skips"]] == ["counters of 02_s.py"]
    html = tmp_path / "report.html"
    assert run(["replay", "verify", folder, "--counters", "--only", "01", "-o", str(html)]) == 0
    assert "Hardware counters" in html.read_text()
    assert run(["replay", "verify", folder, "--counters", "--device", "cpu"]) == 2
    err = capfd.readouterr().err
    assert err.splitlines()[-1].endswith("a CPU has none of these hardware counters")
