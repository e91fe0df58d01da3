"""Test that every convolution is answered on every GPU generation by a suitable kernel at a plausible speed."""

import pytest

from kernrec.gpu import find_gpu
from kernrec.recommender import Objective, Query

FASTEST = Query(Objective.LATENCY, top=1)
WIDE = {"n": 32, "c": 256, "h": 28, "w": 28, "k": 256, "r": 3, "s": 3, "padding": 1}
FIRST = {"n": 8, "c": 3, "h": 224, "w": 224, "k": 64, "r": 7, "s": 7, "stride": 2, "padding": 3}
GROUPED = {"n": 8, "c": 128, "h": 28, "w": 28, "k": 128, "r": 3, "s": 3, "padding": 1, "groups": 32}
DEPTHWISE = {"n": 64, "c": 96, "h": 112, "w": 112, "k": 96, "r": 3, "s": 3, "padding": 1, "groups": 96}
DILATED = {"c": 61, "h": 20, "w": 19, "k": 61, "r": 3, "s": 3, "padding": 2, "dilation": 2, "groups": 61}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("gpu", ["t4", "a100-sxm4-80gb", "rtx4090", "b200"])
def test_first_grouped_depthwise_and_dilated_layers_have_an_answer(recommender, gpu, dtype, layout):
    for dims in (WIDE, FIRST, GROUPED, DEPTHWISE, DILATED):
        assert recommender.recommend("conv", gpu, dims, dtype, layout, FASTEST).best.latency_s.value > 0


@pytest.mark.parametrize(("gpu", "least", "most"), [("rtx4090", 0.5, 0.95), ("rtx3090", 0.5, 0.97), ("a100", 0.5, 0.9)])
def test_wide_f16_layers_keep_tensor_cores_busy(recommender, gpu, least, most):
    answer = recommender.recommend("conv", gpu, WIDE, "f16", "nhwc", FASTEST)
    card = find_gpu(gpu)
    peak = 2 * card.tensor_fma_per_clk_sm["f16"] * card.sms * card.tensor_clock_hz
    assert answer.best.kernel.name == "conv2d_implicit_gemm_mma"
    assert least <= answer.problem.flops / answer.best.latency_s.value / peak <= most
