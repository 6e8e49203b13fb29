"""The summary of a report that is one result of its own: a comparison or a projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from tracelens.arrays import median, unique
from tracelens.rendering.summary.wording import about, guarded, percent, size
from tracelens.rendering.tables import headline, one_line, shorten
from tracelens.rendering.thresholds import (
    BOUND_TILES,
    CHANGE_SHARE,
    EXPLAINED_SHARE,
    NAMED,
    SAME_STEP_SHARE,
    SCHEDULE_TILES,
)
from tracelens.table import Result, Summary, Table, Tile
from tracelens.units import duration, plural, size_text, three_digits

_STEP_NOISE = {
    "within": ", by which single runs of one program may differ",
    "unclear": "; whether that is noise takes several runs (tracelens gate)",
}
"""What the verdict on two runs adds to a change of the step that may be noise."""
_LONE = 2  # a rank that alone is to blame changed so many times as much as the next one


def result_summary(result: Result) -> Summary | None:
    """Verdict and tiles of a comparison or projection; None for other results."""
    make = SUMMARIES.get(result.analyzer)
    return guarded(lambda: make(result)) if make else None


def diff_summary(result: Result) -> Summary | None:
    """What became of the step, and the changes beyond the noise between steps."""
    base_ns, cand_ns = float(result.meta["base_ns"]), float(result.meta["cand_ns"])
    waterfall, pace = result.data["waterfall"], result.data.get("pace")
    changes = _changes(waterfall, cand_ns - base_ns)
    # The steps without the profiler, where both sides have one.
    paces_ns = pace.array("step_ns").tolist() if pace is not None and len(pace) > 1 else []
    verdict = f"{_faster(base_ns, cand_ns)} a recorded step"
    if times := result.meta.get("repetitions"):
        each = _faster(base_ns / times[0], cand_ns / times[1])
        verdict = (
            f"{each} per repetition ({times[0]} in the base, {times[1]} in the candidate, no steps marked)"
        )
    elif abs(cand_ns - base_ns) > SAME_STEP_SHARE * base_ns:
        verdict += _STEP_NOISE.get(result.meta.get("step_noise", ""), "")
    if paces_ns:
        verdict += f"; without the profiler {_faster(*paces_ns).lower()}"
    # Idle and busy time of the work that only one run launches as graphs.
    rows = np.flatnonzero(waterfall.coded("level").equals("graph"))
    idle, busy = np.zeros(2), np.zeros(2)
    for row, name in zip(rows.tolist(), waterfall.texts("name", rows), strict=True):
        state, _, cause = name.partition(": ")
        if state == "in graphs on one side":
            sums = idle if cause == "idle" else busy
            sums += [waterfall.array(column)[row] for column in ("base_ns", "cand_ns")]
    if busy.any():
        idle_text, busy_text = (" to ".join(duration(ns) for ns in each.tolist()) for each in (idle, busy))
        verdict += f"; work that only one side runs in graphs: idle before it {idle_text}, busy {busy_text}"
    one_rank = None
    if abs(cand_ns - base_ns) > SAME_STEP_SHARE * base_ns:
        noise = result.meta.get("step_noise", "")
        one_rank = _one_rank(result.data.get("ranks"), cand_ns - base_ns, noise)
    if one_rank:
        verdict += f"; most of it on rank {one_rank.rank}: {one_rank.text}"
    if changes:
        named = (f"{name} {'+' if ns > 0 else '-'}{duration(abs(ns))}" for name, ns, _, _ in changes)
        verdict += f"; {'mean of the ranks: ' if one_rank else ''}{', '.join(named)}"
    elif one_rank is None and len(waterfall) and abs(cand_ns - base_ns) > SAME_STEP_SHARE * base_ns:
        unknown = waterfall.coded("noise").equals("unknown").all()
        verdict += (
            "; with single steps the noise is unknown" if unknown else "; no part of it exceeds the noise"
        )
    notes = [f"without the profiler {duration(ns)}" for ns in paces_ns] or ["mean step"] * 2
    change = f"{cand_ns / base_ns - 1:+.1%}" if base_ns else ""
    tiles = [
        Tile("base_step_time", "Base", base_ns, "ns", note=notes[0], section="diff"),
        Tile("cand_step_time", "Candidate", cand_ns, "ns", note=notes[1], section="diff"),
        Tile("change", "Change", cand_ns - base_ns, "ns", note=change, section="diff"),
    ]
    if one_rank:
        label = f"Rank {one_rank.rank}"
        tiles.append(Tile("change_rank", label, one_rank.delta_ns, "ns", note=one_rank.text, section="diff"))
    for number, (name, delta_ns, before_ns, after_ns) in enumerate(changes, start=1):
        note, label = f"{duration(before_ns)} to {duration(after_ns)}", f"{name[:1].upper()}{name[1:]}"
        tiles.append(Tile(f"change_{number}", label, delta_ns, "ns", note=note, section="diff"))
    return Summary(f"{verdict}.", tuple(tiles))


class _OneRank(Struct, frozen=True):
    """The rank on which most of a difference lies."""

    rank: int
    delta_ns: float
    text: str  # what changed on it


def _one_rank(ranks: Table | None, delta_ns: float, noise: str) -> _OneRank | None:
    """The rank that changed more than the others by most of the difference; None where no single one did.

    The GPU work of a rank hardly varies from run to run. Its idle time does, and ranks in lockstep trade it
    for waiting: it counts where the step changed beyond the noise and the work of the others is as before.
    """
    if ranks is None:
        return None
    towards, causes = np.sign(delta_ns), ranks.texts("cause")
    work_ns, idle_ns = (ranks.array(f"{kind}_delta_ns") * towards for kind in ("work", "idle"))
    kinds = [("work", "GPU work", work_ns)]
    if noise not in _STEP_NOISE and median(work_ns) < EXPLAINED_SHARE * abs(delta_ns):
        kinds.append(("idle", "idle", idle_ns))
    for kind, name, changed_ns in kinds:
        beyond = [change - median(np.delete(changed_ns, row)) for row, change in enumerate(changed_ns)]
        *_, second, row = np.argsort(beyond).tolist()
        most = beyond[row]
        if most < EXPLAINED_SHARE * abs(delta_ns) or most < _LONE * max(beyond[second], 0):
            continue
        base_ns, cand_ns = (float(ranks.array(f"{side}_{kind}_ns")[row]) for side in ("base", "cand"))
        why = f" ({causes[row]})" if causes[row] not in ("", "idle") and kind == "work" else ""
        text = f"{name} {duration(base_ns)} to {duration(cand_ns)}{why}"
        return _OneRank(int(ranks.array("rank")[row]), cand_ns - base_ns, text)
    return None


def _faster(base_ns: float, cand_ns: float) -> str:
    """A change of a time: '45% faster: 71.1 ms to 39.4 ms'."""
    change = cand_ns / base_ns - 1 if base_ns else 0.0
    times = f"{duration(base_ns)} to {duration(cand_ns)}"
    if abs(change) < SAME_STEP_SHARE:
        return f"No change: {times}"
    return f"{percent(abs(change))} {'slower' if change > 0 else 'faster'}: {times}"


def _changes(waterfall: Table, delta_ns: float) -> list[tuple[str, float, float, float]]:
    """The largest changes beyond the noise, of the first level on which they explain the difference.

    Name, difference, time in the base and in the candidate. Where no level explains the difference, those of
    the first level that has any.
    """
    base, cand, delta = (waterfall.array(f"{name}_ns") for name in ("base", "cand", "delta"))
    beyond = waterfall.coded("noise").equals("beyond") & (np.abs(delta) > CHANGE_SHARE * abs(delta_ns))
    chosen: list[int] = []
    for level in ("cause", "stage", "category"):
        rows = np.flatnonzero(waterfall.coded("level").equals(level) & beyond)
        rows = rows[np.argsort(-np.abs(delta[rows]), kind="stable")]
        explains = bool(delta_ns) and delta[rows].sum() / delta_ns > EXPLAINED_SHARE
        if explains or not chosen:
            chosen = rows[:NAMED].tolist()
        if explains:
            break
    names = [name.strip("()") for name in waterfall.texts("name", chosen)]
    columns = (values[chosen].tolist() for values in (delta, base, cand))
    return list(zip(names, *columns, strict=True))


def ladder_summary(result: Result) -> Summary | None:
    """From the baseline to the last rung, and the rungs that gain and lose most."""
    rungs = result.data["rungs"]
    names, gains = rungs.texts("name"), rungs.array("gain").tolist()
    timed, rate = rungs.array("timed_ns").tolist(), rungs.array("tokens_per_s").tolist()
    speedup, known = result.meta["speedup"], rungs.coded("noise").equals("beyond").tolist()
    traced = [float(result.meta["base_ns"]), float(result.meta["last_ns"])]
    is_timed = speedup is not None
    base_ns, last_ns = (float(timed[0]), float(timed[-1])) if is_timed else traced
    what = "without the profiler" if is_timed else "as recorded"
    verdict = (
        f"{duration(base_ns)} to {duration(last_ns)} a step {what} over {plural(len(names) - 1, 'rung')}"
    )
    verdict = f"{speedup:.2f} x the throughput: {verdict}" if is_timed else verdict
    changes = [row for row in range(1, len(names)) if known[row]]
    best, worst = (pick(changes, key=gains.__getitem__, default=0) for pick in (max, min))
    if best and gains[best] > 0:
        verdict += f"; {names[best]} gains most ({gains[best]:+.0%})"
    if worst and gains[worst] < 0:
        verdict += f", {names[worst]} loses most ({gains[worst]:+.0%})"
    tiles = [
        Tile("base_step_time", f"Step of {names[0]}", base_ns, "ns", note=what, section="ladder"),
        Tile("last_step_time", f"Step of {names[-1]}", last_ns, "ns", note=what, section="ladder"),
    ]
    if is_timed:
        tokens = f"{three_digits(rate[0])} to {three_digits(rate[-1])} tokens/s"
        tiles.append(
            Tile("speedup", "Throughput", speedup, "", note=tokens, section="ladder", text=f"{speedup:.2f} x")
        )
    return Summary(f"{verdict}.", tuple(tiles))


def memory_summary(result: Result) -> Summary | None:
    """The fullest GPU of the layouts, and the devices that it fits on."""
    worst, layouts, fits = float(result.meta["worst_bytes"]), result.meta["layouts"], result.data.get("fits")
    verdict = f"{size(worst)} on the fullest GPU"
    verdict += f" of {plural(len(layouts), 'layout')}" if len(layouts) > 1 else f" ({layouts[0]})"
    note = (
        f"at the peak of a step, of {plural(len(layouts), 'layout')}"
        if len(layouts) > 1
        else "at the peak of a step"
    )
    tiles = [Tile("peak_memory", "Peak memory", worst, "bytes", note=note, section="memory")]
    by_device: dict[str, list[tuple[str, float, float, float]]] = {}
    if fits is not None:
        columns = ("free_bytes", "memory_bytes", "reserve_bytes")
        rows = zip(fits.texts("fits"), *(fits.array(name).tolist() for name in columns), strict=True)
        for device, row in zip(fits.texts("device"), rows, strict=True):
            by_device.setdefault(device, []).append(row)
    answers = []
    for device, answered in by_device.items():
        fitting = sum(answer == "yes" for answer, *_ in answered)
        least = min(free for _, free, *_ in answered)
        _, _, capacity, reserve = answered[0]
        if len(answered) == 1:
            room = f"{size(least)} to spare" if least >= 0 else f"{size(-least)} too much"
            text = "fits" if fitting else "does not fit"
            answers.append(f"{text} {device} ({room})")
            note = f"{size(capacity)} less {size(reserve)} reserve: {room}"
        else:
            text = f"{fitting} of {len(answered)} fit"
            answers.append(f"{text} {device}")
            note = f"{size(capacity)} less {size(reserve)} reserve"
        tiles.append(Tile(f"fits_{device}", device, None, "", note=note, section="memory", text=text))
    if answers:
        verdict += f"; {'; '.join(answers[:NAMED])}"
    if better := result.meta.get("optimised_bytes"):
        verdict += f"; {size(better)} with fused kernels (--optimised)"
        tiles.append(Tile("optimised_memory", "With fused kernels", better, "bytes", section="memory"))
    return Summary(f"{verdict}.", tuple(tiles))


def search_summary(result: Result) -> Summary | None:
    """The fastest layout that fits each device."""
    layouts, best, fits = result.data["layouts"], result.meta["best"], result.meta["fits"]
    possible = result.meta["possible"]
    step, rate, mfu, needed, free = (
        layouts.array(name).tolist() for name in ("step_ns", "tokens_per_s", "mfu", "bytes", "free_bytes")
    )
    kind = result.meta["step_times"]
    least, most = ("", "") if kind == "projected" else ("at least ", "at most ")
    first: dict[str, int] = {}
    for row, device in enumerate(layouts.texts("device")):
        first.setdefault(device, row)
    verdicts, tiles = [], []
    for device, row in first.items():
        if device not in best:
            verdicts.append(f"no layout fits {device}: the smallest needs {size(needed[row])}")
            note = f"{size(needed[row])} at least, {size(-free[row])} too much"
            tiles.append(
                Tile(f"layouts_{device}", device, None, "", note=note, section="search", text="none fits")
            )
            continue
        verdicts.append(
            f"fastest on {result.meta['gpus']:,} x {device}: {best[device]}, {least}{duration(step[row])} "
            f"a step, {most}{three_digits(rate[row])} tokens/s per GPU, MFU {percent(mfu[row])}"
        )
        tiles += [
            Tile(f"layouts_{device}", device, None, "", note=f"{fits[device]:,} of {possible:,} layouts fit",
                 section="search", text=best[device]),
            Tile(f"step_time_{device}", "Step time", step[row], "ns", note=kind, section="search"),
            Tile(f"memory_{device}", "Peak memory", needed[row], "bytes", note=f"{size(free[row])} to spare",
                 section="search"),
        ]  # fmt: skip
    text = "; ".join(verdicts[:NAMED])
    return Summary(f"{text[0].upper()}{text[1:]}.", tuple(tiles)) if text else None


def scaling_summary(result: Result) -> Summary | None:
    """How much throughput each dispatch keeps from the fewest to the most ranks, and the speedups."""
    table = result.data["scaling"]
    rate, relative, speedup = (table.array(name).tolist() for name in ("tokens_per_s", "relative", "speedup"))
    rows_of: dict[str, list[int]] = {}
    for row, dispatch in enumerate(table.texts("dispatch")):
        rows_of.setdefault(dispatch, []).append(row)
    ranks = table.array("ep").tolist()
    first, *others = rows_of
    kept = {name: f"{name} {percent(relative[rows[-1]])}" for name, rows in rows_of.items() if len(rows) > 1}
    verdicts = []
    if kept:
        keeps = " and ".join(kept.values()).replace(" ", " keeps ", 1)
        verdicts.append(f"from EP {min(ranks)} to {max(ranks)}, {keeps} of its tokens/s")
    for name in others:
        ratios = [speedup[row] for row in rows_of[name]]
        low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
        verdicts.append(f"{name} is {low if low == high else f'{low} to {high}'} times as fast as {first}")
    best = max(range(len(rate)), key=rate.__getitem__)
    fastest = f"{table.texts('dispatch')[best]}, EP {ranks[best]}"
    most = "" if result.meta["step_times"] == "projected" else "at most "
    tiles = [
        Tile("best", "Fastest", None, "", note=f"{most}{three_digits(rate[best])} tokens/s per GPU",
             section="scaling", text=fastest),
        *(
            Tile(f"kept_{name}", f"{name} keeps", relative[rows[-1]], "fraction",
                 note=f"EP {ranks[rows[-1]]}, of the tokens/s with EP {ranks[rows[0]]}", section="scaling")
            for name, rows in list(rows_of.items())[:NAMED]
            if len(rows) > 1
        ),
    ]  # fmt: skip
    text = "; ".join(verdicts) or f"{fastest}: {most}{three_digits(rate[best])} tokens/s per GPU"
    return Summary(f"{text[0].upper()}{text[1:]}.", tuple(tiles))


def published_summary(result: Result) -> Summary | None:
    """How many targets are met, and the largest error of tokens/s that were not fitted."""
    met, targets, summary = result.meta["met"], result.meta["targets"], result.data["summary"]
    rows = [
        row
        for row, (quantity, use) in enumerate(
            zip(summary.texts("quantity"), summary.texts("use"), strict=True)
        )
        if quantity == "tokens/s per GPU" and use == "tested"
    ]
    tiles = [
        Tile(f"figure_{figure}", f"Figure {figure}", summary.array("worst")[row], "fraction",
             note="largest error of tokens/s per GPU", section="summary")
        for row in rows
        for figure in [summary.array("figure")[row]]
    ]  # fmt: skip
    return Summary(
        f"{met} of {plural(targets, 'target')} met on numbers that nothing was fitted on.", tuple(tiles)
    )


def pipeline_summary(result: Result) -> Summary | None:
    """The shortest schedule, its bubble, and what it gains on the first."""
    summary = result.data["summary"]
    names, span, step = summary.texts("schedule"), summary.array("makespan_ns"), summary.array("step_ns")
    bubble = summary.array("bubble_fraction").tolist()
    best = int(span.argmin())
    # The rest of the step is known of measured runs only.
    times, what = (step, "a step") if step[best] >= 0 else (span, "for all micro-batches")
    verdict = f"{names[best]} takes {duration(float(times[best]))} {what}"
    verdict += f" ({result.meta['stages']} stages, {result.meta['micro_batches']} micro-batches)"
    verdict += f"; the bubble is {percent(bubble[best])} of it"
    if best:
        verdict += f"; {percent(1 - float(times[best]) / float(times[0]))} less than {names[0]}"
    tiles = [
        Tile(f"schedule_{number}", names[row], float(times[row]), "ns", note=f"bubble {percent(bubble[row])}",
             section=result.analyzer)
        for number, row in enumerate(times.argsort(kind="stable")[:SCHEDULE_TILES].tolist(), start=1)
    ]  # fmt: skip
    return Summary(f"{verdict}.", tuple(tiles))


def bubble_summary(result: Result) -> Summary | None:
    """The idle share of the pipeline, and what more chunks would make of it."""
    meta, by_chunks = result.meta, result.data["by_vpp"]
    whole, ideal = result.data["bubble"].array("bubble_ratio").tolist()[:2]
    sizes = f"{meta['pp']} stages, {meta['micro_batches']} micro-batches, VPP {meta['vpp']}"
    verdict = f"The pipeline idles {whole:.2%} of the time ({sizes})"
    chunks, shares = by_chunks.array("vpp").tolist(), by_chunks.array("bubble_fraction").tolist()
    if more := [row for row, count in enumerate(chunks) if count == 2 * meta["vpp"]]:
        verdict += f"; VPP {chunks[more[0]]} would make it {shares[more[0]]:.2%}"
    tiles = (
        Tile("bubble", "Bubble", whole, "fraction", note="of the whole time", section="bubble"),
        Tile(
            "bubble_of_ideal",
            "Bubble, Megatron-LM",
            ideal,
            "ratio",
            note="of the ideal time",
            section="bubble",
        ),
        Tile(
            "micro_batches",
            "Micro-batches",
            meta["micro_batches"],
            "count",
            note="per step",
            section="bubble",
        ),
    )
    return Summary(f"{verdict}.", tiles)


def whatif_summary(result: Result) -> Summary | None:
    """The scenarios that raise the throughput most."""
    table, meta = result.data.get("whatif"), result.meta
    base_ns, recorded_ns = float(meta["base_ns"]), float(meta["recorded_ns"])
    what, step_ns = "as measured", base_ns
    if base_ns != recorded_ns:
        step_ns = float(meta.get("unprofiled_ns", base_ns))
        in_replay = "" if duration(step_ns) == duration(base_ns) else f" ({duration(base_ns)} in the replay)"
        what = f"without the profiler{in_replay}, {duration(recorded_ns)} with it"
    unit = "for all steps" if meta["step"] == "all steps" else "a step"
    verdict = f"{duration(step_ns)} {unit} {what}"
    tiles = [Tile("step_time", "Step time", base_ns, "ns", note=f"{meta['step']}, {what}", section="whatif")]
    if table is None or not len(table):
        return Summary(f"{verdict}; no scenario applies.", tuple(tiles))
    names = table.texts("scenario")
    columns = ("projected", "low", "high", "rerun_low", "rerun_high")
    projected, low, high, least, most = (table.array(f"{name}_ns").tolist() for name in columns)
    gain = table.array("gain")
    # The step that has the measured throughput with the tokens of the scenario.
    even_ns = (1 + gain) * table.array("projected_ns")
    is_clear = [not least[row] <= even_ns[row] <= most[row] for row in range(len(names))]
    steps = [about(ns) for ns in projected]
    effects = [f"{share:+.1%}" for share in (projected / even_ns - 1).tolist()]
    tokens = np.round(even_ns / base_ns, 6)
    for row in np.flatnonzero(tokens != 1).tolist():
        effects[row] = f"for {tokens[row]:g} times the tokens, {gain[row]:+.0%} tokens/s"
        steps[row] += f" {effects[row]}"
    better = [row for row in range(len(names)) if gain[row] > 0 and is_clear[row]][:NAMED]
    worse = [row for row in reversed(range(len(names))) if gain[row] < 0 and is_clear[row]]
    if better:
        listed = [f"{names[row]} to {steps[row]}" for row in better]
        listed[0] = f"{names[better[0]]} would bring it to {steps[better[0]]}"
        verdict += f"; {', '.join(listed)}"
    elif worse:
        verdict += f"; {names[worse[0]]} would bring it to {steps[worse[0]]}"
    else:
        verdict += "; no clear gain"
    for row in range(min(len(names), NAMED)):
        tile = Tile(
            name=f"scenario_{row + 1}",
            label=names[row],
            value=projected[row],
            unit="ns",
            low=low[row],
            high=high[row],
            note=effects[row] if is_clear[row] else "no clear gain",
            section="whatif",
        )
        tiles.append(tile)
    return Summary(f"{verdict}.", tuple(tiles))


def bounds_summary(result: Result) -> Summary | None:
    """The geometric means of the operations, and the fastest all-reduce by size."""
    meta, means, ranges = result.meta, result.data.get("geometric_means"), result.data.get("crossovers")
    gpus = f"{meta['gpus_per_node']} x {meta['device']}"
    tiles, parts = [], []
    if means is not None:
        names, overlapped, serial = (
            means.texts("operation"),
            means.array("overlapped_ns").tolist(),
            means.array("serial_ns").tolist(),
        )
        for row in range(min(len(names), BOUND_TILES)):
            parts.append(f"{names[row]} {duration(overlapped[row])}")
            note = f"geometric mean; {duration(serial[row])} without overlap"
            tiles.append(Tile(f"bound_{row}", names[row], overlapped[row], "ns", note=note, section="bounds"))
    if ranges is not None:
        largest = max(ranges.array("nodes").tolist())
        of_all = [row for row, nodes in enumerate(ranges.array("nodes").tolist()) if nodes == largest]
        names, starts = ranges.texts("algorithm"), ranges.array("from_bytes").tolist()
        listed = [f"{names[row]} from {size_text(starts[row])}" for row in of_all[1:]]
        text = ", ".join([names[of_all[0]], *listed])
        parts.append(f"fastest all-reduce on {largest} node{'s' * (largest > 1)}: {text}")
    return Summary(f"Least times on {gpus}: {'; '.join(parts)}.", tuple(tiles)) if parts else None


def trace_bounds_summary(result: Result) -> Summary | None:
    """The collectives with most time above their bound."""
    table = result.data.get("collectives")
    if table is None:
        return None
    names, groups = table.texts("collective"), table.texts("group")
    achieved, excess = table.array("achieved").tolist(), table.array("excess_ns").tolist()
    sizes = table.array("from_bytes").tolist()
    tiles = [
        Tile(
            f"collective_{row}",
            f"{names[row]}, {groups[row]}",
            achieved[row],
            "fraction" if achieved[row] <= 1 else "ratio",
            note=f"of its links, from {size_text(sizes[row])}; {duration(excess[row])} above the bound",
            section="trace_bounds",
        )
        for row in range(min(len(names), BOUND_TILES))
    ]
    verdict = (
        f"{names[0]} of {groups[0]} reaches {percent(achieved[0])} of the speed of its links: "
        f"its transfers take {duration(excess[0])} longer than their bound"
    )
    return Summary(f"{verdict}.", tuple(tiles))


SUMMARIES: Mapping[str, Callable[[Result], Summary | None]] = {
    "bounds": bounds_summary,
    "bubble": bubble_summary,
    "diff": diff_summary,
    "ladder": ladder_summary,
    "memory": memory_summary,
    "pipeline_schedule": pipeline_summary,
    "published": published_summary,
    "scaling": scaling_summary,
    "search": search_summary,
    "trace_bounds": trace_bounds_summary,
    "whatif": whatif_summary,
}
"""By the name that the result has."""


def result_title(result: Result, model: str = "") -> str:
    """The command that made a result of `project` or `replay`; with the figures of those without a verdict.

    `model` is what a projection is of.
    """
    meta = result.meta
    match result.analyzer:
        case "replay":
            share, scripts = meta["fraction_of_gpu_time"], result.data["scripts"]
            return f"replay: {len(scripts)} scripts, {share:.1%} of GPU time"
        case "replay_verify":
            counts = ", ".join(f"{count} {status}" for status, count in meta["statuses"].items())
            return f"replay verify: {counts}"
        case "replay_compare":
            before_ns, after_ns, step = meta["before_ns"], meta["after_ns"], result.data.get("step")
            ratio = f"{after_ns / before_ns:.2f}x" if before_ns else "no times"
            title = f"replay compare: calls take {ratio}, {duration(before_ns)} -> {duration(after_ns)}"
            if step is not None and len(step):
                base_ns, projected_ns = (float(step.array(f"{name}_ns")[0]) for name in ("base", "projected"))
                title += f"; step {duration(base_ns)} -> {duration(projected_ns)}"
            broken = meta["broken"]
            return title + (f"; broken: {', '.join(broken)}" if broken else "")
        case "pipeline_schedule":
            return "project pipeline" + (
                f" (simulation: {meta['simulation']})" if "simulation" in meta else ""
            )
        case "search":
            return f"project memory --search of {model}"
    command = {"trace_bounds": "bounds"}.get(result.analyzer, result.analyzer)
    return f"project {command}" + f" of {model}" * bool(model)


def answer(result: Result) -> str:
    """The sentence that answers an analyzer's question, with its figures; the reason where there is none."""
    summary = result_summary(result)
    if summary is not None:
        return one_line(str(summary.verdict))
    first = ANSWERS.get(result.analyzer)
    try:
        text = first(result) if first else ""
    except KeyError:  # a plugin's table of the same name may lack the columns
        text = ""
    if not text:
        fact = headline(result)
        text = f"{result.title}: {fact}" if fact else f"{result.title}: nothing to tell"
    text = one_line(text)
    return f"{text[0].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _rows(result: Result, name: str) -> Table | None:
    """A table of the result if it has rows."""
    table = result.data.get(name)
    return table if table is not None and len(table) else None


