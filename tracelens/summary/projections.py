"""Summaries of projections: memory, layouts, pipeline schedules, bubbles and scenarios."""

from __future__ import annotations

from tracelens.summary.wording import about, percent, plural, size, three_digits
from tracelens.table import Result, Summary, Tile
from tracelens.units import duration

NAMED = 3
"""Scenarios, devices or schedules that a verdict names."""

TILES = 6
"""Schedules with a tile."""


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
    fastest = f"{table.texts('dispatch')[best]} with EP {ranks[best]}"
    most = "" if result.meta["step_times"] == "projected" else "at most "
    tiles = [
        Tile("best", "Fastest", None, "", note=f"{most}{three_digits(rate[best])} tokens/s per GPU",
             section="scaling", text=fastest),
        *(
            Tile(f"kept_{name}", f"{name}, EP {ranks[rows[-1]]}", relative[rows[-1]], "fraction",
                 note=f"of the tokens/s with EP {ranks[rows[0]]}", section="scaling")
            for name, rows in list(rows_of.items())[:NAMED]
            if len(rows) > 1
        ),
    ]  # fmt: skip
    text = "; ".join(verdicts) or f"{fastest}: {most}{three_digits(rate[best])} tokens/s per GPU"
    return Summary(f"{text[0].upper()}{text[1:]}.", tuple(tiles))


def pipeline_summary(result: Result) -> Summary | None:
    """The shortest schedule, its bubble, and what it gains on the first."""
    summary = result.data["summary"]
    names, span, step = summary.texts("schedule"), summary.array("makespan_ns"), summary.array("step_ns")
    bubble = summary.array("bubble_fraction").tolist()
    best = int(span.argmin())
    # The rest of the step is known of measured runs only.
    times, what = (step, "a step") if step[best] >= 0 else (span, "for all micro-batches")
    verdict = f"{names[best]} takes {duration(float(times[best]))} {what}"
    verdict += f" ({result.meta['stages']} stages, {result.meta['microbatches']} micro-batches)"
    verdict += f"; the bubble is {percent(bubble[best])} of it"
    if best:
        verdict += f"; {percent(1 - float(times[best]) / float(times[0]))} less than {names[0]}"
    tiles = [
        Tile(f"schedule_{number}", names[row], float(times[row]), "ns", note=f"bubble {percent(bubble[row])}",
             section=result.analyzer)
        for number, row in enumerate(times.argsort(kind="stable")[:TILES].tolist(), start=1)
    ]  # fmt: skip
    return Summary(f"{verdict}.", tuple(tiles))


def bubble_summary(result: Result) -> Summary | None:
    """The idle share of the pipeline, and what more chunks would make of it."""
    meta, by_chunks = result.meta, result.data["by_vpp"]
    whole, ideal = result.data["bubble"].array("fraction").tolist()[:2]
    sizes = f"{meta['pp']} stages, {meta['microbatches']} micro-batches, VPP {meta['vpp']}"
    verdict = f"The pipeline idles {whole:.2%} of the time ({sizes})"
    chunks, shares = by_chunks.array("vpp").tolist(), by_chunks.array("whole_fraction").tolist()
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
            "microbatches", "Micro-batches", meta["microbatches"], "count", note="per step", section="bubble"
        ),
    )
    return Summary(f"{verdict}.", tiles)


def whatif_summary(result: Result) -> Summary | None:
    """The scenarios that shorten the step most."""
    table, meta = result.data.get("whatif"), result.meta
    base_ns, recorded_ns = float(meta["base_ns"]), float(meta["recorded_ns"])
    what = (
        "as measured" if base_ns == recorded_ns else f"without the profiler, {duration(recorded_ns)} with it"
    )
    unit = "for all steps" if meta["step"] == "all steps" else "a step"
    verdict = f"{duration(base_ns)} {unit} {what}"
    tiles = [Tile("step_time", "Step time", base_ns, "ns", note=f"{meta['step']}, {what}", section="whatif")]
    if table is None or not len(table):
        return Summary(f"{verdict}; no scenario applies.", tuple(tiles))
    names = table.texts("scenario")
    projected, low, high = (table.array(f"{name}_ns").tolist() for name in ("projected", "low", "high"))
    shorter = [row for row in range(len(names)) if projected[row] < base_ns][:NAMED]
    if shorter:
        listed = [f"{names[row]} to {about(projected[row])}" for row in shorter]
        listed[0] = f"{names[shorter[0]]} would bring it to {about(projected[shorter[0]])}"
        verdict += f"; {', '.join(listed)}"
    else:
        verdict += "; no scenario shortens it"
    tiles += [
        Tile(f"scenario_{number}", names[row], projected[row], "ns", low[row], high[row],
             f"{projected[row] / base_ns - 1:+.1%}", "whatif")
        for number, row in enumerate(range(min(len(names), NAMED)), start=1)
    ]  # fmt: skip
    return Summary(f"{verdict}.", tuple(tiles))
