"""What to do about a finding: those of its detector's remedies that hold for the platform of the traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tracelens.analysis.common import grammar
from tracelens.analysis.serving import rank_steps
from tracelens.bundled import bundled_toml
from tracelens.config_files import read_bytes
from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.trace import Trace, fitting

if TYPE_CHECKING:
    from tracelens.findings.detectors import Detector

_ANY_GPU = "gpu"
_FOR_REFERENCE, _MOST_BEST = "For reference:", 2
_OPTION = re.compile(r"(?<!leave )--(?P<name>\w[\w-]*)(?: (?P<values>\w+(?: or \w+)*))?")
_BOUND = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")

AMD, NVIDIA, CPU = "amd", "nvidia", "cpu"

_WORDS = {
    "graph": {AMD: "HIP graph", NVIDIA: "CUDA graph", "": "CUDA or HIP graph"},
    "library": {AMD: "RCCL", NVIDIA: "NCCL", "": "NCCL or RCCL"},
}


class Remedy(Struct, frozen=True):
    """What to do about what a detector finds, and where that holds.

    Options in a text (--name, --name value) that the run has set already, as its recorder wrote down, are
    left out, and so is a remedy of which no option is left.
    """

    # one or two sentences; {graph}, {library} and {megatron} stand for words that depend on the vendor
    text: str
    vendor: tuple[str, ...] = ()  # only on these: amd, nvidia, cpu, or gpu for any but cpu
    framework: tuple[str, ...] = ()  # only for these, see frameworks.toml
    # only for these of software, as in {"torch": ">=2.10"}; an unknown one counts as recent
    versions: Mapping[str, str] = {}
    plain: bool = False  # in terms of torch itself: only where no other says it in terms of the framework
    # also where nothing shows a framework: the first two such are named for reference
    best: bool = False
    in_graphs: bool | None = None  # only where graphs launch the work already, or only where they do not
    compiled: bool | None = None  # only where torch.compile made kernels of the run, or only where it did not
    trains: bool | None = None  # only for runs that train, as unknown ones count, or only for others
    # only where most of the time found has one of these causes: those of `stragglers`, types of `wide_gemms`
    cause: tuple[str, ...] = ()

    def fits(self, platform: TracePlatform, in_graphs: bool = False, cause: str = "") -> bool:
        """Whether vendor, versions, cause and what the run does allow it; frameworks apart."""
        if self.in_graphs not in (None, in_graphs) or (cause and self.cause and cause not in self.cause):
            return False
        if self.compiled not in (None, platform.compiled) or self.trains not in (None, platform.trains):
            return False
        vendors = {platform.vendor} | ({_ANY_GPU} if platform.vendor != CPU else set())
        return (not self.vendor or not vendors.isdisjoint(self.vendor)) and all(
            _within(platform.versions.get(name, ""), bound) for name, bound in self.versions.items()
        )


_FRAMEWORKS = Path(__file__).with_name("frameworks.toml")
_SCHEMA = "tracelens.run/"
_VENDORS = {
    AMD: re.compile(r"\b(?:amd|instinct|radeon|mi[23]\d\d\w?)\b", re.IGNORECASE),
    NVIDIA: re.compile(r"\b(?:nvidia|tesla|geforce|quadro|[abhv][1-3]00|gb?200)\b", re.IGNORECASE),
}
_CALLS = {AMD: re.compile("^hip[A-Z]"), NVIDIA: re.compile("^cu(?:da)?[A-Z]")}
_TRAINING = re.compile(
    r"^autograd::engine::|Backward\d*$|^Optimizer\.step|backward|bwd|bprop|[dw]grad|adam|multi_tensor_apply",
    re.IGNORECASE,
)
"""Ops, ranges and kernels of backward passes and optimizers."""
_COMPILED = re.compile("^triton_(?:poi|red|per|tem|for)_")
"""Kernels that torch.compile generates."""

COMPILED_SHARE = 0.1
"""Of the kernels, by number, from which a run counts as compiled: compiled training steps of our recordings
have 27% and more, and a single compiled function, such as FlexAttention or a norm, leaves a run eager."""


class TracePlatform(Struct, frozen=True):
    """What a run ran on and with."""

    vendor: str = ""  # AMD, NVIDIA, CPU, or "" where nothing shows it
    frameworks: tuple[str, ...] = ()  # names in frameworks.toml; empty where nothing shows one
    versions: Mapping[str, str] = {}  # of software, by name
    settings: Mapping[str, str] = {}  # of the run, by name, as its recorder wrote them
    compiled: bool = False  # whether torch.compile made a good part of its kernels
    trains: bool = True  # whether it may have a backward pass or an optimizer


class _Framework(Struct, frozen=True):
    """By what one framework is told, see frameworks.toml."""

    name: str
    frames: re.Pattern[str] | None
    ops: re.Pattern[str] | None
    engine: str
    program: str
    includes: tuple[str, ...]


def remedy(detector: Detector, platform: TracePlatform, *, in_graphs: bool = False, cause: str = "") -> str:
    """What to do about what a detector finds, for this platform.

    Args:
        detector: that finds it.
        platform: that the traces show.
        in_graphs: whether graphs launch already what it finds.
        cause: of most of it, "" where it has none or several.
    """
    fitting = [entry for entry in remedies(detector) if entry.fits(platform, in_graphs, cause)]
    specific = [entry for entry in fitting if not set(platform.frameworks).isdisjoint(entry.framework)]
    chosen = [
        entry for entry in fitting if entry in specific or not (entry.framework or (entry.plain and specific))
    ]
    sentences = [entry.text for entry in chosen]
    best = [entry.text for entry in fitting if entry.best]
    if best and not platform.frameworks:
        sentences += [_FOR_REFERENCE, *best[:_MOST_BEST]]
    left = filter(None, (without_set(text, platform.settings) for text in sentences))
    return worded(" ".join(left), platform)


def without_set(text: str, settings: Mapping[str, str]) -> str:
    """A text without the options that a run has set already; "" where it names no other.

    Of a sentence that does not just list options, all stay if one of them is not set.
    """
    options = list(_OPTION.finditer(text))
    left = [option[0] for option in options if not _is_set(option, settings)]
    if not options or len(left) == len(options):
        return text
    before, _, listed = text.partition(": ")
    if left and listed == f"{', '.join(option[0] for option in options)}.":
        return f"{before}: {', '.join(left)}."
    return text if left else ""


def _is_set(option: re.Match[str], settings: Mapping[str, str]) -> bool:
    return settings.get(option["name"].replace("-", "_")) in (option["values"] or "True").split(" or ")


def worded(text: str, platform: TracePlatform) -> str:
    """A text with the platform's words in place of {graph} and the like."""
    words = {name: by_vendor.get(platform.vendor, by_vendor[""]) for name, by_vendor in _WORDS.items()}
    words["megatron"] = "Primus (Megatron backend)" if "primus" in platform.frameworks else "Megatron-LM"
    return re.sub(r"\{(\w+)\}", lambda name: words.get(name[1], name[0]), text)


