"""The fenced blocks of a page, and what runs them.

A page is read from top to bottom in a folder of its own: its `sh` blocks run line by line, its `python`
blocks in one namespace, and a `text` block is the output of the command before it. The folder has the names
that pages use for files of the reader (`SANDBOX`), made from the sample traces, and the repository's folders.

- `title="mychip.toml"` writes a block to that file, which later commands read;
- a first line `# needs GPUs` (any of `NEVER`, `PACKAGES`) declares what a block needs; where that is missing,
  only its syntax and the options of its `tracelens` commands are checked;
- a first line `# in your training script` declares code that uses the reader's `model`, `batches` and
  `train_step`: it runs with those of `TRAINING` where torch is installed;
- a comment `# exit code 1` behind a command is its exit code; without one it is 0;
- a line `...` or `…` in a text block stands for lines left out;
- a block without a language is a drawing.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import typer

from tracelens.cli import run
from tracelens.cli.app import app

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
WIDTH = 100
"""Columns of the terminal that text blocks show."""
NARROW = {"docs/tutorial.md": 80}
"""Pages with another width."""

SANDBOX = {
    "trace.json.gz": "one_gpu/loop/rank0.json.gz",
    "before.json.gz": "one_gpu/loop/rank0.json.gz",
    "after.json.gz": "one_gpu/grouped/rank0.json.gz",
    "traces": "ladder/ep4/00_baseline",
    "before": "ladder/ep4/00_baseline",
    "after": "ladder/ep4/01_grouped_gemm",
    "ladder": "ladder/ep4",
    "pipeline": "pipeline/plain",
    "serving": "serving/delayer_off",
    "runs/1": "ladder/ep4/03_dedup",
    "runs/2": "ladder/ep4/04_sync_free_2",
    "today/1": "ladder/ep4/05_sync_free_3",
    "today/2": "ladder/ep4/06_overlap_shared",
}
"""The reader's files, as pages name them, and the sample that stands for each."""
MADE = {
    "base.json": "report traces --only steps --only completeness -o base.json",
    "replay": "replay trace.json.gz --top 3 --max-elements 4096 -o replay",
}
"""Files that a command makes from the samples; pages may use them before they show the command."""
LINKED = ("sample_traces", "docs", "examples", "notebooks", "reports", "benchmarks", "tests")
"""Folders of the repository, reached as from its root."""

NEVER = (
    "GPUs",
    "a cluster",
    "Megatron-LM",
    "Primus",
    "torchtitan",
    "vLLM",
    "SGLang",
    "other tools",
    "a network",
    "your model",
    "a second environment",
)
"""What no test has; blocks that need it are declared `# needs ...`."""
PACKAGES = ("torch", "transformers", "distributed", "yaml", "xlsxwriter", "jupyterlab")
"""Packages that may be missing: a block that is declared `# needs PACKAGE` runs where it is installed."""
IN_TRAINING = "# in your training script"
TRAINING = """
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.mlp(self.self_attn(x))


model = torch.nn.Sequential()
model.layers = torch.nn.Sequential(Block(), Block())
batches = [torch.ones(2, 8)] * 12


def train_step(batch):
    model(batch).sum().backward()
"""
INSTALLERS = ("pip", "git", "apt-get", "cd")
"""Programs that fetch something or move the reader; their lines are not run."""
WRITERS = ("-o", "--output", "--report", "--junit", "--markdown")
"""Options that write a file."""
PLUGIN = re.compile(r"^@(?:analyzer|detector|cost|parser|renderer|scenario)\b", re.MULTILINE)
"""Code that registers something: it runs in a process of its own."""

_FENCE = re.compile(r"^( *)```(\w*)([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(tracelens [a-z][^`\n]*(?:\n[^`\n]+)?)`")
_EXIT_CODE = re.compile(r"#\s*exit code (\d)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str  # empty: a drawing, not code
    title: str  # the file that the block is, or empty
    code: str
    before: str  # the text between this block and the one before it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def need(self) -> str:
        """What its first line declares: `GPUs` for `# needs GPUs`; empty for nothing."""
        first = self.code.split("\n", 1)[0]
        match = re.match(r"# needs (.+?)(?::.*)?$", first)
        return match[1] if match else "torch" if first == IN_TRAINING else ""

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block, continuation lines joined."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def pages() -> list[str]:
    """The pages of the repository that have text to read, but not those made by the build."""
    paths = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    return [str(path.relative_to(ROOT)) for path in paths if "generate" not in path.parts]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    return parse((ROOT / page).read_text(), page)


def parse(text: str, page: str) -> list[Block]:
    """The fenced blocks of a Markdown text, those in tabs and lists too."""
    result = []
    end = 0
    for match in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match[3])
        line = text.count("\n", 0, match.start()) + 1
        before, end = text[end : match.start()], match.end()
        code = textwrap.dedent(match[4])
        result.append(Block(page, line, match[2], title[1] if title else "", code, before))
    return result


