"""One to five lost records of a kind, a whole stream, a whole thread.

A loss is left out (`Undetectable`) where what remains is a recording that somebody could have made:

- Work that was launched before the recording began: nothing else tells of it.
- A memset without work: it may have set no byte, and its call does not say how many.
- Nodes of a graph that all its replays lack, or the first or last ones of a replay: a graph launch does not
  say how many nodes it has, and other graphs of the model begin later or end earlier.
- Launch calls before all others that are left: the recording may have begun after them.
- All step marks of a single rank, where the GPU has none: programs need not mark their steps.
- A mark of a step in which nothing was launched, at either end.
- A thread that launched nothing, of a run of fewer than three ranks: nothing says which rank is the odd one.
- A record of a collective that another record of the same kernel stands for, or that has no kernel.
"""

from __future__ import annotations

import numpy as np

from tests.conformance.losses.damage import Damage, RankDamage, Undetectable
from tests.conformance.losses.kinds import REPLAYS, Absent, Injection, Kind, Rng, pick
from tests.conformance.losses.recordings import STEP, Bool, Int, RankRecording, Recording

RUNS = (
    "sample_traces/faults/blocking_call",
    "sample_traces/faults/token_skew",
    "sample_traces/one_gpu/grouped",
    "sample_traces/one_gpu/loop",
    "sample_traces/pipeline/interleaved",
    "sample_traces/pipeline/plain",
    "sample_traces/serving/delayer_off",
    "sample_traces/serving/delayer_on",
    "sample_traces/serving/tbo_token",
    "sample_traces/toggles/exchange_1f1b",
    "sample_traces/toggles/multistream",
    "sample_traces/toggles/tensor_chunked",
    "sample_traces/ladder/ep4/00_baseline",
    "sample_traces/ladder/ep4/05_sync_free_3",
    "sample_traces/ladder/ep4/08_graph",
    "corpus/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/mi300x/resnet_act_checkpoint.json.gz",
    "corpus/misc/nccl_data.json.gz",
    "corpus/misc/hta_test.json.gz",
    "corpus/nvidia-h200-megatron/ep8",
    "corpus/nvidia-h200-megatron/pp2ep4",
    "foreign/nvidia-h200-megatron/pp2vpp2ep4",
    "foreign/nvidia-h200-megatron/faults/control",
    "foreign/nvidia-h200-megatron/faults/slow_kernels",
    "foreign/mi300x-serving/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "recordings/nvidia-h100-ep2/base",
    "recordings/nvidia-h100-fsdp2/fsdp_keep",
    "recordings/nvidia-h200-dsv3/decode_eager",
    "recordings/nvidia-h200-dsv3/decode_graph",
)
IN_FLIGHT = "work in flight at the end"
MOST = 5
FEW_LOST: dict[str, Kind] = {}
ENOUGH_OPS = 20
NO_KERNEL = ("wait", "coalesced")


def few(name: str, seeds: int = 1) -> object:
    def keep(inject: Injection) -> Injection:
        FEW_LOST[name] = Kind(name, inject, seeds)
        return inject

    return keep


