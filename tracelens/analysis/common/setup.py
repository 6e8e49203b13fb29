"""What was run and on what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_SIZES = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "vocab_size",
        "head_dim",
        "kv_lora_rank",
        "q_lora_rank",
        "num_layers",
        "ffn_hidden_size",
    }
)
"""Names of the sizes of a model in a flat configuration, as Hugging Face and Megatron have them."""


@dataclass(frozen=True)
class Setup:
    """What one run was; empty where nobody says."""

    device: str = ""
    ranks: int = 0  # of the job
    model: Mapping[str, Any] = field(default_factory=dict)  # its sizes
    layout: Mapping[str, Any] = field(default_factory=dict)  # of the ranks: tp, pp, ep, ...
    dtype: str = ""
    tokens: int = 0  # a step
    software: Mapping[str, str] = field(default_factory=dict)  # name to version

    @staticmethod
    def of(devices: Collection[str], ranks: int, facts: Mapping[str, Any]) -> Setup:
        """From a run's devices and what the recorder wrote of it: config, mesh and software.

        Args:
            devices: names of the GPUs of all ranks.
            ranks: of the job.
            facts: the header of its traces, or its run.json.
        """
        config, mesh = _mapping(facts.get("config")), _mapping(facts.get("mesh"))
        training = _mapping(config.get("training"))
        model = _mapping(config.get("model")) or {key: config[key] for key in config if key in _SIZES}
        per_rank = [training.get(key, 0) for key in ("seq", "micro_batch", "micro_batches")]
        tokens = 0
        if all(isinstance(count, int) and count > 0 for count in [*per_rank, mesh.get("dp", 0)]):
            tokens = per_rank[0] * per_rank[1] * per_rank[2] * mesh["dp"]
        dtype = training.get("dtype") or config.get("torch_dtype") or config.get("dtype") or ""
        return Setup(
            device=", ".join(sorted(set(devices))),
            ranks=ranks,
            model=model,
            layout=mesh or _mapping(config.get("layout")),
            dtype=str(dtype).removeprefix("torch."),
            tokens=tokens,
            software={name: str(text) for name, text in _mapping(facts.get("software")).items()},
        )

    @staticmethod
    def read(document: object) -> Setup:
        """From what `document` wrote; what is damaged counts as not told."""
        fields = _mapping(document)
        plain = Setup()
        values = {
            name: fields[name]
            for name, default in asdict(plain).items()
            if name in fields and isinstance(fields[name], type(default))
        }
        return Setup(**values)

    def document(self) -> dict[str, Any]:
        """What is known of it, as JSON can hold it."""
        return {name: value for name, value in asdict(self).items() if value}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
