"""Step time of a training run, from its configuration, and figures and measurements of the device.

    estimate(config, device("mi300x"))            # Estimate: step, tokens/s, MFU, and where the time goes
    estimate(config, device("mi300x"), ROOFLINE)  # its lower bound
    layer_times(config, device("mi300x"))         # of each layer, for the pipeline simulator
    Machine(matrix_efficiency=0.6, nic_bytes_per_s=25e9)

By default a projection: each GEMM and attention kernel takes its FLOPs at the rate that the device achieves
for its size, other kernels their bytes at the bandwidth of theirs, messages their bytes at the link rate plus
a latency, and a step no less than the host needs for its launches. Rates are measured on the device, or
modeled on one that was measured. A roofline (`ROOFLINE`) has one rate for all GEMMs and no host. Stragglers,
data loading and pauses are in neither.

- `machine`: assumptions on nodes, network and efficiency, with their sources.
- `work`: FLOPs and bytes of the parts of a layer.
- `eager`: traffic of ops that no kernel fuses.
- `rates`: time of a part on the GPU.
- `launches`: time of the host.
- `network`: time of a message.
- `layers`: a layer's forward and backward, communication hidden or exposed.
- `step`: stages, bubble, gradients, optimizer.
"""

from tracelens.planner.step_time.layers import LayerTimes, Timer, layer_times
from tracelens.planner.step_time.machine import ROOFLINE, Machine
from tracelens.planner.step_time.step import PARTS, Estimate, estimate

__all__ = ["PARTS", "ROOFLINE", "Estimate", "LayerTimes", "Machine", "Timer", "estimate", "layer_times"]
