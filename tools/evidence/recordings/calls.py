"""Read recorded calls of serving backends and of PyTorch.

Attention consists of causal prompts, prompts without a mask, and single tokens, with keys and values in 16 and 8 bits.
Mixtures of experts have eight data types. Three backends ran attention and experts in CUDA graphs. Two more files
contain additional prompts in bf16: vLLM on an H200, and SGLang on an A100. PyTorch 2.1 ran cuDNN's 3x3
convolutions and ops over rows in f32, which were timed one call at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import NAMES, excluded, named, power_of
from evidence.recordings.matmul import SERVING, columns_of, recording
from evidence.recordings.matmul import recordings as matmul
from kernrec.model.baselines.backends import by_number
from kernrec.model.baselines.bound import FLASH, Timing, features_of, kind_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops that have recordings."""


def fastest(
    path: Path, sizes: Sequence[str], condition: str = "true", otherwise: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return the columns of a file. If a backend ran a problem with several kernels, keep only the fastest.

    The columns `sizes` distinguish problems, besides system, framework and dtype. `otherwise` contains SQL expressions
    for columns that the file lacks or names differently, keyed by column name. The result has the columns `gpu`,
    `stack`, `dtype` and `version` with kernrec's names, the sizes, `latency_s` and `power_w`.
    """
    other = {"power_w": "power_w", **(otherwise or {})}
    spelled = (("gpu", "system", "systems"), ("stack", "framework", "backends"), ("dtype", "dtype", "serving_dtypes"))
    raw = tuple(other.get(name, name) for _, name, _ in spelled)
    names = (
        *(f"{text} AS recorded_{name}" for text, (_, name, _) in zip(raw, spelled, strict=True)),
        *(f"{named(text, words)} AS {own}" for text, (own, _, words) in zip(raw, spelled, strict=True)),
        "max(version) AS version", *sizes, "min(latency_s) AS latency_s",
        f"arg_min(coalesce({power_of(path.stem, other['power_w'])}, 0), latency_s) AS power_w",
    )  # fmt: skip
    columns = columns_of(path, names, f"({condition}) AND {raw[0]} IN {tuple(NAMES['systems'])} GROUP BY ALL")
    return {**columns, "power_w": np.where(columns["power_w"] > 0, columns["power_w"], np.nan)}


def joined_columns(*parts: Mapping[str, Array]) -> dict[str, Array]:
    """Concatenate the rows of all parts. Keep the columns of the first part."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def recording_of(
    name: str, op: str, case: str, columns: Mapping[str, Array], layouts: tuple[str, ...], alike: tuple[str, ...],
    alike_width: float, timing: Timing, grid: tuple[str, ...], recorded: str,
) -> Recording:  # fmt: skip
    """Create a recording of a set from columns that `fastest` returned. Backends, versions, data types and kinds are
    taken from the columns. The other arguments are fields of `RecordedSet`."""
    versions: dict[str, dict[str, str | None]] = {}
    kinds = zip(*(columns[column].tolist() for column in ("stack", "gpu", "version")), strict=True)
    for backend, gpu, version in sorted(set(kinds)):
        versions.setdefault(backend, {})[gpu] = version  # The last version is the highest.
    dims = {dim: columns[dim].astype(np.int64) for dim in features_of(op).DIMS}
    dtypes = tuple(sorted(set(columns["dtype"].tolist())))
    about = RecordedSet(
        name, op, case, versions, dtypes, layouts, alike, alike_width, timing, grid, {}, (),
        SERVING | {"library": "as called by the stacks", "recorded": recorded}, _kinds(op, columns, dims),
    )  # fmt: skip
    return recording(about, columns)


def _kinds(op: str, columns: Mapping[str, Array], dims: Mapping[str, Array]) -> dict[str, dict[str, tuple[str, ...]]]:
    cached = dims.get("kv_dtype", np.zeros(len(columns["gpu"]), dtype=np.int64))
    rows = set(zip(*(columns[name].tolist() for name in ("stack", "gpu", "dtype")), cached.tolist(), strict=True))
    kinds: dict[str, dict[str, tuple[str, ...]]] = {}
    for backend, gpu, dtype, kv_dtype in sorted(rows):
        gpus = kinds.setdefault(backend, {})
        gpus[gpu] = (*gpus.get(gpu, ()), kind_of(op, dtype, {"kv_dtype": kv_dtype}))
    return kinds


