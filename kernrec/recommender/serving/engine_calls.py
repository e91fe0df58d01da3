"""Describe launches of an engine's kernel with given configs, in the form that `kernrec analyze` can analyze.

`kernels/experts.py` replaces the engine's kernel if the engine is not installed. The arguments of state-space layers
follow vLLM 0.33.0 (`mamba_ssm.py`, `mamba_mixer2.py`) without speculative decoding.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.profile.triton_call_file import TritonCall
from kernrec.recommender.analyze.triton import argument
from kernrec.recommender.serving.engine_defaults import Tiles, launched, stated_tiles
from kernrec.recommender.serving.engines import Deployment, Kind, ProductShape, StateShape, TunedFile
from kernrec.recommender.serving.routing import Routing, routed
from kernrec.recommender.serving.tuned_files import installed_package
from kernrec.util.light_dataclass import dataclass

STAND_IN = Path(__file__).parent / "kernels" / "experts.py"
OWN_KERNELS = {
    ("vllm", Kind.EXPERTS): "vllm.model_executor.layers.fused_moe.fused_moe:fused_moe_kernel",
    ("vllm", Kind.STATE_SPACE): "vllm.model_executor.layers.mamba.ops.mamba_ssm:_selective_scan_update_kernel",
    ("vllm", Kind.BLOCK_GEMM): "vllm.model_executor.layers.quantization.utils.fp8_utils:_w8a8_triton_block_scaled_mm",
    ("sglang", Kind.EXPERTS): "sglang.kernels.ops.moe.fused_moe_triton_kernels:fused_moe_kernel",
    ("sglang", Kind.BLOCK_GEMM): "sglang.kernels.ops.gemm.fp8_kernel:_w8a8_block_fp8_matmul",
}
"""Kernel that a tuned file configures, as `module:function`, keyed by engine and type of file."""
_OF_GROUPS = "_gptq_awq"
"""Suffix of the kernel's name for experts with group-quantized integer weights."""
_ELEMENTS = {None: "bf16", "fp8_w8a8": "f8e4m3", "int8_w8a8": "i8", "int8_w8a16": "bf16", "int4_w4a16": "bf16"}
"""Data type of a matmul's inputs, keyed by the quantization of its weights."""
_NONE = {"python": "None"}


@dataclass(frozen=True)
class Step:
    """Matmul that a tuned file configures, with a number of tokens."""

    file: TunedFile
    served: Deployment
    tokens: int
    product: int
    """Index of the matmul in `file.products`."""

    @property
    def shape(self) -> ProductShape:
        return self.file.products[self.product]

    @property
    def rows(self) -> int:
        """Rows of the input: tokens or, in the second matmul, pairs of a token and an expert."""
        return self.tokens if self.product == 0 else self.tokens * self.shape.top

    def routing(self, rows: int) -> Routing:
        """Return the experts of all tokens, arranged in tiles of `rows` rows."""
        top, experts = self.shape.top, self.shape.experts
        apart = self.served.engine == "vllm" and self.file.kind is Kind.EXPERTS
        return routed(self.tokens, experts, top, rows, ranks=self.served.ep, apart_allowed=apart)


def own_kernel(served: Deployment, file: TunedFile) -> str | None:
    """Return the engine's kernel as `module:function`, or None if the engine is not installed."""
    kernel = OWN_KERNELS.get((served.engine, file.kind)) if installed_package(served.engine) else None
    return f"{kernel}{_OF_GROUPS}" if kernel and file.quantization.group else kernel


def own_alone(file: TunedFile) -> bool:
    """Return whether only the engine's kernel can be analyzed, because kernrec has no replacement."""
    return file.state is not None or file.quantization.group > 0


def calls(step: Step, configs: Sequence[Tiles]) -> list[tuple[TritonCall, list[Tiles]]]:
    """Return calls that launch the matmul, each with its configs.

    Raise `KernrecError` if there is no kernel to analyze, or if the kernel has unknown arguments.
    """
    own = own_kernel(step.served, step.file)
    if own is None and own_alone(step.file):
        raise KernrecError(f"{step.file.name}: {step.served.engine} is not installed, so its kernel cannot be analyzed")
    if step.file.state is not None:
        assert own is not None
        tiles = [launched(step.served.engine, step.file, config) for config in configs]
        return [(_state_call(step.file.state, step.tokens, tiles, _file_of(step, own), own), list(configs))]
    by_rows: dict[tuple[int, bool], list[Tiles]] = {}
    # Configs with missing values have their own calls, because the engine's defaults may make two configs equal.
    for config in configs:
        by_rows.setdefault((config["BLOCK_SIZE_M"], "BLOCK_SIZE_N" in config), []).append(config)
    make = _stand_in_call if own is None else _own_call
    return [(make(step, rows, group, own or ""), group) for (rows, _), group in by_rows.items()]


