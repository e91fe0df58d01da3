"""Laws of the bound of stacks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import GRAPH, Timing, features
from tests.helpers.depth import few_examples

SIZE = st.integers(1, 1 << 14)
GPUS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "rtx4090", "t4"])


def product_s(gpu: str, m: int, n: int, k: int, dtype: str = "f16", timing: Timing = GRAPH) -> float:
    dims = {name: np.array([size]) for name, size in (("batch", 1), ("m", m), ("n", n), ("k", k))}
    return float(features("matmul", find_gpu(gpu), dtype, "nt", dims, timing)[0].total_s[0])


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_matmul_takes_at_least_its_launch_and_its_operations(gpu, m, n, k):
    card = find_gpu(gpu)
    least = max(GRAPH.launch_clk / card.boost_clock_hz, 2 * m * n * k / card.peak_flops("f16", tensor=True))
    assert product_s(gpu, m, n, k) >= least


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_flush_of_l2_takes_time(gpu, m, n, k):
    flushed = Timing(GRAPH.launch_clk, np.inf)
    assert product_s(gpu, m, n, k, timing=flushed) >= product_s(gpu, m, n, k)


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_twice_the_columns_take_no_less_time(gpu, m, n, k):
    assert product_s(gpu, m, 2 * n, k) >= 0.999 * product_s(gpu, m, n, k)
