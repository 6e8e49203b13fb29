"""`replay verify` on small scripts that print what generated ones print, or misbehave; torch is a small fake.

Those at the end run generated scripts with the real torch, where there is one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders import aligned, draw, records
from tests.reproducers.fake_torch import H100, MI300X, checked, collective, listed, on_gpu, source, written
from tracelens.errors import TracelensError
from tracelens.rendering.formats import console_text
from tracelens.reproducers.calls import cases
from tracelens.reproducers.scripts import script as made_of
from tracelens.reproducers.verify import failed, verify
from tracelens.table import Report, Result
from tracelens.trace import gpu_work


def writing(text: str, tmp_path: Path) -> str:
    """The script with the name of the file that it writes to."""
    return f"TOLD = {str(tmp_path / 'told')!r}\n{text}"


def rows(result: Result, *names: str) -> list[tuple[Any, ...]]:
    """These columns of the scripts, in the order of the files; none stands for status and note."""
    notes = dict(records(result["notes"], "file", "note"))
    found = records(result["scripts"].sort_values("file"), *(names or ("status", "file")))
    return found if names else [(status, notes.get(file, "")) for status, file in found]


def test_times_within_the_tolerance_match_and_others_do_not(
    tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GPUS", H100)
    result = checked(
        tmp_path,
        on_gpu(median_us=55.0),
        on_gpu(median_us=45.0),
        on_gpu(median_us=56.0),
        on_gpu(median_us=44.0),
        listed(on_gpu(median_us=55.0, p10_us=54.0, p90_us=56.0, warm_us=51.0, flop_per_s=2e14,
                      byte_per_s=1e12, of_roofline=0.5), total_us=200.0, count=4),
    )  # fmt: skip
    assert [status for status, _ in rows(result)] == ["match", "match", "slower", "faster", "match"]
    assert records(
        result["scripts"].iloc[-1:], "count", "traced_ns", "replayed_ns", "p10_ns", "p90_ns", "warm_ns"
    ) == [(4, 50_000.0, 55_000.0, 54_000.0, 56_000.0, 51_000.0)]
    last = records(result["scripts"].iloc[-1:], "ratio", "roofline", "flops_per_s", "bytes_per_s", "check")
    assert last == [(pytest.approx(1.1), 0.5, 2e14, 1e12, "ok")]
    # 50 + 50 + 200 of 400 us
    assert result.meta["matching_fraction"] == 0.75
    assert result.meta["statuses"] == {"slower": 1, "faster": 1, "match": 3}
    assert (result.meta["device"], result.meta["torch"]) == (H100, "9.9+fake")
    assert records(result["summary"], "status", "count", "traced_ns", "fraction_of_traced_time") == [
        ("slower", 1, 50_000.0, 0.125), ("faster", 1, 50_000.0, 0.125), ("match", 3, 300_000.0, 0.75),
    ]  # fmt: skip
    assert not failed(result)
    assert failed(result, strict=True)


@pytest.mark.parametrize(
    ("told", "script", "note"),
    [
        ({"median_us": 80.0, "warm_us": 52.0}, {}, "matches with warm caches (52.0 µs)"),
        ({"median_us": 80.0, "warm_us": 78.0}, {}, ""),
        ({"median_us": 80.0, "p10_us": 50.0, "p90_us": 110.0}, {}, "noisy here (p90/p10 = 2.2)"),
        ({"median_us": 80.0}, {"count": 3, "total_us": 600.0}, "mean / median = 4.0"),
        (
            {"median_us": 7.0, "traced_us": 5.0},
            {"traced_us": 5.0, "total_us": 5.0},
            "the 2.0 µs difference",
        ),
    ],
)
def test_a_time_that_differs_says_why_where_the_numbers_tell(
    tmp_path: Path, torch: Path, told: dict[str, float], script: dict[str, Any], note: str
) -> None:
    [(status, found)] = rows(checked(tmp_path, listed(on_gpu(**told), **script)))
    assert status == "slower"
    assert note in found
    assert bool(note) == bool(found)


def test_times_of_other_devices_are_not_compared(tmp_path: Path, torch: Path) -> None:
    result = checked(
        tmp_path,
        on_gpu(traced_on=MI300X, median_us=500.0),
        on_gpu(traced_on=[MI300X, "NVIDIA H100 SXM5"], median_us=500.0),  # another name of the same
        on_gpu(traced_on="", median_us=500.0),
        source({"median_us": 500.0}),
        on_gpu(traced_us=None, median_us=500.0),
        on_gpu(op="stand-in for aten::_fused", median_us=500.0, traced_on=MI300X),
        on_gpu(op="stand-in for aten::_fused", median_us=500.0),
        on_gpu(ratio=None, median_us=500.0, note="an eighth of the sizes"),  # knows that it is another one
    )
    assert rows(result) == [
        ("other device", f"traced on {MI300X}"),
        ("slower", ""),
        ("slower", ""),
        ("ran", ""),
        ("ran", "no traced time to compare"),
        ("ran", "stand-in for aten::_fused: no such kernel on this device"),
        ("failed", "stand-in for aten::_fused: no such kernel on this device"),
        ("ran", "no traced time to compare; an eighth of the sizes"),
    ]
    assert [ratio for (ratio,) in rows(result, "ratio")] == [10.0, 10.0, 10.0, None, None, 10.0, 10.0, None]


def test_strict_wants_a_time_that_matches(tmp_path: Path, torch: Path) -> None:
    cpu = checked(tmp_path, source())
    assert (failed(cpu), failed(cpu, strict=True)) == (False, True)
    same = checked(tmp_path, source(), on_gpu())
    assert (failed(same), failed(same, strict=True)) == (False, False)
    other = checked(tmp_path, on_gpu(traced_on=MI300X), on_gpu())
    assert (failed(other), failed(other, strict=True)) == (False, True)


@pytest.mark.parametrize(
    ("text", "status", "note"),
    [
        (source({"check": "wrong: 3 of 4 differ"}, code=1), "wrong", "3 of 4 differ"),
        (source({"check": "wrong: 3 of 4 differ"}), "wrong", "3 of 4 differ"),
        (source(code=3), "failed", "exit status 3 after its result: "),
        ("raise SystemExit('torch has no aten::nope')", "failed", "torch has no aten::nope"),
        ("import sys\nprint('no GPU', file=sys.stderr)\nsys.exit(2)", "failed", "no GPU"),
        ("import warnings\nwarnings.warn('w')\n1 / 0", "failed", "ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("def f(", "failed", "SyntaxError: '(' was never closed (02_s.py, line 1)"),
        ("import os\nos.abort()", "failed", "ended by SIGABRT"),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "failed",
            "ended by SIGKILL: out of memory?",
        ),
        ("import os\nos._exit(5)", "failed", "exit status 5"),
        ("import os\nos._exit(0)", "failed", "it printed no result"),
        ("print('{\"check\": ')\nprint('[1]')", "failed", "it printed no result"),
        ("print('{}' + '[' * 100_000)\nprint('{\"a\":' * 100_000)", "failed", "it printed no result"),
        (source({"median_us": None}), "failed", "its result has no time"),
        (source({"median_us": float("nan")}), "failed", "its result has no time"),
        (source({"median_us": float("inf")}), "failed", "its result has no time"),
        ("import os\nos.closerange(0, 200)", "failed", "exit status 120"),
        ("import sys\nsys.stdout.close()", "failed", "it printed no result"),
    ],
)
def test_what_goes_wrong_in_one_script_is_no_matter_to_the_next(
    tmp_path: Path, torch: Path, text: str, status: str, note: str
) -> None:
    result = checked(tmp_path, source(), text, source())
    assert [found for found, _ in rows(result)] == ["ran", status, "ran"]
    assert rows(result)[1][1] == note.strip()
    assert records(result["scripts"].iloc[:1], "status") == [(status,)]  # first what needs a look
    assert failed(result)


LINGERS_S = 300
"""How long what a script leaves behind would keep a reader waiting: no busy machine is as slow."""
THREAD = f"import threading, time; threading.Thread(target=time.sleep, args=[{LINGERS_S}]).start()"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(source(before="print('x' * 10_000_000)\nprint('z\\n' * 100_000)"), id="10 MB"),
        pytest.param(source(after="print('{\"check\": 1}x')\nprint('bye')"), id="words after it"),
        pytest.param(source(before="os.write(1, b'{\"code\": 1}\\n\\xff')\nprint()"), id="bytes"),
        pytest.param(source(before="assert sys.stdin.read() == ''"), id="reads"),
        pytest.param(source(before=THREAD), id="leaves a thread"),
        pytest.param(
            source(before=f"import subprocess; subprocess.Popen(['sleep', '{LINGERS_S}'])"),
            id="and a process",
        ),
        pytest.param(source(after="sys.stdout.flush(); os.abort()"), id="dies late"),
    ],
)
def test_a_result_is_found_whatever_else_a_script_does(tmp_path: Path, torch: Path, text: str) -> None:
    began = time.monotonic()
    statuses = [status for status, _ in rows(checked(tmp_path, text, source()))]
    assert statuses == (["failed", "ran"] if "abort" in text else ["ran", "ran"])
    assert time.monotonic() - began < LINGERS_S / 2


TIMEOUTS_S = (3, 60)
"""Of scripts that hang: on a busy machine, they have not even started when the first one ends them."""


def test_a_script_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path, torch: Path) -> None:
    note = tmp_path / "number"
    hang = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "print('loading', file=sys.stderr, flush=True)\n"
        "time.sleep(600)"
    )
    for timeout_s in TIMEOUTS_S:
        result = checked(tmp_path, hang, source(), timeout_s=timeout_s)
        if rows(result) == [("timeout", "loading"), ("ran", "")]:
            break
    assert rows(result) == [("timeout", "loading"), ("ran", "")]
    assert gone(int(note.read_text()))
    assert failed(result)


def gone(number: int) -> bool:
    """Whether a process has ended; nobody may have waited for it yet."""
    for _ in range(100):
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_scripts_share_a_process_and_notice_nothing_of_each_other(tmp_path: Path, torch: Path) -> None:
    one = source(
        before="""