def _operands(step: Step, routing: Routing) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    shape, element = step.shape, _ELEMENTS[step.file.weights]
    stored = "u8" if step.file.quantization.group else element
    return (
        {"dtype": element, "shape": [step.rows, shape.depth]},
        {"dtype": stored, "shape": [shape.experts, shape.rows, shape.depth // _packed(step.file)]},
        {"dtype": "bf16", "shape": [routing.choices, shape.rows]},
    )


def _packed(file: TunedFile) -> int:
    return 2 if file.weights == "int4_w4a16" else 1


def _scales(step: Step) -> tuple[dict[str, Any], dict[str, Any]]:
    shape, block, quantization = step.shape, step.file.block, step.file.quantization
    if quantization.group:
        return _NONE, {"dtype": "bf16", "shape": [shape.experts, shape.rows, shape.depth // quantization.group]}
    if quantization.by_row:
        return {"dtype": "f32", "shape": [step.rows, 1]}, {"dtype": "f32", "shape": [shape.experts, shape.rows, 1]}
    if block is None:
        return {"dtype": "f32", "shape": [1]}, {"dtype": "f32", "shape": [shape.experts]}
    n, k = -(-shape.rows // block[0]), -(-shape.depth // block[1])
    return {"dtype": "f32", "shape": [step.rows, k]}, {"dtype": "f32", "shape": [shape.experts, n, k]}


def _stand_in_call(step: Step, rows: int, configs: Sequence[Tiles], _: str) -> TritonCall:
    routing = step.routing(rows)
    inputs, weights, outputs = _operands(step, routing)
    (by_token, by_weight), block = _scales(step), step.file.block
    arguments = {
        "tokens": inputs,
        "weights": weights,
        "out": outputs,
        "token_scales": by_token,
        "weight_scales": by_weight,
        "order": argument(routing.order),
        "expert_of_tile": argument(routing.experts),
        "n": step.shape.rows,
        "k": step.shape.depth,
        "choices": routing.choices,
        "tiles_m": len(routing.experts),
        "TOP": _experts_per_row(step),
        "BLOCK_SCALES": block is not None,
        "SCALE_N": block[0] if block else 1,
        "SCALE_K": block[1] if block else step.shape.depth,
    }
    tiles = [launched(step.served.engine, step.file, config) for config in configs]
    return TritonCall(
        STAND_IN, "grouped_experts", arguments, _grid(len(routing.experts), "n"), tiles, _operations(step, routing)
    )


def _experts_per_row(step: Step) -> int:
    return step.shape.top if step.product == 0 else 1


def _grid(tiles: int, columns: str) -> list[str]:
    return [f"{tiles} * ceil_div({columns}, BLOCK_SIZE_N)"]


def _operations(step: Step, routing: Routing) -> str:
    choices = int((routing.order < routing.choices).sum())
    return str(2 * choices * step.shape.rows * step.shape.depth)


def _file_of(step: Step, own: str) -> Path:
    folder, _ = installed_package(step.served.engine) or (Path(), "")
    return folder.parent / (own.partition(":")[0].replace(".", "/") + ".py")


def _own_call(step: Step, rows: int, configs: Sequence[Tiles], own: str) -> TritonCall:
    module, _, function = own.partition(":")
    path, routing = _file_of(step, own), step.routing(rows)
    values = {**_known_arguments(step, routing), **_arguments_of_group_scales(step)}
    constants = _known_constants(step)
    arguments: dict[str, Any] = {}
    varying: list[str] = []
    for name, has_default in parameters_of(path, function):
        if name in values:
            arguments[name] = values[name]
        elif name in constants:
            varying.append(name)
        elif not has_default and not name.startswith(("BLOCK_SIZE_", "GROUP_SIZE_")):
            _, release = installed_package(step.served.engine) or (Path(), "")
            raise KernrecError(
                f"{own} of {step.served.engine} {release} has the argument {name}, which kernrec does not know"
            )
    chosen = [stated_tiles(launched(step.served.engine, step.file, config), step.rows) for config in configs]
    tiles = [{**config, **{name: constants[name](config) for name in varying}} for config in chosen]
    grid = _grid(len(routing.experts), "N")
    return TritonCall(path, function, arguments, grid, tiles, _operations(step, routing), module=module)


@cache
def parameters_of(path: Path, function: str) -> list[tuple[str, bool]]:
    """Return the parameters of a function, and whether each has a default value. The file is not executed.

    Raise `UsageError` if the file has no such function.
    """
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            names = [parameter.arg for parameter in node.args.args]
            without = len(names) - len(node.args.defaults)
            return [(name, place >= without) for place, name in enumerate(names)]
    raise UsageError(f"{path} has no function {function}: this release of the engine is not known")


def _known_arguments(step: Step, routing: Routing) -> Mapping[str, Any]:
    inputs, weights, outputs = _operands(step, routing)
    by_token, by_weight = _scales(step)
    shape, kind, by_row = step.shape, step.file.weights, step.file.quantization.by_row
    block_n, block_k = step.file.block or (0, 0)
    several = bool(block_n or by_row)  # A single scale has no strides.
    depth_blocks, row_blocks = (by_token["shape"][-1], by_weight["shape"][1]) if several else (0, 0)
    shared = {
        "N": shape.rows,
        "K": shape.depth,
        **_strides("a", m=shape.depth, k=1),
        **_strides("b", k=1, n=shape.depth),
        **_strides("c", m=shape.rows, n=1),
        "group_n": block_n,
        "group_k": block_k,
        "needs_masking": shape.depth % (block_k or 1) != 0,
    }
    if step.file.kind is Kind.BLOCK_GEMM:
        strides = {**_strides("As_", m=depth_blocks, k=1), **_strides("Bs_", k=1, n=depth_blocks)}
        operands = {"A": inputs, "B": {**weights, "shape": weights["shape"][1:]}, "C": outputs}
        return {**shared, **strides, **operands, "As": by_token, "Bs": by_weight, "M": step.tokens}
    return {
        **shared,
        "a_ptr": inputs,
        "b_ptr": weights,
        "c_ptr": outputs,
        **dict.fromkeys(("a_desc", "b_desc", "bias_ptr", "b_bias_ptr", "add_mask_ptr"), _NONE),
        "a_scale_ptr": by_token if kind else _NONE,
        "b_scale_ptr": by_weight if kind else _NONE,
        "topk_weights_ptr": {"dtype": "f32", "shape": [routing.choices]},
        "sorted_token_ids_ptr": _NONE if routing.apart else argument(routing.order),
        "expert_ids_ptr": argument(routing.experts),
        "num_tokens_post_padded_ptr": argument(np.array([len(routing.order)], np.int32)),
        "EM": len(routing.order),
        "num_valid_tokens": routing.choices,
        **_strides("as", m=depth_blocks, k=int(several)),
        **_strides("b", e=shape.rows * shape.depth, be=0, bn=0),
        **_strides("bs", e=row_blocks * depth_blocks if several else int(kind is not None), k=int(several)),
        **_strides("bs", n=depth_blocks),
        **_strides("bias_", e=0, n=0),
        "naive_block_assignment": routing.apart,
        "MUL_ROUTED_WEIGHT": step.product == 1,
        "top_k": _experts_per_row(step),
        "compute_type": {"python": "tl.bfloat16"},
        **{f"use_{name}": kind == name for name in ("fp8_w8a8", "int8_w8a8")},
        "per_channel_quant": by_row,
        "SPLIT_K": 1,
        **dict.fromkeys(("use_int8_w8a16", "HAS_BIAS", "c_sorted", "FUSE_ADD_TO_OUTPUT"), False),
        **dict.fromkeys(("MASK_OUTPUT", "FUSE_SUM_ALL_REDUCE"), False),
        "ROUTER_TOPK": step.file.products[0].top,
    }


def _arguments_of_group_scales(step: Step) -> Mapping[str, Any]:
    file, shape, quantization = step.file, step.shape, step.file.quantization
    if not quantization.group:
        return {}
    packed, groups = _packed(file), shape.depth // quantization.group
    zeros = {"dtype": "u8", "shape": [shape.experts, shape.rows // packed, groups]}
    strides = {"e": shape.rows // packed * groups, "k": 1, "n": groups}
    return {
        "b_zp_ptr": zeros if quantization.zero_points else _NONE,
        **_strides("b", e=shape.rows * shape.depth // packed, n=shape.depth // packed),
        **_strides("bs", e=shape.rows * groups, k=1, n=groups),
        **_strides("bz", **(strides if quantization.zero_points else dict.fromkeys(strides, 0))),
        "group_size": quantization.group,
        "has_zp": quantization.zero_points,
        **{f"use_{name}": file.weights == name for name in ("int4_w4a16", "int8_w8a16")},
    }


def _strides(prefix: str, **sizes: int) -> dict[str, int]:
    return {f"stride_{prefix}{axis}": size for axis, size in sizes.items()}


def _known_constants(step: Step) -> Mapping[str, Callable[[Tiles], int]]:
    """Return functions that compute the kernel's constants from a config, keyed by parameter."""
    hopper_fp8 = step.served.gpu.sm == 90 and step.file.weights == "fp8_w8a8"

    def swapped(config: Tiles) -> int:
        return int(hopper_fp8 and config["BLOCK_SIZE_M"] < 64 and config["BLOCK_SIZE_N"] >= 64)

    def whole_steps(config: Tiles) -> int:
        return int(step.shape.depth % config["BLOCK_SIZE_K"] == 0)

    return {"SWAP_AB": swapped, "swap_ab": swapped, "even_Ks": whole_steps, "block_k_diviable": whole_steps}


def _state_call(shape: StateShape, batch: int, tiles: Sequence[Tiles], path: Path, own: str) -> TritonCall:
    """Return a launch of the state-space kernel for `batch` sequences with one token each.

    `path` contains the kernel's source. `own` is vLLM's kernel as `module:function`.
    """
    heads, width, state = shape.heads, shape.width, shape.state
    mixed = heads * width + 2 * shape.groups * state  # The preceding convolution has `mixed` outputs per token.
    sequences = np.arange(1, batch + 1, dtype=np.int32)  # Start at 1: entry 0 of the cache is unused.
    of_tokens = {"dtype": "bf16", "shape": [batch, mixed]}
    of_heads = {"dtype": "bf16", "shape": [heads]}
    cache = {"float32": "f32", "float16": "bf16"}[shape.cache_dtype]
    arguments: dict[str, Any] = {
        "state_ptr": {"dtype": cache, "shape": [batch + 1, heads, width, state]},
        "rand_seed_ptr": _NONE,
        "x_ptr": of_tokens,
        "dt_ptr": {"dtype": "bf16", "shape": [batch, heads]},
        "dt_bias_ptr": of_heads,
        "A_ptr": {"dtype": "f32", "shape": [heads]},
        "B_ptr": of_tokens,
        "C_ptr": of_tokens,
        "D_ptr": of_heads,
        "z_ptr": _NONE,
        "out_ptr": {"dtype": "bf16", "shape": [batch, heads, width]},
        "state_batch_indices_ptr": argument(sequences),
        "dst_state_batch_indices_ptr": argument(sequences),
        "num_accepted_tokens_ptr": _NONE,
        "cu_seqlens_ptr": _NONE,
        "null_block_id": 0,
        "N": batch,
        "nheads": heads,
        "dim": width,
        "dstate": state,
        "nheads_ngroups_ratio": heads // shape.groups,
        **_strides("state_", batch=heads * width * state, head=width * state, dim=state, dstate=1),
        **_strides("x_", batch=mixed, head=width, dim=1),
        **_strides("dt_", batch=heads, head=1, dim=0),
        **_strides("dt_bias_", head=1, dim=0),
        **_strides("A_", head=1, dim=0, dstate=0),
        **_strides("B_", batch=mixed, group=state, dstate=1),
        **_strides("C_", batch=mixed, group=state, dstate=1),
        **_strides("D_", head=1, dim=0),
        **_strides("z_", batch=0, head=0, dim=0),
        **_strides("out_", batch=heads * width, head=width, dim=1),
        **_strides("state_indices_", batch=1, T=1),
        **_strides("dst_state_indices_", batch=1, T=1),
        "DT_SOFTPLUS": True,
        "TIE_HDIM": True,
        "USE_RS_ROUNDING": False,
        "PHILOX_ROUNDS": 0,
    }
    module, _, function = own.partition(":")
    grid = ["ceil_div(dim, BLOCK_SIZE_M)", "N", "nheads"]
    operations = f"6 * {batch * heads * width * state}"
    return TritonCall(path, function, arguments, grid, tiles, operations, module=module)
