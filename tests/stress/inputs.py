"""Traces that grow in one direction each: threads, steps, ranks, nesting, names, collectives and so on.

`INPUTS[name](size)` is a recording: a list of ranks, each a list of Kineto events. Nothing is random, and the
number of events is proportional to `size`. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.builders import CPU_PID, GPU_PID, MAIN_TID, read
from tracelens.trace import Run, make_run

Event = dict[str, Any]
Recording = list[list[Event]]

STREAM, COMM_STREAM = 7, 20


def host(category: str, name: str, start: float, dur: float, tid: int = MAIN_TID, **arguments: Any) -> Event:
    """One event of a host thread."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": CPU_PID, "tid": tid, "ts": start, "dur": dur,
        "args": arguments,
    }  # fmt: skip


def gpu(
    name: str,
    start: float,
    dur: float,
    call: int,
    stream: int = STREAM,
    device: int = GPU_PID,
    **arguments: Any,
) -> Event:
    """One kernel."""
    more = {"device": device, "stream": stream, "correlation": call, **arguments}
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream, "ts": start, "dur": dur,
        "args": more,
    }  # fmt: skip


def step(number: int, start: float, dur: float) -> Event:
    """One mark of the profiler."""
    return host("user_annotation", f"ProfilerStep#{number}", start, dur)


def call(
    number: int,
    start: float,
    *,
    op: str = "aten::mm",
    kernel: str = "gemm_kernel",
    tid: int = MAIN_TID,
    shapes: Sequence[Sequence[int]] = ((64, 64), (64, 64)),
    **place: Any,
) -> list[Event]:
    """An op of 8 us, its launch, and a kernel of 5 us that starts 6 us behind the op; call id is `number`."""
    types = ["c10::BFloat16"] * len(shapes)
    return [
        host(
            "cpu_op", op, start, 8, tid, **{"Input Dims": [list(one) for one in shapes], "Input type": types}
        ),
        host("cuda_runtime", "cudaLaunchKernel", start + 2, 3, tid, correlation=number),
        gpu(kernel, start + 6, 5, number, **place),
    ]


def collective(
    number: int,
    start: float,
    dur: float,
    *,
    ranks: Iterable[int] = (0, 1),
    group: str = "1",
    name: str = "allreduce",
    kernel: str = "ncclDevKernel_AllReduce_Sum_bf16_RING",
    late: float = 0,
    host_start: float | None = None,
    **arguments: Any,
) -> list[Event]:
    """A collective: its record and launch on the host, and its kernel `late` us behind that."""
    members = list(ranks)
    begin = start if host_start is None else host_start
    record = {
        "Collective name": name, "Process Group Name": group, "Process Group Ranks": str(members),
        "Group size": len(members), "dtype": "BFloat16", "In msg nelems": 4096, "Out msg nelems": 4096,
        **arguments,
    }  # fmt: skip
    return [
        host("cpu_op", "record_param_comms", begin, 4, **record),
        host("cuda_runtime", "cudaLaunchKernel", begin + 1, 2, correlation=number),
        gpu(kernel, start + 5 + late, dur, number, COMM_STREAM, **record),
    ]


def threads(size: int) -> Recording:
    """So many host threads, two calls each."""
    events = [step(0, 0, 20 * size + 40)]
    for number in range(size):
        for again in (0, 1):
            at = 20 * number + 10 * again + 5
            events += call(2 * number + again + 1, at, tid=1000 + number, op=f"aten::op{again}")
    return [events]


def steps(size: int) -> Recording:
    """So many steps of one call."""
    events = []
    for number in range(size):
        events += [step(number, 20 * number, 19), *call(number + 1, 20 * number + 2)]
    return [events]


def overlapping_collectives(size: int) -> Recording:
    """Two ranks and so many collectives that all run at the same time."""
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 30 * size + 40)]
        for number in range(size):
            events += collective(number + 1, 10 * number + 5, 20 * size - number, late=rank * (number % 7))
        events += call(size + 1, 30 * size)
        recording.append(events)
    return recording


