"""Scaling of expert parallelism in the words of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError, UnknownName
from tracelens.session.layouts import Numbers, numbers, step_machine
from tracelens.session.memory import Devices, assignments, configs, resolved, texts

if TYPE_CHECKING:
    from tracelens.arrays import Int
    from tracelens.planner.scaling import DispatchName
    from tracelens.table import Result

MICRO_BATCHES_PER_STAGE = 4
"""Default micro-batches per pipeline stage, for a bubble of about a fifth."""


def project_scaling(
    model: str, gpus: int, device: Devices, *, ep: Numbers, dispatch: str | Sequence[str] = "alltoall,deepep",
    network: str = "", overlap: str | Sequence[str] = "deepep", pp: int | None = None, vpp: int | None = None,
    cp: int | None = None, tp: int | None = None, mbs: int | None = None, micro_batches: int | None = None,
    seq: int | None = None, recompute: str | None = None, settings: str | Sequence[str] = (),
    assume: str | Sequence[str] = (), routing: str = "",
) -> Result:  # fmt: skip
    """Throughput over the GPUs that share the experts, and where the time of a step goes.

    Args:
        model: a bundled model or a file (.toml, config.json, .yaml).
        gpus: of the run.
        device: that it runs on: a name, a TOML file (.toml or a Path) or a device.
        ep: GPUs that share the experts: 8, (8, 16) or "8,16".
        dispatch: ways to dispatch tokens: "alltoall", "dedup" (a copy per rank) or "deepep" (a copy per node
            over the network, then per rank); the first one is the baseline.
        network: a bundled network or a network file (.toml).
        overlap: dispatches that 1F1B overlaps with computation, "none" for none.
        pp: pipeline stages; by default as in the file, or as many as leave one expert group of the largest
            `ep` per stage.
        vpp: model chunks per stage.
        cp: GPUs that share a sequence.
        tp: GPUs that share each dense matrix.
        mbs: sequences per micro-batch.
        micro_batches: per step on each data-parallel rank; 4 x pp by default.
        seq: tokens per sequence.
        recompute: in the backward: "none", "full", or layers as in "0,1,2".
        settings: other fields, each like "loss=plain"; kernels are fused by default.
        assume: assumptions of the step time, each like "matrix_efficiency=0.7".
        routing: a NumPy file (.npy) with the experts of each token of a layer, one row per token; balanced by
            default.

    Returns:
        tables `scaling`, `breakdown`, `exchange`, `assumptions`, and `published` for the run of a published
        measurement.

    Raises:
        TracelensError: unknown model, device, network or field, or no valid layout.
    """
    from tracelens.planner.config import Config
    from tracelens.planner.scaling import Request, scaling

    devices, eps = resolved(device), numbers("ep", ep)
    if len(devices) != 1:
        raise TracelensError("a scaling projection is for one device: give --device once")
    sizes = {"gpus": gpus, "vpp": vpp, "cp": cp, "tp": tp, "mbs": mbs, "seq": seq}
    sizes["pp"] = pp if pp is not None else _stages(model, gpus, max(eps), (cp or 1) * (tp or 1))
    if micro_batches is None:
        micro_batches = MICRO_BATCHES_PER_STAGE * (sizes["pp"] or 1)
    fields = assignments({**sizes, "micro_batches": micro_batches, "ep": 1}, optimised=True)
    config = configs(model, [*fields, *_recomputed(model, recompute), *texts(settings)], ())
    assert isinstance(config, Config)
    overlapped = _dispatches([name for name in _names(overlap) if name != "none"])
    machine = step_machine(texts(assume), network=network)
    ids = _routing(routing) if routing else None
    compared = _dispatches(_names(dispatch))
    return scaling(Request(config, eps, compared, machine, overlapped, network, ids), devices[0])


def _routing(path: str) -> Int:
    """The experts of each token; raises TracelensError if the file has none."""
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TracelensError(f"{path}: not a NumPy array: save the routing with numpy.save") from error
    if not isinstance(ids, np.ndarray):
        raise TracelensError(f"{path}: holds several arrays; save the routing alone as .npy")
    return ids


def _stages(model: str, gpus: int, ep: int, shards: int) -> int:
    """Pipeline stages by default: those of the file, or one group of `ep` GPUs each, if the layers allow."""
    from tracelens.planner.config import read_file

    file = read_file(model)
    if "pp" in file.settings:
        return int(str(file.settings["pp"]))
    most = gpus // ep if gpus % ep == 0 else 1
    divisors = (pp for pp in range(min(most, file.model.layers), 0, -1) if most % pp == 0)
    return next(pp for pp in divisors if gpus % (pp * shards) == 0 or pp == 1)


def _recomputed(model: str, text: str | None) -> list[str]:
    """--recompute as a field of the configuration."""
    from tracelens.planner.config import read_file

    if text is None or text == "none":
        return []
    if text == "full":
        text = ",".join(map(str, range(read_file(model).model.layers)))
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise TracelensError(f"--recompute is none, full, or layers as in 0,1,2, not {text!r}")
    return [f"recompute_layer_ids={text}"]


def _names(values: str | Sequence[str]) -> list[str]:
    listed = values.split(",") if isinstance(values, str) else values
    return [name.strip() for name in listed if name.strip()]


def _dispatches(names: Sequence[str]) -> tuple[DispatchName, ...]:
    """These ways to dispatch; raises UnknownName."""
    from tracelens.planner.scaling import DISPATCHES

    known = {name: name for name in DISPATCHES}
    if wrong := [name for name in names if name not in known]:
        raise UnknownName("dispatch", wrong[0], known)
    return tuple(known[name] for name in names)  # type: ignore[index]  # all are known
