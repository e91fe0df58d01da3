"""Test that each claimed op is answered on every GPU, and that errors list the supported ops and types."""

from collections.abc import Iterator
from itertools import groupby

import pytest

from kernrec.gpu import GPU, all_gpus
from kernrec.kernel import all_kernels
from kernrec.op.dtype import math_dtype
from tests.helpers.depth import DEEP

SHAPES = {
    "matmul": {"m": 16, "n": 512, "k": 512},
    "matvec": {"m": 512, "k": 512},
    "conv2d": {"c": 16, "h": 14, "w": 14, "k": 32, "padding": 1},
    "attention": {"heads": 4, "queries": 64, "head_dim": 64},
    "elementwise": {"n": 4096},
}
ROWS = {"rows": 64, "columns": 512}


OPS = sorted({kernel.op for kernel in all_kernels()})


def _paired(op: str, dtypes: list[str]) -> Iterator[tuple[GPU, str]]:
    """Pair every dtype with a GPU of every architecture. Ops share the GPUs of an architecture in turn; in the deep
    profile each op takes them all."""
    for _, cards in groupby(sorted(all_gpus(), key=lambda gpu: gpu.sm), key=lambda gpu: gpu.sm):
        same = list(cards)
        most = len(same) if DEEP else -(-len(same) // len(OPS))
        first = OPS.index(op) * most
        for number in range(max(most, len(dtypes))):
            yield same[(first + number) % len(same)], dtypes[number % len(dtypes)]


def test_claims_cover_every_gpu():
    assert {gpu.name for op in OPS for gpu, _ in _paired(op, ["f32"])} == {gpu.name for gpu in all_gpus()}


@pytest.mark.every(3)
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_dtype_is_answered_on_every_supporting_architecture(op, recommender):
    kernels = [kernel for kernel in all_kernels() if kernel.op == op]
    assert kernels
    dtypes = sorted({dtype for kernel in kernels for dtype in kernel.dtypes})
    for gpu, dtype in _paired(op, dtypes):
        able = [kernel for kernel in kernels if dtype in kernel.dtypes and kernel.runs_on(dtype, gpu.sm)]
        if able and gpu.multiplies(math_dtype(dtype)):
            answer = recommender.recommend(op, gpu.name, SHAPES.get(op, ROWS), dtype, able[0].layouts[0])
            assert answer.best.latency_s.value > 0
            assert 0 < answer.best.power_w <= gpu.tdp_w * 1.001
            assert not any("no profile" in note for note in answer.notes)


def test_unsupported_dtype_lists_the_supported_ones(recommender):
    answer = recommender.recommend("matmul", "t4", SHAPES["matmul"], "f64")
    assert "f64, nn on sm_75; implemented are f32 (nn, nt), f16 (nn, nt, tn, tt), bf" in (answer.no_kernel or "")


def test_unsupported_shape_suggests_a_nearby_one(recommender):
    answer = recommender.recommend("matmul", "h200", {"m": 63, "n": 71, "k": 73}, "f32", "tt")
    assert answer.no_kernel is not None
    assert answer.no_kernel.endswith(
        "f32,tt on h200-sxm; there is one for f32 in nn or nt, or for f16 in tt, or for bf16 in tt, or for tf32 in tt"
    )
    heads = {"heads": 8, "queries": 64}
    for dtype in ("f32", "f16"):  # on the FMA pipes and on tensor cores
        answer = recommender.recommend("attention", "h200", heads | {"head_dim": 257}, dtype)
        assert (answer.no_kernel or "").endswith("on h200-sxm; there is one for head_dim of at most 256")
        assert recommender.recommend("attention", "h200", heads | {"head_dim": 256}, dtype).recommendations
