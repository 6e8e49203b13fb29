"""Runs scripts as `replay verify` does, each in a copy of one process that has imported torch."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tracelens.reproducers.verify import RUNNER

SERVER = """
import json, os, runpy, sys, traceback
import torch
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
        os.chdir(asked["folder"])
        sys.argv = asked["arguments"]
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
            if not isinstance(code, int):
                print(code, file=sys.stderr)
                code = 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)  # taking down what torch has set up takes longer than all the rest
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # closes its input, with which it ends
    return server


def run_script(path: Path, *options: str, alone: bool = False) -> subprocess.CompletedProcess[str]:
    """What came of a script in its folder: measured with these options, or `alone` as `python SCRIPT`."""
    server, arguments = _server(), [*([] if alone else [str(RUNNER)]), str(path), *options]
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        asked = {"arguments": arguments, "folder": str(path.parent), "stdout": str(out), "stderr": str(err)}
        print(json.dumps(asked), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())