_ALIKE = 0.11
"""Log factor between the times of similar data types and layouts of attention, assumed to equal that of matmuls."""
_SIZES = (
    "batch_size AS batch", "num_heads AS heads", "num_key_value_heads AS kv_heads", "isl", "isl + step AS keys",
    "head_dim", "CAST(coalesce(window_size, 0) AS BIGINT) AS \"window\"",
)  # fmt: skip
_CACHE = "CAST(kv_cache_dtype = 'fp8' AND dtype <> 'fp8' AS BIGINT) AS kv_dtype"
_TOKEN_CACHE = "CAST(dtype = 'fp8' AS BIGINT) AS kv_dtype"
_EVEN = "num_heads % num_key_value_heads = 0"


def _attention(data: Path) -> list[Recording]:
    cases = (
        ("prompt", _prompts, "queries", "causal prompts, CUDA graphs, random inputs, paged keys and values"),
        ("token", _tokens, "keys", "one token after `keys` - 1"),
        ("encoder", _encoders, "queries", "not causal, as many keys as queries and as many heads of both"),
    )
    about = ("bshd",), ("f16", "bhsd"), _ALIKE, FLASH
    return [
        recording_of(case, "attention", case, read(data / "library"), *about, (grid,), recorded)
        for case, read, grid, recorded in cases
    ]


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
    systems = list(zip(columns["stack"].tolist(), columns["gpu"].tolist(), columns["version"].tolist(), strict=True))
    newest: dict[tuple[str, str], str] = {}
    for stack, gpu, version in set(systems):
        newest[stack, gpu] = max(newest.get((stack, gpu), version), version, key=by_number)
    rows = np.array([newest[stack, gpu] == version for stack, gpu, version in systems])
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


_GPU = ("device", f"{named('device', 'devices')} AS gpu")
CALL = Timing(35000.0, 1.0, alone=True)
"""Timing of a call of PyTorch between two events. The shortest time on an A100, a T4 and a P4 is 25 us."""
CALLS = {"source": "NeuSight", "licence": "MIT"}
_OPS = {"softmax": ("softmax", "rows"), "layernorm": ("ln", "rows"), "elementwise": ("add", "elements")}
"""(recorder's name, case), keyed by op. An addition represents elementwise ops, because it moves the same bytes."""


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded sets of an op. Raises `AbsentError` if a file is missing."""
    readers = {"matmul": matmul, "attention": _attention, "moe": _experts, "conv2d": _convolutions}
    return readers[op](data) if op in readers else _rows(data, op)


def _convolutions(data: Path) -> list[Recording]:
    columns = columns_of(
        data / "library" / "torch_conv2d_f32.parquet", (*_GPU, "n", "c", "h", "h AS w", "k", "latency_s")
    )
    about = CALLS | {"library": "cuDNN 8.9, called by PyTorch 2.1", "recorded": "square inputs, 3x3, padding 1, nchw"}
    return [_recording("conv", "conv2d", "3x3", "cuDNN", "8.9", "nchw", columns, about)]


def _rows(data: Path, op: str) -> list[Recording]:
    recorded_as, case = _OPS[op]
    names = (*_GPU, "rows", "columns", "rows::BIGINT * columns AS n", "min(latency_s) AS latency_s")
    file = "torch_rowwise_f32"
    condition = f"op = '{recorded_as}' AND NOT ({excluded(file)}) GROUP BY ALL"
    columns = columns_of(data / "library" / f"{file}.parquet", names, condition)
    about = CALLS | {"library": "PyTorch 2.1", "recorded": f"{recorded_as} of f32 rows"}
    return [_recording("rows", op, case, "PyTorch", "2.1", "row", columns, about)]


def _recording(
    name: str, op: str, case: str, backend: str, version: str, layout: str, columns: dict[str, Array],
    about: dict[str, str],
) -> Recording:  # fmt: skip
    versions = {backend: dict.fromkeys(sorted(set(columns["gpu"].tolist())), version)}
    recorded = RecordedSet(name, op, case, versions, ("f32",), (layout,), (), 0.0, CALL, (), {}, (), about)
    return recording(recorded, columns)
