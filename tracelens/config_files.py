"""Files that people write, such as models, devices and rules, and one line for what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError
from tracelens.limits import limits, open_input


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        TracelensError: it is larger than the limit; a device or an endless pipe is read no further.
        OSError: as when opening it.
    """
    most = limits().config_bytes
    with open_input(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        problem = f"{path}: over {most:,} bytes, too large for a model, device or rules file"
        raise TracelensError(f"{problem}; {limits().exceeded('config_bytes')}")
    return content


def read_text(path: Path, hint: str = "") -> str:
    """The text of a file; raises TracelensError if it cannot be read, which ends with the hint."""
    try:
        return read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        problem = "no such file"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = "not a text file"
    raise TracelensError("; ".join(filter(None, (f"{path}: {problem}", hint))))


def read_toml(path: Path, hint: str = "") -> dict[str, Any]:
    """The content of a TOML file; raises as `read_text`."""
    import tomllib  # few commands read one

    try:
        return tomllib.loads(read_text(path, hint))
    except (ValueError, RecursionError) as error:
        raise TracelensError("; ".join(filter(None, (f"{path}: not TOML: {error}", hint)))) from None