def collectives_in_turn(size: int) -> Recording:
    """Two ranks and so many collectives, one after the other, each beside computation."""
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 20 * size + 40)]
        for number in range(size):
            at = 20 * number + 5
            events += collective(2 * number + 1, at, 8 - rank, late=rank)
            events += call(2 * number + 2, at + 5)
        recording.append(events)
    return recording


def groups(size: int) -> Recording:
    """Two ranks and so many process groups, a collective in each."""
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 20 * size + 40), *call(size + 1, 1)]
        for number in range(size):
            events += collective(number + 1, 20 * number + 15, 8 - rank, group=str(number), late=rank)
        recording.append(events)
    return recording


def nested_annotations(size: int) -> Recording:
    """So many annotations in each other, and a call in the innermost."""
    events = [step(0, 0, 6 * size + 100)]
    events += [
        host("user_annotation", f"layer{number}", 1 + number, 4 * size + 60 - 2 * number)
        for number in range(size)
    ]
    return [[*events, *call(1, size + 10), *call(2, 5 * size + 62)]]


def equal_annotations(size: int) -> Recording:
    """So many annotations with the same start and end, and a call in them."""
    events = [step(0, 0, 100), *call(1, 10), *call(2, 70)]
    return [events + [host("user_annotation", f"layer{number}", 5, 50) for number in range(size)]]


def same_annotations(size: int) -> Recording:
    """So many annotations of one name with the same start and end."""
    events = [step(0, 0, 100), *call(1, 10), *call(2, 70)]
    return [events + [host("user_annotation", "layer", 5, 50) for _ in range(size)]]


def nested_ops(size: int) -> Recording:
    """A call stack of so many ops, with a kernel of each."""
    events = [step(0, 0, 20 * size + 100)]
    for number in range(size):
        events.append(host("cpu_op", f"aten::op{number % 5}", 1 + 5 * number, 15 * size + 50 - 7 * number))
        events.append(host("cuda_runtime", "cudaLaunchKernel", 2 + 5 * number, 1, correlation=number + 1))
        events.append(gpu("elementwise_kernel", 10 + 5 * number, 3, number + 1))
    return [events]


def nested_frames(size: int) -> Recording:
    """A stack of so many Python frames with a call in the innermost."""
    events = [step(0, 0, 6 * size + 100)]
    events += [
        host("python_function", f"train.py({number}): f", 1 + number, 4 * size + 60 - 2 * number)
        for number in range(size)
    ]
    return [[*events, *call(1, size + 10), *call(2, 5 * size + 62)]]