def inline_commands(page: str) -> list[str]:
    """The `tracelens` commands within the sentences of a page."""
    return [
        " ".join(command.split()) for command in _INLINE.findall(_FENCE.sub("", (ROOT / page).read_text()))
    ]


def is_available(need: str) -> bool:
    """Whether a block with this need runs here."""
    if need in PACKAGES:
        return importlib.util.find_spec(need) is not None
    assert not need or need in NEVER, f"`# needs {need}`: not in NEVER or PACKAGES of {__name__}"
    return not need


def make_sandbox(folder: Path) -> Path:
    """The folder that a page is read in, to be copied for each page."""
    for name, sample in SANDBOX.items():
        source = SAMPLES / sample
        (folder / name).parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    with working_in(folder):
        for command in MADE.values():
            code, output = in_process(command.split())
            assert code == 0, output
    return folder


@dataclass
class Reader:
    """Follows one page in a sandbox."""

    folder: Path
    width: int = WIDTH
    names: dict[str, Any] = field(default_factory=dict)
    output: str | None = None  # of the last block that ran, for a text block below it

    def follow(self, page: Sequence[Block]) -> None:
        """Read all blocks of a page."""
        for name in MADE:
            if any(re.search(rf"-o {re.escape(name)}/?(?:\s|$)", block.code) for block in page):
                path = self.folder / name  # the page makes it
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for block in page:
            self.width = NARROW.get(block.page, WIDTH)
            self.read(block)

    def read(self, block: Block) -> None:
        """Do what the block says, and check what it shows."""
        handlers: Mapping[str, Callable[[Block], None]] = {
            "": lambda _: None,
            "sh": self._shell,
            "python": self._python,
            "text": self._text,
            "toml": lambda block: _parsed(tomllib.loads, block),
            "json": lambda block: _parsed(orjson.loads, block),
            "yaml": lambda block: _parsed(_yaml, block),
        }
        assert block.language in handlers, f"{block}: no rule for a block of {block.language}"
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        with working_in(self.folder, self.width):
            handlers[block.language](block)

    def _shell(self, block: Block) -> None:
        self.output = None
        if not is_available(block.need):
            for line in block.commands:
                subprocess.run(["bash", "-n", "-c", line], check=True)
                check_options(line)
            return
        self.output = ""
        for line in block.commands:
            expected = int(match[1]) if (match := _EXIT_CODE.search(line)) else 0
            code, output = execute(line)
            assert code == expected, f"{block}: {line}\nexit code {code}, not {expected}\n{output}"
            self.output += output

    def _python(self, block: Block) -> None:
        self.output = None
        tree = ast.parse(block.code, str(block))
        if block.title or not is_available(block.need):
            return  # a file for later, or beyond this machine: its syntax is checked
        if PLUGIN.search(block.code):
            (self.folder / "_plugin.py").write_text(block.code)
            code, self.output = _shell(f"{shlex.quote(sys.executable)} _plugin.py")
            assert code == 0, f"{block}\n{self.output}"
            return
        if block.code.startswith(IN_TRAINING):
            exec(TRAINING, self.names)
        if isinstance(last := tree.body[-1], ast.Expr):  # shown, as in a notebook
            show = ast.Name("_show", ast.Load())
            last.value = ast.copy_location(ast.Call(show, [last.value], []), last.value)
        self.names["_show"] = lambda value: None if value is None else sys.stdout.write(f"{value}\n")
        with self._room_for_traces(block), captured() as output, warnings.catch_warnings():
            if block.code.startswith(IN_TRAINING):
                warnings.simplefilter("ignore")  # torch's own, of a machine without GPUs
            exec(compile(ast.fix_missing_locations(tree), str(block), "exec"), self.names)
        self.output = output[0]

    @contextmanager
    def _room_for_traces(self, block: Block) -> Iterator[None]:
        """A block that records finds no trace of another run where it writes; others read the samples."""
        traces, aside = self.folder / "traces", self.folder / ".traces"
        if "tracelens.record(" not in block.code or not traces.exists():
            yield
            return
        traces.rename(aside)
        yield
        shutil.rmtree(traces, ignore_errors=True)
        aside.rename(traces)

    def _text(self, block: Block) -> None:
        if block.before.strip():  # a sentence in between names the command, if any
            commands = _INLINE.findall(block.before)
            assert commands, f"{block}: no command above prints this; a drawing has no language"
            code, self.output = execute(" ".join(commands[-1].split()))
            assert code == 0, f"{block}: {commands[-1]}\n{self.output}"
        if self.output is None:  # of a block that did not run here
            return
        rest = _bare(self.output)
        for part in re.split(r"^(?:\.\.\.|…)\n", block.code, flags=re.MULTILINE):
            shown = _bare(part).strip("\n")
            assert shown in rest, f"{block}: this is not (or no longer) printed:\n{shown}\nbut\n{self.output}"
            rest = rest.split(shown, 1)[1]


