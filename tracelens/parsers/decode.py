"""Chunks of JSON text to `Event` objects, in four tiers.

1. Typed decoding of the whole chunk; only the fields that are used become Python objects.
2. The same with times kept as text, where floats would lose nanoseconds.
3. The same after tokens that are not JSON (`N/A`, `inf`, `: ,`) have been mended throughout the chunk.
4. `salvage`: event by event, mending or dropping the broken ones.
"""

from __future__ import annotations

import msgspec

from tracelens.parsers.event import Decoded, Event
from tracelens.parsers.loose import BAD_JSON, EXACT
from tracelens.parsers.salvage import salvage, with_exact_times
from tracelens.parsers.times import nanoseconds
from tracelens.parsers.tokens import mend_tokens

_EVENTS = msgspec.json.Decoder(list[Event])


def decode(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk: a JSON array of events whose first event stands at byte `offset` of the input.

    `last`: it is known to be the last chunk of the trace.
    """
    try:
        events = _EVENTS.decode(text)
    except msgspec.ValidationError:
        return salvage(text, offset, last)
    except BAD_JSON:
        return _mended(text) or salvage(text, offset, last)
    ts_ns, dur_ns = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
    if ts_ns is None or dur_ns is None:
        try:
            return with_exact_times(EXACT.decode(text), [])
        except BAD_JSON:
            return salvage(text, offset, last)
    return Decoded(events, ts_ns, dur_ns, [])


def _mended(text: bytes) -> Decoded | None:
    mended, count = mend_tokens(text)
    try:
        return with_exact_times(EXACT.decode(mended), [], count) if count else None
    except BAD_JSON:
        return None