def drawn(rng: Rng, mask: Bool) -> Bool:
    """One to five of these events."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        raise Absent("nothing to lose")
    chosen = np.zeros_like(mask)
    chosen[rng.choice(rows, size=min(int(rng.integers(1, MOST + 1)), len(rows)), replace=False)] = True
    return chosen


def eager(rank: RankRecording) -> Bool:
    """GPU work with a call of its own, but memsets."""
    ids, count = np.unique(rank.correlation[rank.gpu], return_counts=True)
    of_graph = np.isin(rank.correlation, [replay.correlation for replay in rank.replays])
    memset = np.array([event.get("cat") == "gpu_memset" for event in rank.events])
    return rank.launched & ~of_graph & ~memset & np.isin(rank.correlation, ids[count == 1])


@few("a kernel", seeds=3)
def kernel(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lost = drawn(rng, eager(rank))
    edits.drop_work(lost)
    return Damage({index: edits}, frozenset(("missing kernels", IN_FLIGHT)), f"{lost.sum()} kernels")


@few("a kernel of a graph")
def graph_kernel(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    replays = [replay for group in rank.siblings for replay in group]
    if not replays:
        raise Undetectable("a replay without sibling does not say how many nodes its graph has")
    replay = replays[int(rng.integers(len(replays)))]
    inner = np.zeros_like(rank.gpu)
    inner[replay.rows[np.argsort(rank.ts[replay.rows])][1:-1]] = True
    lost = drawn(rng, inner)
    edits.drop_work(lost)
    return Damage({index: edits}, REPLAYS, f"{lost.sum()} kernels of a replay")


@few("a launch call", seeds=3)
def launch_call(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    ids, count = np.unique(rank.correlation[rank.call], return_counts=True)
    lost = drawn(rng, rank.launch & np.isin(rank.correlation, ids[count == 1]))
    edits.drop_launches(lost, arrows=True)
    _begins_later(edits, lost)
    return Damage({index: edits}, frozenset(("missing launches",)), f"{lost.sum()} calls")


def _begins_later(edits: RankDamage, lost: Bool) -> None:
    left = edits.rank.correlation[edits.rank.call & ~edits.drop]
    if rank_ids(edits.rank, lost).max() < left[left > 0].min(initial=np.iinfo(np.int64).max):
        raise Undetectable("the recording may have begun after these launches")


def rank_ids(rank: RankRecording, rows: Bool) -> Int:
    return rank.correlation[rows & (rank.correlation > 0)]


@few("a link", seeds=2)
def link(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lost = drawn(rng, eager(rank))
    edits.unlink(lost)
    return Damage({index: edits}, frozenset(("missing links",)), f"{lost.sum()} links")


@few("all links of a rank")
def all_links(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.unlink(rank.gpu)
    return Damage({index: edits}, frozenset(("missing links",)), f"{rank.gpu.sum()} links")


@few("an arrow")
def arrow(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    tails = np.array([event.get("ph") == "s" and event.get("cat") == "ac2g" for event in rank.events])
    keys = {(rank.lane[row], rank.ts[row]) for row in np.flatnonzero(tails)}
    starts = np.array([(lane, ts) in keys for lane, ts in zip(rank.lane, rank.ts, strict=True)])
    calls = drawn(rng, rank.launch & starts & np.isin(rank.correlation, rank.correlation[eager(rank)]))
    gone = {(rank.lane[row], rank.ts[row]) for row in np.flatnonzero(calls)}
    edits.drop |= tails & [(lane, ts) in gone for lane, ts in zip(rank.lane, rank.ts, strict=True)]
    return Damage({index: edits}, frozenset(("missing links",)), f"{calls.sum()} arrows")


@few("a kernel of NCCL", seeds=2)
def nccl_kernel(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    is_nccl = np.array(["nccl" in name for name in rank.name])
    lost = drawn(rng, eager(rank) & is_nccl)
    edits.drop_work(lost)
    return Damage({index: edits}, frozenset(("missing kernels", IN_FLIGHT)), f"{lost.sum()} kernels")


@few("a record of a collective", seeds=2)
def collective_record(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    launched = {
        rank.events[row].get("args", {}).get("External id")
        for row in np.flatnonzero(rank.launched & eager(rank))
    }
    records = np.zeros_like(rank.gpu)
    for row in np.flatnonzero(rank.name == "record_param_comms"):
        args = rank.events[row].get("args", {})
        is_alone = args.get("External id") in launched and int(args.get("Group size", 2)) > 1
        records[row] = is_alone and args.get("Collective name") not in NO_KERNEL
    lost = drawn(rng, records)
    edits.drop |= lost
    return Damage({index: edits}, frozenset(("missing collectives",)), f"{lost.sum()} records")


@few("all of a collective")
def whole_collective(rng: Rng, recording: Recording) -> Damage:
    """Kernel, call and record are gone: other ranks tell."""
    if len(recording.ranks) < 2:
        raise Undetectable("one rank without a collective is a recording of fewer collectives")
    index, rank, edits = pick(rng, recording)
    is_nccl = eager(rank) & np.array(["nccl" in name for name in rank.name])
    of_group: dict[str, list[int]] = {}
    for row in np.flatnonzero(is_nccl)[np.argsort(rank.ts[is_nccl])]:
        of_group.setdefault(str(rank.events[row]["args"].get("Process Group Name")), []).append(int(row))
    inner = np.zeros_like(is_nccl)
    for name, rows in of_group.items():
        if name != "None":
            inner[rows[1:-1]] = True
    lost = drawn(rng, inner)
    edits.drop_work(lost)
    edits.drop_launches(rank.launch & np.isin(rank.correlation, rank.correlation[lost]), arrows=True)
    ids = {rank.events[row]["args"].get("External id") for row in np.flatnonzero(lost)}
    edits.drop |= (rank.name == "record_param_comms") & [
        event.get("args", {}).get("External id") in ids for event in rank.events
    ]
    return Damage({index: edits}, frozenset(("missing collectives",)), f"{lost.sum()} collectives")


@few("a step mark", seeds=2)
def step_mark(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    marks = rank.host & rank.named(STEP) & ~rank.on_gpu_lane
    lost = drawn(rng, marks)
    edits.drop |= lost
    left = marks & ~lost
    if not left.any() and len(recording.ranks) < 2 and not rank.named(STEP)[rank.on_gpu_lane].any():
        raise Undetectable("programs need not mark their steps")
    if left.any() and not rank.named(STEP)[rank.on_gpu_lane].any() and len(recording.ranks) < 2:
        first, last = rank.ts[left].min(), rank.end[left].max()
        inner = lost & (rank.ts > first) & (rank.ts < last)
        outside = rank.launch & ((rank.ts < first) | (rank.ts > last))
        if not inner.any() and not outside.any():
            raise Undetectable("nothing was launched in the step")
    reasons = frozenset(("missing step marks", "cut", "ends early"))
    return Damage({index: edits}, reasons, f"{lost.sum()} of {marks.sum()} marks")


@few("a whole stream", seeds=2)
def stream(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lanes = np.unique(rank.lane[rank.launched])
    if not len(lanes):
        raise Absent("no launched work")
    lane = rng.choice(lanes)
    work = rank.gpu & (rank.lane == lane)
    edits.drop |= rank.lane == lane
    if not (eager(rank) & work).any():
        of_all = all((other.gpu & _stream(other, rank, work)).sum() >= MOST for other in recording.ranks)
        if len(recording.ranks) < 3 or not of_all:
            raise Undetectable("a graph launch does not say how many nodes it has")
    reasons = ("missing kernels", "missing graph kernels", "missing streams", "cut", IN_FLIGHT)
    return Damage({index: edits}, frozenset(reasons), f"{work.sum()} kernels of a stream")


def _stream(other: RankRecording, rank: RankRecording, work: Bool) -> Bool:
    stream = str(rank.events[int(np.flatnonzero(work)[0])].get("tid"))
    return np.array([str(event.get("tid")) == stream for event in other.events])


@few("a whole thread", seeds=2)
def thread(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    ops = np.array([event.get("cat") == "cpu_op" for event in rank.events])
    lanes, count = np.unique(rank.lane[ops], return_counts=True)
    lanes = np.union1d(lanes[count >= ENOUGH_OPS], np.unique(rank.lane[rank.launch]))
    lane = rng.choice(lanes)
    lost = rank.lane == lane
    edits.drop |= lost
    if (lost & rank.launch).any():
        _begins_later(edits, lost & rank.launch)
    elif len(recording.ranks) < 3:
        raise Undetectable("nothing says which of two ranks has a thread too few")
    reasons = {"missing launches", "missing streams", "cut"} | (
        {"missing step marks"} if (lost & rank.named(STEP)).any() else set()
    )
    return Damage({index: edits}, frozenset(reasons), f"{lost.sum()} events of a thread")
