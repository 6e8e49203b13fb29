"""What travels between processes, and waits there for its turn, in a sixth of its bytes."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

REDUCERS: dict[type, Callable[[Any], str | tuple[Any, ...]]] = {}
"""Of types that are packed in a way of their own, the function and arguments that make an object again."""


class PackedPart(Struct, frozen=True):
    """A part on its way, and until it is needed."""

    data: bytes

    @staticmethod
    def of(part: Any) -> PackedPart:
        from isal import isal_zlib
        from numpy import ndarray  # processes start before it is imported

        pickled = io.BytesIO()
        pickler = pickle.Pickler(pickled, protocol=5)
        pickler.dispatch_table = {**copyreg.dispatch_table, ndarray: _narrowed, **REDUCERS}
        pickler.dump(part)
        return PackedPart(isal_zlib.compress(pickled.getbuffer(), 1))

    def unpack(self) -> Any:
        from isal import isal_zlib

        return pickle.loads(isal_zlib.decompress(self.data))


class PackedApart(dict[str, Any]):
    """Values of which each stays packed, once all were, until somebody asks for it."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value.unpack() if isinstance(value, PackedPart) else value


def _each_packed(values: PackedApart) -> tuple[Any, ...]:
    packed = {
        name: value if isinstance(value, PackedPart) else PackedPart.of(value)
        for name, value in values.items()
    }
    return PackedApart, (packed,)


REDUCERS[PackedApart] = _each_packed


def one_for_all(item: Any) -> tuple[Any, ...]:
    """Packs what never changes: of equal ones, those that are unpacked here are one and the same."""
    return _known, (pickle.dumps(item, protocol=5),)


@lru_cache(maxsize=256)
def _known(pickled: bytes) -> Any:
    return pickle.loads(pickled)


_LONG = 64
"""Arrays of fewer numbers are not worth the bytes that say how they are packed."""


def _narrowed(item: NDArray[Any]) -> str | tuple[Any, ...]:
    """Packs arrays of integers in as few bytes a number as these need: times of a rank fit into four."""
    import numpy as np

    if item.dtype.kind in "iu" and item.ndim == 1 and len(item) >= _LONG:
        least = int(item.min())
        narrow = np.min_scalar_type(int(item.max()) - least)
        if narrow.itemsize < item.itemsize:
            # All first bytes, then all second ones: high ones are alike and compress well.
            planes = (item - least).astype(narrow).view(np.uint8).reshape(-1, narrow.itemsize).T
            return _widened, (planes.tobytes(), narrow.str, least, item.dtype.str)
    return item.__reduce_ex__(5)


def _widened(planes: bytes, narrow: str, least: int, dtype: str) -> NDArray[Any]:
    """The array that was made narrow."""
    import numpy as np

    by_number = np.frombuffer(planes, np.uint8).reshape(np.dtype(narrow).itemsize, -1).T
    numbers = np.ascontiguousarray(by_number).view(narrow)[:, 0].astype(dtype)
    numbers += np.asarray(least, dtype)
    return numbers
