"""The command line: one module a command; the only part of tracelens that prints or exits."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from tracelens.errors import TracelensError


def main() -> None:
    """The `tracelens` command: run it and end the process.

    A batch process needs neither the cyclic collector nor a tidy end: taking the trace's tables apart
    object by object would cost a tenth of a report's time.
    """
    gc.disable()
    # Nothing here multiplies matrices; starting threads for it takes as long as importing numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; every error a user can cause is one line on stderr and exit code 2.

    Args:
        arguments: without the program's name; none shows the help.

    Returns:
        the exit code.
    """
    from typer import Abort
    from typer.exceptions import TyperException

    from tracelens.cli.app import app

    try:
        return int(app(list(arguments) or ["--help"], prog_name="tracelens", standalone_mode=False) or 0)
    except TracelensError as error:
        print(f"tracelens: {error}", file=sys.stderr)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        print(f"{context.command_path if context else 'tracelens'}: {message} (see --help)", file=sys.stderr)
    except BrokenPipeError:  # `tracelens ... | head`
        return 0
    except (KeyboardInterrupt, Abort):
        print("tracelens: interrupted", file=sys.stderr)
        return 130
    return 2
