"""Named things, one to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens.analysis import ANALYZERS, SHARED
from tracelens.errors import TracelensError, UnknownName
from tracelens.plugins import load_files
from tracelens.registry import Registry
from tracelens.rendering import RENDERERS, SUFFIXES
from tracelens.rendering.figures import FIGURES


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of its own to register from; what it imported is forgotten afterwards."""
    name = f"registry_{tmp_path.name}"
    root = tmp_path / name
    root.mkdir()
    register = f"from tracelens.registry import Registry\nTHINGS = Registry('thing', {name!r})\n"
    (root / "__init__.py").write_text(register)
    (root / "one.py").write_text(f"from {name} import THINGS\nTHINGS.add('uno', 1, __name__)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TRACELENS_PLUGINS", raising=False)
    yield name
    for module in [key for key in sys.modules if key.startswith((name, "tracelens_plugin_"))]:
        del sys.modules[module]


def things(package: str) -> Registry[int]:
    import importlib

    found: Registry[int] = importlib.import_module(package).THINGS
    return found


def plugin(package: str, file: Path, name: str, value: int) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"from {package} import THINGS\nTHINGS.add({name!r}, {value}, __name__)\n")


def test_modules_of_the_package_register_themselves(package: str) -> None:
    assert list(things(package).items()) == [("uno", 1)]
    assert things(package).get("uno") == 1


def test_an_unknown_name_suggests_the_nearest(package: str) -> None:
    with pytest.raises(UnknownName, match=r"^unknown thing 'unu'; did you mean 'uno'\?$"):
        things(package).get("unu")
    with pytest.raises(UnknownName, match=r"^unknown thing 'zzzzz'; known: uno$"):
        things(package).get("zzzzz")


def test_a_name_taken_twice_names_both(package: str) -> None:
    registry = things(package)
    registry.load()
    with pytest.raises(TracelensError, match=rf"thing 'uno' is defined in {package}\.one and in elsewhere"):
        registry.add("uno", 2, "elsewhere")
    assert registry.get("uno") == 1


def test_a_module_may_register_again(package: str) -> None:
    # Notebooks reload what they edit.
    registry = things(package)
    registry.load()
    registry.add("uno", 3, f"{package}.one")
    assert registry.get("uno") == 3


def test_register_is_a_decorator() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("f")
    def f() -> None: ...

    assert registry.get("f") is f


def test_plugins_are_files_and_directories(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(package, tmp_path / "single.py", "dos", 2)
    plugin(package, tmp_path / "many" / "a.py", "tres", 3)
    plugin(package, tmp_path / "many" / "b.py", "cuatro", 4)
    paths = os.pathsep.join([str(tmp_path / "single.py"), "", str(tmp_path / "many")])
    monkeypatch.setenv("TRACELENS_PLUGINS", paths)
    assert dict(things(package).items()) == {"uno": 1, "dos": 2, "tres": 3, "cuatro": 4}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("undefined_name", "NameError"),
        ("int('x')", "ValueError"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("{}['x']", "KeyError"),
        ("open('no such file')", "FileNotFoundError"),
    ],
)
def test_a_plugin_that_does_not_import_is_one_line(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    monkeypatch.setenv("TRACELENS_PLUGINS", str(file))
    with pytest.raises(TracelensError) as caught:
        things(package).load()
    assert str(file) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=r"TRACELENS_PLUGINS: .*gone\.py does not exist"):
        load_files(str(tmp_path / "gone.py"))


def test_a_plugin_that_is_no_python_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    with pytest.raises(TracelensError, match=r"notes\.txt is not a Python file"):
        load_files(str(file))


def test_two_plugin_files_of_one_name_do_not_replace_each_other(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(package, tmp_path / "mine" / "extra.py", "dos", 2)
    plugin(package, tmp_path / "yours" / "extra.py", "dos", 22)
    monkeypatch.setenv(
        "TRACELENS_PLUGINS", os.pathsep.join([str(tmp_path / "mine"), str(tmp_path / "yours")])
    )
    with pytest.raises(TracelensError, match="thing 'dos' is defined in"):
        things(package).load()


@pytest.mark.parametrize(
    "registry", [ANALYZERS, SHARED, RENDERERS, FIGURES], ids=lambda registry: registry.kind
)
def test_names_are_where_the_registry_says(registry: Registry[object]) -> None:
    registry.load()
    homes = registry.origins
    assert registry.homes.items() <= homes.items()
    # Of a module all names are told, or none: only the others are imported for a name that is not told.
    assert {name for name in homes if homes[name] in registry.homes.values()} == registry.homes.keys()


def test_a_name_without_a_home_is_in_a_module_without_one(package: str, tmp_path: Path) -> None:
    plugin(package, tmp_path / package / "two.py", "dos", 2)
    registry = things(package)
    registry.homes = {"uno": f"{package}.one"}
    assert registry.find("dos") == 2
    assert registry.origins == {"dos": f"{package}.two"}
    assert registry.find("uno") == 1


def test_formats_have_the_suffixes_that_are_known_without_them() -> None:
    assert {item.suffix: name for name, item in RENDERERS.items()}.items() >= SUFFIXES.items()
