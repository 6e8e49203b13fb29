"""Argument texts."""

from __future__ import annotations

import pytest

from tracelens.trace import describe


@pytest.mark.parametrize(
    ("shapes", "dtypes", "text"),
    [
        ("[[2, 3], [3, 4]]", '["c10::BFloat16", "float"]', "bf16[2,3] fp32[3,4]"),
        ("[[2, 3], [], []]", '["float", "Scalar", ""]', "fp32[2,3]"),
        ("[[]]", '["float"]', "fp32[]"),  # a tensor without dimensions is one element
        ("[[[4], [4]], [8]]", '["TensorList", "int"]', "[4]x2 i32[8]"),
        ("[[[4], [5], [4]]]", '["TensorList"]', "[4]..x3"),
        ("[[2], [3]]", '["float"]', "fp32[2] [3]"),  # fewer types than arguments
        ("[[2], [3]]", "", "[2] [3]"),
        ('[["2", "3"]]', '["float"]', "fp32[2,3]"),  # some profilers write dimensions as text
        ("[]", "[]", ""),
        ("", "", ""),
        ("{}", "[]", ""),
        ("[[1, 2", '["float"]', ""),  # cut off
        ("[null, 5]", '["None", "int"]', ""),
        (str([[n] for n in range(11)]), "[]", "[0] [1] [2] [3] [4] [5] [6] [7] +3"),
    ],
)
def test_describe(shapes: str, dtypes: str, text: str) -> None:
    assert describe(shapes, dtypes) == text
