"""Chunks of JSON text to `Event` objects, in four tiers.

1. Typed decoding of the whole chunk; only the fields that are used become Python objects.
2. The same with times kept as text, where floats would lose nanoseconds.
3. The same after tokens that are not JSON (`N/A`, `inf`, `: ,`) have been mended throughout the chunk.
4. `salvage`: event by event, mending or dropping the broken ones.
"""

from __future__ import annotations

import msgspec

from tracelens.read.json.event import Decoded
from tracelens.read.json.salvage import salvage
from tracelens.read.json.tokens import follows_string, mend_tokens
from tracelens.read.json.typed import BAD_JSON, decode_typed, error_offset


def decode(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk: a JSON array of events whose first event stands at byte `offset` of the input.

    `last`: it is known to be the last chunk of the trace.
    """
    try:
        return Decoded(*decode_typed(text), [])
    except msgspec.ValidationError:
        return salvage(text, offset, last)
    except BAD_JSON as error:
        return _mended(text, error_offset(text, error)) or salvage(text, offset, last)


def _mended(text: bytes, broken: int) -> Decoded | None:
    if follows_string(text, broken):
        return None
    mended, count = mend_tokens(text)
    try:
        return Decoded(*decode_typed(mended), [], count) if count else None
    except BAD_JSON:
        return None
