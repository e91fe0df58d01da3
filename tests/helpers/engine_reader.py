"""Ask vLLM or SGLang which config file it reads for a problem, and which defaults it uses without a file.

    python engine_reader.py vllm "NVIDIA L40S" REQUESTS.json

The module runs as a separate process, because it replaces the engine's GPU name and its folder of config files.
REQUESTS.json has a list of requests, where [n, k] is the block size of scales, or null:

    ["experts", E, N, dtype, [n, k], whether SGLang scales each row]   ["product", N, K, [n, k]]
    ["default", tokens, E, N, K, top, dtype, [n, k]]   ["state", width, state, dtype]
    ["state default", state, whether the GPU is a B200]   ["package", folder]

The last line of output is a list of answers, with null for a missing file. Exit status 3: the engine lacks a module.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_MODULES = {
    "vllm": (
        "vllm.model_executor.layers.fused_moe.fused_moe",
        "vllm.model_executor.layers.quantization.utils.fp8_utils",
    ),
    "sglang": (
        "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config",
        "sglang.kernels.ops.gemm.fp8_kernel",
    ),
}
"""Modules of each engine that read the config files of MoE layers and of fp8 block matmuls."""


def engine_modules(engine: str, device: str) -> tuple[Any, Any]:
    """Import the engine's two modules, and make them use the GPU name `device`."""
    modules: list[Any] = [import_module(name) for name in _MODULES[engine]]
    experts, products = modules
    for module in modules:
        if engine == "vllm":  # replace the name that the driver reports
            module.current_platform.get_device_name = lambda device_id=0: device
            module.current_platform.is_cuda = lambda: True
            import_module("vllm.platforms").current_platform.get_device_name = lambda device_id=0: device
        else:
            module.get_device_name = lambda *arguments: device
    if engine == "sglang":
        experts.get_exec = lambda: SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
        experts._get_cuda_shared_memory_per_block_optin = lambda: 99 << 10  # the L40S's limit
    return experts, products


def answer(experts: Any, products: Any, engine: str, request: list[Any]) -> Any:
    kind, *values = request
    if kind == "package":
        products.__file__ = str(Path(values[0], *_MODULES[engine][1].split(".")[1:]).with_suffix(".py"))
        return None
    if kind == "experts":
        e, n, dtype, block, by_row = values
        rows = {"per_channel_quant": True} if by_row else {}
        return experts.get_moe_configs(e, n, dtype, *(block or ()), **rows)
    if kind == "product":
        n, k, block = values
        return products.get_w8a8_block_fp8_configs(n, k, *block)
    if kind.startswith("state"):
        layers = import_module("vllm.model_executor.layers.mamba.ops.mamba_ssm")
        return (layers.get_ssm_configs if kind == "state" else layers._get_default_ssm_launch_config)(*values)
    tokens, e, n, k, top, dtype, block = values
    marlin = () if engine == "vllm" else (False,)
    return experts.get_default_config(tokens, e, n, k, top, dtype, *marlin, block)


if __name__ == "__main__":
    try:
        own = engine_modules(sys.argv[1], sys.argv[2])
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    print(json.dumps([answer(*own, sys.argv[1], request) for request in json.loads(Path(sys.argv[3]).read_text())]))
