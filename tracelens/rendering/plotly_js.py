"""plotly.js, the library for figures, as it stands in pages: compressed when the package is built.

Compressing its 4.8 MB takes 15 ms, a twentieth of a report of a small trace. `hatch_build.py` does it for the
plotly that is installed then; what another version ships is compressed when it is needed.

This module is run by the build hook, too, where the package is not installed: it imports nothing of it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

COMPILED = Path(__file__).with_name("compiled")
_BANNER_BYTES = 1000


@cache
def packed_plotly() -> tuple[bytes, str]:
    """Base64 of the compressed script, and its digest.

    It is the one that the Python package ships, a required dependency, fit to stand inside a script element.
    """
    shipped = _shipped()
    try:
        digest, _, payload = (COMPILED / _name(shipped)).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return _packed(shipped.read_bytes())
    return payload, digest.decode()


def compile_into(folder: Path) -> None:
    """Write the compressed script, where plotly and what compresses it are installed."""
    folder.mkdir(parents=True)
    if find_spec("plotly") and find_spec("isal"):
        shipped = _shipped()
        payload, digest = _packed(shipped.read_bytes())
        (folder / _name(shipped)).write_bytes(b"%b\n%b" % (digest.encode(), payload))


def script_digest(script: bytes) -> str:
    """Of a script, as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


def _shipped() -> Path:
    # The file only: importing plotly takes 20 ms.
    spec = find_spec("plotly")
    assert spec is not None
    folder = next(iter(spec.submodule_search_locations or ()))
    return Path(folder, "package_data", "plotly.min.js")


def _packed(shipped: bytes) -> tuple[bytes, str]:
    from isal import igzip

    script = re.sub(rb"</(?=script)", rb"<\\/", shipped, flags=re.IGNORECASE)
    # One level lower takes half of the time of the next one, and 3% more bytes.
    payload = base64.b64encode(igzip.compress(script, compresslevel=2, mtime=0))
    return payload, script_digest(script)


def _name(shipped: Path) -> str:
    """From the size of the script and its first lines, which name the version: reading all takes 3 ms."""
    with shipped.open("rb") as script:
        begin = hashlib.sha256(script.read(_BANNER_BYTES))
    return f"plotly-{shipped.stat().st_size}-{begin.hexdigest()[:8]}"
