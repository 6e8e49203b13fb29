"""Network files: what the bundled ones hold, files of one's own, and what is wrong with a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.step_time import Machine, bundled_networks, read_network

FOLDER = Path(__file__).parents[3] / "tracelens/planner/step_time/networks"


@pytest.mark.parametrize("name", bundled_networks())
def test_bundled_networks_have_a_source_for_every_number(name: str) -> None:
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    assert content["name"] == name
    numbers = set(content) - {"name", "title", "source", "sources"}
    assert set(content["source"]) == numbers
    assert set(content["source"].values()) == set(content["sources"])
    network = read_network(name)
    assert network.title == content["title"]
    machine = network.applied(Machine(matrix_efficiency=0.5))
    assert machine.matrix_efficiency == 0.5
    notes = {line.name: line.source for line in machine.assumptions()}
    assert content["sources"][content["source"]["node"]]["title"] in notes["node"]
    assert notes["matrix_efficiency"] == "given"


def test_rates_are_per_gpu(tmp_path: Path) -> None:
    file = tmp_path / "half.toml"
    file.write_text(
        "node = 8\nnics = 4\nnic_bytes_per_s = 25e9\nnic_messages_per_s = 1e6\nlinks = 'switch'\n"
    )
    machine = read_network(str(file)).applied(Machine())
    assert (machine.nic_bytes_per_s, machine.nic_messages_per_s) == (12.5e9, 5e5)
    assert (machine.links, machine.link_efficiency) == ("switch", 1.0)
    assert dict(machine.sources)["nic_bytes_per_s"] == f"network file {file}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node = 'eight'", "node must be a whole number, not 'eight'"),
        ("nic_bytes_per_s = '50e9'", "nic_bytes_per_s must be a number"),
        ("nic_bytes_per_s = 400", "use 50e9 for a 400 Gb/s link"),
        ("links = 'ring'", "unknown links"),
        ("links = 1", "links must be text in quotes"),
        ("nics = 0", "node and nics must be at least 1"),
        ("nics = 2", "nics needs nic_bytes_per_s"),
        ("bandwidth = 1", "unknown key"),
        ("title = 3", "title must be text in quotes"),
        ("node = 8\n[source]\nnode = 'x'", r"needs \[sources.x\] with a title"),
        ("[source]\nnode = 'x'", "which the file does not set"),
        ("source = 1", "must be tables"),
        ("node = ", "not TOML"),
    ],
)
def test_wrong_files_say_what_to_change(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text(text)
    with pytest.raises(TracelensError, match=message) as error:
        read_network(str(file))
    assert str(error.value).startswith(str(file))


def test_unknown_networks() -> None:
    with pytest.raises(UnknownName, match="mi300x-8x400g"):
        read_network("mi300x-8x400")
    with pytest.raises(TracelensError, match="no such file; bundled networks: h200-8x400g"):
        read_network("missing.toml")
