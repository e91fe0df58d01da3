"""Data types in a backend's kernel: bytes of the elements that the kernel reads and writes, and its arithmetic rate."""

from kernrec.gpu import GPU
from kernrec.op.dtype import ELEMENT_BYTES, FORMATS, activation_bytes, math_dtype, weight_bytes
from kernrec.util.light_dataclass import dataclass

_BY_THE_CALL = ("f8e4m3",)
"""Types to which backends convert 16-bit activations in the call. For formats, the activations' type counts."""


@dataclass(frozen=True)
class Precision:
    """Data type of a matmul's operands."""

    a_bytes: float
    """Bytes of an activation element, as the matmul reads it."""
    b_bytes: float
    """Bytes of a weight element, including its share of the scales."""
    c_bytes: float
    """Bytes of a result element."""
    quantising_bytes: float
    """Bytes per activation element for quantization, which reads 16 bits and writes the result."""


def precision_of(dtype: str) -> Precision:
    """Return the precision of a data type."""
    a_bytes, result = activation_bytes(dtype), float(ELEMENT_BYTES.get(dtype, 2))
    quantised = dtype in _BY_THE_CALL or (dtype in FORMATS and FORMATS[dtype].activations != "bf16")
    return Precision(a_bytes, weight_bytes(dtype), max(result, 2.0), 2.0 + a_bytes if quantised else 0.0)


def rate_of(gpu: GPU, dtype: str) -> float:
    """Return the data sheet's FLOP/s for a backend in a data type; 0 if the GPU lacks this arithmetic."""
    rate = math_dtype(dtype)
    return gpu.peak_flops(rate, tensor=True) or gpu.peak_flops(rate)