def ranks(size: int) -> Recording:
    """So many ranks with two steps of a call and a collective of all."""
    recording: Recording = []
    for rank in range(size):
        events = []
        for number in (0, 1):
            at = 100 * number
            events += [step(number, at, 99), *call(2 * number + 1, at + 2)]
            events += collective(
                2 * number + 2, at + 20, 30 - rank % 10, late=rank % 10, ranks=range(2), group=f"{rank // 2}",
                **{"Process Group Ranks": str([rank // 2 * 2, rank // 2 * 2 + 1])},
            )  # fmt: skip
        recording.append(events)
    return recording


def wide_group(size: int) -> Recording:
    """So many ranks in one group, with one collective of all; a group's list is as long as 32 ranks' only."""
    recording: Recording = []
    for rank in range(size):
        events = [step(0, 0, 99), *call(1, 2)]
        events += collective(
            2, 20, 30 - rank % 10, late=rank % 10, group="world", ranks=(0,),
            **{"Process Group Ranks": "[0, 1, ...]", "Group size": size},
        )  # fmt: skip
        recording.append(events)
    return recording


def streams(size: int) -> Recording:
    """So many streams of one GPU."""
    events = [step(0, 0, 20 * size + 100)]
    for number in range(size):
        events += call(number + 1, 10 * number + 2, stream=number + 1)
    return [events]


def devices(size: int) -> Recording:
    """So many GPUs in one trace."""
    events = [step(0, 0, 20 * size + 100)]
    for number in range(size):
        events += call(number + 1, 10 * number + 2, device=number)
    return [events]


def names(size: int) -> Recording:
    """So many names of ops and of kernels, each with shapes of its own."""
    events = [step(0, 0, 20 * size + 100)]
    for number in range(size):
        events += call(
            number + 1, 10 * number + 2, op=f"aten::op{number}", kernel=f"kernel_{number}",
            shapes=((number + 1, 3),),
        )  # fmt: skip
    return [events]


def kernels(size: int) -> Recording:
    """So many tiny kernels in one step."""
    events = [step(0, 0, 10 * size + 100)]
    for number in range(size):
        events += call(
            number + 1, 10 * number + 2, op=f"aten::op{number % 10}", kernel=f"kernel_{number % 9}"
        )
    return [events]


def blocking_calls(size: int) -> Recording:
    """So many calls that wait for the GPU, and a garbage collection around every second one."""
    events = [step(0, 0, 40 * size + 100)]
    for number in range(size):
        at = 40 * number + 2
        events += call(number + 1, at)
        events.append(host("cuda_runtime", "cudaStreamSynchronize", at + 9, 8, correlation=size + number + 1))
        if number % 2:
            events.append(host("python_function", "Python GC", at + 20, 10))
    return [events]


def one_launch(size: int) -> Recording:
    """So many kernels, with an arrow each from the same launch of a graph."""
    events = [
        step(0, 0, 10 * size + 100),
        host("cpu_op", "aten::mm", 1, 8),
        host("cuda_runtime", "cudaGraphLaunch", 2, 3, correlation=1),
    ]
    for number in range(size):
        events.append(gpu(f"kernel_{number % 7}", 10 * number + 10, 9, 1))
    arrow = {"id": 1, "cat": "ac2g", "name": "ac2g"}
    events.append({"ph": "s", "pid": CPU_PID, "tid": MAIN_TID, "ts": 2, **arrow})
    for number in range(size):
        at = {"pid": GPU_PID, "tid": STREAM, "ts": 10 * number + 10}
        events.append({"ph": "f", "bp": "e", **at, **arrow})
    return [events]


def same_time(size: int) -> Recording:
    """So many calls that all start and end together."""
    events = [step(0, 0, 100)]
    for number in range(size):
        events += [
            host("cpu_op", f"aten::op{number % 7}", 5, 50),
            host("cuda_runtime", "cudaLaunchKernel", 5, 50, correlation=number + 1),
            gpu(f"kernel_{number % 7}", 5, 50, number + 1),
        ]
    return [events]


def no_durations(size: int) -> Recording:
    """So many calls without extent, all at one moment, and one call with it."""
    events = [step(0, 0, 100), *call(size + 1, 60)]
    for number in range(size):
        events += [
            host("cpu_op", f"aten::op{number % 7}", 5, 0),
            host("cuda_runtime", "cudaLaunchKernel", 5, 0, correlation=number + 1),
            gpu(f"kernel_{number % 7}", 5, 0, number + 1),
        ]
    return [events]


def moe_layers(size: int) -> Recording:
    """Two ranks and so many MoE layers: a router, an exchange, experts and the exchange back."""
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 200 * size + 100)]
        for number in range(size):
            at, first = 200 * number + 5, 6 * number + 1
            events.append(host("user_annotation", "moe", at, 190))
            for place, part in enumerate(("router", "dispatch", "experts", "combine")):
                begin = at + 1 + 45 * place
                events.append(host("user_annotation", f"moe.{part}", begin, 40))
                if part in ("dispatch", "combine"):
                    events += collective(
                        first + place, begin + 1, 20 - 2 * rank, name="all_to_allv", late=2 * rank,
                        kernel="ncclDevKernel_SendRecv",
                        **{"In split size": [2048, 2048], "Out split size": [2048, 2048]},
                    )  # fmt: skip
                else:
                    events += call(first + place, begin + 1)
        recording.append(events)
    return recording


def micro_batches(size: int) -> Recording:
    """Two pipeline stages and so many micro-batches, each with a message forth and one back."""
    group = {"name": "", "group": "PP", "kernel": "ncclDevKernel_SendRecv"}
    about = {"Process Group Description": "PIPELINE_MODEL_PARALLEL_GROUP"}
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 120 * size + 100)]
        for number in range(size):
            at, first = 120 * number + 5, 6 * number + 1
            forth, back = ("send", "recv") if rank == 0 else ("recv", "send")
            for place, name in enumerate((forth, back)):
                begin = at + 60 * place
                events += collective(first + 2 * place, begin, 15, **{**group, "name": name}, **about)
                events += call(first + 2 * place + 1, begin + 25)
        recording.append(events)
    return recording


