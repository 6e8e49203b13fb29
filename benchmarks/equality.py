"""Whether two checkouts of tracelens say the same: a folder of outputs from each, and their differences.

    python -m benchmarks.equality record DIR [--quick] [--only PATTERN] [--checkout CHECKOUT]
    python -m benchmarks.equality compare BEFORE AFTER

`record` runs each command on each sample trace and on the real traces that are found (TRACELENS_CORPUS,
TRACELENS_FOREIGN, TRACELENS_RECORDINGS or ../shared). A case is one command; its output is the JSON, Markdown
and HTML that it writes, its exit status and what it prints. `compare` says which cases differ, and where.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = "sample_traces"
REAL = ("corpus", "foreign", "recordings", "native")
TRACES = (".json", ".json.gz", ".json.zst")
QUICK = ("one_gpu/grouped", "ladder/ep4/00_baseline", "faults/gc", "pipeline/plain", "serving/tbo_token",
         "toggles/graph_step", "toggles/fp8", "cpu/tiny")  # fmt: skip
"""Samples that between them have every kind of data: the cases of --quick."""


SIGNATURES = """
import inspect, json, tracelens
def keywords(item):
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return []
    return sorted(f"{p.name}={p.default!r}" if isinstance(p.default, (int, str, float, tuple, type(None)))
                  else p.name for p in parameters)
print(json.dumps({name: keywords(getattr(tracelens, name)) for name in tracelens.__all__}, indent=1))
"""

HELP = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


@dataclass(frozen=True)
class Case:
    """A command and what of it is compared."""

    name: str
    command: tuple[str, ...]
    files: tuple[str, ...] = ()
    options_only: bool = False


def runs() -> Iterator[tuple[str, Path]]:
    """(short name, trace or folder of ranks) of all runs that are found, the samples first."""
    roots = [(SAMPLES, ROOT / SAMPLES)]
    for name in REAL:
        named = os.environ.get(f"TRACELENS_{name.upper()}")
        roots.append((name, Path(named) if named else ROOT.parent / "shared" / name))
    for label, root in roots:
        folders = sorted({path.parent for path in root.rglob("*") if is_trace(path)})
        for folder in folders:
            if folder.name == "capture_traces":
                continue
            traces = sorted(path for path in folder.iterdir() if is_trace(path))
            ranks = all(path.name.startswith("rank") for path in traces)
            for path in [folder] if ranks else traces:
                yield f"{label}/{path.relative_to(root)}", path


def is_trace(path: Path) -> bool:
    """Whether the name is that of a trace."""
    return path.name.endswith(TRACES) and path.name not in ("run.json", "ladder.json") and path.is_file()


def pairs(found: dict[str, Path]) -> Iterator[tuple[str, Path, Path]]:
    """Each run of a group of runs with the group's first one."""
    groups: dict[str, list[str]] = {}
    for name in found:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    for names in groups.values():
        for name in names[1:]:
            yield f"{names[0]} {name.rpartition('/')[2]}", found[names[0]], found[name]


