"""A script is its template and data, and nothing else: checked on the bytes that Python would read.

The outline of a script is its template with the name DATA in each place of data. Nothing of a trace stands in
an outline, so whatever a trace says, the script's syntax tree has to be the outline's, where each DATA is an
expression of constants; and its comments have to be the outline's.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import lru_cache

from tracelens.analysis.moe import STAGES

DATA = "DATA"
FIRST_LINES = b"#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n"
"""Of each script. Python looks for a declared encoding (PEP 263) in these lines only."""

MAKERS = frozenset({"strided", "number", "positive", "mask", "indices", "distinct", "ends", "Like"})
"""Functions of templates that data may call: they make inputs of given sizes."""

SIZES = ("n", "m", "k")
"""Names of the sizes that differ from round to round of a loop."""

_ALLOWED = re.compile(
    rf"(?:(?:{DATA}|yield|for|in|range|left_out|_|{'|'.join(SIZES)})(?!\w)"
    rf"|# (?:{'|'.join(map(re.escape, STAGES))})(?=\n|\Z)|[ ,:()\n])*"
)
_PRINTABLE = bytes(range(ord(" "), ord("~") + 1)) + b"\n"


def is_outline(text: str) -> bool:
    """Whether source is an outline of expressions, calls and loops, with no data in it."""
    return _ALLOWED.fullmatch(text) is not None


def difference(script: bytes, outline: str) -> str:
    """How a script differs from its outline in more than data; "" if it does not."""
    if not script.startswith(FIRST_LINES) or script.translate(None, _PRINTABLE):
        return "unexpected first lines or characters"
    try:
        tree, comments = ast.parse(script), _comments(script)
        expected_tree, expected_comments = _parsed(outline)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return "it does not parse"
    if comments != expected_comments:
        return "its comments differ from the template's"
    return "" if _same(tree, expected_tree) else "its syntax tree differs from the template's"


@lru_cache(maxsize=64)
def _parsed(outline: str) -> tuple[ast.Module, list[str]]:
    script = outline.encode()
    return ast.parse(script), _comments(script)


def _comments(script: bytes) -> list[str]:
    tokens = tokenize.tokenize(io.BytesIO(script).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _same(node: object, outline: object) -> bool:
    """Whether two syntax trees are equal, but for expressions of data in the place of DATA."""
    if isinstance(outline, ast.Name) and outline.id == DATA:
        return _is_data(node)
    if type(node) is not type(outline):
        return False
    if isinstance(outline, ast.AST):
        ours, expected = vars(node), vars(outline)
        return all(_same(ours.get(name), expected.get(name)) for name in outline._fields)
    if isinstance(node, list) and isinstance(outline, list):
        return len(node) == len(outline) and all(map(_same, node, outline))
    return node == outline


def _is_data(node: object) -> bool:
    """Whether an expression consists of constants and calls of MAKERS."""
    match node:
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return all(map(_is_data, elements))
        case ast.Dict(keys=keys, values=values):
            return all(map(_is_data, [*keys, *values]))
        case ast.Call(
            func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" | "nan")], keywords=[]
        ):
            return True
        case ast.Call(func=ast.Name(id=name), args=elements, keywords=[]):
            return name in MAKERS and all(map(_is_data, elements))
        case ast.BinOp(left=ast.List() as elements, op=ast.Mult(), right=ast.Constant(value=int())):
            return _is_data(elements)
        case ast.ListComp(
            elt=element,
            generators=[
                ast.comprehension(
                    target=ast.Name(id="_"),
                    iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant()], keywords=[]),
                    ifs=[],
                    is_async=0,
                )
            ],
        ):
            return _is_data(element)
        case ast.Name(id=name):
            return name in SIZES
    return False