def _quoted(text: str, width: int = 60) -> str:
    return shorten(one_line(text), width)


def _largest(amount: str, noun: str) -> Callable[[Result], str]:
    """An answer that names the op or kernel with most of a time, of all ranks together."""

    def sentence(result: Result) -> str:
        table = _rows(result, result.analyzer)
        if table is None:
            return ""
        coded, ranks = table.coded("name"), len(unique(table.array("rank")))
        sums = np.bincount(coded.codes, table.array(amount), len(coded.values))
        most = int(np.argmax(sums))
        each = duration(float(sums[most]) / ranks) + (" a rank" if ranks > 1 else "")
        share = percent(float(sums[most] / max(sums.sum(), 1)))
        count = plural(int(np.count_nonzero(sums)), noun)
        return f"Most time of {count}: {_quoted(coded.values[most])}, {each}, {share} of the GPU time"

    return sentence


def _findings_answer(result: Result) -> str:
    table = _rows(result, "findings")
    if table is None:
        return next((f"{skip.reason}" for skip in result.skips if skip.subject == "findings"), "")
    finding, fix = table.texts("finding")[0], table.texts("fix")[0]
    gain = f"{duration(float(table.array('additional_ns')[0]))} a step"
    rank = table.cells("worst_rank")[0]
    where = f", most on rank {rank}" if rank is not None else ""
    share = percent(float(table.array("fraction_of_step")[0]))
    return f"Fix first: {_quoted(finding, 70)} ({gain}, {share}{where})" + (
        f"; {_quoted(fix, 90)}" if fix else ""
    )


