"""Reproduce how an engine picks its default config without a tuned file, and the entry of a tuned file.

The rules follow the code for NVIDIA GPUs in vLLM 0.30.0 to 0.33.0 (`get_default_config` in `fused_moe.py`,
`w8a8_triton_block_scaled_mm` in `fp8_utils.py`; in 0.33.0 `_get_default_ssm_launch_config` in `mamba_ssm.py`) and
SGLang 0.5.20 to 0.5.23 (`get_default_config` in `fused_moe_triton_config.py`, `fp8_kernel.py`).
"""

from collections.abc import Iterable, Mapping

from kernrec.gpu import GPU
from kernrec.recommender.serving.engines import Kind, TunedFile

Tiles = Mapping[str, int]

KEYS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens with entries in 288 of the 338 expert files of vLLM 0.33.0, and in most SGLang files."""
_LITTLE_SHARED = 128 << 10
"""Bytes of shared memory per block below which SGLang has other fp8 defaults."""

_CUDA_GROUPS, _CUDA_ROWS = (32, 64, 128), 6
"""Group sizes, and maximum rows per expert, for which vLLM uses its CUDA kernel for 4-bit weights."""
_DATA_CENTER_BLACKWELL = 10
_BY_STATE = {16: (32, 4), 32: (16, 4), 64: (8, 4), 128: (4, 4)}
"""Rows and warps of state-space layers in vLLM, by maximum state size."""


def entry_for(keys: Iterable[int], tokens: int) -> int:
    """Return the entry with the nearest number of tokens, as engines do; the first entry wins a tie."""
    return min(keys, key=lambda key: abs(key - tokens))


def default_config(engine: str, file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    """Return the config that an engine runs without a file, for any kind except LoRA.

    Args:
        engine: `vllm` or `sglang`.
        file: the missing file.
        tokens: number of tokens in a step.
        gpu: GPU, whose shared memory determines SGLang's default.
    """
    if file.kind is Kind.BLOCK_GEMM:
        n, k = file.block or (128, 128)
        return _config(64, n, k, 32, 4, 2 if engine == "vllm" else 3)
    if file.state is not None:
        return _vllm_state(file.state.state, gpu)
    rule = _vllm_experts if engine == "vllm" else _sglang_experts
    return rule(file, tokens, gpu)


def _vllm_experts(file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    experts = file.products[0].experts
    if file.quantization.group:
        return _vllm_integers(file, tokens)
    if file.dtype == "fp8_w8a8" and file.block:
        n, k = file.block
        narrow = tokens <= 8 and n % 64 == 0
        stages = 4 if narrow and tokens <= 4 else 3
        config = _config(16 if tokens <= 64 else 64, 64 if narrow else n, k, 1 if tokens <= 16 else 32, 4, stages)
        return {**config, "SPLIT_K": 1}
    rows = 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128
    depth = 128 if file.dtype == "fp8_w8a8" or tokens <= 64 else 64
    group = 16 if tokens // experts > 128 else 1
    warps, stages = 4 if tokens <= 128 else 8, 4 if tokens <= 32 else 3
    return {**_config(rows, 64 if tokens <= 64 else 128, depth, group, warps, stages), "SPLIT_K": 1}


def _vllm_integers(file: TunedFile, tokens: int) -> dict[str, int]:
    """Return only the rows of the config for integer weights with 16-bit activations; `stated_tiles` adds the rest."""
    shape = file.products[0]
    few = file.weights == "int4_w4a16" and file.quantization.group in _CUDA_GROUPS
    if few and tokens * shape.top <= _CUDA_ROWS * shape.experts:
        rows = min(16, 1 << (tokens - 1).bit_length())
    else:
        rows = 16 if tokens <= 20 else 32 if tokens <= 40 else 64
    return {"BLOCK_SIZE_M": rows, "GROUP_SIZE_M": 1, "SPLIT_K": 1}


def stated_tiles(tiles: Tiles, rows: int) -> Tiles:
    """Return a config with columns and depth; fill in vLLM's values if they are missing.

    Args:
        tiles: the config; a config of state-space layers needs no columns or depth.
        rows: rows of the inputs.
    """
    if "BLOCK_SIZE_N" in tiles or "GROUP_SIZE_M" not in tiles:
        return tiles
    return {**tiles, "BLOCK_SIZE_N": 32 if rows == 1 else 64, "BLOCK_SIZE_K": 64 if rows == 1 else 32}


def _vllm_state(state: int, gpu: GPU) -> dict[str, int]:
    if state > 64 and gpu.sm // 10 == _DATA_CENTER_BLACKWELL:
        rows, warps = 32, 8
    else:
        rows, warps = next((by_rule for most, by_rule in _BY_STATE.items() if state <= most), (4, 8))
    return {"BLOCK_SIZE_M": rows, "num_warps": warps}


def _sglang_experts(file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    few = tokens <= file.products[0].experts
    if file.dtype != "fp8_w8a8":
        tiles = (16, 32, 64, 1) if few else (64, 64, 32, 8)
        return dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"), tiles, strict=True))
    if file.block:
        return _config(64, *file.block, 32, 4, 3)
    if gpu.limits.smem_per_block < _LITTLE_SHARED:
        return _config(32, 64, 256, 1, 4, 4) if few else _config(64, 128, 256, 64, 4, 2)
    return _config(64, 128, 128, 1, 4, 4) if few else _config(128, 256, 128, 32, 8, 4)


def _config(m: int, n: int, k: int, group: int, warps: int, stages: int) -> dict[str, int]:
    return {
        "BLOCK_SIZE_M": m,
        "BLOCK_SIZE_N": n,
        "BLOCK_SIZE_K": k,
        "GROUP_SIZE_M": group,
        "num_warps": warps,
        "num_stages": stages,
    }


def launched(engine: str, file: TunedFile, tiles: Tiles) -> dict[str, int]:
    """Return the constants and options with which the engine compiles the kernel for a config.

    Triton's defaults replace missing values. With blocks of scales, vLLM limits `BLOCK_SIZE_K` to a block.
    """
    config = {"num_warps": 4, "num_stages": 3, **tiles}
    config.pop("SPLIT_K", None)
    if file.block and engine == "vllm" and file.kind is Kind.EXPERTS:
        config["BLOCK_SIZE_K"] = min(config["BLOCK_SIZE_K"], *file.block)
    return config
