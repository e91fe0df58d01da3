"""Reproduce how engines select their kernel and their default config, and list configs to compare with the default.

The rules for defaults follow the code for NVIDIA GPUs in vLLM 0.30.0 to 0.33.0 (`get_default_config` in `fused_moe.py`,
`w8a8_triton_block_scaled_mm` in `fp8_utils.py`; in 0.33.0 `_get_default_ssm_launch_config` in `mamba_ssm.py`) and
SGLang 0.5.20 to 0.5.23 (`get_default_config` in `fused_moe_triton_config.py`, `fp8_kernel.py`).

Candidates are the most frequent tiles in the 16-bit and 8-bit files of vLLM 0.33.0.

The order in which engines prefer kernels follows vLLM 0.33.0 (`fused_moe/oracle/{unquantized,fp8,int_wna16}.py` and
`kernels/linear/__init__.py`) with FlashInfer and DeepGEMM, and SGLang 0.5.23
(`quantization/{fp8,fp8_utils,moe_wna16}.py`). Flags of the engines override this order.
"""

from collections.abc import Iterable, Mapping

from kernrec.gpu import GPU
from kernrec.recommender.serving.engines import Deployment, Kind, TunedFile

Tiles = Mapping[str, int]

KEYS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens for which kernrec writes entries, as in most files of vLLM 0.33.0 and SGLang."""
_LITTLE_SHARED = 128 << 10
"""Bytes of shared memory per block below which SGLang has other defaults for fp8."""

_CUDA_GROUPS, _CUDA_ROWS = (32, 64, 128), 6
"""Group sizes and maximum rows per expert for which vLLM uses its CUDA kernel for 4-bit weights."""
_DATA_CENTER_BLACKWELL = 10
_BY_STATE = {16: (32, 4), 32: (16, 4), 64: (8, 4), 128: (4, 4)}
"""vLLM's default tile rows and warps for state-space layers, keyed by maximum state size."""


def entry_for(keys: Iterable[int], tokens: int) -> int:
    """Return the key whose entry an engine uses for a number of tokens: the nearest (first of two equally near)."""
    return min(keys, key=lambda key: abs(key - tokens))


def default_config(engine: str, file: TunedFile, tokens: int, gpu: GPU) -> dict[str, int]:
    """Return the config that an engine (`vllm`, `sglang`) runs without a tuned file."""
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
    """Return vLLM's default config for experts with integer weights, without the columns and depth of a tile."""
    shape = file.products[0]
    few = file.weights == "int4_w4a16" and file.quantization.group in _CUDA_GROUPS
    if few and tokens * shape.top <= _CUDA_ROWS * shape.experts:
        rows = min(16, 1 << (tokens - 1).bit_length())
    else:
        rows = 16 if tokens <= 20 else 32 if tokens <= 40 else 64
    return {"BLOCK_SIZE_M": rows, "GROUP_SIZE_M": 1, "SPLIT_K": 1}


def stated_tiles(tiles: Tiles, rows: int) -> Tiles:
    """Add vLLM's default columns and depth of a tile to a config if they are missing."""
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
    """Return the constants and options with which the engine compiles the kernel for a config."""
    config = {"num_warps": 4, "num_stages": 3, **tiles}
    config.pop("SPLIT_K", None)
    if file.block and engine == "vllm" and file.kind is Kind.EXPERTS:
        config["BLOCK_SIZE_K"] = min(config["BLOCK_SIZE_K"], *file.block)
    return config


_SMALL = (
    (16, 32, 128, 4, 4), (16, 32, 256, 4, 3), (16, 64, 128, 4, 4), (16, 64, 256, 4, 3), (16, 128, 64, 4, 3),
    (16, 128, 128, 4, 3), (16, 128, 128, 8, 4),
)  # fmt: skip
_MIDDLE = (
    (32, 64, 128, 4, 4), (32, 128, 64, 4, 3), (32, 128, 128, 4, 4), (64, 64, 64, 4, 4), (64, 128, 64, 4, 3),
    (64, 128, 128, 4, 3),
)  # fmt: skip
_LARGE = (
    (64, 256, 64, 8, 4), (128, 64, 64, 4, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3),
)  # fmt: skip
"""Candidates for matmuls in 16 bits: rows, columns and depth of a tile, number of warps, number of stages."""
_OF_LANE = range(4, 33)
"""Acceptable numbers of state elements per thread."""


