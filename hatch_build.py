"""Made while the package is built: what its modules compile, and the native core where a compiler is."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "tracelens/native"
COMPILERS = ("tracelens/bundled.py", "tracelens/rendering/plotly_js.py", "tracelens/rendering/templates.py")
"""Modules of the package that compile something into a folder."""
PURE = "TRACELENS_PURE"
STABLE_ABI = "0x030B0000"  # of Python 3.11: one extension for this and all later versions
COMPILE_S = 300


class CompileError(Exception):
    """Why there is no extension, in a line."""


class CompiledParts(BuildHookInterface[Any]):
    """Adds what is compiled to a wheel; an editable installation finds it beside the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, the core if that can be done here."""
        self._scratch = tempfile.TemporaryDirectory(prefix="tracelens-build-")
        root, scratch, editable = Path(self.root), Path(self._scratch.name), version == "editable"
        for name in COMPILERS:
            add_compiled(name, root, scratch, editable, build_data)
        try:
            add_core(root, scratch, editable, build_data)
        except CompileError as error:
            self.app.display_warning(f"tracelens runs in pure Python: {error}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was needed for building only."""
        self._scratch.cleanup()


def add_compiled(name: str, root: Path, scratch: Path, editable: bool, build_data: dict[str, Any]) -> None:
    """Have what a module of the package in `root` compiles in what is built."""
    path = root / name
    spec = importlib.util.spec_from_file_location(f"tracelens_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = module.COMPILED
    target = scratch / path.stem
    if editable:
        shutil.rmtree(folder, ignore_errors=True)  # of older sources
        target = folder
    module.compile_into(target)
    if not editable:
        build_data["force_include"][str(target)] = folder.relative_to(root).as_posix()


def add_core(root: Path, scratch: Path, editable: bool, build_data: dict[str, Any]) -> None:
    """Compile the native core of the package in `root`, and have it in what is built.

    Raises:
        CompileError: there is none.
    """
    folder, name = root / FOLDER, extension_name()
    target = scratch / name
    if editable:
        target = folder / name
        target.unlink(missing_ok=True)  # of older sources
    compile_core(folder, target)
    if not editable:
        build_data["force_include"][str(target)] = f"{FOLDER}/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag()


def has_stable_abi() -> bool:
    """Whether extensions of later Python versions are of one kind; they are not in free-threaded builds."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


def extension_name() -> str:
    """File name of the extension."""
    return "_core.abi3.so" if has_stable_abi() else f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"


def wheel_tag() -> str:
    """Which interpreters and machines the extension is for."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if has_stable_abi():
        return f"cp311-abi3-{platform}"
    version = sysconfig.get_config_var("py_version_nodot")
    return f"cp{version}-cp{version}t-{platform}"


def sources_digest(folder: Path) -> str:
    """A digest of the sources, which the extension repeats."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compile_core(folder: Path, target: Path) -> None:
    """Compile the sources in `folder` into the extension `target`.

    Raises:
        CompileError: it is not wanted, there is no compiler, or it fails.
    """
    if os.environ.get(PURE, "") not in ("", "0"):
        raise CompileError(f"{PURE} is set")
    compiler = find_compiler()
    includes = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    if not any(Path(path, "Python.h").is_file() for path in includes):
        raise CompileError("the headers of Python are not installed (Debian: python3-dev)")
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if os.uname().sysname == "Darwin" else ["-shared"]
    with tempfile.TemporaryDirectory(prefix="tracelens-native-") as scratch:
        made = Path(scratch, target.name)
        command = [
            *compiler,
            *(
                "-std=c++17",
                "-O2",
                "-DNDEBUG",
                "-Wall",
                "-Wextra",
                "-fPIC",
                "-fvisibility=hidden",
                "-pthread",
            ),
            *shared,
            f'-DTRACELENS_SOURCES="{sources_digest(folder)}"',
            *([f"-DPy_LIMITED_API={STABLE_ABI}"] if has_stable_abi() else []),
            *(f"-I{path}" for path in includes),
            *map(str, sorted(folder.glob("*.cpp"))),
            *("-o", str(made)),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=COMPILE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{compiler[0]} failed ({error})") from None
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
            raise CompileError(f"{compiler[0]} failed ({said[0][-200:]})")
        # Moved in whole, so that a running program keeps the one that it has loaded.
        shutil.copyfile(made, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)


def find_compiler() -> list[str]:
    """The C++ compiler that built Python, or one that is usual, with the words that belong to it."""
    named = [os.environ.get("CXX", ""), sysconfig.get_config_var("CXX") or "", "c++", "g++", "clang++"]
    for words in map(shlex.split, named):
        if words and shutil.which(words[0]):
            return words
    raise CompileError("no C++ compiler is installed")
