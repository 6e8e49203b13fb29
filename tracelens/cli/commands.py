"""All commands by group, and help pages: how they are laid out, and what those of groups say.

Importing this imports no command, so that the page of a group and the words of a command are known at once.
The layout is that of typer without rich: paragraphs and lists in columns, broken between words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.cli.command import Command

COMPLETION = "_TRACELENS_COMPLETE"
"""The variable with which a shell asks for words."""

BASELINE = "gate baseline"
"""A group of two words: `gate` itself takes paths."""

CANDIDATES = "\0"
"""Stands for the -- between bases and candidates, which the parser of `gate` would drop."""

MAX_WIDTH, MIN_WIDTH = 120, 50
"""Columns of a page; between them, as many as the terminal has."""

Rows = Sequence[tuple[str, str]]
HELP_OPTION = ("-h, --help", "Show this message and exit.")

_NAME_COLUMNS = 34
_INDENT = "  "
_EXAMPLES = "Examples:\n"


class Page(NamedTuple):
    """What is on a help page."""

    path: str  # `tracelens project memory`
    arguments: str
    text: str
    sections: Mapping[str, Rows]  # by heading
    examples: Sequence[str]

    def laid_out(self, width: int) -> str:
        """The page in lines of at most `width` columns, where no word is longer."""
        blocks = [_usage(self.path, self.arguments, width)]
        if self.text:
            blocks.append(_paragraphs(self.text, width, _INDENT))
        for heading, rows in self.sections.items():
            if rows:
                blocks.append("\n".join([f"{heading}:", *_list(rows, width)]))
        if self.examples:
            lines = [line for example in self.examples for line in _broken(example, width - len(_INDENT))]
            blocks.append("\n".join(["Examples:", *(f"{_INDENT}{line}" for line in lines)]))
        return "\n\n".join(blocks)


def terminal_width() -> int:
    """Columns of a page in this terminal; two stay empty."""
    import shutil

    return max(min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2, MIN_WIDTH)


def described(doc: str | None) -> tuple[str, list[str]]:
    """The text of a docstring up to its examples, and these, each in one line; an indented line goes on."""
    first, _, rest = (doc or "").partition("\n")
    text, _, block = f"{first.strip()}\n{textwrap.dedent(rest)}".partition(_EXAMPLES)
    examples: list[str] = []
    for line in textwrap.dedent(block).splitlines():
        if line.startswith(" ") and examples:
            examples[-1] += f" {line.strip()}"
        elif line:
            examples.append(line)
    return text.strip(), examples


class Home(NamedTuple):
    """Where a command is."""

    module: str  # below tracelens.cli
    function: str
    summary: str  # the first sentence of its own page

    def command(self) -> Command:
        """The command, imported when it is needed."""
        found: Command = getattr(import_module(f"tracelens.cli.{self.module}"), self.function)
        return found


class CommandGroup(NamedTuple):
    """Commands with a page of their own."""

    doc: str
    commands: Mapping[str, Mapping[str, Home | CommandGroup]]  # by heading
    options: Rows = (HELP_OPTION,)
    default: str = ""  # the command that is meant where none is named

    @property
    def members(self) -> dict[str, Home | CommandGroup]:
        """Commands and groups by name."""
        return {name: member for members in self.commands.values() for name, member in members.items()}

    @property
    def summary(self) -> str:
        """The first sentence of its page."""
        return described(self.doc)[0].partition("\n\n")[0].replace("\n", " ").rstrip(".")

    def page(self, path: str) -> Page:
        """Its help page as that of `tracelens project`."""
        columns = max(map(len, self.members))
        text, examples = described(self.doc)
        sections: dict[str, Rows] = {
            heading: [(name.ljust(columns), member.summary) for name, member in members.items()]
            for heading, members in self.commands.items()
        }
        return Page(path, "[OPTIONS] COMMAND [ARGS]...", text, sections | {"Options": self.options}, examples)


def _commands(module: str, **summaries: str) -> dict[str, Home | CommandGroup]:
    """Commands of one module, whose functions have their names."""
    return {name: Home(module, name, summary) for name, summary in summaries.items()}


def _group(doc: str, module: str, default: str = "", **summaries: str) -> CommandGroup:
    """A group of such commands."""
    return CommandGroup(doc, {"Commands": _commands(module, **summaries)}, default=default)


PROJECT = _group(
    """Predict memory, scaling, schedules, bounds, and changes.

    Examples:
        tracelens project whatif traces/
        tracelens project memory --model deepseek_v3 --gpus 256 --pp 16 --ep 8 --device mi355x
        tracelens project pipeline --from traces/ --vpp 2
        tracelens project bounds traces/
    """,
    "project",
    whatif="Step time of a recorded run after a change, and what it would wait for",
    memory="Peak memory per GPU in a training step, by component and pipeline rank",
    scaling="Tokens/s and step time of several expert-parallel sizes, for each way to dispatch tokens",
    pipeline="Simulate pipeline schedules: step time, bubble, activations in flight",
    bubble="Pipeline bubble in closed form, as a share of the step and of the ideal time",
    bounds="Speed of light: the least time of collectives and the GEMMs next to them",
    published="AMD's published measurements beside their projection, with the errors",
)
REPLAY = _group(
    "Write standalone scripts of the longest calls, and run them.",
    "replay",
    default="write",
    write="Write standalone scripts for the longest calls: each runs, checks and times one call as traced",
    verify="Run the scripts of a directory and compare their times with the trace",
    compare="What each op gains from one verification to another, and with --trace what the step gains",
)
BASELINES = _group(
    "Keep the metrics of past runs to compare with.",
    "compare",
    add="Add runs to a baseline if they pass a gate against it",
    accept="Add runs to a baseline without a gate: a change that is meant",
)
WORKLOAD = _group(
    """Train or serve the bundled MoE model, and record traces of it.

    Examples:
        tracelens workload run --ranks 2 -o traces/
        tracelens workload ladder ladder/ --preset small --ranks 8 -o ladder.html
        tracelens workload serve --ranks 2 -o traces/
    """,
    "workload",
    run="Train the reference model and record one trace per rank",
    ladder="Add optimizations one by one, and report what each gains and changes",
    serve="Serve synthetic requests and record one trace per rank",
)
ROOT = CommandGroup(
    """Find out where the step time of a Mixture-of-Experts run goes, from profiler traces.

    `tracelens COMMAND --help` explains a command.

    Examples:
        tracelens report trace.json.gz -o report.html
        tracelens report traces/
        tracelens analyze idle trace.json.gz --json
        tracelens diff before/ after/
        tracelens list analyzers
    """,
    {
        "Look at a run": {
            **_commands(
                "report",
                report="Report where the step time goes and what to fix first",
                analyze="Run one analyzer: its answer, and the table that proves it",
            ),
            **_commands("fuse", fuse="Merge all ranks into one trace for ui.perfetto.dev"),
        },
        "Compare runs": {
            **_commands(
                "compare",
                diff="Compare two runs: what changed, and why the step time differs",
                gate="Check runs against a baseline: fail on a regression",
            ),
            BASELINE: BASELINES,
        },
        "Try a change": {"project": PROJECT, "replay": REPLAY},
        "Record a run": {
            "workload": WORKLOAD,
            **_commands("calibrate", calibrate="Measure a GPU, and write the results as a device file"),
        },
        "Names and numbers": {
            "list": Home("listing", "listing", "List analyzers, devices, models, scenarios and more")
        },
    },
    (
        ("--version", "Print the version, and which core runs."),
        ("--debug", "Stop at the first internal error, with its traceback."),
        ("--install-completion", "Install completion for the current shell."),
        (
            "--show-completion",
            "Show completion for the current shell, to copy it or customize the installation.",
        ),
        HELP_OPTION,
    ),
)


def version() -> str:
    """The line of `tracelens --version`."""
    from tracelens.native import core_name

    return f"tracelens {__version__} ({core_name()})"


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line with `gate baseline` as one where the group is meant, not a path."""
    words = list(words)
    for number in range(min(len(words), 2)):
        following = words[number : number + 3]
        if following[:2] == BASELINE.split() and following[2:] in (["add"], ["accept"], ["--help"], ["-h"]):
            words[number : number + 2] = [BASELINE]
    return words