def cases(quick: bool) -> Iterator[Case]:
    """All commands to run."""
    found = dict(runs())
    if quick:
        found = {name: path for name, path in found.items() if name.endswith(QUICK)}
    yield Case("signatures", ("python", "-c", SIGNATURES))
    for command in commands():
        yield Case(f"help {' '.join(command)}", (*command, "--help"), options_only=True)
    for kind in ("analyzers", "parsers", "renderers", "devices", "costs", "detectors", "models", "scenarios"):
        yield Case(f"list {kind}", ("list", kind))
    for name, path in found.items():
        files = ("report.json", "report.md", "report.html")
        outputs = tuple(word for file in files for word in ("-o", f"OUT/{file}"))
        yield Case(f"report {name}", ("report", str(path), "--partial", *outputs), files)
        yield Case(f"report --full {name}", ("report", str(path), "--partial", "--full"))
        yield Case(f"whatif {name}", ("project", "whatif", str(path), "--partial", "--json"))
        yield Case(f"replay {name}", ("replay", str(path), "--partial", "-o", "OUT/scripts", "--json"))
        yield Case(f"bounds {name}", ("project", "bounds", str(path), "--partial", "--json"))
        yield Case(f"pipeline {name}", ("project", "pipeline", "--from", str(path), "--partial", "--json"))
        yield Case(f"fuse {name}", ("fuse", str(path), "--partial", "-o", "OUT/fused.json"), ("fused.json",))
        for analyzer in ("roofline", "scopes", "completeness"):
            command = ("analyze", analyzer, str(path), "--partial", "--json")
            yield Case(f"analyze {analyzer} {name}", command)
        device = (
            "analyze",
            "roofline",
            str(path),
            "--partial",
            "--json",
            "--device",
            "mi355x",
            "--scope",
            "linked",
        )
        yield Case(f"analyze mi355x {name}", device)
    for name, base, candidate in pairs(found):
        both = (str(base), str(candidate), "--partial")
        yield Case(f"diff {name}", ("diff", *both, "--json", "-o", "OUT/diff.html"), ("diff.html",))
        yield Case(f"gate {name}", ("gate", *both, "--json", "--trust-anyway", "--allow", "ranks"))
    yield Case(
        "ladder",
        ("workload", "ladder", "--from", f"{SAMPLES}/ladder/ep4", "--json", "-o", "OUT/l.html"),
        ("l.html",),
    )
    yield from projections()


def commands() -> list[tuple[str, ...]]:
    """The command line's commands, as `--help` is asked of them."""
    project = [("project", name) for name in ("memory", "bubble", "pipeline", "whatif", "scaling", "bounds")]
    workload = [("workload", name) for name in ("run", "ladder", "serve")]
    names = [(name,) for name in ("report", "analyze", "diff", "gate", "replay", "fuse", "list", "calibrate")]
    return [(), *names, ("gate", "baseline", "add"), ("replay", "verify"), *project, *workload]


def projections() -> Iterator[Case]:
    """Projections that need no trace."""
    texts = {
        "memory v2": "memory --model deepseek_v2_lite --gpus 8 --ep 8 --mbs 2 --device mi300x",
        "memory 1t": "memory --model moe_1t --gpus 768 --pp 24 --ep 8 --cp 2 --vpp 4 --optimised --device mi300x",  # noqa: E501
        "memory guide": "memory --model moe_1t --gpus 768 --framework amd-guide --device mi300x "
        "--layout 'pp=24 ep=8 vpp=4' --layout 'pp=48 ep=8 vpp=2'",
        "memory workload": "memory --model deepseek_v3 --gpus 256 --pp 8 --ep 32 --framework workload --recompute full",  # noqa: E501
        "memory megatron": "memory --model deepseek_v2_lite --gpus 8 --ep 4 --tp 2 --megatron states=bfloat16 "  # noqa: E501
        "--megatron layers=local --recompute moe_act --precision bf16 --imbalance 1.5",
        "memory overlap": "memory --model deepseek_v2_lite --gpus 16 --pp 2 --vpp 2 --ep 8 --overlap --stage-buffers all "  # noqa: E501
        "--framework workload",
        "search": "memory --search --model deepseek_v2_lite --gpus 8 --device mi300x --device h200",
        "search 1t": "memory --search --model moe_1t --gpus 768 --optimised --device mi300x --pp 24 --ep 8",
        "bubble": "bubble --pp 16 --global-tokens 2097152 --seq 4096 --nodes 64 --mbs 1 --vpp 6",
        "pipeline all": "pipeline --pp 8 --micro-batches 32 --vpp 4 --forward-ms 10 --schedule all",
        "pipeline model": "pipeline --model deepseek_v3 --device mi355x --pp 16 --gpus 128 --ep 8 --micro-batches 64 "  # noqa: E501
        "--best-partition",
        "scaling": "scaling --model moe_2t --gpus 1024 --ep 8,16,32,64 --dispatch alltoall,deepep --device mi300x "  # noqa: E501
        "--network mi300x-8x400g --pp 16 --vpp 6 --cp 2 --micro-batches 32",
        "scaling h200": "scaling --model deepseek_v3 --gpus 256 --ep 8,64 --pp 4 --device h200 --overlap none",  # noqa: E501
        "bounds": "bounds",
        "bounds mi355x": "bounds --device mi355x --nodes 4 --gemm-rs 8192x8192x29568 --ag-gemm 4096x4096x8192",  # noqa: E501
    }  # fmt: skip
    for name, text in texts.items():
        yield Case(f"project {name}", ("project", *shell_words(text), "--json"))


