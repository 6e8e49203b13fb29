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

- `machine`: assumptions on nodes, network and efficiency, with their sources; time of a kernel on the GPU.
- `network`: time of a message, and files of networks; `planner.distinct`: where DeepEP's copies go.
- `step`: layers with their communication hidden or exposed, stages, bubble, launches, gradients, optimizer.
"""

from tracelens.planner.step_time.machine import (
    ASSUMED,
    HELP,
    LEAST_LINK_BYTES_PER_S,
    ROOFLINE,
    SOURCES,
    TRAINERS,
    Assumption,
    LinksName,
    Machine,
    OverlapName,
    assumed,
)
from tracelens.planner.step_time.network import Network, bundled_networks, read_network
from tracelens.planner.step_time.step import (
    PARTS,
    STEP,
    Estimate,
    Launches,
    LaunchTime,
    LayerKind,
    LayerTimes,
    Timer,
    ends_launches,
    estimate,
    layer_launches,
    layer_times,
    timed_step,
)