import gc, threading, torch
told = {"pid": os.getpid(), "dtype": torch.get_default_dtype(), "argv": sys.argv[1:], "seed": torch.seeds[-1],
        "cwd": os.getcwd(), "home": os.environ.get("MINE"), "main": __name__, "known": "left" in globals()}
print(json.dumps(told), file=open(TOLD, "a"))
left = 1
torch.set_default_dtype("float64")
torch.manual_seed(7)
os.environ["MINE"] = "1"
os.chdir("/")
sys.argv = ["x"]
sys.stdout = sys.stderr = open(os.devnull, "w") if False else sys.stdout
"""
    )
    one = writing(one, tmp_path)
    checked(tmp_path, one, one, device="cpu", iters=3)
    first, second = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert first == second
    assert first == {
        "pid": first["pid"], "dtype": "float32", "argv": ["--json", "--device", "cpu", "--iters", "3"],
        "seed": 0, "cwd": first["cwd"], "home": None, "main": "__main__", "known": False,
    }  # fmt: skip
    assert first["pid"] != os.getpid()
    assert first["cwd"] != os.getcwd()


PID = 'print(os.getpid(), file=open(TOLD, "a"))'


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("pass", 1),
        ("torch.device = 'meta'", 2),  # cannot be put back without leaving something behind
        ("torch.held = 1 << 30", 2),
        ("torch.poisoned = True", 2),  # and is not run again: nobody was there before
        (THREAD, 2),
        ("sys.exit(2)", 1),  # says by itself that it cannot run
    ],
)
def test_a_process_that_is_not_as_it_was_runs_nothing_more(
    tmp_path: Path, torch: Path, line: str, processes: int
) -> None:
    scripts = source(before=f"import torch\n{PID}\n{line}"), source(before=PID)
    checked(tmp_path, *(writing(script, tmp_path) for script in scripts))
    assert len(set((tmp_path / "told").read_text().split())) == processes


def test_who_fails_in_a_used_process_gets_a_new_one(tmp_path: Path, torch: Path) -> None:
    # The kernel of the first one has spoilt the process; who notices is the second.
    spoils = source(after="import torch; torch.flag = True")
    suffers = source(before="import torch\nif getattr(torch, 'flag', False):\n    os.abort()")
    assert [status for status, _ in rows(checked(tmp_path, spoils, suffers))] == ["ran", "ran"]


def test_collectives_start_their_processes_themselves(tmp_path: Path, torch: Path) -> None:
    alone = source({"busbw_bytes_per_s": 3e11}, before="assert 'RANK' not in os.environ")
    result = checked(
        tmp_path,
        collective(alone, processes=8),
        collective("raise ValueError('bad split')"),
        collective(source({"check": "wrong: sums differ"}, code=1)),
        source(),
    )
    assert rows(result) == [
        ("ran", ""),
        ("failed", "ValueError: bad split"),
        ("wrong", "sums differ"),
        ("ran", ""),
    ]
    assert (3e11,) in rows(result, "bytes_per_s")


def test_an_error_of_a_kernel_that_shows_itself_late_is_the_scripts(tmp_path: Path, torch: Path) -> None:
    result = checked(tmp_path, source(after="import torch; torch.poisoned = True"), source())
    assert rows(result) == [
        ("failed", "exit status 1 after its result: RuntimeError: CUDA error: an illegal memory access "
                   "was encountered (reported after its end)"),
        ("ran", ""),
    ]  # fmt: skip


def test_several_processes_that_hang_are_stopped(tmp_path: Path, torch: Path) -> None:
    hang = (
        "import os, time\n"
        "rank = int(os.fork() == 0)\n"
        "rank and os.setsid()\n"
        f"open({str(tmp_path)!r} + f'/rank{{rank}}', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    for timeout_s in TIMEOUTS_S:
        result = checked(tmp_path, collective(hang), timeout_s=timeout_s)
        assert rows(result, "status") == [("timeout",)]
        if all((tmp_path / f"rank{rank}").exists() for rank in range(2)):
            break
    assert all(gone(int((tmp_path / f"rank{rank}").read_text())) for rank in range(2))


def test_too_few_gpus_for_a_collective(tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", f"{H100},{H100}")
    two, three = collective(on_gpu()), collective(on_gpu(), processes=3)
    result = checked(tmp_path, two, three)
    assert rows(result) == [
        ("match", ""),
        ("skipped", "needs 3 GPUs, found 2; --device cpu runs it on gloo"),
    ]
    assert not failed(result)
    assert rows(checked(tmp_path, three, device="cpu"), "status") == [("match",)]  # as the script says it


def test_only_listed_files_of_the_directory_itself_are_run(tmp_path: Path, torch: Path) -> None:
    folder = tmp_path / "replay"
    written(folder, source(), source(), source())
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    (folder / "00_other.py").write_text(trap)
    (tmp_path / "outside.py").write_text(trap)
    (folder / "02_s.py").unlink()
    (folder / "02_s.py").symlink_to(tmp_path / "outside.py")
    (folder / "03_s.py").unlink()
    result = verify(folder)
    assert [status for status, _ in rows(result)] == ["ran", "failed", "failed"]
    assert "a symbolic link" in rows(result)[1][1]
    assert "No such file or directory" in rows(result)[2][1]
    assert not (tmp_path / "ran").exists()
    text = (folder / "replay.json").read_text()
    (folder / "replay.json").write_text(text.replace("02_s.py", "../outside.py"))
    with pytest.raises(TracelensError, match="not a script list"):
        verify(folder)


def test_a_script_that_was_changed_is_not_run(tmp_path: Path, torch: Path) -> None:
    folder = tmp_path / "replay"
    written(folder, source(), source(), collective(source()))
    for name in ("02_s.py", "03_s.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    result = verify(folder)
    assert [status for status, _ in rows(result)] == ["ran", "failed", "failed"]
    for _, note in rows(result)[1:]:
        assert "modified since tracelens wrote it" in note
        assert "run it directly with python 0" in note
    assert not (tmp_path / "ran").exists()
    assert failed(result)


def test_pipes_and_folders_are_no_scripts(tmp_path: Path, torch: Path) -> None:
    folder = tmp_path / "replay"
    written(folder, source(), source())
    for name in ("01_s.py", "02_s.py"):
        (folder / name).unlink()
    os.mkfifo(folder / "01_s.py")
    (folder / "02_s.py").mkdir()
    assert [status for status, _ in rows(verify(folder))] == ["failed", "failed"]


ALONE = """
here = os.path.dirname(os.path.abspath(__file__))
assert os.listdir(here) == [os.path.basename(__file__)], os.listdir(here)
assert os.stat(here).st_mode & 0o777 == 0o700
assert sys.flags.isolated and not {here, os.getcwd(), ""} & {*sys.path}, sys.path
import colorsys, multiprocessing, torch
"""
SPAWNS = f"""
import json, os, subprocess, sys
{ALONE}
def child(queue):
    queue.put([sys.flags.isolated, __name__])
