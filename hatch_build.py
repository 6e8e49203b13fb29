"""What is made while the package is built: compiled templates."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TEMPLATES = "tracelens/rendering/templates.py"


class CompiledTemplates(BuildHookInterface[Any]):
    """Adds the modules that jinja2 makes of templates to a wheel; an editable one finds them beside these."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them."""
        self._scratch = tempfile.TemporaryDirectory(prefix="tracelens-templates-")
        add_templates(Path(self.root), Path(self._scratch.name), version == "editable", build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was needed for building only."""
        self._scratch.cleanup()


def add_templates(root: Path, scratch: Path, editable: bool, build_data: dict[str, Any]) -> None:
    """Compile the templates of the package in `root`, and have them in what is built."""
    spec = importlib.util.spec_from_file_location("tracelens_templates", root / TEMPLATES)
    assert spec is not None
    assert spec.loader is not None
    templates = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(templates)
    folder: Path = templates.ASSETS / templates.COMPILED
    target = scratch / templates.digest()
    if editable:
        shutil.rmtree(folder, ignore_errors=True)  # of older templates
        target = folder / target.name
    templates.compile_into(target)
    if not editable:
        inside = (folder / target.name).relative_to(root)
        build_data["force_include"][str(target)] = inside.as_posix()
