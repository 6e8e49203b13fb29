"""Times of messages: bytes over link and NIC bandwidth, plus a latency; consecutive ranks share a node.

Messages to other nodes also take the message rate of the NIC; see `planner.collectives`. A network file
(TOML) gives the nodes, links and NICs of a cluster as assumptions of the step time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tracelens.arrays import Int
from tracelens.config_files import read_toml
from tracelens.devices import Device
from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.collectives import LinkRates, deepep_seconds, measured_time, modeled_seconds
from tracelens.planner.config import Layout, Model
from tracelens.planner.distinct import Spread, balanced_spread, routed_spread
from tracelens.planner.expected import Collective
from tracelens.planner.step_time.machine import Machine


@dataclass(frozen=True)
class Network:
    """The network of the ranks of a layout."""

    layout: Layout
    device: Device
    machine: Machine

    @property
    def node(self) -> int:
        return self.layout.node or self.machine.node

    def nanoseconds(
        self, collective: Collective, group: str, ranks: int, sent: int, received: int, skew: float = 1.0
    ) -> float:
        """Time of one message: measured on the device, else by bandwidth and latency.

        Args:
            collective: its kind.
            group: name of the process group, as in `tracelens.planner.expected.Message`.
            ranks: size of the group.
            sent: bytes of the send buffer.
            received: bytes of the receive buffer.
            skew: of an all-to-all, what this rank has / the mean over ranks.

        Raises:
            TracelensError: the message takes links of unknown bandwidth.
        """
        if ranks == 1:
            return 0.0
        near = self.neighbours(group, ranks)
        size = max(sent, received)
        measured = measured_time(collective, size, ranks, near, self.machine.rates(self.device), skew)
        if measured is not None:
            return measured.seconds * 1e9
        modeled_s = modeled_seconds(collective, size, ranks, near, self._rates(near))
        return self._latency(near, ranks) + modeled_s * 1e9

    def deepep_nanoseconds(self, tokens: float, row: int, spread: Spread, ranks: int) -> float:
        """Time of DeepEP's dispatch or combine of `tokens` of `row` bytes each on a rank.

        Raises:
            TracelensError: it takes links of unknown bandwidth.
        """
        if ranks == 1:
            return 0.0
        near = self.neighbours("ep", ranks)
        copies = (spread.ranks, spread.nodes)
        seconds = deepep_seconds(tokens, row, copies, ranks, near, self._rates(near))
        return self._latency(near, ranks) + seconds * 1e9

    def spread(self, model: Model, expert_ids_TK: Int | None = None) -> Spread:
        """Distinct ranks and nodes of a token's experts, of a recorded routing or else balanced."""
        ranks = self.layout.experts_over
        near = self.neighbours("ep", ranks) if ranks > 1 else 1
        if expert_ids_TK is None:
            return balanced_spread(model, ranks, near)
        return routed_spread(expert_ids_TK, model, ranks, near)

    def _latency(self, near: int, ranks: int) -> int:
        return self.machine.link_latency_ns if near == ranks else self.machine.nic_latency_ns

    def neighbours(self, group: str, ranks: int) -> int:
        """Fewest ranks of a group that share a node."""
        if group == "dp_node":
            return ranks
        if group == "dp_across":
            return 1
        if group == "pp":
            return ranks if self.layout.ranks <= self.node else 1
        layout = self.layout
        strides = {"cp": layout.tp, "dp_cp": layout.tp, "edp": layout.experts_over}
        return _fewest(strides.get(group, 1), ranks, self.node, layout.stage_ranks)

    def _rates(self, near: int) -> LinkRates:
        rates = self.machine.rates(self.device)
        if near > 1 and not rates.links:
            raise TracelensError(
                f"the link rate of {self.device.name} is unknown: add gpu_link_bytes_per_s to a device file"
            )
        return rates


_FIELDS = (
    "node", "links", "link_efficiency", "link_latency_ns", "nic_bytes_per_s", "nic_efficiency",
    "nic_latency_ns", "nic_messages_per_s",
)  # fmt: skip
_PER_NIC = ("nic_bytes_per_s", "nic_messages_per_s")
_TEXTS = ("name", "title")
_KEYS = (*_TEXTS, "nics", *_FIELDS, "source", "sources")
_FOLDER = Path(__file__).parent / "networks"