def _idle_answer(result: Result) -> str:
    causes, gaps = _rows(result, "causes"), _rows(result, "gaps")
    if causes is None:
        return ""
    coded, ns = causes.coded("cause"), causes.array("dur_ns")
    sums = np.bincount(coded.codes, ns, len(coded.values))
    most, ranks = int(np.argmax(sums)), len(unique(causes.array("rank")))
    text = (
        f"The GPU idles {duration(float(sums.sum()) / ranks)}{' a rank' if ranks > 1 else ''}, "
        f"{percent(float(sums[most] / max(sums.sum(), 1)))} of it for {coded.values[most]}"
    )
    if gaps is not None:
        row = int(np.argmax(gaps.array("dur_ns")))
        rank, length = gaps.array("rank")[row], duration(float(gaps.array("dur_ns")[row]))
        where = f" on rank {rank}" if ranks > 1 else ""
        text += f"; the longest gap is {length}{where}: {gaps.texts('cause')[row]}"
        host = gaps.texts("host")[row]
        text += f" ({_quoted(host, 40)})" if host else ""
    return text


def _roofline_answer(result: Result) -> str:
    table = _rows(result, "roofline")
    if table is None:
        return ""
    facts = headline(result)
    known = ~table.unknown("efficiency")
    gemms = known & table.coded("dims").mask(lambda text: text.startswith("M="))
    parts = []
    for noun, is_one in (("GEMM", gemms), ("work", known)):
        if is_one.any():
            rows = np.flatnonzero(is_one)
            most = table.take(rows[[np.argmax(table.array("recoverable_ns")[rows])]])
            name = _quoted(f"{most.texts('name')[0]} {most.texts('shapes')[0]}", 64)
            reached = percent(float(most.array("efficiency")[0]))
            lost = duration(float(most.array("recoverable_ns")[0]))
            parts.append(f"Most lost in a {noun}: {name}, {lost} above its roofline ({reached} of it)")
            break
    text = "; ".join(filter(None, (*parts, facts)))
    if onto := result.meta.get("projected_onto"):
        return f"Projected onto {onto}, measured on {result.meta.get('measured_on', '')}: {text}"
    return text


