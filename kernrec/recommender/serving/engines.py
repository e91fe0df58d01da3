"""Derive the names and locations of the tuned files that vLLM and SGLang look for.

The rules are those of vLLM 0.33.0 (`fused_moe.py`, `fp8_utils.py`) and SGLang 0.5.23 (`fused_moe_triton_config.py`,
`fp8_kernel.py`).
"""

import math
import re
from dataclasses import replace
from enum import StrEnum

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.interop.model_config import UNQUANTIZED, Quantization, ServedModel
from kernrec.interop.moe_configs import ExpertLayer
from kernrec.kernel.expression import parse
from kernrec.util.light_dataclass import dataclass

ENGINES = ("vllm", "sglang")
_LEAST_REFINED = 32
"""Smallest block size to which vLLM divides blocks of scales that do not fit a rank."""


class Kind(StrEnum):
    """Kernel that a file is for."""

    EXPERTS = "experts"
    BLOCK_GEMM = "fp8 block product"


@dataclass(frozen=True)
class Deployment:
    """Deployment of a model: engine, GPU and parallelism."""

    engine: str
    """Engine, one of `ENGINES`."""
    gpu: GPU
    tp: int = 1
    ep: int = 1
    triton: str = ""
    """Release of Triton, such as `3.6.0`: SGLang has a folder for each."""
    device: str = ""
    """Name of the GPU according to its driver; empty for the catalog's."""

    @property
    def device_name(self) -> str:
        """Name of the GPU as the engine spells it in file names."""
        name = self.device or self.gpu.title
        return re.sub(r"[\s/]+", "_", name) if self.engine == "vllm" else name.replace(" ", "_")


@dataclass(frozen=True)
class ProductShape:
    """Matmul that a file's configs are for, on one GPU."""

    rows: int
    """Columns of the output, which are the rows of the weights."""
    depth: int
    experts: int = 1
    top: int = 1


@dataclass(frozen=True)
class TunedFile:
    """Tuned file that an engine looks for."""

    kind: Kind
    name: str
    layers: str
    """Layers that read the file."""
    products: tuple[ProductShape, ...] = ()
    """Matmuls that run with the file's configs, one after another; empty if kernrec does not predict them."""
    dtype: str | None = None
    """Name of the quantization in the file name; None if it has none."""
    quantization: Quantization = UNQUANTIZED
    """Quantization of the weights on one GPU; blocks that do not fit are divided."""
    from_folder: bool = True
    """Whether the engine also reads the file from a folder of the user."""
    note: str = ""

    @property
    def weights(self) -> str | None:
        """Storage of the weights, as `Quantization.kind`."""
        return self.quantization.kind

    @property
    def block(self) -> tuple[int, int] | None:
        """Blocks of the weights' scales, (n, k)."""
        return self.quantization.block


def tuned_files(model: ServedModel, served: Deployment) -> list[TunedFile]:
    """Return the tuned files that an engine looks for when it serves a model.

    Raises:
        UsageError: the model cannot be divided among this number of GPUs.
    """
    return [*_expert_files(model, served), *_block_files(model, served)]


def expert_split(model: ServedModel, served: Deployment) -> tuple[int, int]:
    """Return the experts of one GPU, and the columns of half of an expert's first matmul.

    vLLM keeps experts whole under expert parallelism. SGLang divides each among the `tp / ep` GPUs of its group.

    Raises:
        UsageError: the experts cannot be divided this way.
    """
    experts = model.experts
    assert experts is not None
    tp, ep = served.tp, served.ep
    if experts.count % ep:
        raise UsageError(
            f"--ep is {ep}, and {model.title} has {experts.count} experts, which it does not divide;"
            f" {_divisors_near(experts.count, ep)}"
        )
    if served.engine == "sglang" and tp % ep:
        raise UsageError(f"--ep is {ep} and --tp {tp}: SGLang needs an expert parallel size that divides --tp")
    parts = (1 if ep > 1 else tp) if served.engine == "vllm" else tp // ep
    if experts.width % parts:
        raise UsageError(
            f"--tp is {tp}, and an expert of {model.title} is {experts.width} wide, which it does not divide;"
            f" {_divisors_near(experts.width, tp)}"
        )
    return experts.count // ep, experts.width // parts


