"""`tracelens calibrate`: measure a GPU, and write the results as a device file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracelens.cli.command import command
from tracelens.cli.output import check_outputs, progress, say
from tracelens.errors import MissingExtra
from tracelens.session import OUTPUT, OptionGroup, option
from tracelens.units import duration, three_digit_decimals

if TYPE_CHECKING:
    from tracelens.devices import Device


class CalibrateOptions(OptionGroup):
    """What is measured, and where the results go."""

    output: str = option("Write the device file here.", OUTPUT, metavar="FILE")
    device: str = option("cuda, or cpu to try the code.", default="cuda", hidden=True)


@command
def calibrate(request: CalibrateOptions) -> None:
    """Measure a GPU, and write the results as a device file.

    Times GEMMs and grouped GEMMs by rows and type, attention by sequence length, memory traffic by size, and
    the host's launches; takes under a minute on an idle GPU. `torchrun --nproc-per-node N -m tracelens
    calibrate` also times messages among the ranks, by size. Needs torch (extra `workload`).

    Examples:
        tracelens calibrate -o mygpu.toml
        tracelens report trace.json.gz --device-file mygpu.toml
    """
    from tracelens.devices import device_toml
    from tracelens.outputs import write_file

    check_outputs((), (), [request.output])
    try:
        from tracelens.calibrate import calibrate as measure
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens calibrate", "workload") from None
    with progress() as line:
        result = measure(request.device, line)
    if os.environ.get("RANK", "0") != "0":
        return
    say(measured_rates(result.device))
    for failure in result.failures:
        say(f"not measured: {failure.name}: {failure.reason}")
    for name, reason in result.eager.items():
        say(f"includes launches, no graph could be captured: {name}: {reason}")
    write_file(request.output, device_toml(result.device).encode())
    say(f"wrote {request.output}")


def measured_rates(device: Device) -> str:
    """The best rates that were measured, beside what the device could do at most."""
    measured, parts = device.measured, []
    for dtype in dict.fromkeys(curve.dtype for curve in measured.gemms):
        rate, peak = measured.best_gemm(dtype) or 0.0, device.matrix.get(dtype, 0.0)
        share = f" ({rate / peak:.0%} of its peak)" if peak > rate else ""
        parts.append(f"GEMM {dtype} {_three_digits(rate / 1e12)} TFLOP/s{share}")
    copies = [max(curve.bytes_per_s) for curve in measured.bandwidths if curve.name == "copy"]
    if copies:
        rate, peak = max(copies), device.hbm_bytes_per_s
        share = f" ({rate / peak:.0%} of its peak)" if peak > rate else ""
        parts.append(f"memory {_three_digits(rate / 1e12)} TB/s{share}")
    if measured.launch.kernel_ns:
        parts.append(f"{duration(measured.launch.kernel_ns)} per launch")
    return f"{device.title}: {', '.join(parts) or 'nothing could be measured'}"


def _three_digits(value: float) -> str:
    return f"{value:,.{three_digit_decimals(value)}f}"
