"""Time to load two runs, and to compare them, in a process of its own: one JSON object on stdout."""

from __future__ import annotations

import json
import sys
import time


def main() -> int:
    """Load and compare the runs of the two paths on the command line."""
    import tracelens
    from tracelens.compare.diff import diff

    begin = time.perf_counter()
    base, cand = (tracelens.load(path) for path in sys.argv[1:3])
    loaded = time.perf_counter()
    result = diff(base, cand)
    done = time.perf_counter()
    print(json.dumps({"load_s": loaded - begin, "diff_s": done - loaded, **result.meta}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
