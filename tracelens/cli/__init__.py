"""The command line, one module per command; nothing else in tracelens prints or exits."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.lazy import lazy
from tracelens.printable import printable

if TYPE_CHECKING:
    from types import FrameType

    from tracelens.cli.app import command_line
    from tracelens.cli.command import Command, flags_of, without_none
    from tracelens.cli.commands import ROOT, CommandGroup, Home, Page, chosen, described

__getattr__, __dir__ = lazy(
    __name__,
    {
        "cli.app": "command_line",
        "cli.command": "Command flags_of without_none",
        "cli.commands": "ROOT CommandGroup Home Page chosen described",
    },
)

OK, WRONG, INTERRUPTED = 0, 2, 130
"""Exit codes: done; bad input or any failure; stopped by the user. 1 is a verdict, never an accident."""

_NO_SUCH = re.compile(r"No such (command|option):? '?([^\s']+)")
_MEANT_COMMANDS = {
    "compare": "tracelens diff",
    "help": "tracelens --help",
    "merge": "tracelens fuse",
    "record": "tracelens workload run",
    "search": "tracelens project memory --search",
    "show": "tracelens report",
    "version": "tracelens --version",
    "view": "tracelens report",
}
"""Words of other tools to our commands."""
_MEANT_OPTIONS = {
    "--csv": "-o DIRECTORY",
    "--format": "-o NAME.SUFFIX",
    "--html": "-o NAME.html",
    "--json": "-o NAME.json",
    "--rank": "the file of that rank as PATH",
    "--ranks": "the files of those ranks as PATH",
}
"""Options of other commands and tools to what does it here."""
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_CAN_WAIT = hasattr(signal, "setitimer")
_POLL_S, _IMPORT_S = 0.01, 5.0
"""How often an import is asked whether it is over, and how long it may take."""


def main() -> None:
    """The `tracelens` command: run it and end the process.

    A batch process needs neither the cyclic collector nor a tidy shutdown: freeing the trace's tables object
    by object would take a tenth of a report's time.
    """
    gc.disable()
    # Nothing here uses BLAS, and starting its threads takes as long as importing numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = WRONG
    _end_like_ctrl_c()
    try:
        _occupy_closed_streams()
        code = _flushed(run(sys.argv[1:]))
    except KeyboardInterrupt:
        code = _interrupted()
    finally:
        if sys.exc_info()[0] is not None:  # with --debug
            import traceback

            traceback.print_exc()
        os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line without the program name; an error is one line on stderr and code 2."""
    try:
        code = guard("the command", _run, arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except TracelensError as error:
        _say(f"tracelens: {error}")
        return WRONG
    if isinstance(code, Failure):
        _say(f"tracelens: {code}")
        return WRONG
    return code


def _run(arguments: Sequence[str]) -> int:
    words = list(arguments) or ["--help"]
    try:
        code = _without_typer(words)
        return _with_typer(words) if code is None else code
    except OSError as error:  # a full disk, a folder that may not be read
        if not str(error):  # not the system's: it says what is wrong
            raise
        name = f"{error.filename}: " if error.filename else ""
        raise TracelensError(f"{name}{error.strerror or error}") from error


def _without_typer(words: list[str]) -> int | None:
    """The exit code of a page or a plain command line; None where typer is needed, which takes its time."""
    from tracelens.cli.commands import COMPLETION, CommandGroup, chosen, terminal_width, version

    if COMPLETION in os.environ:
        return None
    if words == ["--version"]:
        return _page(version())
    path, member, rest = chosen(words)
    if isinstance(member, CommandGroup):
        if rest not in (["--help"], ["-h"]):
            return None
        return _page(member.page(path).laid_out(terminal_width()))
    if not rest or not {"--help", "-h", "--debug"}.isdisjoint(rest):
        return None
    command = member.command()
    values = command.values(rest)
    return None if values is None else command.call(**values) or OK


def _page(text: str) -> int:
    """Print what has no verdict: a reader who has read enough is content."""
    with suppress(BrokenPipeError):  # `tracelens --help | head`
        print(text)
    return OK


def _with_typer(words: list[str]) -> int:
    from typer import Abort
    from typer.exceptions import TyperException

    from tracelens.cli.app import command_line
    from tracelens.cli.commands import COMPLETION
    from tracelens.cli.completion import bash_words

    try:
        with bash_words():
            code = int(command_line()(words, prog_name="tracelens", standalone_mode=False) or OK)
        return _interrupted() if code == INTERRUPTED else code
    except TyperException as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        message += _advice(message, words)
        _say(f"{context.command_path if context else 'tracelens'}: {message} (see --help)")
        return WRONG
    except Abort:
        return _interrupted()
    except SystemExit as end:  # typer's end of shell completion, or of a closed pipe: `tracelens ... | head`
        if isinstance(end.__context__, BrokenPipeError):
            return OK
        if COMPLETION not in os.environ:  # a plugin's: no command of ours ends in this way
            raise
        return OK if end.code == 0 else WRONG


def _advice(message: str, words: Sequence[str]) -> str:
    """What somebody may have meant by a command or option that is none; "" where typer says so itself."""
    wrong = _NO_SUCH.match(message)
    if not wrong or "Did you mean" in message:
        return ""
    kind, word = wrong.groups()
    if kind == "command" and word == words[0] and os.path.exists(word):
        return f" Did you mean: tracelens report {word}"
    meant = _meant_commands(word) if kind == "command" else _MEANT_OPTIONS.get(word)
    end = "" if message.endswith((".", ")")) else "."
    return f"{end} Did you mean: {meant}" if meant else ""


def _meant_commands(word: str) -> str:
    """The commands of this name in other groups, or what others call so."""
    from tracelens.cli.commands import ROOT, CommandGroup

    groups = {name: group for name, group in ROOT.members.items() if isinstance(group, CommandGroup)}
    if word in _MEANT_COMMANDS:
        return _MEANT_COMMANDS[word]
    found = [f"tracelens {name} {word}" for name, group in groups.items() if word in group.members]
    found += [f"tracelens {word}"] if word in ROOT.members else []
    if not found:
        from tracelens.analysis import in_order

        found = [f"tracelens analyze {word}"] if word in {item.name for item in in_order()} else []
    return " or ".join(found)


def _end_like_ctrl_c() -> None:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, unless whoever started it has it ignore them.

    None of them ends an import halfway, where Python allows to wait: that would leave a lock behind for which
    other threads wait, and extension modules that report another error, or crash.
    """
    deadline = float("inf")

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal deadline
        now = time.monotonic()
        deadline = min(deadline, now + _IMPORT_S)
        if _CAN_WAIT and now < deadline and _imports(frame):
            signal.setitimer(signal.ITIMER_REAL, _POLL_S)
            return
        if _CAN_WAIT:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)  # a second one would interrupt the clean-up
        raise KeyboardInterrupt

    for number in (signal.SIGINT, *_ENDING):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)
    if _CAN_WAIT:
        signal.signal(signal.SIGALRM, end)


def _imports(frame: FrameType | None) -> bool:
    """Whether this frame is part of an import."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _interrupted() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt the clean-up
    _say("tracelens: interrupted")
    return INTERRUPTED


def _flushed(code: int) -> int:
    """The exit code after flushing stdout; WRONG if that fails.

    What a full disk kept from being written is still in the buffer: where that error ended the command, it
    has been reported, and flushing would only report it again.
    """
    stream: TextIO | None = sys.stdout
    try:
        if stream is not None:
            stream.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        if code != WRONG:
            _say(f"tracelens: cannot write to stdout: {error.strerror or error}")
        return WRONG
    return code


def _say(line: str) -> None:
    """One line on stderr, unless its disk is full."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def _occupy_closed_streams() -> None:
    """Open /dev/null for closed stdin, stdout or stderr, whose descriptor a trace would take otherwise.

    Python's stdout stays None, so that output to it is an error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    streams: tuple[TextIO | None, TextIO | None] = (sys.stdin, sys.stderr)
    if streams[0] is None:
        sys.stdin = os.fdopen(0, encoding="utf-8")
    if streams[1] is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
