"""The command line: one module a command; the only part of tracelens that prints or exits."""

from __future__ import annotations

import sys

from tracelens.errors import TracelensError


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr and exit code 2."""
    from typer import Abort
    from typer.exceptions import TyperException

    from tracelens.cli.app import app

    arguments = sys.argv[1:] or ["--help"]
    try:
        sys.exit(app(arguments, prog_name="tracelens", standalone_mode=False) or 0)
    except TracelensError as error:
        print(f"tracelens: {error}", file=sys.stderr)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        print(f"{context.command_path if context else 'tracelens'}: {message} (see --help)", file=sys.stderr)
    except BrokenPipeError:  # `tracelens ... | head`
        sys.stderr.close()
        sys.exit(0)
    except (KeyboardInterrupt, Abort):
        print("tracelens: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(2)
