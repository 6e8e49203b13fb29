"""What a script is but for its data."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import lru_cache


@lru_cache(maxsize=4096)
def form(script: bytes) -> str:
    """The syntax tree of a script but for what its constants are, and its comments."""
    tree = ast.parse(script)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__ if isinstance(node.value, str) else 0
    tokens = tokenize.tokenize(io.BytesIO(script).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([ast.dump(tree), *comments])
