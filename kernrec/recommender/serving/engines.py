"""Derive the names and locations of the tuned files that vLLM and SGLang look for.

The rules follow vLLM 0.33.0 (`fused_moe.py`, `fp8_utils.py`, `mamba_ssm.py`, `lora/ops/triton_ops/utils.py`) and SGLang
0.5.23 (`fused_moe_triton_config.py`, `fp8_kernel.py`, `lora_tuning_config.py`).
"""

import math
import re
from dataclasses import replace
from enum import StrEnum

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.interop.model_config import LEAST_GROUP, UNQUANTIZED, ModelConfig, Quantization
from kernrec.interop.moe_configs import ExpertLayer
from kernrec.kernel.expression import parse
from kernrec.util.light_dataclass import dataclass

ENGINES = ("vllm", "sglang")
_LEAST_REFINED = 32
"""Minimum extent of the blocks into which vLLM divides the weights of a scale to fit a GPU's columns."""


class Kind(StrEnum):
    """Kernel that a tuned file configures."""

    EXPERTS = "experts"
    BLOCK_GEMM = "fp8 block product"
    STATE_SPACE = "state space"
    LORA = "LoRA"


@dataclass(frozen=True)
class Deployment:
    """Engine, GPU, parallelism and releases with which a model is served."""

    engine: str
    gpu: GPU
    tp: int = 1
    ep: int = 1
    triton: str = ""
    """Release of Triton, such as `3.6.0`."""
    lora_rank: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        rank = 1 if self.lora_rank is None else self.lora_rank
        for name, value, most in (("tp", self.tp, 1024), ("ep", self.ep, 1024), ("lora rank", rank, 4096)):
            if not (type(value) is int and 1 <= value <= most):
                raise UsageError(f"{name} is {value!r:.40}; a whole number from 1 to {most} is expected")

    @property
    def device_name(self) -> str:
        """Name of the GPU as the engine writes it in file names."""
        return re.sub(r"[\s/]+", "_", self.gpu.title) if self.engine == "vllm" else self.gpu.title.replace(" ", "_")


@dataclass(frozen=True)
class ProductShape:
    """Sizes of a matmul on one GPU."""

    rows: int
    """Number of rows of the weights, and of columns of the output."""
    depth: int
    experts: int = 1
    top: int = 1


@dataclass(frozen=True)
class StateShape:
    """Sizes of a model's state-space layers on one GPU."""

    heads: int
    width: int
    state: int
    """Number of state elements for each element of a head."""
    groups: int
    cache_dtype: str
    """Data type of the state in file names: `float32` or `float16` (also for bfloat16)."""


@dataclass(frozen=True)
class TunedFile:
    """Tuned file that an engine looks for, and the matmuls or layers that it configures."""

    kind: Kind
    name: str
    layers: str
    products: tuple[ProductShape, ...] = ()
    """Matmuls that use the file, in the order of execution."""
    dtype: str | None = None
    """Quantization in the file's name, or None."""
    quantization: Quantization = UNQUANTIZED
    """Quantization of the weights on one GPU."""
    from_folder: bool = True
    """Whether the engine also reads the file from a folder of the user."""
    note: str = ""
    state: StateShape | None = None
    """Sizes of the state-space layers that the file configures, or None."""

    @property
    def weights(self) -> str | None:
        """Quantization of the weights as in `Quantization.kind`, or None."""
        return self.quantization.kind

    @property
    def block(self) -> tuple[int, int] | None:
        """Size (n, k) of the blocks of weights that share a scale, or None if scales are not per block."""
        return self.quantization.block

    @property
    def launches(self) -> int:
        """Number of kernel launches that the file configures, or 0 if their time cannot be predicted."""
        return len(self.products) or int(self.state is not None)

    def entry(self, tokens: int) -> int:
        """Return the key of the file's entry for a number of tokens."""
        return tokens * (self.state.heads if self.state is not None else 1)


def tuned_files(model: ModelConfig, served: Deployment) -> list[TunedFile]:
    """Return the tuned files that an engine looks for when it serves a model.

    Raise `UsageError` if the GPUs cannot share the model equally.
    """
    files = [*_expert_files(model, served), *_block_files(model, served)]
    return [*files, *_state_files(model, served), *_lora_files(model, served)]


def expert_split(model: ModelConfig, served: Deployment) -> tuple[int, int]:
    """Return the number of experts on one GPU, and their width on one GPU.

    Raise `UsageError` if the experts cannot be divided among the GPUs.
    """
    experts = model.experts
    assert experts is not None
    tp, ep = served.tp, served.ep
    if experts.count % ep:
        raise UsageError(
            f"--ep {ep} does not divide the {experts.count} experts of {model.title};"
            f" {_divisors_near(experts.count, ep)}"
        )
    if served.engine == "sglang" and tp % ep:
        raise UsageError(f"--ep is {ep} and --tp {tp}: SGLang needs an expert parallel size that divides --tp")
    parts = (1 if ep > 1 else tp) if served.engine == "vllm" else tp // ep
    if experts.width % parts:
        raise UsageError(
            f"--tp {tp} does not divide the width {experts.width} of an expert of {model.title};"
            f" {_divisors_near(experts.width, tp)}"
        )
    return experts.count // ep, experts.width // parts


def _divisors_near(size: int, gpus: int) -> str:
    below = next(number for number in range(gpus, 0, -1) if size % number == 0)
    above = next((number for number in range(gpus, size + 1) if size % number == 0), None)
    return f"use {below}" if above is None else f"use {below} or {above}"