def _collectives_answer(result: Result) -> str:
    table = _rows(result, "ranks")
    if table is None:
        return ""
    kernel, sync = int(table.array("kernel_ns").sum()), int(table.known("wait_ns").sum())
    spent = f"{duration(kernel / len(table))}{' a rank' if len(table) > 1 else ''}"
    if not len(table.known("wait_ns")):
        return f"Communication takes {spent}; one rank alone does not show how much of it is waiting"
    return f"Communication takes {spent}, {percent(sync / max(kernel, 1))} of it waiting for late ranks"


def _overlap_answer(result: Result) -> str:
    table = _rows(result, "overlap")
    if table is None:
        return ""
    comm, exposed = int(table.array("comm_ns").sum()), int(table.array("exposed_ns").sum())
    ranks = len(unique(table.array("rank")))
    return (
        f"{percent(exposed / max(comm, 1))} of communication is exposed: "
        f"{duration(exposed / ranks)} of {duration(comm / ranks)}{' a rank' if ranks > 1 else ''}"
    )


def _stragglers_answer(result: Result) -> str:
    table = _rows(result, "stragglers")
    if table is None:
        return ""
    significant = np.flatnonzero(table.array("significant"))
    row = int(significant[0]) if len(significant) else 0
    waited = duration(float(table.array("others_wait_ns")[row]))
    cause = table.texts("cause")[row].replace("_", " ")
    share = percent(float(table.array("fraction_of_all_wait")[row]))
    late = (
        f"rank {table.array('rank')[row]}: the others wait {waited} for it ({share} of all waiting, {cause})"
    )
    if len(significant):
        return f"Significant straggler: {late}"
    return f"No significant straggler; the worst is {late}"


