"""Virtual environments to install into, and distributions made for a test. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Environment:
    """A virtual environment that sees the libraries of the one that runs the tests, but not this checkout.

    Those libraries are on its path without their .pth files, so editable installs are left out.
    """

    def __init__(self, root: Path) -> None:
        venv.create(root, symlinks=True)
        self.bin = root / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        paths = {name: str(root) for name in ("base", "platbase")}
        self.site = Path(sysconfig.get_path("purelib", "venv", paths))
        shared = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (self.site / "shared.pth").write_text("\n".join(shared) + "\n")

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command outside the checkout."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.bin.parent,
            env=inherited | {"COLUMNS": "200", "NO_COLOR": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def tracelens(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command as it was installed."""
        return self.run(self.bin / "tracelens", *arguments, **variables)

    def pip(self, *arguments: object) -> str:
        """What pip says; it must succeed without an index."""
        command = (sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check")
        done = self.run(*command, *arguments, PIP_NO_INDEX="1", PIP_NO_INPUT="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, *arguments: object) -> str:
        """Install distributions without what they need, which is there."""
        # Forced: pip would leave it at a tracelens-moe among the shared libraries.
        options = ("--force-reinstall", "--no-deps", "--no-build-isolation", "--no-compile")
        return self.pip("install", *options, *arguments)

    def installed(self) -> dict[str, str]:
        """The distributions in this environment itself: name to version."""
        return {found.name: found.version for found in distributions(path=[str(self.site)])}

    def imports(self, *modules: str) -> dict[str, str]:
        """The files from which modules are imported; "" for one that is not there."""
        code = (
            "import importlib, importlib.util, json, sys\n"
            "there = importlib.util.find_spec\n"
            "found = {name: importlib.import_module(name).__file__ if there(name) else ''\n"
            "         for name in sys.argv[1:]}\n"
            "print(json.dumps(found))\n"
        )
        done = self.run(self.python, "-c", code, *modules)
        assert done.returncode == 0, done.stderr
        files: dict[str, str] = json.loads(done.stdout)
        return files


def build_wheel(folder: Path, **variables: str) -> Path:
    """The wheel of this checkout, built in an empty folder."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    environment = os.environ | variables
    subprocess.run(
        [*command, *options], cwd=folder, env=environment, check=True, capture_output=True, timeout=300
    )
    (built,) = folder.iterdir()
    return built


def project(root: Path, name: str, files: Mapping[str, str], tables: str = "") -> Path:
    """A project that hatchling builds.

    Args:
        root: its folder, made here.
        name: of the distribution.
        files: path to text, the package among them.
        tables: more of its pyproject.toml.
    """
    (package,) = {path.split("/")[0] for path in files}
    root.mkdir()
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "1.2"\n'
        f'[tool.hatch.build.targets.wheel]\npackages = ["{package}"]\n{tables}'
    )
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root
