"""Lower bound of the step time of a training run, from its configuration and the device's figures alone.

    estimate(config, device("mi300x"))            # Estimate: step, tokens/s, MFU, and where the time goes
    layer_times(config, device("mi300x"))         # of each layer, for the pipeline simulator
    Machine(matrix_efficiency=0.6, nic_bytes_per_s=25e9)

A roofline: a GEMM takes the longer of its FLOPs at the device's rate and its bytes at the memory bandwidth;
other kernels take their bytes; messages take their bytes at the link rate plus a latency. Nothing is fitted
to measurements: launch-bound phases, small kernels and throttled clocks are not modeled, stragglers only as
the stated spread `jitter`. Use the times to compare layouts.

- `machine`: assumptions on nodes, network and efficiency, with their sources.
- `assumed`: these as a table.
- `work`: FLOPs and bytes of the parts of a layer.
- `network`: time of a message; `distinct`: where DeepEP's copies go.
- `network_file`: nodes, links and NICs of a cluster.
- `layers`: a layer's forward and backward, communication hidden or exposed; `overlap`: what 1F1B hides.
- `step`: stages, bubble, gradients, optimizer.
"""

from tracelens.planner.step_time.assumed import ASSUMED, assumed
from tracelens.planner.step_time.distinct import check_routing, routed_imbalance
from tracelens.planner.step_time.layers import LayerTimes, Timer, layer_times
from tracelens.planner.step_time.machine import HELP, Machine, OverlapName
from tracelens.planner.step_time.network_file import ClusterNetwork, bundled_networks, read_network
from tracelens.planner.step_time.step import PARTS, Estimate, estimate

__all__ = [
    "ASSUMED",
    "HELP",
    "PARTS",
    "ClusterNetwork",
    "Estimate",
    "LayerTimes",
    "Machine",
    "OverlapName",
    "Timer",
    "assumed",
    "bundled_networks",
    "check_routing",
    "estimate",
    "layer_times",
    "read_network",
    "routed_imbalance",
]
