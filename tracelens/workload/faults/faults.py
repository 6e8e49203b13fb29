"""Known causes of lateness that a run can be given, as text on the command line. No torch here.

    rank=3,kind=host_delay,ms=4

See `fault_injection` for how each is done, and `KINDS` for what each is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, TypeVar

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config import Config


class FaultKind(NamedTuple):
    """One way of making a rank late."""

    cause: str  # its name in the stragglers analysis
    setting: str  # the key of `amount` in the text
    usual: float  # the default amount
    above: float  # exclusive lower bound of the amount


KINDS = {
    # its host sleeps for ms before each layer
    "host_delay": FaultKind("silent_host", "ms", 4, 0),
    # its experts get factor times their share of the tokens
    "token_skew": FaultKind("token_load", "factor", 1.5, 1),
    # other processes compete for its GPU, or its core
    "slow_kernels": FaultKind("slow_kernels", "processes", 1, 0),
    # its host reads from the device for ms before each layer
    "blocking_call": FaultKind("blocking_call", "ms", 4, 0),
    # its host collects garbage for about ms before each layer
    "gc": FaultKind("garbage_collection", "ms", 4, 0),
}

EXAMPLE = "rank=1,kind=host_delay,ms=4"


@dataclass(frozen=True)
class Fault:
    """One fault of one rank."""

    rank: int  # which is late
    kind: str  # a key of KINDS
    amount: float  # of what the kind's setting says

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault that a text such as EXAMPLE names; the amount may be left out.

        Raises:
            TracelensError: not of that form, an unknown kind or key, or a value that cannot be.
        """
        settings: dict[str, str] = {}
        for part in text.split(","):
            key, separator, value = (side.strip() for side in part.partition("="))
            if not separator or not key or not value:
                raise TracelensError(f"--inject {text!r}: {part!r} is not key=value, as in {EXAMPLE}")
            if key in settings:
                raise TracelensError(f"--inject {text!r}: {key} appears twice")
            settings[key] = value
        if missing := [key for key in ("rank", "kind") if key not in settings]:
            raise TracelensError(f"--inject {text!r}: {missing[0]} is missing, as in {EXAMPLE}")
        name = settings["kind"]
        if name not in KINDS:
            raise UnknownName("kind of fault", name, KINDS)
        kind = KINDS[name]
        if unknown := [key for key in settings if key not in ("rank", "kind", kind.setting)]:
            raise TracelensError(
                f"--inject {text!r}: kind={name} takes rank and {kind.setting}, not {unknown[0]}"
            )
        given = settings.get(kind.setting)
        amount = kind.usual if given is None else _number(text, kind.setting, given, float)
        return cls(_number(text, "rank", settings["rank"], int), name, amount)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("kind of fault", self.kind, KINDS)
        kind = KINDS[self.kind]
        if self.amount <= kind.above:
            raise TracelensError(f"--inject {self}: {kind.setting} must be above {kind.above:g}")
        if kind.setting == "processes" and self.amount != int(self.amount):
            raise TracelensError(f"--inject {self}: processes must be a whole number")

    def __str__(self) -> str:
        values = self.as_dict().items()
        return ",".join(f"{key}={v:g}" if isinstance(v, float) else f"{key}={v}" for key, v in values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the keys of the text."""
        return {"rank": self.rank, "kind": self.kind, KINDS[self.kind].setting: self.amount}

    def check(self, config: Config) -> None:
        """Raise TracelensError where a run of this config cannot have the fault."""
        layout = config.layout
        if not 0 <= self.rank < layout.ranks:
            raise TracelensError(f"--inject {self}: no rank {self.rank} in a run of {layout.ranks}")
        if self.kind == "token_skew":
            over, model = layout.experts_over, config.model
            if not model.moe_layers or over < 2:
                raise TracelensError(
                    f"--inject {self} needs experts on several ranks: give more --ranks or --ep"
                )
            if self.amount > over:
                raise TracelensError(
                    f"--inject {self}: factor must be at most {over}, which sends all tokens to one of "
                    f"{over} ranks"
                )
            if model.top_k > model.experts_count // over:
                raise TracelensError(
                    f"--inject {self} needs top_k ({model.top_k}) experts on a rank, not "
                    f"{model.experts_count // over}: give a larger experts_count or fewer ranks"
                )
        elif self.kind != "slow_kernels" and config.toggles.graph != "off":
            raise TracelensError(
                f"--inject {self} needs graph=off: with a graph the host does nothing before a layer"
            )


N = TypeVar("N", int, float)


def _number(text: str, key: str, value: str, kind: type[N]) -> N:
    """A value of the text as a number; raises TracelensError where it is none."""
    try:
        number = kind(value)
        if kind is int or isfinite(number):
            return number
    except ValueError:
        pass
    noun = "a whole number" if kind is int else "a number"
    raise TracelensError(f"--inject {text!r}: {key} must be {noun}, not {value!r}")
