"""Wrong calls and foreign files: one line that says what, where and what to do next, and exit code 2."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import foreign
from tracelens.cli import run

RECORD = "record the run with torch.profiler"
EXPORT = "pass what export_chrome_trace wrote"
NEW = "1700000009000000000.pt.trace.json"
REFUSALS = {
    # Chrome JSON of other programs, and torch traces without work
    "report jax.json": ("a trace of JAX or XLA", "analyze input", "open it in XProf"),
    "analyze timeline jax.json": ("a trace of JAX or XLA", "open it in XProf"),
    "report jax.json --only ops": ("a trace of JAX or XLA", "open it in XProf"),
    "diff jax.json trace.json": ("no GPU work", "open it in XProf"),
    "gate jax.json jax.json": ("a trace of JAX or XLA", "open it in XProf"),
    "replay jax.json -o scripts": ("jax.json: a trace of JAX or XLA", "open it in XProf"),
    "project whatif jax.json": ("no GPU work", "open it in XProf"),
    "report rocprof.json": ("a trace of rocprof", RECORD),
    "report browser.json": ("a browser's trace", EXPORT),
    "report viztracer.json": ("a trace of VizTracer", RECORD),
    "report other.json": ("a Chrome trace of another program", RECORD),
    "report python.json": ("a torch trace without GPU work", "record with ProfilerActivity.CUDA"),
    "report no_events.json": ("no intact trace event", EXPORT),
    "report no_event.json": ("no intact trace event", EXPORT),
    "report numbers.json": ("no intact trace event", EXPORT),
    # other JSON
    "report config.json": ("is not a profiler trace", EXPORT),
    "report flight.json": ("a dump of the NCCL flight recorder", "torchfrtrace"),
    "report rocprofv3.json": ("JSON of rocprofv3", RECORD),
    "report chakra.json": ("execution trace", RECORD),
    "report execution.json": ("execution trace", RECORD),
    "report snapshot.json": ("memory snapshot", "pytorch.org/memory_viz"),
    "report tensorflow.json": ("a trace of TensorFlow", "open it in XProf"),
    "report ascend.json": ("a trace of Ascend's msprof", "MindStudio"),
    "report collectives.json": ("a dump of the NCCL flight recorder", "torchfrtrace"),
    "report nccl": ("nccl_trace_rank_0.json", "a dump of the NCCL flight recorder", "torchfrtrace"),
    "report empty_object.json": ("is not a profiler trace", EXPORT),
    "report null_events.json": ("is not a profiler trace", EXPORT),
    "report text_events.json": ("no intact trace event", EXPORT),
    "report spans.json": ("is not a profiler trace", EXPORT),
    "report cut_header.json": ("cut off before its first event", "record or copy it again"),
    "report blank.json": ("it is empty", "record or copy it again"),
    "report nsys.jsonl": ("JSON of NVIDIA Nsight Systems", RECORD),
    "report pointer.json": ("a Git LFS pointer", "git lfs pull"),
    "report host.xplane.pb.gz": ("an XPlane profile", "open it in XProf"),
    "report logdir": ("holds no trace", "host.xplane.pb is not a trace but an XPlane profile", "XProf"),
    "report report.json": ("a JSON report of tracelens", "pass the traces"),
    "report sidecar": ("describes the recording", "pass its directory"),
    "report events.jsonl": ("JSON Lines, an event a line", "jq -s . OLD > NEW"),
    "report metrics.ndjson": ("JSON Lines, as logs of metrics", EXPORT),
    "report notebook.ipynb": ("a notebook", "pass the traces that it reads"),
    "report speedscope.json": ("a profile of speedscope", RECORD),
    # other files
    "report traces.tar": ("a tar archive", "unpack it, and pass the folder"),
    "report traces.tar.gz": ("a tar archive", "unpack it, and pass the folder"),
    "report twice.json.gz": ("gzip inside another compression", "unpack it first"),
    "report archive.zip": ("holds no trace", "(1 .txt, 1 .csv)"),
    "report book.xlsx": ("an Office document", "pass the traces it is made from"),
    "report table.parquet": ("a Parquet file", "pass the trace itself"),
    "report train.py": ("a Python script", RECORD),
    "replay train.py -o scripts": ("a Python script", RECORD),
    "report events.out.tfevents.17.host": ("a log of TensorBoard", "pass the .pt.trace.json beside it"),
    "report kernels.csv": ("a text table", RECORD),  # with a sign that is not ASCII
    "report link.json": ("a link to /nowhere/trace.json", "copy what it stands for"),
    "diff trace.json snapshot.pickle": ("memory snapshot", "pytorch.org/memory_viz"),
    "gate trace.json stats.csv": ("a text table", RECORD),
    "fuse snapshot.pickle -o fused.json": ("memory snapshot", "pytorch.org/memory_viz"),
    "replay verify trace.json": ("no replay.json", "make one with tracelens replay"),
    "report host.xplane.pb": ("an XPlane profile", "open it in XProf"),
    "report gpu.xplane.pb": ("an XPlane profile", "open it in XProf"),
    "report trace.pftrace": ("a Perfetto protobuf", "traceconv json"),
    "report report.nsys-rep": ("NVIDIA Nsight", RECORD),
    "report report.ncu-rep": ("NVIDIA Nsight", RECORD),
    "report report.sqlite": ("NVIDIA Nsight Systems", RECORD),
    "report results.db": ("a rocpd database", "rocpd convert", RECORD),
    "report other.db": ("an SQLite database", RECORD),
    "report snapshot.pickle": ("memory snapshot", "pytorch.org/memory_viz"),
    "report flight.pickle": ("a dump of the NCCL flight recorder", "torchfrtrace"),
    "diff flight.pickle trace.json": ("a dump of the NCCL flight recorder", "torchfrtrace"),
    "report list.pickle": ("a Python pickle", "pass the trace itself"),
    "report stats.csv": ("a text table", RECORD),
    "report report.html": ("a report of tracelens", "pass the traces it is made from"),
    "report page.html": ("HTML or XML", "download it again"),
    "report log.txt": ("not a JSON trace", "pass what torch.profiler wrote"),
    "report empty.json": ("the file is empty", "record or copy it again"),
    "report empty.json.gz": ("it is empty", "record or copy it again"),
    "report cut.json.gz": ("ends before its first event", "record or copy it again"),
    # folders and names
    "report nothing": ("holds no trace", "looked for .json"),
    "report dumps": ("holds no trace", "nccl_trace_rank_0 is not a trace", "read it with torchfrtrace"),
    "report links": ("holds no trace, only links to what is not there: trace.json",),
    "report mixed": ("mixed/jax.json: a trace of JAX or XLA", "pass the other traces without it"),
    "report deep": ("holds no trace itself", "pass deep/er/traces"),
    "report logs": ("only files of other kinds (1 .log)", "looked for .json"),
    "report tensorboard": ("holds 2 dumps of worker host_7", f"pass the newest: tensorboard/host_7.{NEW};"),
    "report workers": (f"the newest of each worker: workers/host_0.{NEW} and workers/host_1.{NEW};",),
    "report trcae.json": ("no such file", "did you mean 'trace.json'?"),
    # calls
    "reprot trace.json": ("No such command 'reprot'", "Did you mean 'report'"),
    "trace.json": ("No such command 'trace.json'", "tracelens report trace.json"),
    "report": ("Missing argument 'PATH...'", "see --help"),
    "diff trace.json": ("Missing argument 'CAND'", "see --help"),
    "report trace.json --onyl ops": ("--onyl", "--only"),
    "report trace.json --only tmeline": ("unknown analyzer 'tmeline'", "did you mean 'timeline'?"),
    "analyze tmeline trace.json": ("unknown analyzer 'tmeline'", "did you mean 'timeline'?"),
    "analyze trace.json timeline": ("name the analyzer first", "tracelens analyze NAME trace.json"),
    "report trace.json --scope some": ("'some' is not one of", "'linked'"),
    "report trace.json --device h1000": ("unknown device 'h1000'", "did you mean"),
    "report trace.json --step 99": ("no step '99'", "leave --step out"),
    "report trace.json -o report.pdf": ("'.pdf'", "known: .html"),
    "report trace.json -o trace.json": ("is the input", "write another file"),
    "report trace.json --limit foo=1": ("unknown limit 'foo'", "known: "),
    "fuse trace.json": ("Missing option '-o'", "see --help"),
    "whatif trace.json": ("No such command 'whatif'", "tracelens project whatif"),
    "idle trace.json": ("No such command 'idle'", "tracelens analyze idle"),
    "compare trace.json trace.json": ("No such command 'compare'", "tracelens diff"),
    "project search --model x": ("No such command 'search'", "tracelens project memory --search"),
    "export trace.json": ("No such command 'export'", "Did you mean 'report'?"),
    "analyze idle trace.json --steps 3": ("No such option: --steps", "--step)"),
    "fuse trace.json -o out.json --ranks 9": ("the run has no rank 9 (it has 0)",),
    "gate trace.json trace.json --rule step.time<=fast": ("'fast' is not a limit", "step.time<=1.03"),
    "report trace.json --device-file trace.json": ("trace.json: not TOML",),
    "report trace.json --limit event_bytes=abc": ("is not a positive number", "write it as 500000"),
    "project memory --model deepseek_v3 --gpus 7 --ep 3": ("ep (3) must divide the 7 ranks",),
    "workload run --preset huge": ("unknown preset 'huge'", "tiny"),
    "help": ("No such command 'help'", "tracelens --help"),
    "report trace.json --json": ("No such option: --json", "-o NAME.json"),
    "report trace.json --format pdf": ("No such option: --format.", "-o NAME.SUFFIX"),
    "report trace.json --twin nothing.json": ("nothing.json: no such file or folder",),
    "diff trace.json trace.json --captures nothing.json": ("nothing.json: no such file or folder",),
    # likewise where no graph needs them
    "report trace.json --twin config.json": ("config.json", "is not a profiler trace", EXPORT),
    "replay trace.json -o scripts --twin jax.json": ("jax.json: not a trace of torch.profiler", "name one"),
    "diff trace.json trace.json --captures snapshot.pickle": ("memory snapshot", "pytorch.org/memory_viz"),
    "analyze idle trace.json --captures dumps": ("dumps: holds no capture trace",),
    "analyze idle trace.json --table gasp": ("idle has no table 'gasp'", "did you mean 'gaps'?"),
    "analyze moe trace.json --table experts": ("'experts' has no rows here", "no MoE layer"),
    "project whatif trace.json --scenario lanch_free": ("unknown scenario", "did you mean 'launch_free'?"),
    "project memory --model deepsek_v3 --gpus 8": ("'deepsek_v3'", "did you mean 'deepseek_v3'?"),
    "project whatf trace.json": ("No such command 'whatf'", "Did you mean 'whatif'?"),
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file by its name in the current folder."""
    foreign.write(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", REFUSALS)
def test_one_line_says_what_it_is_and_what_to_do(refused: Callable[..., str], line: str) -> None:
    said = refused(*shlex.split(line))
    assert said.startswith("tracelens")
    assert "Traceback" not in said
    assert not [part for part in REFUSALS[line] if part not in said]


@pytest.mark.parametrize(
    "line",
    [
        "analyze input jax.json",  # what can still be told
        "fuse jax.json -o fused.json",
        "report host.json",  # ops of a CPU-only run are work
        "analyze ops host.json",
        "analyze moe trace.json",  # no MoE layer is an answer
        f"report tensorboard/host_7.{NEW}",
        "diff tensorboard/host_7.1700000000000000000.pt.trace.json trace.json",
    ],
)
def test_what_has_an_answer_is_answered(line: str) -> None:
    assert run(shlex.split(line)) == 0
