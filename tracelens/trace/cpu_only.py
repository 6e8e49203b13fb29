"""Work of a CPU-only trace: the processor is the device, and ops are what it runs.

An op mostly calls other ops, and time must be counted once. What counts is the op in which the work is
done: one without any op inside of it, bookkeeping aside (views, allocation), or one whose class
(kernels.toml) none of the ops inside of it has. aten::linear calls aten::addmm, which is a GEMM as well, so
the work is addmm's; aten::addmm copies its bias with an aten::copy_, which is no GEMM, so the GEMM is
addmm's own and the copy a part of it. Ops that only call others, such as the nodes of the backward pass and a
program's own autograd functions, never count, nor does one around a more telling class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace.classify import classify_op, host_role, level_of


class Stack(NamedTuple):
    """Events, one row each: whether it is an op, code of its name, parent and depth (see callstack.nest)."""

    is_op: Bool
    name: Int
    parent: Int
    depth: Int


class _Names(NamedTuple):
    """By code of a name.

    Attributes:
        bit: of its class, 0 for none.
        explained: bits of the classes inside of it that are its work.
        none: whether it does no work itself, bookkeeping or composite.
        silent: whether it is bookkeeping.
    """

    bit: Int
    explained: Int
    none: Bool
    silent: Bool


_ANY_OP = 1
"""The bit that any op has that is no bookkeeping."""


def host_work(stack: Stack, names: list[str], within: Bool, called: Bool) -> Int:
    """Rows of the ops that are work of the host, ascending.

    Args:
        stack: the host's events.
        names: by code.
        within: events whose ops are a part of them (communication on its own thread).
        called: ops whose own work is another event (the communication that they started).
    """
    roles = _roles(names, np.unique(stack.name[stack.is_op]))
    bit = roles.bit[stack.name]
    inside = _inside(stack, np.where(stack.is_op & ~roles.silent[stack.name], _ANY_OP | bit, 0))
    own_work = (bit != 0) & ((inside & roles.explained[stack.name]) == 0)
    does = stack.is_op & ~roles.none[stack.name] & ~called & ((inside == 0) | own_work)
    around = nearest(stack.parent, stack.depth, does | within)
    outermost = lookup(around, stack.parent, -1) < 0
    rows: Int = np.flatnonzero(does & outermost)
    return rows


def _roles(names: list[str], used: Int) -> _Names:
    """The role and class of each op name."""
    count = len(names)
    bit, explained = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    none, silent = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    level: dict[tuple[str, bool], int] = {}
    for code in used.tolist():
        role = host_role(names[code])
        none[code], silent[code] = role in ("bookkeeping", "composite"), role == "bookkeeping"
        if name := classify_op(names[code]):
            kind = (name, role == "copying")
            level.setdefault(kind, level_of(name))
            bit[code] = 2 << list(level).index(kind)
    for index, kind in enumerate(level):
        explained[bit == 2 << index] = sum(
            2 << lower for lower, inner in enumerate(level) if inner == kind or level[inner] < level[kind]
        )
    return _Names(bit, explained, none, silent)


def _inside(stack: Stack, own_bits: Int) -> Int:
    """Of each event, the bits of all that is inside of it."""
    inside = np.zeros_like(own_bits)
    order = np.argsort(stack.depth, kind="stable")
    deepest = int(stack.depth.max(initial=0))
    borders = np.searchsorted(stack.depth[order], np.arange(deepest + 2))
    for level in range(deepest, 0, -1):
        rows = order[borders[level] : borders[level + 1]]
        np.bitwise_or.at(inside, stack.parent[rows], own_bits[rows] | inside[rows])
    return inside