_ADDED: dict[str, list[Remedy]] = {}
"""By detector, what plugins know of it."""


def add_remedy(detector: str, entry: Remedy) -> None:
    """Add a remedy for a detector, by name, behind its own; for plugins."""
    _ADDED.setdefault(detector, []).append(entry)


def remedies(detector: Detector) -> tuple[Remedy, ...]:
    """All remedies of a detector, for any platform."""
    return (*detector.remedies, *_ADDED.get(detector.name, ()))


def _within(version: str, bound: str) -> bool:
    """Whether a version keeps to a bound; an unknown one counts as recent."""
    match = _BOUND.fullmatch(bound)
    assert match, bound
    recent = match[1] == ">="
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if not numbers:
        return recent
    is_recent = _numbers(numbers[0]) >= _numbers(match[2])
    return is_recent == recent


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def platform_of(trace: Trace) -> TracePlatform:
    """What one rank's trace shows, and `run.json` beside it."""
    return trace.once(_platform_of)


def joined(platforms: Iterable[TracePlatform]) -> TracePlatform:
    """What the ranks of a run show together: mostly one of them says it for all."""
    each = list(platforms)
    vendors = {platform.vendor for platform in each} - {""}
    shown = {name for platform in each for name in platform.frameworks}
    versions = {name: version for platform in each for name, version in platform.versions.items()}
    settings = {name: value for platform in each for name, value in platform.settings.items()}
    return TracePlatform(
        vendor=vendors.pop() if len(vendors) == 1 else "",
        frameworks=_outermost(shown),
        versions=versions,
        settings=settings,
        compiled=any(platform.compiled for platform in each),
        trains=any(platform.trains for platform in each),
    )