def shell_words(text: str) -> list[str]:
    """The words of a command, quotes removed."""
    return [word.strip("'") for word in re.findall(r"'[^']*'|\S+", text)]


def record(case: Case, folder: Path, checkout: Path) -> None:
    """Run a case and write what it says to a file of the folder."""
    target = folder / f"{hashlib.sha1(case.name.encode()).hexdigest()[:16]}.z"
    if target.exists():
        return
    out = folder / f"{target.stem}.out"
    out.mkdir(parents=True, exist_ok=True)
    words = [word.replace("OUT/", f"{out}/") for word in case.command]
    words = words if words[0] == "python" else ["python", "-m", "tracelens", *words]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "150", "NO_COLOR": "1"}
    ran = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=checkout,
        env=environment,
        capture_output=True,
        check=False,
        timeout=1200,
    )
    texts = {"stdout": ran.stdout, "stderr": ran.stderr, "status": str(ran.returncode).encode()}
    if case.options_only:
        texts["stdout"] = "\n".join(sorted(set(HELP.findall(ran.stdout.decode())))).encode()
    paths = [out / name for name in case.files]
    paths += sorted(path for path in out.rglob("*") if path.is_file() and path not in paths)
    texts |= {str(path.relative_to(out)): path.read_bytes() for path in paths if path.exists()}
    for path, name in ((str(out), "OUT"), (str(checkout), "ROOT"), (str(ROOT), "ROOT")):
        texts = {key: text.replace(path.encode(), name.encode()) for key, text in texts.items()}
    stored = {
        "case": case.name,
        "texts": {key: text.decode("utf-8", "replace") for key, text in texts.items()},
    }
    target.write_bytes(zlib.compress(orjson.dumps(stored), 3))
    subprocess.run(["rm", "-r", str(out)], check=True)


def compare(before: Path, after: Path) -> int:
    """Print how the folders differ; 1 where they do."""
    stored = {
        name: {path.name for path in folder.glob("*.z")} for name, folder in (("b", before), ("a", after))
    }
    both = sorted(stored["a"] & stored["b"])
    different = 0
    for name in both:
        old, new = (orjson.loads(zlib.decompress((folder / name).read_bytes())) for folder in (before, after))
        if old["texts"] == new["texts"]:
            continue
        different += 1
        print(f"DIFFERENT {old['case']}")
        for key in sorted(old["texts"].keys() | new["texts"].keys()):
            one, two = old["texts"].get(key, "(absent)"), new["texts"].get(key, "(absent)")
            if one != two:
                at = next(
                    (n for n, (x, y) in enumerate(zip(one, two, strict=False)) if x != y),
                    min(len(one), len(two)),
                )
                start = max(at - 60, 0)
                print(f"  {key} at {at}:\n    - {one[start : at + 100]!r}\n    + {two[start : at + 100]!r}")
    print(f"{len(both)} cases in both, {different} different")
    missing = len(stored["b"] - stored["a"]) + len(stored["a"] - stored["b"])
    if missing:
        print(f"{missing} cases in one of them only")
    return 1 if different or not both else 0


def main() -> int:
    """Record or compare, as the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--quick", action="store_true", help="the samples that have every kind of data")
    parser.add_argument("--only", default="*", help="cases whose name matches this pattern")
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.action == "compare":
        return compare(*arguments.folders)
    folder = arguments.folders[0].resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases(arguments.quick) if fnmatch.fnmatch(case.name, arguments.only)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, _ in enumerate(
            pool.map(lambda case: record(case, folder, arguments.checkout.resolve()), chosen), 1
        ):
            print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
