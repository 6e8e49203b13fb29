"""`tracelens calibrate`: a short benchmark of the GPU at hand, the results of which are a device file.

It needs torch with a GPU, CUDA or ROCm; nothing else is called. It is imported by its command only.

- `sizes`: what is measured.
- `timing`: a stopwatch for kernels.
- `gemms` (and attention), `bandwidth` (memory and links), `launches`: one subject each.
- `calibrate`: all of it, as a `Device`.
"""

from tracelens.calibrate.calibrate import calibrate
