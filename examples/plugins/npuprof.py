"""Parser `npuprof`: a profiler that writes Chrome JSON with its own categories."""

from tracelens.read.formats import Dialect, Encoded, Splitter, build, parser
from tracelens.trace import Trace

DIALECT = Dialect(
    name="npuprof",
    kinds={  # category in the file, in lower case, to the kind of event
        "framework_op": "op",
        "marker": "annotation",
        "host_api": "launch",
        "device_task": "kernel",
        "device_copy": "memcpy",
    },
    launch_flows=frozenset({"host_to_device"}),  # arrows from launch calls to tasks
)


def looks_like_npuprof(splitter: Splitter) -> bool:
    """Whether a key before the events names the profiler."""
    return str(splitter.header.get("profiler", "")).startswith("npuprof")


@parser("npuprof", sniff=looks_like_npuprof)
def npuprof(splitter: Splitter, events: Encoded) -> Trace:
    """Chrome JSON of npuprof."""
    return build(splitter, events, DIALECT)
