"""Estimate and check the memory that a network needs: weights, keys and values, activations, workspaces."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.op.dtype import FORMATS, bytes_of
from kernrec.op.workload import Layer, Workload
from kernrec.recommender.json_form import JsonForm
from kernrec.util.light_dataclass import dataclass

WORKSPACE_BYTES = 1 << 30
"""Assumed bytes of the CUDA context, library workspaces and captured CUDA graphs."""
_WEIGHTS = {"matmul": ("b", "bias"), "matvec": ("a",), "conv2d": ("w", "bias"), "moe": ("gate", "up", "down")}
_WEIGHTS |= dict.fromkeys(("rmsnorm", "layernorm"), ("weight", "bias"))
_MOST_GPUS = 64


@dataclass(frozen=True)
class Memory(JsonForm):
    """Memory that one GPU needs to run a network, in bytes."""

    JSON = "needed_bytes weights_bytes cache_bytes activations_bytes workspaces_bytes"

    weights_bytes: int
    cache_bytes: int
    """Bytes of keys and values of all sequences, at their full context length."""
    activations_bytes: int
    workspaces_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.activations_bytes + self.workspaces_bytes

    def fits(self, gpu: GPU) -> bool:
        return self.needed_bytes <= gpu.usable_bytes

    def __str__(self) -> str:
        names = ("weights", "keys and values", "activations")
        sizes = (self.weights_bytes, self.cache_bytes, self.activations_bytes)
        listed = [f"{name} {gigabytes(size)}" for name, size in zip(names, sizes, strict=True) if size >= 5e6]
        return ", ".join([*listed, f"workspaces {gigabytes(self.workspaces_bytes)} (assumed)"])


class DoesNotFitError(KernrecError):
    """A network needs more memory than a GPU has. The message suggests changes with which the network fits."""

    def __init__(self, message: str, memory: Memory, short: str) -> None:
        super().__init__(message)
        self.memory = memory
        self.short = short


def memory_of(workload: Workload, layers: Sequence[Layer]) -> Memory:
    """Return the memory that one GPU needs to run a network.

    Activations take twice the bytes of the largest layer, because inputs stay in memory while the next layer writes. If
    layers are independent, only the largest layer counts.
    """
    if not workload.one_network or len(layers) < len(workload.layers):
        return Memory(0, 0, max(sum(map(int, layer.problem.tensor_bytes.values())) for layer in layers), 0)
    dtypes = [layer.problem.dtype for layer in reversed(layers)]
    dtype = next((dtype for dtype in dtypes if dtype not in FORMATS), "bf16")  # Embeddings are not quantized.
    weights, cache, largest = bytes_of(workload.embedding, dtype), 0, 0
    for layer in layers:
        own, cached, moved = _parts(layer.problem)
        weights += layer.count // layer.parts * own
        cache += layer.count * cached
        largest = max(largest, moved)
    if workload.cache:
        cache = bytes_of(workload.cache, dtype) * workload.batch
    return Memory(weights, cache, 2 * largest, WORKSPACE_BYTES)


def _parts(problem: Problem) -> tuple[int, int, int]:
    """Return the bytes of a layer's (weights, keys and values, other tensors)."""
    sizes, tensors = problem.dim, problem.tensor_bytes
    names = () if sizes.get("batch", 1) > 1 and problem.op == "matmul" else _WEIGHTS.get(problem.op, ())
    weights = sum(size for name, size in tensors.items() if name.removesuffix("_scale") in names)
    cached = problem.op == "attention" and (sizes["queries"] == 1 or sizes["causal"])
    cache = tensors["k"] + tensors["v"] if cached else 0
    return int(weights), int(cache), int(sum(tensors.values()) - weights - cache)


def shortage(
    workload: Workload, memory: Memory, gpu: GPU, other: Callable[[int, int], tuple[Workload, Sequence[Layer]]]
) -> DoesNotFitError:
    """Return the error for a network that exceeds a GPU's memory. The message suggests the smallest change that helps.

    `other` is a function that returns the network and its layers for a batch size and number of GPUs.
    """

    def fits(batch: int, tp: int) -> bool:
        try:
            return memory_of(*other(batch, tp)).fits(gpu)
        except UsageError:  # Networks refuse some batch sizes and numbers of GPUs.
            return False

    remedies = list[str]()
    if workload.one_network:
        batches = (workload.batch >> power for power in range(1, workload.batch.bit_length()))
        counts = (2**power for power in range(_MOST_GPUS.bit_length()) if 2**power > workload.tp)
        remedies += islice((f"--batch {batch}" for batch in batches if fits(batch, workload.tp)), 1)
        remedies += islice((f"--tp {tp}" for tp in counts if fits(workload.batch, tp)), 1)
    remedy = f"; it fits with {' or '.join(remedies)}" if remedies else ""
    each = " on each GPU" if workload.tp > 1 else ""
    parts = f" ({memory})" if workload.one_network else ""
    near = memory.needed_bytes < 1.01 * gpu.usable_bytes
    available, needed = (gigabytes(size, 5 if near else 3) for size in (gpu.usable_bytes, memory.needed_bytes))
    whole = f" of its {gpu.memory_bytes / 2**30:g} GiB usable" if gpu.usable_bytes < gpu.memory_bytes else ""
    has = f"{gpu.title} has {gpu.usable_bytes / 2**30:g} GiB{whole} ({available})"
    message = f"{workload.title} does not fit: it needs {needed}{each}{parts}, {has}{remedy}"
    return DoesNotFitError(message, memory, f"needs {needed}, has {available}{remedy.replace('it fits', 'fits')}")


def gigabytes(size: float, digits: int = 3) -> str:
    return f"{float(f'{size / 1e9:.{digits}g}'):g} GB"


def memory_json(memory: Memory, gpu: GPU) -> dict[str, Any]:
    """Return plain values for JSON: whether the network fits, the required memory and the available memory."""
    return {"fits": memory.fits(gpu), "memory": memory.as_dict() | {"available_bytes": gpu.usable_bytes}}
