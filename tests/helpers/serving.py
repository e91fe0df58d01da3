"""Hugging Face model configs, reduced to the fields that kernels depend on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MIXTRAL = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_FP8 = {
    "text_config": {
        "hidden_size": 2048, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    },
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
HYBRID = {"hidden_size": 4096, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
BY_ROW = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token"},
    }},
}  # fmt: skip
SMALL = {
    "hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
    "num_attention_heads": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
"""MoE model with four small experts, which the emulator can run quickly."""


def written(folder: Path, fields: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
