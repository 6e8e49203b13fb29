"""Step time of a training run, from its configuration, and figures and measurements of the device.

    estimate(config, device("mi300x"))            # Estimate: step, tokens/s, MFU, and where the time goes
    estimate(config, device("mi300x"), ROOFLINE)  # its lower bound
    layer_times(config, device("mi300x"))         # of each layer, for the pipeline simulator
    Machine(matrix_efficiency=0.6, nic_bytes_per_s=25e9)

By default a projection: each GEMM and attention kernel takes its FLOPs at the rate that the device achieves
for its size, other kernels their bytes at the bandwidth of theirs, messages their bytes at the link rate plus
a latency, and a step no less than the host needs for its launches. Rates are measured on the device, or
modeled on one that was measured. A roofline (`ROOFLINE`) has one rate for all GEMMs and no host. Data
loading and pauses are in neither, stragglers only as the stated spread `jitter`.

- `machine`: assumptions on nodes, network and efficiency, with their sources.
- `assumed`: these as a table.
- `rates`: time of a kernel on the GPU.
- `launches`: time of the host.
- `network`: time of a message; `planner.distinct`: where DeepEP's copies go.
- `network_file`: nodes, links and NICs of a cluster.
- `layers`: a layer's forward and backward, communication hidden or exposed; `overlap`: what 1F1B hides.
- `step`: stages, bubble, gradients, optimizer.
"""

from tracelens.planner.step_time.assumed import ASSUMED, assumed
from tracelens.planner.step_time.layers import LayerTimes, Timer, layer_times
from tracelens.planner.step_time.machine import (
    HELP,
    ROOFLINE,
    SOURCES,
    Assumption,
    LinksName,
    Machine,
    OverlapName,
)
from tracelens.planner.step_time.network_file import ClusterNetwork, bundled_networks, read_network
from tracelens.planner.step_time.step import PARTS, Estimate, estimate, timed_step

__all__ = [
    "ASSUMED",
    "HELP",
    "PARTS",
    "ROOFLINE",
    "SOURCES",
    "Assumption",
    "ClusterNetwork",
    "Estimate",
    "LayerTimes",
    "LinksName",
    "Machine",
    "OverlapName",
    "Timer",
    "assumed",
    "bundled_networks",
    "estimate",
    "layer_times",
    "read_network",
    "timed_step",
]
