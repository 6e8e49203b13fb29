"""The figures of AMD's MoE training guide beside what is projected for them, misses included.

    published()      # all figures of planner/config/published.toml
    published([6])   # one

Fitted are two numbers of the framework, on the throughput of figure 5, and its reserve of memory, on the
smallest bar. What DeepEP saves showed that all-to-alls keep what they bring back. Other numbers test them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tracelens.devices import Device, device
from tracelens.errors import TracelensError
from tracelens.planner.bubble import fractions
from tracelens.planner.config import Config, PublishedFigure, override, preset, published_figures
from tracelens.planner.memory import PRIMUS_RESERVE_BYTES, Assumptions, memory
from tracelens.planner.scaling import PARTS, Request, scaling
from tracelens.planner.step_time import ASSUMED, Machine, assumed, estimate, read_network
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip

FITTED, TESTED = "fitted", "tested"


class Target(NamedTuple):
    """How close a projection should come, as a fraction."""

    error: float  # in either direction; of a rate relative to the published one, else absolute
    optimism: float = 0.0  # by which it may stay below the published number; 0 for `error`


TARGETS: Mapping[str, Target | None] = {
    "tokens/s per GPU": Target(0.15),
    "tokens/s over the first run": Target(0.05),
    "memory": Target(0.03, 0.01),
    "share of the step, DeepEP": Target(0.08),
    "waiting and fluctuation, DeepEP": None,
    "share of the step, all-to-all": None,
    "bubble in theory": Target(0.0005),
    "bubble": None,
}
"""Quantity to its target; None where the cause of the difference is not modeled."""

_FIGURE = Column("figure", "int64", doc="number of the figure")
_QUANTITY = Column("quantity", "category", doc="what was published")
_RUN = Column("run", "str", doc="bar of the chart")
_USE = Column("use", "category", doc="fitted: a number of the projection was chosen by it; tested: none was")
SUMMARY = Schema(
    "Figures",
    (
        _FIGURE,
        _QUANTITY,
        _USE,
        Column("count", "int64", "count", "published numbers"),
        Column("worst", "float64", "fraction", "largest error: relative of tokens/s per GPU, else absolute"),
        Column("target", "float64", "fraction", "error at most, where one is set", absent=-1),
        Column("met", "category", doc="yes, no, or - without a target"),
        Column("run", "str", doc="bar with the largest error"),
        Column("reason", "str", doc="why the target is missed", prose=True),
    ),
    doc="Memory may also be at most a point too optimistic.",
)
THROUGHPUT = Schema(
    "Throughput",
    (
        _FIGURE,
        _RUN,
        _USE,
        Column("published_per_s", "float64", doc="tokens/s per GPU as published"),
        Column("projected_per_s", "float64", doc="tokens/s per GPU as projected"),
        Column("error_per_s", "float64", doc="projected - published"),
        Column("error_fraction", "float64", "fraction", "(projected - published) / published"),
        Column("published_relative", "float64", doc="published, over the first run of the figure"),
        Column("projected_relative", "float64", doc="projected, likewise"),
        Column("error_relative", "float64", doc="difference of the two"),
    ),
)
SHARES = Schema(
    "Memory, bubbles, parts of a step, scaling",
    (
        _FIGURE,
        _RUN,
        _QUANTITY,
        _USE,
        Column("published", "float64", "fraction", "as published"),
        Column("projected", "float64", "fraction", "as projected"),
        Column("error", "float64", "fraction", "projected - published"),
        Column("of", "category", doc="what it is a share of"),
    ),
)
SETTINGS = Schema(
    "Runs",
    (
        _FIGURE,
        Column("title", "str", doc="what was measured"),
        Column("device", "category", doc="its GPU"),
        Column("model", "category", doc="bundled model"),
        Column("settings", "str", doc="fields of the run, which those of each bar follow", prose=True),
        Column("source", "str", doc="where it was published", folded=True),
    ),
)
TABLES = {
    "summary": SUMMARY, "throughput": THROUGHPUT, "shares": SHARES, "runs": SETTINGS, "assumptions": ASSUMED,
}  # fmt: skip


@dataclass(frozen=True)
class PublishedNumber:
    """A published number beside its projection."""

    figure: int
    run: str
    quantity: str  # of TARGETS
    is_fitted: bool
    published: float
    projected: float
    of: str = ""  # denominator
    variant: str = ""  # of the run, where its settings are not certain

    @property
    def error(self) -> float:
        """Relative for tokens/s per GPU, else the difference."""
        difference = self.projected - self.published
        return difference / self.published if self.quantity == "tokens/s per GPU" else difference

    @property
    def key(self) -> tuple[int, str, str]:
        return self.figure, self.variant, self.run

    @property
    def use(self) -> str:
        return FITTED if self.is_fitted else TESTED


def published(figures: Collection[int] = ()) -> Result:
    """How far are projections off what AMD measured?

    Args:
        figures: numbers of figures; all by default.

    Returns:
        tables `summary` (largest error of each figure and quantity), `throughput`, `shares`, `runs` and
        `assumptions`. meta: the numbers of targets met and of all.

    Raises:
        TracelensError: no such figure.
    """
    known = published_figures()
    if unknown := [number for number in figures if number not in known]:
        numbers = ", ".join(map(str, sorted(known)))
        raise TracelensError(f"--figure {unknown[0]}: published numbers are of figures {numbers}")
    chosen = {number: known[number] for number in sorted(figures or known)}
    found: list[PublishedNumber] = []
    skips = []
    for number, figure in chosen.items():
        if "reason" in figure.run:
            skips.append(Skip(f"figure {number}", figure.run["reason"]))
        else:
            found += comparisons(number, figure)
    rates, shares = [], []
    relative = {one.key: one for one in found if one.quantity == "tokens/s over the first run"}
    for one in found:
        if one.quantity == "tokens/s per GPU":
            step, run = relative[one.key], f"{one.run}, {one.variant}" if one.variant else one.run
            rates.append(
                (
                    one.figure, run, one.use, one.published, one.projected, one.projected - one.published,
                    one.error, step.published, step.projected, step.error,
                )
            )  # fmt: skip
        elif one.of:
            shares.append(
                (one.figure, one.run, one.quantity, one.use, one.published, one.projected, one.error, one.of)
            )
    summary = SUMMARY.from_rows(list(summed_up(chosen, found)))
    met = summary.texts("met")
    runs = [
        (
            number, figure.title, figure.run["device"], figure.run.get("model", ""),
            figure.run.get("run", ""), figure.source,
        )
        for number, figure in chosen.items()
    ]  # fmt: skip
    return Result(
        "published",
        "Published measurements",
        {
            "summary": summary,
            "throughput": THROUGHPUT.from_rows(rates),
            "shares": SHARES.from_rows(shares),
            "runs": SETTINGS.from_rows(runs),
            "assumptions": assumed(
                machine_of(known[5]),
                [device(name) for name in dict.fromkeys(figure.run["device"] for figure in chosen.values())],
                "bfloat16",
            ),
        },
        doc=purpose(published),
        skips=tuple(skips),
        meta={"targets": len(met) - met.count("-"), "met": met.count("yes")},
        command="tracelens project published",
    )


def comparisons(number: int, figure: PublishedFigure) -> Iterator[PublishedNumber]:
    """Each number of a figure beside its projection."""
    columns = figure.rows[0]
    if "bubble_percent" in columns:
        for row in figure.rows:
            exact = float(fractions(16, 16, row["vpp"])[0])
            for quantity, name in (("bubble in theory", "theoretical_percent"), ("bubble", "bubble_percent")):
                yield PublishedNumber(
                    figure=number, run=f"VPP{row['vpp']}", quantity=quantity, is_fitted=False,
                    published=row[name] / 100, projected=exact, of=figure.run["denominator"],
                )  # fmt: skip
    elif "ep" in columns:
        yield from _by_experts(number, figure)
    else:
        yield from _by_step(number, figure)


def _by_step(number: int, figure: PublishedFigure) -> Iterator[PublishedNumber]:
    """Bars of a ladder: tokens/s, those over the first bar, and memory; then the same of its variant."""
    target, machine, run = device(figure.run["device"]), machine_of(figure), figure.run
    is_fitted = run.get("fitted", False)
    variants = [{"name": "", "recompute_block": 0}, *([run["variant"]] if "variant" in run else [])]
    for variant in variants:
        first: tuple[float, float] | None = None
        for row in figure.rows:
            config = override(preset(run["model"]), f"{run['run']} {row['set']}".split())
            chunks = config.layout.chunks(config.model.layers)
            again = [layer for chunk in chunks for layer in chunk[: int(variant["recompute_block"])]]
            config = replace(config, toggles=replace(config.toggles, recompute_layer_ids=tuple(again)))
            rates = row["tokens_per_s"], estimate(config, target, machine).tokens_per_s
            first = first or rates
            shared = {"figure": number, "run": row["name"], "variant": variant["name"]}
            yield PublishedNumber(
                **shared, quantity="tokens/s per GPU", is_fitted=is_fitted,
                published=rates[0], projected=rates[1],
            )  # fmt: skip
            yield PublishedNumber(
                **shared, quantity="tokens/s over the first run", is_fitted=is_fitted,
                published=rates[0] / first[0], projected=rates[1] / first[1],
            )  # fmt: skip
            if "memory_percent" in row:
                more = row.get("memory", run.get("memory", ""))
                yield PublishedNumber(
                    **shared, quantity="memory", is_fitted=row["name"] in run.get("memory_fitted", ()),
                    published=row["memory_percent"] / 100,
                    projected=memory_share(override(config, more.split()), target),
                    of=run["denominator"],
                )  # fmt: skip


def memory_share(config: Config, target: Device) -> float:
    """Memory in use / what the driver reports, with what is outside of the allocator."""
    assumptions = Assumptions(framework="megatron", gradient_accumulation="separate", combined="kept")
    fits = memory(config, assumptions, [target], PRIMUS_RESERVE_BYTES).data["fits"]
    needed, total = (float(fits.array(name)[0]) for name in ("needed_bytes", "memory_bytes"))
    return (needed + PRIMUS_RESERVE_BYTES) / total


def _by_experts(number: int, figure: PublishedFigure) -> Iterator[PublishedNumber]:
    """Parts of the step, or tokens/s over those with the fewest ranks, by ranks that share the experts."""
    config = override(preset(figure.run["model"]), figure.run["run"].split())
    request = Request(config, tuple(row["ep"] for row in figure.rows), machine=machine_of(figure))
    result = scaling(request, device(figure.run["device"]))
    rates, breakdown = result.data["scaling"], result.data["breakdown"]
    keys = list(zip(rates.texts("dispatch"), rates.array("ep").tolist(), strict=True))
    for row in figure.rows:
        place = keys.index((row.get("dispatch", "deepep"), row["ep"]))
        if "relative" in row:
            yield PublishedNumber(
                figure=number, run=f"EP{row['ep']}", quantity="tokens/s over the first run", is_fitted=False,
                published=row["relative"], projected=float(rates.array("relative")[place]),
                of="tokens/s with EP8",
            )  # fmt: skip
            continue
        name = {"deepep": "DeepEP", "alltoall": "all-to-all"}[row["dispatch"]]
        for part in PARTS:
            is_waiting = part == "p2p" and row["dispatch"] == "deepep"
            yield PublishedNumber(
                figure=number, run=f"EP{row['ep']} {name}: {part}", is_fitted=False,
                quantity="waiting and fluctuation, DeepEP" if is_waiting else f"share of the step, {name}",
                published=row[part] / 100, projected=float(breakdown.array(part)[place]),
                of=figure.run["denominator"],
            )  # fmt: skip


def machine_of(figure: PublishedFigure) -> Machine:
    """The assumptions of a figure's step times."""
    return read_network(figure.run["network"]).applied(Machine(trainer=figure.run["trainer"]))


def summed_up(
    figures: Mapping[int, PublishedFigure], found: Collection[PublishedNumber]
) -> Iterator[tuple[Any, ...]]:
    """A row of SUMMARY for each figure, quantity and use."""
    groups: dict[tuple[int, str, str, str], list[PublishedNumber]] = {}
    for one in found:
        if not (one.is_fitted and one.quantity == "tokens/s over the first run"):
            groups.setdefault((one.figure, one.variant, one.quantity, one.use), []).append(one)
    for (number, variant, quantity, use), group in groups.items():
        worst = max(group, key=lambda one: abs(one.error))
        target = TARGETS[quantity] if use == TESTED else None
        is_met = target is not None and all(
            -(target.optimism or target.error) <= one.error <= target.error for one in group
        )
        yield (
            number, f"{quantity}, {variant}" if variant else quantity, use, len(group), worst.error,
            target.error if target else -1.0, "-" if target is None else "yes" if is_met else "no", worst.run,
            figures[number].run.get("missed", {}).get(quantity, "") if target and not is_met else "",
        )  # fmt: skip
