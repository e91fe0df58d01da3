"""Test that sm_75 GPUs use tensor cores for f16, and that problems without bf16 or asynchronous copies are answered."""

import pytest

from kernrec.recommender import Objective, Query, Recommender

WIDE = {"n": 32, "c": 256, "h": 28, "w": 28, "k": 256, "r": 3, "s": 3, "padding": 1}
FIRST = {"n": 8, "c": 3, "h": 224, "w": 224, "k": 64, "r": 7, "s": 7, "stride": 2, "padding": 3}
PROMPT = {"heads": 32, "queries": 2048, "keys": 2048, "head_dim": 128, "causal": 1}
DECODE = {"batch": 8, "heads": 32, "kv_heads": 8, "queries": 1, "keys": 4096, "head_dim": 64}
ODD_HEADS = {"heads": 8, "queries": 512, "keys": 512, "head_dim": 72}
PRODUCT = {"m": 2048, "n": 2048, "k": 2048}


@pytest.mark.parametrize("gpu", ["t4", "rtx2080ti"])
@pytest.mark.parametrize(("op", "dims", "kernel"), [
    ("matmul", PRODUCT, "matmul_mma"), ("conv2d", WIDE, "conv2d_implicit_gemm_mma"),
    ("conv2d", FIRST, "conv2d_implicit_gemm_mma"), ("attention", PROMPT, "attention_mma"),
    ("attention", DECODE, "attention_mma"), ("attention", ODD_HEADS, "attention_mma"),
])  # fmt: skip
def test_f16_uses_tensor_cores_and_takes_at_most_two_thirds_of_f32(gpu, op, dims, kernel):
    # Once, f16 on a T4 took longer than f32 for a convolution, and as long for attention.
    recommender, query = Recommender([]), Query(Objective.LATENCY, top=1)
    half, single = (recommender.recommend(op, gpu, dims, dtype, None, query).best for dtype in ("f16", "f32"))
    assert half.kernel.name == kernel
    assert half.latency_s.value < 2 / 3 * single.latency_s.value
