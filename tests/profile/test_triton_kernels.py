"""Test that Triton's PTX computes the same as NumPy in the emulator, for common kernels."""

import numpy as np
import pytest

from kernrec.op import decode_elements, encode_elements
from kernrec.util.small_floats import small_codes, small_values
from tests.helpers.triton_kernels import run_call, sample_call

pytest.importorskip("triton", reason="needs the extra `triton`")

TOLERANCE = {"f32": 2e-3, "f16": 2e-3, "bf16": 1.6e-2}
"""Tolerances relative to the largest value. f32 matmuls round their inputs to TF32."""


def drawn(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return encode_elements(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), dtype)


def close(stored: np.ndarray, expected: np.ndarray, dtype: str) -> bool:
    difference = np.abs(decode_elements(stored, dtype).reshape(expected.shape) - expected)
    return bool(difference.max() <= TOLERANCE[dtype] * np.abs(expected).max())


def product_arguments(dtype: str, m: int, n: int, k: int) -> dict[str, object]:
    a, b, c = drawn(dtype, m, k), drawn(dtype, k, n, seed=1), drawn(dtype, m, n, seed=2) * 0
    return {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k, "stride_a": k, "stride_b": n, "stride_c": n}


def arrays_of(arguments: dict[str, object]) -> dict[str, np.ndarray]:
    return {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}


def expected_product(arguments: dict[str, object], dtype: str) -> np.ndarray:
    a, b = (decode_elements(arguments[name], dtype) for name in "ab")
    return a @ b


TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 2, "num_warps": 4}
STAGED, LARGE = TILE | {"num_stages": 3}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3}


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize(("function", "dtype", "sizes", "config", "sm"), [
    ("matmul", "f16", (80, 72, 96), STAGED, 80),
    ("matmul", "bf16", (64, 96, 50), STAGED, 86),
    ("matmul", "f32", (48, 64, 40), STAGED, 89),
    ("matmul", "bf16", (72, 80, 144), TILE | LARGE, 90),  # uses warpgroup instructions
    ("matmul", "bf16", (72, 80, 144), TILE | LARGE, 100),  # uses tensor memory
    ("persistent_matmul", "f16", (80, 64, 64), TILE | {"BLOCKS": 4}, 80),
])  # fmt: skip
def test_matmul_profile_matches_the_emulation(function, dtype, sizes, config, sm):
    arguments = product_arguments(dtype, *sizes)
    grid = "persistent_grid" if "BLOCKS" in config else "grid"
    run_call(sample_call(f"matmul.py:{function}", arguments, grid, config), arrays_of(arguments), sm)
    assert close(arguments["c"], expected_product(arguments, dtype), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("sm", [89, 120])
def test_8_bit_matmul_profile_matches_the_emulation(sm):
    m, n, k = 40, 48, 80
    draw = np.random.default_rng(5)
    a, b = (small_codes("f8e4m3", draw.standard_normal(shape).astype(np.float32)) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float16)
    sizes = {"m": m, "n": n, "k": k, "stride_a": k, "stride_b": n, "stride_c": n}
    arguments = {"a": a, "b": b, "c": c, **sizes}
    run_call(sample_call("matmul.py:matmul", arguments, "grid", TILE), arrays_of(arguments), sm)
    expected = small_values("f8e4m3", a).astype(np.float64) @ small_values("f8e4m3", b)
    assert close(c, expected, "f16")


def test_softmax_profile_matches_the_emulation():
    x = drawn("f16", 3, 200)
    arguments = {"x": x, "y": np.zeros_like(x), "columns": 200}
    run_call(sample_call("rows.py:softmax", arguments, "grid", None), arrays_of(arguments), 80)
    powers = np.exp(decode_elements(x, "f16"))
    assert close(arguments["y"], powers / powers.sum(1, keepdims=True), "f16")


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_attention_profile_matches_the_emulation(causal):
    heads, group, length, width = 4, 2, 50, 32
    q = drawn("f16", heads, length, width)
    k, v = drawn("f16", heads // group, length, width, seed=1), drawn("f16", heads // group, length, width, seed=2)
    arguments = {
        "q": q, "k": k, "v": v, "out": q * 0, "heads": heads, "group": group, "length": length, "scale": 0.2,
        "CAUSAL": causal, "WIDTH": width,
    }  # fmt: skip
    config = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 2, "num_stages": 2}
    run_call(sample_call("attention.py:attention", arguments, "grid", config), arrays_of(arguments), 80)
    keys, values = (np.repeat(decode_elements(x, "f16"), group, axis=0) for x in (k, v))
    scores = 0.2 * decode_elements(q, "f16") @ keys.transpose(0, 2, 1)
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    powers = np.exp(scores - scores.max(2, keepdims=True))
    assert close(arguments["out"], powers / powers.sum(2, keepdims=True) @ values, "f16")


@pytest.mark.slow
def test_moe_profile_with_routing_matches_the_emulation():
    count, top, experts, n, k, block = 20, 2, 4, 48, 64, 16
    draw = np.random.default_rng(3)
    chosen = np.stack([draw.permutation(experts)[:top] for _ in range(count)]).reshape(-1)
    order, expert_of_tile = [], []
    for expert in range(experts):
        own = np.flatnonzero(chosen == expert).tolist()
        own += [len(chosen)] * (-len(own) % block)
        order += own
        expert_of_tile += [expert] * (len(own) // block)
    tokens, weights = drawn("bf16", count, k), drawn("bf16", experts, n, k, seed=1)
    arguments = {
        "tokens": tokens, "weights": weights, "out": np.zeros((len(chosen), n), np.uint16),
        "order": np.array(order, np.int32), "expert_of_tile": np.array(expert_of_tile, np.int32),
        "n": n, "k": k, "count": len(chosen), "TOP": top,
    }  # fmt: skip
    config = {"BLOCK_M": block, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 2}
    run_call(sample_call("moe.py:experts", arguments, "grid", config), arrays_of(arguments), 80)
    rows = decode_elements(tokens, "bf16")[np.arange(len(chosen)) // top]
    expected = np.einsum("pk,pnk->pn", rows, decode_elements(weights, "bf16")[chosen])
    assert close(arguments["out"], expected, "bf16")