def _moe_answer(result: Result) -> str:
    parts, experts = [headline(result)], _rows(result, "experts")
    balance = _rows(result, "balance")
    if balance is not None and len(known := balance.known("max_mean_ratio")):
        row = int(np.argmax(np.where(balance.unknown("max_mean_ratio"), 0, balance.array("max_mean_ratio"))))
        parts.append(
            f"rank {balance.array('worst_rank')[row]} has {float(known.max()):.2f} times the mean tokens "
            f"in layer {balance.array('layer')[row]}"
        )
    if experts is not None:
        row = int(np.argmax(experts.array("tokens")))
        rank, layer, expert = (int(experts.array(name)[row]) for name in ("rank", "layer", "expert"))
        parts.append(
            f"hottest expert: {expert} of rank {rank} in layer {layer}, "
            f"{three_digits(float(experts.array('tokens')[row]))} tokens a pass"
        )
    return f"MoE time: {'; '.join(filter(None, parts))}" if any(parts) else ""


def _input_answer(result: Result) -> str:
    """What was read and, where something was lost or mended, the worst of that: nothing is lost silently."""
    if not result.data:
        return ""
    sentence, losses = f"Read {headline(result)}", _rows(result, "losses")
    if losses is None:
        return sentence
    counts: dict[tuple[str, str], int] = {}
    for outcome, problem, count in zip(*map(losses.cells, ("outcome", "problem", "count")), strict=True):
        counts[outcome, problem] = counts.get((outcome, problem), 0) + count
    outcome, problem = min(counts, key=lambda key: (_OUTCOMES.index(key[0]), -counts[key]))
    more = f"; {plural(len(counts) - 1, 'more problem')}: --table losses" if len(counts) > 1 else ""
    return f"{sentence}. {outcome.capitalize()}: {_quoted(problem, 120)}{more}"