def listed_candidates(file: TunedFile, tokens: int, gpu: GPU) -> list[Tiles]:
    """Return a short list of candidate configs that fit in the GPU's shared memory."""
    if (layers := file.state) is not None:
        return [
            {"BLOCK_SIZE_M": rows, "num_warps": warps}
            for rows in (4, 8, 16, 32, 64)
            for warps in (1, 2, 4, 8)
            if rows <= layers.width and rows * layers.state // (32 * warps) in _OF_LANE
        ]
    shape = file.products[0]
    rows = tokens * shape.top / min(shape.experts, max(1, tokens * shape.top))  # Assume balanced experts.
    tiles = list(_SMALL) if rows <= 16 else []
    tiles += _MIDDLE if 8 < rows <= 160 else ()
    tiles += _LARGE if rows > 64 else ()
    grouped = 1 if rows <= 64 else 16
    eight = file.weights is not None and not file.quantization.group  # Activations also have 8 bits.
    unique: dict[tuple[int, ...], Tiles] = {}
    for m, n, k, warps, stages in tiles:
        k = k * 2 if eight and file.block is None and k < 256 else k
        k = min(k, file.block[1]) if file.block else k
        k = max(k, file.block[1]) if file.block and file.kind is Kind.BLOCK_GEMM else k
        while file.quantization.group and any(product.depth % k for product in file.products):
            k //= 2  # The depth of a tile must divide the depth of each matmul.
        width = 1 if eight else 2
        while (m + n) * k * width * (stages - 1) > gpu.limits.smem_per_block and stages > 2:
            stages -= 1
        if (m + n) * k * width * (stages - 1) > gpu.limits.smem_per_block:
            continue
        config = _config(m, n, k, grouped, warps, stages)
        unique.setdefault(tuple(config.values()), config)
    return list(unique.values())


def kernel_taken(file: TunedFile, served: Deployment) -> str:
    """Return the kernel that an engine runs instead of the tuned kernel, or an empty string.

    If a flag of the engine selects the tuned kernel, the flag follows in parentheses.
    """
    sm = served.gpu.sm
    if file.quantization.group:
        if file.quantization.method != "compressed-tensors":
            return "Marlin (--quantization moe_wna16)"
        return f"Marlin ({'--moe-backend' if served.engine == 'vllm' else '--moe-runner-backend'} triton)"
    if served.engine == "vllm":
        if file.kind is Kind.EXPERTS:
            taken = _vllm_experts_kernel(file, served, sm)
            return f"{taken} (--moe-backend triton)" if taken else ""
        if file.kind is Kind.BLOCK_GEMM:
            return f"{'DeepGEMM or CUTLASS' if sm >= 90 else 'Marlin'} (--linear-backend triton)"
    elif file.kind is Kind.BLOCK_GEMM and sm >= 90:
        return "CUTLASS (--fp8-gemm-backend triton)" if sm // 10 == 12 else "DeepGEMM (--fp8-gemm-backend triton)"
    return ""


def _vllm_experts_kernel(file: TunedFile, served: Deployment, sm: int) -> str:
    family = sm // 10
    if file.weights is None:
        return {10: "FlashInfer TRTLLM", 12: "FlashInfer CUTLASS"}.get(family, "")
    if file.weights != "fp8_w8a8":
        return ""
    if file.block == (128, 128):
        if sm == 90:
            return "FlashInfer CUTLASS" if served.ep > 1 else ""
        return {10: "FlashInfer TRTLLM", 12: "DeepGEMM"}.get(family, "")
    if file.block is not None:
        return ""  # Only the tuned kernel supports blocks other than 128 x 128.
    return {9: "FlashInfer or vLLM's CUTLASS", 10: "FlashInfer", 12: "FlashInfer CUTLASS"}.get(family, "")
