"""`tracelens calibrate`: measure a GPU, and write the results as a device file."""

from __future__ import annotations

import os

from tracelens.cli.command import command
from tracelens.cli.output import check_outputs, progress, say
from tracelens.errors import MissingExtra
from tracelens.session import OUTPUT, OptionGroup, option


class CalibrateOptions(OptionGroup):
    """What is measured, and where the results go."""

    output: str = option("Write the device file here.", OUTPUT, metavar="FILE")
    only: list[str] | None = option(
        "Measure this part alone: messages, launches, memory, transfers, attention or gemms.",
        default=None,
        metavar="PART",
    )
    update: str = option(
        "Keep what this device (a name or file) has, but for what is measured anew. With --only, the bundled "
        "device by default.",
        default="",
        metavar="DEVICE",
    )
    device: str = option("cuda, or cpu to try the code.", default="cuda", hidden=True)


@command
def calibrate(request: CalibrateOptions) -> None:
    """Measure a GPU, and write the results as a device file.

    Times GEMMs and grouped GEMMs by rows and type, attention by sequence length, memory traffic by size, and
    the host's launches; takes under a minute on an idle GPU. `torchrun --nproc-per-node N -m tracelens
    calibrate` also times messages among the ranks: all-reduce, all-gather, reduce-scatter, all-to-all and
    send/recv by size, uneven all-to-alls by skew. Needs torch (extra `workload`).

    Examples:
        tracelens calibrate -o mygpu.toml
        tracelens report trace.json.gz --device-file mygpu.toml
        tracelens calibrate --only gemms --update mygpu.toml -o mygpu.toml
    """
    from tracelens.devices import device, device_toml, measured_rates
    from tracelens.outputs import write_file

    check_outputs((), (), [request.output])
    try:
        from tracelens.calibrate import calibrate as measure
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens calibrate", "workload") from None
    base = device(request.update) if request.update else None
    with progress() as line:
        result = measure(request.device, line, request.only or (), base)
    if os.environ.get("RANK", "0") != "0":
        return
    say(measured_rates(result.device))
    for failure in result.failures:
        say(f"not measured: {failure.name}: {failure.reason}")
    for name, reason in result.eager.items():
        say(f"includes launches, no graph could be captured: {name}: {reason}")
    write_file(request.output, device_toml(result.device).encode())
    say(f"wrote {request.output}")
