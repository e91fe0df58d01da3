"""An engine's own rules, executed by the engine's modules: the files that it reads, and its configs without one.

    python engine_reader.py vllm "NVIDIA L40S" REQUESTS.json

A process of its own, for it replaces what depends on a card: the driver's name of it, and where the package lies for
files that are read from the package alone. A request is a list: `["experts", E, N, dtype, [n, k] or null, whether
SGLang has a scale for each row]`,
`["product", N, K, [n, k]]`, `["default", tokens, E, N, K, top, dtype, [n, k] or null]`, `["state", width, state,
dtype]`, `["state default", state, whether it is a B200]` or `["package", folder]`; the last line of output has what the
engine answers to each, null where it finds no file. It ends with 3 where a module that the engine imports is not
installed.
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
"""Those that read files of experts, and of fp8 block products."""


def engine_modules(engine: str, device: str) -> tuple[Any, Any]:
    """The two modules, told of a card."""
    modules: list[Any] = [import_module(name) for name in _MODULES[engine]]
    experts, products = modules
    for module in modules:
        if engine == "vllm":  # the engine's spelling of a driver's name stays its own
            module.current_platform.get_device_name = lambda device_id=0: device
            module.current_platform.is_cuda = lambda: True
            import_module("vllm.platforms").current_platform.get_device_name = lambda device_id=0: device
        else:
            module.get_device_name = lambda *arguments: device
    if engine == "sglang":
        experts.get_exec = lambda: SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
        experts._get_cuda_shared_memory_per_block_optin = lambda: 99 << 10  # of the L40S
    return experts, products


def answer(experts: Any, products: Any, engine: str, request: list[Any]) -> Any:
    """What the engine answers to one request."""
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
