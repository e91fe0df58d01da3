"""The data types a tensor can have: their names, sizes and the other spellings people type."""

ELEMENT_BYTES = {
    "f64": 8, "f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1,
    "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
}  # fmt: skip
"""Bytes per element of every type that a tensor may have. A tf32 tensor is stored as f32; kernels round its elements to
TF32 when they multiply."""

INSTEAD = {
    "bf16": ("f16", "f32"), "f16": ("bf16", "f32"), "tf32": ("f32",), "f8e4m3": ("i8", "bf16", "f16", "f32"),
    "i8": ("f8e4m3", "bf16", "f16", "f32"),
}  # fmt: skip
"""By dtype, those that something can be computed in instead, the nearest first."""

_SPELLINGS = {
    **dict.fromkeys(("double", "fp64", "float64"), "f64"),
    **dict.fromkeys(("float", "fp32", "float32", "single"), "f32"),
    **dict.fromkeys(("half", "fp16", "float16"), "f16"),
    **{"bfloat16": "bf16", "tensorfloat32": "tf32"},
    **dict.fromkeys(("fp8", "e4m3", "fp8e4m3", "fp8_e4m3", "float8_e4m3fn"), "f8e4m3"),
    **dict.fromkeys(("e5m2", "fp8e5m2", "fp8_e5m2", "float8_e5m2"), "f8e5m2"),
    **{f"{kind}{8 * size}": f"{kind[0]}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)},
}


def canonical_dtype(dtype: str) -> str:
    """`f16` for `fp16`, `half`, `Float16`; an unknown name is returned in lower case, for the caller to refuse."""
    folded = str(dtype).strip().lower()
    return _SPELLINGS.get(folded, folded)
