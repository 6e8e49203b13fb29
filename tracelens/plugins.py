"""Modules of other people that register analyzers, costs, renderers, detectors and the like.

Two sources, both imported when a registry is first asked for a name:

- entry points of the group `tracelens.plugins` of installed distributions, each naming a module;
- files and directories in the environment variable TRACELENS_PLUGINS, separated like PATH.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from tracelens.errors import TracelensError
from tracelens.guard import OWNERS, importing

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "tracelens.plugins"
VARIABLE = "TRACELENS_PLUGINS"


def load_plugins() -> None:
    """Import all plugins, each once.

    Raises:
        TracelensError: a plugin does not import, or takes a name that is taken; it names the plugin.
    """
    load_installed()
    load_files(os.environ.get(VARIABLE, ""))


def any_plugins() -> bool:
    """Whether there is any plugin, without importing it."""
    return bool(os.environ.get(VARIABLE) or (_may_be_installed() and _installed()))


@cache
def load_installed() -> None:
    """Import what installed distributions name in the group `tracelens.plugins`."""
    points = _installed() if _may_be_installed() else ()
    if points:
        _complete_startup()
    for point in sorted(points, key=_origin):
        _import_entry_point(point)


@cache
def _may_be_installed() -> bool:
    """False where no installed distribution has the group.

    Most have no plugin of anybody. To see that, importlib.metadata need not be imported, which takes as long
    as importing all of our analyses.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except FileNotFoundError:
            continue
        except OSError:  # an archive
            return True
        for name in names:
            if name.endswith((".dist-info", ".egg-info", ".egg")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        text = file.read()
                except (FileNotFoundError, NotADirectoryError):
                    if not name.endswith(".egg"):
                        continue
                    return True
                except OSError:
                    return True
                if GROUP.encode() in text:
                    return True
    return False


def _installed() -> EntryPoints:
    from importlib.metadata import entry_points

    # Metadata of any distribution may be broken.
    with importing("entry points of installed distributions", verdict="cannot be read"):
        return entry_points(group=GROUP)


def _origin(point: EntryPoint) -> str:
    """What an error calls an entry point."""
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "a distribution"
    return f"plugin {point.name!r} of {distribution}"


def _import_entry_point(point: EntryPoint) -> None:
    with importing(_origin(point), f"; upgrade or uninstall {point.dist.name}" if point.dist else ""):
        point.load()
    spec = getattr(sys.modules.get(point.module.partition(".")[0]), "__spec__", None)
    if spec is not None and spec.origin:
        is_package = spec.submodule_search_locations is not None
        OWNERS[os.path.dirname(spec.origin) if is_package else spec.origin] = _origin(point)


@cache
def load_files(paths: str) -> None:
    """Import plugin files, given as in TRACELENS_PLUGINS."""
    for entry in filter(None, paths.split(os.pathsep)):
        root = Path(entry)
        if not root.exists():
            raise TracelensError(f"{VARIABLE}: {entry} does not exist; correct the variable, or unset it")
        _complete_startup()
        for file in sorted(root.glob("*.py")) if root.is_dir() else [root]:
            _import_file(file)


def _import_file(file: Path) -> None:
    # Two directories may hold a file of the same name.
    name = f"tracelens_plugin_{file.stem}_{crc32(str(file.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TracelensError(f"plugin {file} is not a Python file; name a .py file or a directory of them")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    OWNERS[str(file)] = f"plugin {file}"
    with importing(f"plugin {file}"):
        spec.loader.exec_module(module)


@cache
def _complete_startup() -> None:
    """Process .pth files where Python runs with -S, as workers do: editable installs may need their hooks."""
    if sys.flags.no_site:
        import site

        site.main()
