"""The wheel: what is in it, and that it lives beside distributions of similar names."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

import tracelens
from tests.distribution.environment import ROOT, Environment, build_wheel, project
from tracelens.errors import MissingExtra
from tracelens.version import DISTRIBUTION

COMMAND = "TraceLens_generate_perf_report_pytorch"  # as AMD's TraceLens installs
OTHER = {"TraceLens/__init__.py": "def main():\n    print('the other one')\n"}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A project of the name of AMD's, with a package and a command like AMD's."""
    return project(
        tmp_path / "other", "TraceLens", OTHER, f'[project.scripts]\n{COMMAND} = "TraceLens:main"\n'
    )


EXTENSION = "tracelens/native/_core.abi3.so"
PURE = f"{DISTRIBUTION.replace('-', '_')}-{tracelens.__version__}-py3-none-any.whl"


def contents(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def package() -> set[str]:
    """The files of the package that are installed as they are."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tracelens").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".cpp", ".h", ".so")
    }


def can_compile() -> bool:
    """Whether this machine has a C++ compiler and the headers of Python."""
    compilers = (os.environ.get("CXX", ""), sysconfig.get_config_var("CXX") or "", "c++", "g++", "clang++")
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return has_headers and any(shutil.which(name.split()[0]) for name in compilers if name)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    if not can_compile():
        assert (contents(wheel), wheel.name) == (package(), PURE)
        return
    assert contents(wheel) == package() | {EXTENSION}
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == PURE.replace("py3-none-any", f"cp311-abi3-{platform}")


@pytest.mark.rare
@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"TRACELENS_PURE": "1"}, id="not wanted"),
        pytest.param({"CXX": "false"}, id="a compiler that fails"),
    ],
)
def test_without_a_native_core_the_wheel_is_for_every_machine(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    wheel = build_wheel(tmp_path, **variables)
    assert (contents(wheel), wheel.name) == (package(), PURE)


def test_the_command_and_the_import_keep_their_name(installed: Environment) -> None:
    assert installed.installed() == {DISTRIBUTION: tracelens.__version__}
    core = "native" if (installed.site / EXTENSION).exists() else "pure Python"
    assert installed.tracelens("--version").stdout == f"tracelens {tracelens.__version__} ({core} core)\n"
    said = installed.tracelens("--version", TRACELENS_PURE="1").stdout
    assert said == f"tracelens {tracelens.__version__} (pure Python core)\n"
    assert Path(installed.imports("tracelens")["tracelens"]).is_relative_to(installed.site)


@pytest.mark.slow
@pytest.mark.skipif(Path(__file__.upper()).exists(), reason="Tracelens and tracelens are one folder here")
@pytest.mark.rare
@pytest.mark.parametrize("removed", [DISTRIBUTION, "TraceLens"])
def test_it_lives_beside_tracelens_of_amd(
    environment: Environment, wheel: Path, other: Path, removed: str
) -> None:
    # The one that was there first is removed.
    for source in (wheel, other) if removed == DISTRIBUTION else (other, wheel):
        environment.install(source)
    both = {DISTRIBUTION: tracelens.__version__, "TraceLens": "1.2"}
    assert environment.installed() == both
    files = environment.imports("tracelens", "TraceLens")
    assert {name: Path(file).parent for name, file in files.items()} == {
        name: environment.site / name for name in files
    }
    assert environment.run(environment.bin / COMMAND).stdout == "the other one\n"
    assert environment.tracelens("list", "parsers").returncode == 0

    environment.pip("uninstall", "--yes", removed)
    del both[removed]
    assert environment.installed() == both
    files = environment.imports("tracelens", "TraceLens")
    assert [name for name, file in files.items() if Path(file).is_relative_to(environment.site)] == [
        "TraceLens" if removed == DISTRIBUTION else "tracelens"
    ]
    if removed == "TraceLens":
        assert environment.tracelens("list", "parsers").returncode == 0
    else:
        assert environment.run(environment.bin / COMMAND).stdout == "the other one\n"


@pytest.mark.rare
def test_what_messages_say_installs_this_project(installed: Environment) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    (wanted,) = {word for word in str(MissingExtra("this", "yaml")).split("'") if DISTRIBUTION in word}
    # Without an index: the extra of what is installed already.
    said = installed.pip("install", "--no-build-isolation", wanted)
    assert f"Requirement already satisfied: {wanted}" in said
    assert "pyyaml" in said.lower()
    assert installed.installed() == {DISTRIBUTION: tracelens.__version__}


@pytest.mark.rare
def test_the_other_form_is_of_a_checkout(installed: Environment) -> None:
    dry = ("install", "--dry-run", "--no-deps", "--no-build-isolation", f"{ROOT}[yaml]")
    assert f"{DISTRIBUTION}-{tracelens.__version__}" in installed.pip(*dry)
    assert "pip install '.[yaml]'" in str(MissingExtra("this", "yaml"))