def _divisors_near(size: int, gpus: int) -> str:
    """Return a text with the nearest numbers of GPUs that divide a size."""
    below = next(number for number in range(gpus, 0, -1) if size % number == 0)
    above = next((number for number in range(gpus, size + 1) if size % number == 0), None)
    return f"{below} does" if above is None else f"{below} and {above} do"


def _expert_files(model: ServedModel, served: Deployment) -> list[TunedFile]:
    quantization = model.quantization
    if model.experts is None or not reads_files(quantization, served.engine):
        return []
    count, width = expert_split(model, served)
    fused = model.fused_experts if served.engine == "sglang" and served.ep == 1 else 0
    count += fused
    dtype, block, note = quantization.kind, quantization.block, ""
    if dtype is None and model.dtype == "float32":
        dtype = "float32"
    if served.engine == "vllm" and dtype == "int8_w8a8":
        dtype = None  # vLLM has no name for it in file names
    if served.engine == "vllm" and block and (width % block[0] or (served.tp > 1 and width % block[1])):
        refined = math.gcd(*block, width, model.hidden)
        if refined < _LEAST_REFINED:
            raise UsageError(f"{model.title}: {width} columns a GPU cannot be divided into blocks of {block[0]}")
        note, block = f"scales of {block[0]} x {block[1]} are divided to fit {width} columns", (refined, refined)
    sglang = served.engine == "sglang"
    stored = width // 2 if sglang and dtype == "int4_w4a16" else width  # SGLang counts bytes of two weights
    device, by_row = served.device_name.replace("_", " "), sglang and quantization.by_row
    layer = ExpertLayer(count, stored, parse("m"), device, dtype, block, by_row)
    top = model.experts.top + fused
    products = (ProductShape(2 * width, model.hidden, count, top), ProductShape(model.hidden, width, count, top))
    if fused:
        note = f"E counts {fused} shared expert (--disable-shared-experts-fusion leaves it out)"
    name = _named(layer.file_name(served.engine), served)
    predicted = () if quantization.group else products  # engines prefer other kernels for groups of integers
    on_gpu = replace(quantization, block=block)
    return [TunedFile(Kind.EXPERTS, name, "mixture of experts", predicted, dtype, on_gpu, note=note)]


def second_file(file: TunedFile, served: Deployment) -> TunedFile | None:
    """Return the file that SGLang prefers for the second matmul of experts; None if there is none for a kernel."""
    if served.engine != "sglang" or file.kind is not Kind.EXPERTS:
        return None
    name, note = f"{file.name.removesuffix('.json')}_down.json", f"without it, {file.name} is read"
    return replace(file, name=name, layers="second product of experts", products=(), note=note)


def reads_files(quantization: Quantization, engine: str) -> bool:
    """Return whether an engine has a kernel with tuned files for these weights."""
    if quantization.method == "compressed-tensors" and engine == "sglang":  # only Marlin runs its other groups
        return not (quantization.elsewhere or quantization.zero_points or quantization.kind == "int8_w8a16")
    return not quantization.elsewhere


def _named(name: str, served: Deployment) -> str:
    """Return a name with the driver's spelling of the GPU, because `ExpertLayer` replaces underscores with spaces."""
    device = served.device_name
    if served.engine == "vllm" and "H200" in device.split("_"):
        return name
    return re.sub(r"device_name=[^,]*?(?=,|\.json$)", lambda _: f"device_name={device}", name)


def _block_files(model: ServedModel, served: Deployment) -> list[TunedFile]:
    kind, block = model.quantization.kind, model.quantization.block
    if kind != "fp8_w8a8" or block is None:
        return []
    by_name: dict[str, TunedFile] = {}
    comma = "," if served.engine == "vllm" else ", "
    for linear in model.linears:
        if (shape := linear.of_rank(served.tp)) is None:
            raise UsageError(f"--tp is {served.tp}, which does not divide {linear.name} of {model.title}")
        rows, depth = shape
        name = (
            f"N={rows},K={depth},device_name={served.device_name},dtype=fp8_w8a8,"
            f"block_shape=[{block[0]}{comma}{block[1]}].json"
        )
        layers = f"{by_name[name].layers}; {linear.name}" if name in by_name else linear.name
        shapes = (ProductShape(rows, depth),)
        by_name[name] = TunedFile(Kind.BLOCK_GEMM, name, layers, shapes, kind, model.quantization, from_folder=False)
    return list(by_name.values())
