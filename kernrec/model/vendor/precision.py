"""A data type as a stack's kernel sees it: bytes of elements that it reads and writes, and its arithmetic."""

from kernrec.gpu import GPU
from kernrec.op.dtype import ELEMENT_BYTES, FORMATS, activation_bytes, math_dtype, weight_bytes
from kernrec.util.light_dataclass import dataclass

_BY_THE_CALL = ("f8e4m3",)
"""Types of tensors that stacks make of 16-bit activations in the call; of formats the activations' type says it."""


@dataclass(frozen=True)
class Precision:
    """A data type of a product's operands."""

    a_bytes: float
    """Bytes of an element of the activations, as the product reads them."""
    b_bytes: float
    """Of the weights, with their share of scales."""
    c_bytes: float
    """Of the result."""
    quantising_bytes: float
    """Bytes for an element of the activations that it takes to quantise them: 16 bits are read, the result written."""


def precision_of(dtype: str) -> Precision:
    """The precision of a data type."""
    a_bytes, result = activation_bytes(dtype), float(ELEMENT_BYTES.get(dtype, 2))
    quantised = dtype in _BY_THE_CALL or (dtype in FORMATS and FORMATS[dtype].activations != "bf16")
    return Precision(a_bytes, weight_bytes(dtype), max(result, 2.0), 2.0 + a_bytes if quantised else 0.0)


def rate_of(gpu: GPU, dtype: str) -> float:
    """FLOP/s of a stack in a data type, at the data sheet's rate; 0: the card has no such arithmetic."""
    rate = math_dtype(dtype)
    return gpu.peak_flops(rate, tensor=True) or gpu.peak_flops(rate)