def routed_layers(size: int) -> Recording:
    """So many MoE layers that no frame names, each with a loop over four experts."""
    router, expert = ((4096, 4096), (4096, 8)), ((4096, 4096), (4096, 4096))
    events = [step(0, 0, 140 * size + 200), *call(10 * size + 1, 140 * size + 110, shapes=expert)]
    ops = (("rsqrt", router[:1]), ("mm", router), ("topk", ((4096, 8),)), ("sort", ((4096, 8),)))
    ops += (("mm", expert),) * 4 + (("index_add_", expert[:1]),)
    for number in range(size):
        for place, (name, shapes) in enumerate(ops):
            at = 140 * number + 12 * place + 5
            kernel = "gemm_kernel" if name == "mm" else "elementwise_kernel"
            events += call(
                len(ops) * number + place + 1, at, op=f"aten::{name}", kernel=kernel, shapes=shapes
            )
        sync = len(ops) * size + number + 1
        events.append(host("cuda_runtime", "cudaStreamSynchronize", 140 * number + 116, 3, correlation=sync))
    return [events]


def serving_steps(size: int) -> Recording:
    """Two serving ranks and so many labelled steps, one in five of which prefills."""
    recording: Recording = []
    for rank in (0, 1):
        events = [step(0, 0, 60 * size + 100)]
        for number in range(size):
            at, first = 60 * number + 2, 3 * number + 1
            prefills = number % 10 == rank or number % 10 == 5
            label = "prefill[bs=1 tok=64 ctx=64]" if prefills else "decode[bs=16 tok=16 d=16]"
            events.append(host("user_annotation", label, at, 30))
            events += call(first, at + 1)
            events += collective(first + 1, at + 16, 8 - rank, name="_allgather_base", late=rank)
        recording.append(events)
    return recording


INPUTS: dict[str, Callable[[int], Recording]] = {
    make.__name__: make
    for make in (
        threads, steps, overlapping_collectives, collectives_in_turn, groups, nested_annotations,
        equal_annotations, same_annotations, nested_ops, nested_frames, ranks, wide_group, streams, devices,
        names, kernels, blocking_calls, one_launch, same_time, no_durations, moe_layers, micro_batches,
        routed_layers, serving_steps,
    )
}  # fmt: skip
"""By name; each is a function of the size."""


def edited(recording: Recording) -> Recording:
    """The same recording after a change: every 7th op has another name, every 11th op is gone.

    Counted from the end, so that what becomes of the innermost op of a stack does not depend on its depth.
    """
    changed: Recording = []
    for events in recording:
        seen = 6  # the last op has another name
        kept: list[Event] = []
        for event in reversed(events):
            if event.get("cat") in ("cpu_op", "user_annotation") and not event["name"].startswith("Profiler"):
                seen += 1
                if seen % 11 == 0 and event["name"] != "record_param_comms":
                    continue
                if seen % 7 == 0:
                    kept.append({**event, "name": f"{event['name']}_v2"})
                    continue
            kept.append(event)
        changed.append(kept[::-1])
    return changed


def loaded(recording: Recording) -> Run:
    """The recording as a run, through files and the real parser."""
    size = len(recording)
    return make_run(
        read(events, rank=rank, distributedInfo={"backend": "nccl", "rank": rank, "world_size": size})
        for rank, events in enumerate(recording)
    )
