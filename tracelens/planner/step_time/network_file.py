"""Network files: TOML with the nodes, links and NICs of a cluster, as assumptions of the step time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError, UnknownName
from tracelens.limits import read_config_file
from tracelens.planner.step_time.machine import Machine

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
    """The network of a cluster.

    Attributes:
        name: of the file, if it is bundled, else its path.
        title: for people.
        values: field of `Machine` to its value; rates per GPU.
        sources: field of `Machine` to where its value is from.
    """

    name: str
    title: str
    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def applied(self, machine: Machine) -> Machine:
        """The assumptions with those of this network."""
        notes = {name: self.sources.get(name, f"network file {self.name}") for name in self.values}
        return replace(machine, **self.values, sources=tuple(notes.items()))


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
    content = _load(path)
    for key in content:
        if key not in _KEYS:
            raise TracelensError(f"{path}: {UnknownName('key', key, _KEYS)}")
    for key in _TEXTS:
        if not isinstance(content.get(key, ""), str):
            raise TracelensError(f"{path}: {key} must be text in quotes")
    values = _values(path, content)
    title = str(content.get("title", path.stem))
    return ClusterNetwork(name, title, values, _sources(path, content))


def _values(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Machine`, with the rates of NICs per GPU."""
    defaults = {item.name: item.default for item in fields(Machine)}
    values = {name: content[name] for name in _FIELDS if name in content}
    node = content.get("node", defaults["node"])
    nics = content.get("nics", node)
    for name, value in {**values, "nics": nics}.items():
        kind = type(defaults.get(name, 1))
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            words = {int: "a whole number", float: "a number", str: "text in quotes"}[kind]
            raise TracelensError(f"{path}: {name} must be {words}, not {value!r}")
    if nics < 1 or node < 1:
        raise TracelensError(f"{path}: node and nics must be at least 1")
    for name in _PER_NIC:
        if name in values:
            values[name] = values[name] * nics / node
    if nics != node and "nic_bytes_per_s" not in values:
        raise TracelensError(f"{path}: nics needs nic_bytes_per_s, the rate of one NIC; add it")
    try:
        Machine(**values)
    except TracelensError as error:
        raise TracelensError(f"{path}: {error}") from None
    return values


def _sources(path: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Key to the text of its source."""
    source_of, sources = content.get("source", {}), content.get("sources", {})
    if not isinstance(source_of, dict) or not isinstance(sources, dict):
        raise TracelensError(f"{path}: [source] and [sources.NAME] must be tables")
    texts = {}
    for key, name in source_of.items():
        if key not in content:
            raise TracelensError(f"{path}: [source] names {key}, which the file does not set")
        entry = sources.get(name) if isinstance(name, str) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("title"), str):
            raise TracelensError(f"{path}: the source of {key} needs [sources.{name}] with a title; add it")
        texts[key] = ", ".join(str(entry[part]) for part in ("title", "date", "url") if part in entry)
    return texts


def _load(path: Path) -> dict[str, Any]:
    import tomllib  # takes a few ms

    try:
        return tomllib.loads(read_config_file(path).decode("utf-8"))
    except FileNotFoundError:
        raise TracelensError(
            f"{path}: no such file; bundled networks: {', '.join(bundled_networks())}"
        ) from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TracelensError(f"{path}: not a text file; a network file is TOML") from error
    except (ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not TOML: {error}") from error
