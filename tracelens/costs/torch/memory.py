"""Copies and memsets by the copy engines, and single values that the host waits for.

A copy over a link is held against the link alone; what it moves in the device's own memory is told beside
it. A copy within one device's memory reads and writes every byte there.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, size
from tracelens.costs.model import OpCost, cost


@cost("memcpy::htod", engine="vector")
def host_to_device(call: OpCall) -> OpCost:
    """So many bytes from the host: over the host link, written to memory."""
    count = call.tensor(0).bytes
    return OpCost(0, 0, count, "u8", link="host", link_bytes=count)


@cost("memcpy::dtoh", engine="vector")
def device_to_host(call: OpCall) -> OpCost:
    """So many bytes to the host: read from memory, over the host link."""
    count = call.tensor(0).bytes
    return OpCost(0, count, 0, "u8", link="host", link_bytes=count)


@cost("memcpy::ptop", engine="vector")
def device_to_device(call: OpCall) -> OpCost:
    """So many bytes to another device: read here, over the link between GPUs, written there."""
    count = call.tensor(0).bytes
    return OpCost(0, count, count, "u8", link="gpu", link_bytes=count)


@cost("memcpy::dtod", engine="vector")
def within_device(call: OpCall) -> OpCost:
    """So many bytes within one device's memory: read and written."""
    count = call.tensor(0).bytes
    return OpCost(0, count, count, "u8")


@cost("memset::device", engine="vector")
def fill(call: OpCall) -> OpCost:
    """So many bytes set: written, nothing is read."""
    count = call.tensor(0).bytes
    return OpCost(0, 0, count, "u8")


@cost("aten::_local_scalar_dense", "aten::item", engine="vector")
def item(call: OpCall) -> OpCost:
    """One value to the host (`tensor.item()`): one element over the host link."""
    dtype = call.tensor(0).dtype
    count = size(1, dtype)
    return OpCost(0, count, 0, dtype, link="host", link_bytes=count)