if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    assert queue.get() == [1, "__mp_main__"]
    process.join()
    # One that is not isolated by itself.
    subprocess.run([sys.executable, "-c", "import colorsys, json"], cwd=STRAYS, check=True)
    print(json.dumps({{"check": "ok", "median_us": 50.0, "device": "cpu"}}))
"""


def test_no_module_but_installed_ones_is_imported(
    tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, folder = tmp_path / "imported", tmp_path / "replay"
    places = [folder, tmp_path / "here", tmp_path / "elsewhere"]
    scripts = [listed(source(before=ALONE)), collective(f"STRAYS = {str(places[1])!r}\n{SPAWNS}")]
    written(folder, *scripts)
    for place in places:
        place.mkdir(exist_ok=True)
        for name in ("torch", "json", "colorsys", "multiprocessing", "sitecustomize", "usercustomize"):
            (place / f"{name}.py").write_text(f"open({str(imported)!r}, 'a').write(__file__)\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    assert rows(verify(folder)) == [("ran", ""), ("ran", "")]
    assert not imported.exists()


def test_the_interpreter_is_found_from_the_current_directory(
    tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = checked(tmp_path, source(), collective(source()), python="environment/bin/python")
    assert [status for status, _ in rows(result)] == ["ran", "ran"]


@pytest.mark.parametrize(
    ("ranks", "gpus", "statuses"),
    [
        (None, 0, ["ran", "skipped", "skipped"]),  # up to 8 on the CPU
        (96, 0, ["ran", "ran", "ran"]),
        (2, 0, ["ran", "skipped", "skipped"]),
        (1, 0, ["skipped", "skipped", "skipped"]),
        (None, 16, ["match", "match", "skipped"]),  # as many as there are GPUs
        (2, 16, ["match", "skipped", "skipped"]),
        (96, 16, ["match", "match", "skipped"]),
    ],
)
def test_no_more_processes_than_allowed(
    ranks: int | None,
    gpus: int,
    statuses: list[str],
    tmp_path: Path,
    torch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_GPUS", ",".join([H100] * gpus))
    told = f"assert sys.argv[-2:] == ['--ranks', '{ranks or 8}'], sys.argv"
    text = source({"device": H100 if gpus else "cpu"}, before=told)
    scripts = [collective(text, processes=processes) for processes in (2, 9, 96)]
    result = checked(tmp_path, *scripts, ranks=ranks)
    assert [status for status, _ in rows(result)] == statuses
    for status, note in rows(result):
        if status == "skipped" and not gpus:
            assert re.fullmatch(
                r"starts \d+ processes on the CPU, limit \d; allow them with --ranks \d+", note
            )
    assert not failed(result)


def test_modules_beside_the_runner_do_not_stand_in_for_the_standard_library(
    tmp_path: Path, torch: Path
) -> None:
    # The runner is a file of the package that makes scripts; `import folder` must not find its neighbour.
    text = source(
        before="import importlib.util as u\nassert u.find_spec('folder') is u.find_spec('verify') is None"
    )
    assert rows(checked(tmp_path, text), "status") == [("ran",)]


def test_only_and_progress(tmp_path: Path, torch: Path) -> None:
    said: list[str] = []
    result = checked(tmp_path, source(), source(), only=re.compile("^02"), progress=said.append)
    assert rows(result, "file") == [("02_s.py",)]
    assert said == ["script 1 of 1: 02_s.py"]
    with pytest.raises(TracelensError, match="no script matches 'nothing'"):
        checked(tmp_path, source(), only=re.compile("nothing"))


def test_interpreters_that_cannot_run_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Path
) -> None:
    with pytest.raises(TracelensError, match="sees no GPU; use --device cpu"):
        checked(tmp_path, source(), device="cuda")
    with pytest.raises(TracelensError, match=r"no/python cannot be started: No such file"):
        checked(tmp_path, source(), python="no/python")
    with pytest.raises(TracelensError, match=r"/false cannot run scripts: it did not answer"):
        checked(tmp_path, source(), python="/bin/false")
    init = torch / "torch" / "__init__.py"
    init.write_text("import libcudart_that_is_not_there")
    with pytest.raises(
        TracelensError, match="cannot import torch: No module named 'libcudart_that_is_not_there'"
    ):
        checked(tmp_path, source())
    # An error that says it is torch which is missing, also where a real one is installed.
    init.write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    with pytest.raises(
        TracelensError,
        match=r"has no torch .*: pip install torch",
    ):
        checked(tmp_path, source(), python=sys.executable)


def test_the_table_can_be_read(tmp_path: Path, torch: Path) -> None:
    result = checked(tmp_path, on_gpu(median_us=80.0, warm_us=52.0), "raise ValueError('<b>|no|</b>')")
    text = console_text(Report((result,)), width=200)
    assert "matches with warm caches (52.0 µs)" in text
    assert "160.0%" in text
    assert text.index("ValueError: <b>|no|</b>") < text.index("matches with warm")


WORK = """
    op aten::mm shapes=[[8,4],[4,6]] types=["float","float"] strides=[[4,1],[6,1]]       | -----
    op aten::add shapes=[[8,6],[8,6],[]] types=["float","float","Scalar"] values=["","","1"] |       -----
    launch                                                                                  | a     b
    s7 gemm                                                                                 |   aaa
    s7 add_kernel                                                                           |          bb
