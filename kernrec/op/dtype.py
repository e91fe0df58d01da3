"""Define data types of tensors and problems: names, sizes and alternative spellings.

The dtype of a problem is the type of its tensors, or a quantization format with several types (`FORMATS`).
"""

from kernrec.util.light_dataclass import dataclass

ELEMENT_BYTES = {
    "f64": 8, "f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1,
    "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
}  # fmt: skip
"""Bytes per element of tensor types. tf32 is stored as f32 and rounded when multiplied."""

_PACKED_BITS = {"i4": 4, "f4e2m1": 4, "e8m0": 8}
"""Bits per element of types that occur only in quantized tensors."""


@dataclass(frozen=True)
class Format:
    """Quantization format of a matmul. Neighboring elements along k share a scale."""

    weights: str
    group: int
    """Elements along k that share a weight scale, or 0 for one scale per row."""
    rows: int
    """Rows (output features) that share a weight scale."""
    scale: str
    activations: str
    """Type of the activations after quantization. bf16 means that activations are not quantized."""
    activation_group: int
    """Elements along k that share an activation scale. 0 means a single scale, or no scale for bf16 activations."""
    math: str
    """Type whose tensor-core rate limits the multiplication."""

    @property
    def weight_bytes(self) -> float:
        """Return the average bytes per weight in memory, including scales of groups."""
        shared = _bits(self.scale) / (self.group * self.rows) if self.group else 0.0
        return (_bits(self.weights) + shared) / 8

    @property
    def activation_bytes(self) -> float:
        """Return the average bytes per activation, including scales of groups."""
        shared = _bits(self.activation_scale) / self.activation_group if self.activation_group else 0.0
        return (_bits(self.activations) + shared) / 8

    @property
    def activation_scale(self) -> str:
        """Return the type of the activation scales."""
        return self.scale if self.activation_group else "f32"


FORMATS = {
    "f8block": Format("f8e4m3", 128, 128, "f32", "f8e4m3", 128, "f8e4m3"),
    "nvfp4": Format("f4e2m1", 16, 1, "f8e4m3", "f4e2m1", 16, "f4e2m1"),
    "w8a16": Format("i8", 0, 1, "bf16", "bf16", 0, "bf16"),
    "w4a16": Format("i4", 128, 1, "bf16", "bf16", 0, "bf16"),
    "mxfp4": Format("f4e2m1", 32, 1, "e8m0", "bf16", 0, "bf16"),
    "mxfp4f8": Format("f4e2m1", 32, 1, "e8m0", "f8e4m3", 32, "f8e4m3"),
    "w4f8": Format("i4", 128, 1, "bf16", "f8e4m3", 0, "f8e4m3"),
}
"""Quantization formats by dtype: `f8block` as in DeepSeek-V3 (arXiv 2412.19437, section 3.3), `nvfp4` as in cuBLAS
("Block Scaling for FP4"), `mxfp4` as in gpt-oss (arXiv 2508.10925). `w4a16` has the group size of AWQ and GPTQ."""

INSTEAD = {
    "bf16": ("f16", "f32"), "f16": ("bf16", "f32"), "tf32": ("f32",), "f8e4m3": ("i8", "bf16", "f16", "f32"),
    "i8": ("f8e4m3", "bf16", "f16", "f32"), "f8block": ("f8e4m3", "bf16", "f16", "f32"),
    "nvfp4": ("f8e4m3", "bf16", "f16", "f32"),
    **dict.fromkeys(("w8a16", "w4a16", "mxfp4", "mxfp4f8", "w4f8"), ("bf16", "f16", "f32")),
}  # fmt: skip
"""Types to use instead of a type that an op or a GPU does not support, most similar first."""

_SPELLINGS = {
    **dict.fromkeys(("double", "fp64", "float64"), "f64"),
    **dict.fromkeys(("float", "fp32", "float32", "single"), "f32"),
    **dict.fromkeys(("half", "fp16", "float16"), "f16"),
    **{"bfloat16": "bf16", "tensorfloat32": "tf32"},
    **dict.fromkeys(("fp8", "e4m3", "fp8e4m3", "fp8_e4m3", "float8_e4m3fn", "w8a8_fp8"), "f8e4m3"),
    **dict.fromkeys(("e5m2", "fp8e5m2", "fp8_e5m2", "float8_e5m2"), "f8e5m2"),
    **dict.fromkeys(("w8a8", "sq", "smoothquant"), "i8"),
    **dict.fromkeys(("fp8_block", "fp8block", "f8_block", "fp8_blockwise", "deepseek_fp8"), "f8block"),
    **dict.fromkeys(("fp4", "nvf4", "w4a4_nvfp4", "nv_fp4"), "nvfp4"),
    **dict.fromkeys(("int8_wo", "int8_weight_only", "i8wo"), "w8a16"),
    **dict.fromkeys(("int4", "i4", "int4_wo", "int4_weight_only", "awq", "gptq", "u4", "uint4"), "w4a16"),
    **dict.fromkeys(("mx_fp4", "mxf4", "w4a16_mxfp4"), "mxfp4"),
    **dict.fromkeys(("w4a8_mxfp4_mxfp8", "mxfp4_mxfp8", "mxfp4_fp8"), "mxfp4f8"),
    **dict.fromkeys(("w4afp8", "w4a8", "int4_fp8"), "w4f8"),
    **{f"{kind}{8 * size}": f"{kind[0]}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)},
}


def canonical_dtype(dtype: str) -> str:
    """Return the canonical name of a data type, such as `f16` for `half`. Return an unknown name in lower case."""
    folded = str(dtype).strip().lower()
    return _SPELLINGS.get(folded) or _SPELLINGS.get(folded.replace("-", "_"), folded)


def spellings(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return data types and their alternative spellings, for suggestions in messages."""
    return (*dtypes, *(other for other, dtype in _SPELLINGS.items() if dtype in dtypes))


def weight_bytes(dtype: str) -> float:
    """Return the average bytes per weight in memory, including scales."""
    return FORMATS[dtype].weight_bytes if dtype in FORMATS else float(ELEMENT_BYTES[dtype])


def activation_bytes(dtype: str) -> float:
    """Return the average bytes per activation, including scales."""
    return FORMATS[dtype].activation_bytes if dtype in FORMATS else float(ELEMENT_BYTES[dtype])


def math_dtype(dtype: str) -> str:
    """Return the type whose arithmetic rate limits the multiplication."""
    return FORMATS[dtype].math if dtype in FORMATS else dtype


def bytes_of(elements: int, dtype: str) -> int:
    """Return the bytes of a tensor with this number of elements. Two 4-bit elements share a byte."""
    size = ELEMENT_BYTES.get(dtype)
    return (elements * _PACKED_BITS[dtype] + 7) // 8 if size is None else elements * size


def _bits(dtype: str) -> int:
    return _PACKED_BITS.get(dtype) or 8 * ELEMENT_BYTES[dtype]
