"""How the command ends when what it writes to, or its user, goes away: 1 is a verdict, never an accident."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAST, SLOW = (ROOT / f"sample_traces/one_gpu/{name}/rank0.json.gz" for name in ("grouped", "loop"))
RANKS = ROOT / "sample_traces/ladder/ep4/00_baseline"
COMMAND = [sys.executable, "-m", "tracelens"]


def ended(*arguments: str | Path, shell: str = "", env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command; `shell` is put behind it, as a redirection."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {shell}', "bash", *COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [
        ["report", FAST, "--only", "input"],
        ["analyze", "input", FAST, "--json"],
        ["gate", FAST, FAST],
        ["list", "devices"],
        ["--help"],
    ],
    ids=lambda arguments: str(arguments[0]),
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(arguments: list[str | Path], unbuffered: str) -> None:
    code, _, errors = ended(*arguments, shell=">/dev/full", env={"PYTHONUNBUFFERED": unbuffered})
    assert code == 2
    assert errors.count("No space left on device") == 1
    assert "Traceback" not in errors


@needs_full
def test_no_room_for_the_error_either() -> None:
    assert ended("report", "no such file", shell="2>/dev/full")[0] == 2


@pytest.mark.parametrize(
    "arguments", [["report", FAST, "--only", "kernels"], ["list", "costs"], ["gate", "--help"]]
)
def test_a_reader_who_has_read_enough(arguments: list[str | Path]) -> None:
    code, _, errors = ended(*arguments, shell="| head -c1 >/dev/null; exit ${PIPESTATUS[0]}")
    assert (code, errors) == (0, "")


def test_a_reader_who_goes_does_not_change_the_verdict() -> None:
    rule = "--rule=kernel.count<=1.0"
    assert ended("gate", FAST, SLOW, rule)[0] == 1
    assert ended("gate", FAST, SLOW, rule, shell="| true; exit ${PIPESTATUS[0]}")[0] == 1


def test_closed_streams(tmp_path: Path) -> None:
    code, _, errors = ended("analyze", "input", FAST, shell=">&-")
    assert code == 2
    assert len(errors.splitlines()) == 1
    target = tmp_path / "report.md"
    assert ended("report", FAST, "-o", target, shell="<&- >&- 2>&-") == (0, "", "")
    assert target.read_text().startswith("# tracelens report")
    assert ended("report", "no such file", shell="2>&-") == (2, "", "")


def test_nobody_who_reads_messages_does_not_change_the_verdict(tmp_path: Path) -> None:
    said = ["--github", "--json", "--markdown", tmp_path / "gate.md"]
    source, target = os.pipe()
    os.close(source)
    with os.fdopen(target, "wb") as nobody:
        done = subprocess.run(
            [*COMMAND, "gate", FAST, SLOW, "--rule=kernel.count<=1.0", *said],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=nobody, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1


ENDS = {
    "exit": "raise SystemExit(0)",
    "of its own class": "raise type('Stop', (BaseException,), {})('stop')",
    "pipe": "raise BrokenPipeError",
}
"""What a plugin does that would end the command without a verdict."""
PLUGINS = {
    "import": "{end}",
    "sniff": """
from tracelens.read.parser import parser
def sniff(splitter):
    {end}
@parser("mine", sniff=sniff)
def build(splitter, encoded):
    'Mine.'
""",
    "build": """
from tracelens.read.parser import parser
@parser("mine", sniff=lambda splitter: True)
def build(splitter, encoded):
    'Mine.'
    {end}
""",
    "analyzer": """
from tracelens.analysis import ANALYZERS
def ends(*arguments, **options):
    {end}
ANALYZERS._items["completeness"] = replace(ANALYZERS.get("completeness"), part=ends)
""",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", PLUGINS)
def test_a_plugin_ends_no_gate(place: str, end: str, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGINS[place].replace("{end}", ENDS[end]))
    code, _, errors = ended("gate", FAST, SLOW, env={"TRACELENS_PLUGINS": str(plugin)})
    assert code == 2, errors
    assert len(errors.splitlines()) == 1
    assert f"plugin {plugin}" in errors


@pytest.mark.parametrize("end", ["exit", "of its own class"])
def test_a_plugin_ends_no_other_rank(end: str, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGINS["build"].replace("{end}", ENDS[end]))
    env = {"TRACELENS_PLUGINS": str(plugin), "TRACELENS_JOBS": "2"}
    code, _, errors = ended("gate", RANKS, RANKS, env=env)
    assert code == 2
    assert f"plugin {plugin}" in errors
    assert str(RANKS) in errors


def test_a_part_of_a_trace_is_no_run(tmp_path: Path) -> None:
    whole = gzip.decompress(FAST.read_bytes())
    (tmp_path / "whole.json").write_bytes(whole)
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) * 95 // 100])
    for sides in (["whole.json", "cut.json"], ["cut.json", "whole.json"]):
        code, _, errors = ended("gate", *(tmp_path / name for name in sides), "--rule=kernel.count<=2")
        assert code == 2
        assert errors.startswith(f"tracelens: {tmp_path}/cut.json: its recording cannot be trusted")


def test_an_internal_error_is_one_line(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import tracelens.compare.gate as gate\n"
        "def broken(*_, **__):\n    raise KeyError('x')\n"
        "gate.read_side = broken\n"
    )
    env = {"TRACELENS_PLUGINS": str(plugin)}
    code, _, errors = ended("gate", FAST, SLOW, env=env)
    assert code == 2
    assert "KeyError" in errors
    assert len(errors.splitlines()) == 1
    code, _, errors = ended("--debug", "gate", FAST, SLOW, env=env)
    assert code == 2
    assert "Traceback" in errors


def wait_for_work(process: subprocess.Popen[str], cpu_s: float) -> None:
    """Until the process has computed so long, and so is as far as on an idle machine, or has ended."""
    stat, tick_s = Path(f"/proc/{process.pid}/stat"), 1 / os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        if (int(user) + int(system)) * tick_s >= cpu_s:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_no_import_is_broken_off(name: str, tmp_path: Path) -> None:
    plugin, done = tmp_path / "plugin.py", tmp_path / "imported"
    plugin.write_text(
        "import os, pathlib, signal\n"
        f"os.kill(os.getpid(), signal.{name})\n"
        f"pathlib.Path({str(done)!r}).touch()\n"
    )
    code, _, errors = ended("gate", FAST, SLOW, env={"TRACELENS_PLUGINS": str(plugin)})
    assert (code, errors) == (130, "tracelens: interrupted\n")
    assert done.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "cpu_s", [0.3, *(pytest.param(later, marks=pytest.mark.rare) for later in (0.6, 1.0))]
)
def test_ctrl_c(cpu_s: float, number: signal.Signals, tmp_path: Path) -> None:
    # A terminal sends it to all processes of the group: the command, and whatever it has started.
    process = subprocess.Popen(
        [*COMMAND, "report", RANKS, "-o", tmp_path / "r.html"],
        cwd=ROOT,
        env=os.environ | {"TRACELENS_JOBS": "2"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_work(process, cpu_s)
    with suppress(ProcessLookupError):  # it was done by then
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 0)  # 0: it was done by then
    if process.returncode:
        assert errors == "tracelens: interrupted\n"
        assert not list(tmp_path.iterdir())
