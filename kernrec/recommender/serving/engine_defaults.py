"""Reproduce an engine's default config without a tuned file.

The rules are those for NVIDIA GPUs in vLLM 0.30.0 to 0.33.0 (`get_default_config` in `fused_moe.py`,
`w8a8_triton_block_scaled_mm` in `fp8_utils.py`) and SGLang 0.5.20 to 0.5.23 (`get_default_config` in
`fused_moe_triton_config.py`, `fp8_kernel.py`).
"""

from collections.abc import Mapping

from kernrec.gpu import GPU
from kernrec.recommender.serving.engines import Kind, TunedFile

Tiles = Mapping[str, int]

KEYS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens in 288 of the 338 expert files of vLLM 0.33.0, and in most of SGLang's."""
_LITTLE_SHARED = 128 << 10
"""Bytes of shared memory per block below which SGLang has other fp8 defaults."""


def default_config(engine: str, file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    """Return the config that an engine runs without a file.

    Args:
        engine: `vllm` or `sglang`.
        file: the missing file.
        tokens: number of tokens in a step.
        gpu: GPU whose shared memory decides in SGLang.
    """
    if file.kind is Kind.BLOCK_GEMM:
        n, k = file.block or (128, 128)
        return _config(64, n, k, 32, 4, 2 if engine == "vllm" else 3)
    rule = _vllm_experts if engine == "vllm" else _sglang_experts
    return rule(file, tokens, gpu)


def _vllm_experts(file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    experts = file.products[0].experts
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
    """Return the constants and options that the kernel is compiled with for a config.

    Triton's defaults replace missing values. With blocks of scales, vLLM limits `BLOCK_SIZE_K` to a block.
    """
    config = {"num_warps": 4, "num_stages": 3, **tiles}
    config.pop("SPLIT_K", None)
    if file.block and engine == "vllm" and file.kind is Kind.EXPERTS:
        config["BLOCK_SIZE_K"] = min(config["BLOCK_SIZE_K"], *file.block)
    return config
