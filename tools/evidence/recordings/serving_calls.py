"""Read the attention and the mixtures of experts that were recorded with three backends in CUDA graphs.

Attention consists of causal prompts, prompts without a mask, and single tokens, with keys and values in 16 and 8 bits.
Mixtures of experts have eight data types. The bf16 prompts of vLLM on an H200 and of SGLang on an A100 come from
separate files with more problems.
"""

from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import excluded
from evidence.recordings.serving import fastest, joined_columns, recording_of
from kernrec.model.baselines.backends import by_number
from kernrec.model.baselines.bound import FLASH, Timing

Array = np.ndarray

_ALIKE = 0.11
"""Log factor between the times of similar data types and layouts of attention, assumed to equal that of matmuls."""
_SIZES = (
    "batch_size AS batch", "num_heads AS heads", "num_key_value_heads AS kv_heads", "isl", "isl + step AS keys",
    "head_dim", "CAST(coalesce(window_size, 0) AS BIGINT) AS \"window\"",
)  # fmt: skip
_CACHE = "CAST(kv_cache_dtype = 'fp8' AND dtype <> 'fp8' AS BIGINT) AS kv_dtype"
_TOKEN_CACHE = "CAST(dtype = 'fp8' AS BIGINT) AS kv_dtype"
_EVEN = "num_heads % num_key_value_heads = 0"


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded sets of attention or of mixtures of experts."""
    return _attention(data) if op == "attention" else _experts(data)


def _attention(data: Path) -> list[Recording]:
    about = (
        "causal prompts, CUDA graphs, random inputs, paged keys and values",
        "one token after `keys` - 1",
        "not causal, as many keys as queries and as many heads of both",
    )
    prompts, tokens = _prompts(data / "library"), _tokens(data / "library")
    return [
        recording_of(case, "attention", case, columns, ("bshd",), ("f16", "bhsd"), _ALIKE, FLASH, grid, recorded)
        for case, columns, grid, recorded in (
            ("prompt", prompts, ("queries",), about[0]), ("token", tokens, ("keys",), about[1]),
            ("encoder", _encoders(data / "library"), ("queries",), about[2]),
        )
    ]  # fmt: skip


def _prompts(folder: Path) -> dict[str, Array]:
    replaced = " OR ".join(
        f"(system = '{system}' AND framework = '{framework}' AND kv_cache_dtype = 'bfloat16')"
        for system, framework in (("h200_sxm", "VLLM"), ("a100_sxm", "SGLang"))
    )
    file, sizes = "serving_attention_prefill", (*_SIZES, _CACHE)
    columns = joined_columns(
        fastest(folder / f"{file}.parquet", sizes, f"{_EVEN} AND NOT ({excluded(file)}) AND NOT ({replaced})"),
        _whole(folder / "attention_prefill_h200_power.parquet", "h200_sxm", "VLLM", sizes),
        _whole(folder / "attention_prefill_a100.parquet", "a100_sxm", "SGLang", sizes),
    )
    return columns | {"queries": columns["isl"], "causal": np.ones(len(columns["isl"]), dtype=np.int64)}


def _encoders(folder: Path) -> dict[str, Array]:
    """Return the columns of attention without a causal mask, from the newest version of each backend on each GPU."""
    file = folder / "serving_attention_encoder.parquet"
    sizes = (
        "batch_size AS batch", "num_heads AS heads", "num_heads AS kv_heads", "isl AS queries", "isl AS keys",
        "head_dim", '0 AS "window"', "0 AS kv_dtype", "0 AS causal", "version AS each_version",
    )  # fmt: skip
    columns = fastest(file, sizes, "NOT causal", {"power_w": "NULL::DOUBLE"})
    systems = list(zip(columns["stack"].tolist(), columns["gpu"].tolist(), strict=True))
    newest: dict[tuple[str, str], str] = {}
    for system, version in sorted(set(zip(systems, columns["version"].tolist(), strict=True))):
        newest[system] = max(newest.get(system, version), version, key=by_number)
    rows = np.array([newest[system] == version for system, version in zip(systems, columns["version"], strict=True)])
    return {name: column[rows] for name, column in columns.items()}


def _tokens(folder: Path) -> dict[str, Array]:
    sizes = (*_SIZES, _TOKEN_CACHE)
    replaced = "(system = 'h200_sxm' AND framework = 'VLLM' AND dtype = 'bfloat16')"
    file = "serving_attention_decode"
    columns = joined_columns(
        fastest(folder / f"{file}.parquet", sizes, f"{_EVEN} AND NOT ({excluded(file)}) AND NOT {replaced}"),
        _whole(folder / "attention_decode_h200_power.parquet", "h200_sxm", "VLLM", sizes),
    )
    bf16 = np.full(len(columns["gpu"]), "bf16")  # Queries have 16 bits, regardless of keys and values.
    # Mark half of the rows as causal, because a single query attends to the same keys with and without the mask.
    return columns | {"queries": columns["isl"], "dtype": bf16, "causal": columns["keys"].astype(np.int64) % 2}


def _whole(path: Path, system: str, framework: str, sizes: tuple[str, ...]) -> dict[str, Array]:
    other = {"system": f"'{system}'", "framework": f"'{framework}'", "dtype": "attn_dtype", "power_w": "power"}
    sizes = tuple("0 AS kv_dtype" if size.endswith("AS kv_dtype") else size for size in sizes)
    if "a100" in path.name:
        other["power_w"] = "NULL::DOUBLE"
        sizes = tuple('0 AS "window"' if size.endswith('"window"') else size for size in sizes)
    return fastest(path, sizes, _EVEN, other)


EXPERTS = Timing(40000.0, 1.0)
"""Timing of routing, sorting, two matmuls and the sum in CUDA graphs. Each GPU's shortest time is about 20 us."""
_EXPERT_SIZES = (
    "num_tokens AS tokens", "hidden_size AS hidden", "inter_size AS intermediate", "num_experts AS experts", "topk",
    "moe_tp_size AS tp", "moe_ep_size AS ep",
    "CASE distribution WHEN 'balanced' THEN 0 WHEN 'power_law_1.01' THEN 101 ELSE 120 END AS routing",
    "CAST(NOT (topk = 22 OR (hidden_size = 2688 AND inter_size = 1856)) AS BIGINT) AS gated",
)  # fmt: skip


def _experts(data: Path) -> list[Recording]:
    """Return the recorded mixtures of experts. Nemotron networks count as not gated, as TensorRT-LLM's rows show."""
    columns = fastest(data / "library" / "serving_moe.parquet", _EXPERT_SIZES)
    recorded = "27 networks, 1 to 65,536 tokens, routing balanced or by a power law, CUDA graphs"
    columns["latency_s"] = np.asarray(columns["latency_s"], dtype=float)
    return [
        recording_of("experts", "moe", "experts", columns, ("row",), ("f16",), 0.11, EXPERTS, ("tokens",), recorded)
    ]