_OUTCOMES = ("dropped", "problem", "repaired")  # the worst first


def _completeness_answer(result: Result) -> str:
    table = _rows(result, "doubts")
    if table is None:
        return ""
    row = int(np.argmax(table.array("dur_ns")))
    share = percent(float(table.array("fraction_of_recorded_time")[row]))
    of_rank = table.cells("rank")[row]
    where = f"rank {of_rank}" if of_rank is not None else "the job"
    return (
        f"{plural(len(table), 'sign')} of missing or contradictory data; most time in doubt: "
        f"{table.texts('doubt')[row]} ({share} of {where})"
    )


def _launches_answer(result: Result) -> str:
    table, fact = _rows(result, "launches"), headline(result)
    if table is None:
        return ""
    medians = table.array("dur_ns")[table.coded("metric").equals("latency p50")]
    latency = (
        f"; a kernel starts {duration(float(median(medians)))} after its launch call" if len(medians) else ""
    )
    return f"{fact}{latency}"


ANSWERS: dict[str, Callable[[Result], str]] = {
    "findings": _findings_answer,
    "ops": _largest("dur_ns", "op"),
    "kernels": _largest("sum_ns", "kernel"),
    "idle": _idle_answer,
    "roofline": _roofline_answer,
    "launches": _launches_answer,
    "collectives": _collectives_answer,
    "moe": _moe_answer,
    "overlap": _overlap_answer,
    "stragglers": _stragglers_answer,
    "completeness": _completeness_answer,
    "timeline": lambda result: f"Of the GPU's time: {headline(result)}" if result.data else "",
    "breakdown": lambda result: f"Of a step's time: {headline(result)}" if result.data else "",
    "steps": lambda result: f"Recorded: {headline(result)} each" if result.data else "",
    "step_timeline": lambda result: f"Of the recorded time: {headline(result)}" if result.data else "",
    "scopes": lambda result: f"Of the GPU's busy time: {headline(result)}" if result.data else "",
    "input": _input_answer,
    "pipeline": lambda result: f"Of the step: {headline(result)}" if result.data else "",
}
"""Analyzer to its answer; others answer with their headline."""