def _platform_of(trace: Trace) -> TracePlatform:
    versions = {**_recorded_versions(trace), **trace.meta.software}
    frames, ops = (trace.arrays.names_of(kind) for kind in ("python", "op"))
    # Serving engines: of the labeled steps, else those whose own code or ops the trace has.
    if engine := rank_steps(trace).engine:
        engines = re.split(" or |, ", engine)
    else:
        engines = [
            engine.name
            for engine in grammar().engines
            if _occurs(engine.frames, frames) or _occurs(engine.ops, ops)
        ]
    shown = {
        framework.name
        for framework in _frameworks()
        if framework.program in versions
        or framework.engine in engines
        or _occurs(framework.ops, ops)
        or _occurs(framework.frames, frames)
    }
    return TracePlatform(
        vendor=_vendor(trace, versions),
        frameworks=_outermost(shown),
        versions=versions,
        settings=_settings(trace),
        compiled=_is_compiled(trace),
        trains=_trains(trace),
    )


def _is_compiled(trace: Trace) -> bool:
    work = trace.work
    generated = fitting(work.names, work.name, _COMPILED) & work.is_kernel
    return bool(generated.any()) and float(generated.sum()) >= COMPILED_SHARE * float(work.is_kernel.sum())


def _trains(trace: Trace) -> bool:
    """Whether a trace has a sign of training, or no ops that could be one."""
    signs = (trace.arrays.names_of(kind) for kind in ("op", "annotation", "kernel"))
    return any(_occurs(_TRAINING, names) for names in signs) or not trace.arrays.where("op").any()


def _vendor(trace: Trace, versions: Mapping[str, str]) -> str:
    if trace.meta.cpu_only:
        return CPU
    named = {name for name, sign in _VENDORS.items() if any(map(sign.search, trace.meta.devices.values()))}
    if len(named) == 1:
        return named.pop()
    calls = trace.arrays.names_of("launch")
    called = {name for name, sign in _CALLS.items() if _occurs(sign, calls)}
    if len(called) == 1:
        return called.pop()
    runtimes = {vendor for vendor, runtime in ((AMD, "hip"), (NVIDIA, "cuda")) if runtime in versions}
    return runtimes.pop() if len(runtimes) == 1 else ""


def _occurs(sign: re.Pattern[str] | None, names: Iterable[str]) -> bool:
    return sign is not None and any(map(sign.search, names))


def _outermost(shown: set[str]) -> tuple[str, ...]:
    """Without those that another one is built on, in the order of the file."""
    inner = {name for framework in _frameworks() if framework.name in shown for name in framework.includes}
    return tuple(framework.name for framework in _frameworks() if framework.name in shown - inner)


def _recorded_versions(trace: Trace) -> dict[str, str]:
    """What `run.json` beside a local trace says; nothing where there is none of ours."""
    path = Path(trace.meta.path)
    try:
        content: Any = json.loads(read_bytes(path.with_name(SIDECAR)))
    except (OSError, ValueError, RecursionError, TracelensError):
        return {}
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith(_SCHEMA):
        return {}
    software = content.get("software")
    return (
        {str(name): str(version) for name, version in software.items()} if isinstance(software, dict) else {}
    )


def _settings(trace: Trace) -> dict[str, str]:
    """The settings of the program, by their own names wherever in its config they stand."""
    settings: dict[str, str] = {}
    parts = [trace.meta.program.get("config", {})]
    while parts:
        for name, value in parts.pop().items():
            if isinstance(value, dict):
                parts.append(value)
            else:
                settings[str(name)] = str(value)
    return settings


@cache
def _frameworks() -> tuple[_Framework, ...]:
    entries = bundled_toml(_FRAMEWORKS)["framework"]
    return tuple(
        _Framework(
            name=entry["name"],
            frames=_pattern(entry.get("frames")),
            ops=_pattern(entry.get("ops")),
            engine=entry.get("engine", ""),
            program=entry.get("program", ""),
            includes=tuple(entry.get("includes", ())),
        )
        for entry in entries
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text)
