"""The command line: one module a command; the only part of tracelens that prints or exits."""

from __future__ import annotations

import sys

from tracelens.errors import TracelensError


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr and exit code 2."""
    from tracelens.cli.app import app

    try:
        app(prog_name="tracelens")
    except TracelensError as error:
        print(f"tracelens: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `tracelens ... | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("tracelens: interrupted", file=sys.stderr)
        sys.exit(130)