def execute(line: str) -> tuple[int, str]:
    """The exit code and the output (stdout and stderr) of a command line."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == [], line
        return 0, ""
    if words[0] in INSTALLERS:
        check_extras(line)
        return 0, ""
    is_plain = words[0] == "tracelens" and not set(words) & {"|", ">", "&&", "||", ";"}
    starts_ranks = words[1:2] == ["workload"] and "--from" not in words
    if not is_plain or starts_ranks or re.search(r"[*?$]", re.sub(r"'[^']*'", "", line)):
        return _shell(line)
    reads = [word for word in words[1:] if Path(word).exists()]
    if set(words).isdisjoint(WRITERS) and all(word.startswith("sample_traces/") for word in reads):
        return _shared(os.environ["COLUMNS"], *words[1:])
    return in_process(words[1:])


@cache
def _shared(_: str, *words: str) -> tuple[int, str]:
    """A command that several pages show: it writes nothing, and reads nothing of the page's folder.

    The first argument is the width of the terminal, which its output depends on.
    """
    return in_process(words)


def in_process(words: Sequence[str]) -> tuple[int, str]:
    """The exit code and the output of `tracelens WORDS`, without the start of a process."""
    with captured() as output:
        code = run(list(words))
    return code, output[0]


def check_options(line: str) -> None:
    """Assert that the `tracelens` command of a line, if any, exists with the options that it names."""
    words = shlex.split(line, comments=True)
    if "tracelens" not in words:
        return
    words = words[words.index("tracelens") + 1 :]
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="tracelens")
    while words and hasattr(command, "list_commands") and not words[0].startswith("-"):
        name = "gate baseline" if words[:2] == ["gate", "baseline"] else words[0]
        if name not in command.list_commands(context) and (write := command.get_command(context, "write")):
            command = write  # what `tracelens replay PATH` is
            break
        child = command.get_command(context, name)
        if child is None and "write" in command.commands:  # `replay PATH`
            command = command.commands["write"]
            break
        assert child is not None, f"{line}: no command {name}"
        command, words = child, words[len(name.split()) :]
    known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)}
    options = {word.split("=")[0] for word in words if re.match(r"--[a-z]|-[a-z]$", word)}
    assert options <= known | {"--help", "--debug"}, f"{line}: {options - known}"


def check_extras(line: str) -> None:
    """Assert that the extras of this package that a line installs exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, extras in re.findall(r"(\.|[\w-]+)\[([\w,-]+)\]", line):
        assert name in {".", project["name"]}, line
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), line


@contextmanager
def working_in(folder: Path, width: int = WIDTH) -> Iterator[None]:
    """In another directory, with a terminal of this width and without further processes."""
    saved = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(COLUMNS=str(width), TRACELENS_JOBS="1")
    try:
        yield
    finally:
        os.chdir(saved[0])
        os.environ.clear()
        os.environ.update(saved[1])


@contextmanager
def captured() -> Iterator[list[str]]:
    """What is written to the descriptors of stdout and stderr; the list holds it afterwards."""
    output: list[str] = []
    sys.stdout.flush()
    saved = [os.dup(descriptor) for descriptor in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        streams = sys.stdout, sys.stderr  # pytest's own, which do not write to the descriptors
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        try:
            yield output
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = streams
            for descriptor, copy in enumerate(saved, 1):
                os.dup2(copy, descriptor)
                os.close(copy)
            file.seek(0)
            output.append(file.read().decode())


def _shell(line: str) -> tuple[int, str]:
    """Run a line with bash; `tracelens` and `python` are those of this interpreter."""
    python = shlex.quote(sys.executable)
    setup = f'python() {{ {python} "$@"; }}\ntracelens() {{ {python} -m tracelens "$@"; }}\n'
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", setup + line],
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def _parsed(parse: Callable[[str], object], block: Block) -> None:
    try:
        parse(block.code)
    except ValueError as error:
        raise AssertionError(f"{block}: {error}") from error


def _yaml(text: str) -> object:
    if importlib.util.find_spec("yaml") is None:
        return None
    import yaml

    return yaml.safe_load(text)


def _bare(text: str) -> str:
    """The text without trailing blanks."""
    return "\n".join(line.rstrip() for line in text.splitlines())
