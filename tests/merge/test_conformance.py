"""Real runs fused and read back."""

from pathlib import Path

import pytest

import tracelens
from tests.merge.reading import check_for_viewer, check_same, load_json
from tracelens.merge import fuse


@pytest.mark.slow
def test_two_ranks_of_a_real_run(corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "nvidia-h200-megatron" / "ep8"
    run = tracelens.load(folder / "rank2.json.gz", folder / "rank3.json.gz")
    offsets = {2: 12_345, 3: -678}
    fuse(run, tmp_path / "merged.json.gz", offsets=offsets)
    check_for_viewer(load_json(tmp_path / "merged.json.gz"))
    check_same(tmp_path / "merged.json.gz", run, offsets)


@pytest.mark.parametrize(
    "name",
    [
        "misc/hta_control.json.gz",
        "misc/ns_resolution.json.gz",
        "misc/negative_queue.json.gz",
        "misc/triton_example.json.gz",
        "mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
        "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    ],
)
def test_traces_of_other_generations(name: str, corpus: Path, tmp_path: Path) -> None:
    run = tracelens.load(corpus / name)
    fuse(run, tmp_path / "merged.json.gz")
    check_for_viewer(load_json(tmp_path / "merged.json.gz"))
    check_same(tmp_path / "merged.json.gz", run, nesting="mi300x" not in name)  # its step crosses frames