"""


@pytest.mark.torch
def test_generated_scripts_run_and_are_right(tmp_path: Path) -> None:
    trace = draw(aligned(WORK))
    scripts = [made_of(case) for case in cases(trace, gpu_work(trace, "all"))]
    result = checked(tmp_path, *scripts, device="cpu", iters=1)
    assert rows(result, "subject", "status", "check") == [
        ("aten::mm", "ran", "ok"),
        ("aten::add", "ran", "ok"),
    ]
    # The same script without what it is about.
    broken = [one._replace(text=one.text.replace("def call(", "def unused(", 1)) for one in scripts]
    assert {status for (status,) in rows(checked(tmp_path, *broken, device="cpu", iters=1), "status")} == {
        "failed"
    }


FLAGS = """
import threading, torch
told = [os.getpid(), str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.rand(1).item(),
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled()]
print(json.dumps(told), file=open(TOLD, "a"))
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
torch.use_deterministic_algorithms(True)
"""


@pytest.mark.rare
@pytest.mark.torch
@pytest.mark.slow
def test_settings_of_the_real_torch_are_put_back(tmp_path: Path) -> None:
    mixed = "import torch\ntorch.backends.fp32_precision = 'tf32'\ntorch.set_default_device('meta')"
    scripts = [source(before=lines) for lines in (FLAGS, FLAGS, mixed, FLAGS)]
    checked(tmp_path, *(writing(script, tmp_path) for script in scripts))
    first, second, third = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert first == second
    assert first[1:3] + first[4:] == ["torch.float32", True, False, False, False]
    assert third[1:] == first[1:]
    assert third[0] != first[0]  # what cannot be put back takes a new process