def _expert_files(model: ModelConfig, served: Deployment) -> list[TunedFile]:
    quantization = model.quantization
    if model.experts is None or not reads_files(quantization, served.engine):
        return []
    count, width = expert_split(model, served)
    fused = model.fused_experts if served.engine == "sglang" and served.ep == 1 else 0
    count += fused
    dtype, block, note, sglang = quantization.kind, quantization.block, "", served.engine == "sglang"
    if dtype is None and model.dtype == "float32":
        dtype = "float32"
    if dtype == "int8_w8a8" and not sglang:
        dtype = None  # vLLM's file names do not contain `int8_w8a8`.
    if not sglang and block and (width % block[0] or (served.tp > 1 and width % block[1])):
        refined = math.gcd(*block, width, model.hidden)
        if refined < _LEAST_REFINED:
            raise UsageError(f"{model.title}: {width} columns per GPU cannot be divided into blocks of {block[0]}")
        note, block = f"scales of {block[0]} x {block[1]} are divided to fit {width} columns", (refined, refined)
    group = _weights_per_scale(model, width)
    # SGLang states widths in bytes instead of columns. A byte contains two 4-bit weights.
    stored = width // 2 if sglang and dtype == "int4_w4a16" else width
    device, by_row = served.device_name.replace("_", " "), sglang and quantization.by_row
    layer = ExpertLayer(count, stored, parse("m"), device, dtype, block, by_row)
    top = model.experts.top + fused
    products = (ProductShape(2 * width, model.hidden, count, top), ProductShape(model.hidden, width, count, top))
    if fused:
        note = f"E counts {fused} shared expert (--disable-shared-experts-fusion leaves it out)"
    name, on_gpu = layer.file_name(served.engine), replace(quantization, block=block, group=group)
    return [TunedFile(Kind.EXPERTS, name, "mixture of experts", products, dtype, on_gpu, note=note)]


def second_file(file: TunedFile, served: Deployment) -> TunedFile | None:
    """Return SGLang's separate file for the experts' second matmul, or None."""
    if served.engine != "sglang" or file.kind is not Kind.EXPERTS:
        return None
    name, note = f"{file.name.removesuffix('.json')}_down.json", f"without it, {file.name} is read"
    return replace(file, name=name, layers="second product of experts", products=(), note=note)


def reads_files(quantization: Quantization, engine: str) -> bool:
    """Return whether an engine's kernel for this quantization reads tuned files."""
    if quantization.method == "compressed-tensors" and engine == "sglang":  # SGLang runs Marlin if this is false.
        return not (quantization.elsewhere or quantization.zero_points or quantization.kind == "int8_w8a16")
    return not quantization.elsewhere


def _weights_per_scale(model: ModelConfig, width: int) -> int:
    group = model.quantization.group
    while group and (width % group or model.hidden % group):
        group //= 2
        if group < LEAST_GROUP:
            raise UsageError(
                f"{model.title}: {width} columns per GPU cannot be divided into groups of {model.quantization.group}"
            )
    return group


def _block_files(model: ModelConfig, served: Deployment) -> list[TunedFile]:
    kind, block = model.quantization.kind, model.quantization.block
    if kind != "fp8_w8a8" or block is None:
        return []
    by_name: dict[str, TunedFile] = {}
    comma = "," if served.engine == "vllm" else ", "
    for linear in model.linears:
        if (shape := linear.of_rank(served.tp)) is None:
            raise UsageError(f"--tp {served.tp} does not divide {linear.name} of {model.title}")
        rows, depth = shape
        name = (
            f"N={rows},K={depth},device_name={served.device_name},dtype=fp8_w8a8,"
            f"block_shape=[{block[0]}{comma}{block[1]}].json"
        )
        layers = f"{by_name[name].layers}; {linear.name}" if name in by_name else linear.name
        shapes = (ProductShape(rows, depth),)
        by_name[name] = TunedFile(Kind.BLOCK_GEMM, name, layers, shapes, kind, model.quantization, from_folder=False)
    return list(by_name.values())


def _state_files(model: ModelConfig, served: Deployment) -> list[TunedFile]:
    space = model.state_space
    if space is None or served.engine != "vllm":
        return []
    name = (
        f"headdim={space.head_width},dstate={space.state},device_name={served.device_name},"
        f"cache_dtype={space.cache_dtype}.json"
    )
    if space.heads % served.tp:
        raise UsageError(
            f"--tp {served.tp} does not divide the {space.heads} state heads of {model.title};"
            f" {_divisors_near(space.heads, served.tp)}"
        )
    groups = max(1, space.groups // served.tp)
    shape = StateShape(space.heads // served.tp, space.head_width, space.state, groups, space.cache_dtype)
    return [TunedFile(Kind.STATE_SPACE, name, "state space, one token a sequence", state=shape)]


def _lora_files(model: ModelConfig, served: Deployment) -> list[TunedFile]:
    rank = served.lora_rank
    if rank is None:
        return []
    if served.engine == "vllm":
        device = served.device_name.replace("-", "_")
        steps = ["SHRINK", "EXPAND_TRUE", "EXPAND_FALSE"]
        if model.experts is not None:
            steps += [f"FUSED_MOE_LORA_{part}_{step}" for part in ("W13", "W2") for step in ("SHRINK", "EXPAND")]
        return [TunedFile(Kind.LORA, f"{device}_{step}.json", step.lower().replace("_", " ")) for step in steps]
    names: dict[str, str] = {}
    for linear in model.linears:
        if (shape := linear.of_rank(served.tp)) is None:
            continue
        slices = 3 if linear.shared_heads else 2 if "gate and up" in linear.name else 1
        for step, size in (("shrink", shape[1]), ("expand", shape[0])):
            name = f"lora_{step},K={size},R={rank},S={slices},device={served.device_name}.json"
            names[name] = f"{names[name]}; {linear.name}" if name in names else linear.name
    return [TunedFile(Kind.LORA, name, layers) for name, layers in names.items()]
