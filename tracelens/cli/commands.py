"""All commands by group: where each is, and what its group's page says of it.

Importing this imports no command, so that the page of a group and the words of a command are known at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from tracelens.cli.page import HELP_OPTION, Page, Rows, described
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.cli.command import Command

COMPLETION = "_TRACELENS_COMPLETE"
"""The variable with which a shell asks for words."""

BASELINE = "gate baseline"
"""A group of two words: `gate` itself takes paths."""

CANDIDATES = "\0"
"""Stands for the -- between bases and candidates, which the parser of `gate` would drop."""


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


PROJECT = CommandGroup(
    """Predict memory, scaling, schedules, bounds, and changes.

    Examples:
        tracelens project whatif traces/
        tracelens project memory --model deepseek_v3 --gpus 256 --pp 16 --ep 8 --device mi355x
        tracelens project pipeline --from traces/ --vpp 2
        tracelens project bounds traces/
    """,
    {
        "Commands": {
            "whatif": Home(
                "project", "whatif", "Step time of a recorded run after a change, and what it would wait for"
            ),
            "memory": Home(
                "project", "memory", "Peak memory per GPU in a training step, by component and pipeline rank"
            ),
            "scaling": Home(
                "project",
                "scaling",
                "Tokens/s and time breakdown for expert parallelism of several sizes, by way of dispatch",
            ),
            "pipeline": Home(
                "project", "pipeline", "Simulate pipeline schedules: step time, bubble, activations in flight"
            ),
            "bubble": Home(
                "project",
                "bubble",
                "Pipeline bubble in closed form, as a share of the step and of the ideal time",
            ),
            "bounds": Home(
                "project",
                "bounds",
                "Speed of light: the least time of collectives and the GEMMs next to them",
            ),
        }
    },
)
REPLAY = CommandGroup(
    "Write standalone scripts of the longest calls, and run them.",
    {
        "Commands": {
            "write": Home(
                "replay",
                "write",
                "Write standalone scripts for the longest calls: "
                "each runs, checks and times one call as traced",
            ),
            "verify": Home(
                "replay", "verify", "Run the scripts of a directory and compare their times with the trace"
            ),
        }
    },
    default="write",
)
WORKLOAD = CommandGroup(
    """Train or serve the bundled MoE model, and record traces of it.

    Examples:
        tracelens workload run --ranks 2 -o traces/
        tracelens workload ladder ladder/ --preset small --ranks 8 -o ladder.html
        tracelens workload serve --ranks 2 -o traces/
    """,
    {
        "Commands": {
            "run": Home("workload", "run", "Train the reference model and record one trace per rank"),
            "ladder": Home(
                "workload", "ladder", "Add optimizations one by one, and report what each gains and changes"
            ),
            "serve": Home("workload", "serve", "Serve synthetic requests and record one trace per rank"),
        }
    },
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
            "report": Home("report", "report", "Report where the step time goes and what to fix first"),
            "analyze": Home("report", "analyze", "Run one analyzer and print its tables"),
            "fuse": Home("compare", "fuse", "Merge all ranks into one trace for ui.perfetto.dev"),
        },
        "Compare runs": {
            "diff": Home("compare", "diff", "Compare two runs: what changed, and why the step time differs"),
            "gate": Home("compare", "gate", "Check runs against a baseline: fail on a regression"),
            BASELINE: CommandGroup(
                "Keep the metrics of past runs to compare with.",
                {"Commands": {"add": Home("compare", "add", "Add runs to a baseline")}},
            ),
        },
        "Try a change": {"project": PROJECT, "replay": REPLAY},
        "Record a run": {
            "workload": WORKLOAD,
            "calibrate": Home(
                "calibrate", "calibrate", "Measure a GPU, and write the results as a device file"
            ),
        },
        "Names and numbers": {
            "list": Home("listing", "listing", "List analyzers, devices, models, scenarios and more"),
        },
    },
    (
        ("--version", "Print the version."),
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
    return f"tracelens {__version__}"


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line with `gate baseline` as one where the group is meant, not a path."""
    words = list(words)
    for number in range(min(len(words), 2)):
        following = words[number : number + 3]
        if following[:2] == BASELINE.split() and following[2:] in (["add"], ["--help"], ["-h"]):
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