def chosen(words: Sequence[str]) -> tuple[str, Home | CommandGroup, list[str]]:
    """What the first words call the command or group that they name, that, and the other words."""
    path, rest = ["tracelens"], joined(words)
    member: Home | CommandGroup = ROOT
    while isinstance(member, CommandGroup) and rest and rest[0] in member.members:
        path.append(rest[0])
        member = member.members[rest.pop(0)]
    if isinstance(member, CommandGroup) and member.default:
        member = member.members[member.default]
    return " ".join(path), member, rest


class _Wrapper(textwrap.TextWrapper):
    """Breaks a word that is longer than a line where the line ends, not at a hyphen."""

    def _handle_long_word(
        self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int
    ) -> None:
        columns = max(width - cur_len, 1)
        word = reversed_chunks[-1]
        cur_line.append(word[:columns])
        reversed_chunks[-1] = word[columns:]


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> str:
    return _Wrapper(
        width, initial_indent=first, subsequent_indent=others, replace_whitespace=False
    ).fill(text)  # fmt: skip


def _paragraphs(text: str, width: int, indent: str = "") -> str:
    """Each paragraph wrapped, with the indentation of its first line."""
    wrapped = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.splitlines()
        own = indent + " " * (len(lines[0]) - len(lines[0].lstrip()))
        wrapped.append(_wrapped(" ".join([lines[0].lstrip(), *lines[1:]]), width, own, own))
    return "\n\n".join(wrapped)


def _usage(path: str, arguments: str, width: int) -> str:
    prefix = f"Usage: {path} "
    if width >= len(prefix) + 20:
        return _wrapped(arguments, width, prefix, " " * len(prefix))
    indent = " " * (len("Usage: ") + 4)
    return f"{prefix}\n{_wrapped(arguments, width, indent, indent)}"


def _list(rows: Rows, width: int) -> Iterator[str]:
    """Names and, beside them, what they mean; below them where the name is too long."""
    columns = min(max(len(name) for name, _ in rows), _NAME_COLUMNS, width // 3)
    indent = " " * (len(_INDENT) + columns + 2)
    for name, meaning in rows:
        lines = _paragraphs(meaning, max(width - columns - 4, 10)).splitlines() if meaning else []
        if lines and len(name) <= columns:
            yield f"{_INDENT}{name.ljust(columns)}  {lines.pop(0)}"
        else:
            yield f"{_INDENT}{name}"
        yield from (f"{indent}{line}" for line in lines)


def _broken(command_line: str, width: int) -> Iterator[str]:
    """A command in lines of a shell, broken before options."""
    line = ""
    for part in re.split(r" (?=-)", command_line):
        if line and len(line) + len(part) + 3 > width:
            yield f"{line} \\"
            line = f"    {part}"
        else:
            line = f"{line} {part}" if line else part
    yield line