@dataclass(frozen=True)
class ClusterNetwork:
    """The network of a cluster."""

    name: str  # of the file, if it is bundled, else its path
    title: str  # for people
    values: Mapping[str, Any]  # field of `Machine` to its value; rates per GPU
    sources: Mapping[str, str]  # field of `Machine` to where its value is from

    def applied(self, machine: Machine) -> Machine:
        """The assumptions with those of this network."""
        notes = {name: self.sources.get(name, f"network file {self.name}") for name in self.values}
        return replace(machine, **self.values, sources=tuple(notes.items()))


@lru_cache(maxsize=4096)
def _fewest(stride: int, count: int, node: int, stage: int) -> int:
    """Fewest ranks of a group on one node, over the groups of the first stage."""
    if stage % node == 0 and node % stride == 0 and (stride * count) % node == 0:
        return node // stride
    if node % (stride * count) == 0:
        return count
    span = stride * count
    # The placement of blocks on nodes repeats after `node` blocks.
    blocks = range(0, min(stage // span, node) * span, span)
    firsts = (block + first for block in blocks for first in range(min(stride, node)))
    ranks_on_node = (Counter(rank // node for rank in range(first, first + span, stride)) for first in firsts)
    return min(min(counts.values()) for counts in ranks_on_node)


def bundled_networks() -> list[str]:
    """Names of the bundled network files."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def read_network(name: str) -> ClusterNetwork:
    """A bundled network, or a network file (.toml).

    A file gives any of `node` (GPUs per node), `nics` (NICs per node), `nic_bytes_per_s` and
    `nic_messages_per_s` (of each NIC, one direction), `nic_efficiency`, `nic_latency_ns`, `links` (mesh or
    switch), `link_efficiency` and `link_latency_ns`; the others keep their defaults. `[source]` names the
    source of a key, `[sources.NAME]` has its title, url and date.

    Raises:
        TracelensError: no such network or file, not TOML, or a key is unknown or has a wrong value.
    """
    is_file = name.endswith(".toml") or "/" in name
    path = Path(name) if is_file else _FOLDER / f"{name}.toml"
    if not is_file and name not in bundled_networks():
        raise UnknownName("network", name, bundled_networks())
    content = read_toml(path, f"bundled networks: {', '.join(bundled_networks())}")
    for key in content:
        if key not in _KEYS:
            raise TracelensError(f"{path}: {UnknownName('key', key, _KEYS)}")
    for key in _TEXTS:
        if not isinstance(content.get(key, ""), str):
            raise TracelensError(f"{path}: {key} must be text in quotes")
    # Fields of `Machine`, with the rates of NICs per GPU.
    defaults = {item.name: item.default for item in fields(Machine)}
    values = {key: content[key] for key in _FIELDS if key in content}
    node = content.get("node", defaults["node"])
    nics = content.get("nics", node)
    for key, value in {**values, "nics": nics}.items():
        kind = type(defaults.get(key, 1))
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            words = {int: "a whole number", float: "a number", str: "text in quotes"}[kind]
            raise TracelensError(f"{path}: {key} must be {words}, not {value!r}")
    if nics < 1 or node < 1:
        raise TracelensError(f"{path}: node and nics must be at least 1")
    for key in _PER_NIC:
        if key in values:
            values[key] = values[key] * nics / node
    if nics != node and "nic_bytes_per_s" not in values:
        raise TracelensError(f"{path}: nics needs nic_bytes_per_s, the rate of one NIC; add it")
    try:
        Machine(**values)
    except TracelensError as error:
        raise TracelensError(f"{path}: {error}") from None
    # Key to the text of its source.
    source_of, sources = content.get("source", {}), content.get("sources", {})
    if not isinstance(source_of, dict) or not isinstance(sources, dict):
        raise TracelensError(f"{path}: [source] and [sources.NAME] must be tables")
    texts = {}
    for key, source in source_of.items():
        if key not in content:
            raise TracelensError(f"{path}: [source] names {key}, which the file does not set")
        entry = sources.get(source) if isinstance(source, str) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("title"), str):
            raise TracelensError(f"{path}: the source of {key} needs [sources.{source}] with a title; add it")
        texts[key] = ", ".join(str(entry[part]) for part in ("title", "date", "url") if part in entry)
    return ClusterNetwork(name, str(content.get("title", path.stem)), values, texts)
