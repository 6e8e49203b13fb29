"""`tracelens calibrate`: measure a GPU, and write the results as a device file."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tracelens.cli.common import progress, say
from tracelens.cli.help import OUTPUT
from tracelens.errors import MissingExtra

Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the device file here.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
On = Annotated[str, typer.Option("--device", hidden=True, help="cuda, or cpu to try the code.")]


def calibrate(output: Output, device: On = "cuda") -> None:
    """Measure a GPU, and write the results as a device file.

    GEMMs and grouped GEMMs by rows and type, attention by sequence length, memory bandwidth by size, the
    host's cost per launch: under a minute on an idle GPU. Under `torchrun --nproc-per-node N -m tracelens
    calibrate` also messages among the ranks, by size. It needs torch (extra `workload`).

    Examples:
        tracelens calibrate -o mygpu.toml
        tracelens report trace.json.gz --device-file mygpu.toml
    """
    from tracelens.devices import device_toml
    from tracelens.outputs import Output as Target
    from tracelens.outputs import check_outputs, write_file

    check_outputs([Target(output)], [])
    try:
        from tracelens.calibrate import calibrate as measure
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens calibrate", "workload") from None
    with progress() as line:
        result = measure(device, line)
    if os.environ.get("RANK", "0") != "0":
        return
    for failure in result.failures:
        say(f"not measured: {failure.name}: {failure.reason}")
    for name, reason in result.eager.items():
        say(f"includes launches, no graph could be captured: {name}: {reason}")
    write_file(output, device_toml(result.device).encode())
    say(f"wrote {output}")
