"""Tables inside an HTML page: columns as compressed bytes, which the page unpacks when somebody looks.

A payload is base64 of gzip of: u32 length of the header, the header as JSON, and the arrays, little-endian,
each at a multiple of 8 bytes behind the header's end. The header is {"rows", "columns": {name: {"type": "i1",
"i2", "i4" or "f8", "at": offset, "first": value for differences, "texts": [...] for text, "short": {index of
a text: its short form} where it has one}}}. `assets/js/payload.js` reads it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.rendering.tables import encodable
from tracelens.table import Table

_INTEGERS = ("i1", "i2", "i4")


def packed(table: Table, short: Mapping[str, Sequence[str]] = MappingProxyType({})) -> bytes:
    """The payload of a table; integers beyond 2**53 are rounded, infinities stay.

    Integers that mostly grow, such as start times, are stored as differences; texts by dictionary.

    Args:
        table: what is packed.
        short: of text columns, the short forms of the texts in their dictionaries.
    """
    import orjson

    blocks: list[bytes] = []
    columns: dict[str, Any] = {}
    end = 0
    for column in table.schema.columns:
        entry: dict[str, Any] = {}
        if column.is_text:
            coded = table.coded(column.name)
            used, values = np.unique(coded.codes, return_inverse=True)
            entry["texts"] = texts = _encodable([coded.values[code] for code in used.tolist()])
            if column.name in short:
                forms = _encodable([short[column.name][code] for code in used.tolist()])
                pairs = enumerate(zip(texts, forms, strict=True))
                entry["short"] = {str(index): form for index, (text, form) in pairs if form != text}
        else:
            values = table.array(column.name)
        array, first = _smallest(values)
        if first is not None:
            entry["first"] = first
        entry |= {"type": array.dtype.str[1:], "at": end}
        block = array.tobytes()
        block += bytes(-len(block) % 8)
        end += len(block)
        blocks.append(block)
        columns[column.name] = entry
    header = orjson.dumps({"rows": len(table), "columns": columns})
    header += b" " * (-(len(header) + 4) % 8)
    return compressed(b"".join((len(header).to_bytes(4, "little"), header, *blocks)))


def _encodable(texts: list[str]) -> list[str]:
    """Texts that UTF-8 can take; rarely one cannot, and each is looked at only then."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return list(map(encodable, texts))
    return texts


def compressed(content: bytes) -> bytes:
    """Base64 of gzip."""
    from isal import igzip

    return base64.b64encode(igzip.compress(content, compresslevel=3, mtime=0))


def elements(payloads: Mapping[str, bytes]) -> bytes:
    """The script elements that carry payloads in a page, by id."""
    return b"".join(
        b'<script type="application/octet-stream" id="payload-%b">%b</script>\n' % (name.encode(), payload)
        for name, payload in payloads.items()
    )


def _smallest(values: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
    """(values in the narrowest type that the page can read, first value if they are differences)."""
    if values.dtype.kind == "f":
        return values.astype("<f8"), None
    numbers = values.astype(np.int64)
    steps = np.diff(numbers, prepend=numbers[:1])
    plain, delta = _width(numbers), _width(steps)
    if delta < plain:
        return steps.astype(f"<{_INTEGERS[delta]}"), int(numbers[0])
    return numbers.astype(f"<{(*_INTEGERS, 'f8')[plain]}"), None


def _width(numbers: NDArray[np.int64]) -> int:
    """Index into `_INTEGERS` of the narrowest type; beyond them, of a float."""
    peak = max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)) - 1)
    return next((index for index, bits in enumerate((7, 15, 31)) if peak < 2**bits), len(_INTEGERS))
