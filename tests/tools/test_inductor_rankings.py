"""PyTorch's rankings become orders of measured configs where torch is installed, and nothing where it is not."""

import sys

import inductor_rankings
import pytest

from kernrec.kernel import find_kernel

CONFIGS = [(16, 16, 16, 1, 1), (128, 128, 64, 3, 8), (64, 64, 32, 2, 4), (128, 128, 32, 3, 4)]
PROBLEM = find_kernel("matmul_triton").definition.problem("f16", "nt", m=4096, n=4096, k=4096)


def test_without_torch_there_is_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch._inductor.template_heuristics.triton"):
        monkeypatch.setitem(sys.modules, name, None)
    inductor_rankings._ranking.cache_clear()
    inductor_rankings._listed.cache_clear()
    assert inductor_rankings.learned_order("a100-sxm4-80gb", PROBLEM, CONFIGS) is None
    assert inductor_rankings.listed_order(CONFIGS) is None


@pytest.mark.slow
@pytest.mark.parametrize("gpu", inductor_rankings.RANKINGS)
def test_a_ranking_orders_all_that_was_measured_large_tiles_first_for_a_large_problem(gpu: str) -> None:
    pytest.importorskip("torch")
    inductor_rankings._ranking.cache_clear()
    order = inductor_rankings.learned_order(gpu, PROBLEM, CONFIGS)
    assert order is not None
    assert sorted(order) == [0, 1, 2, 3]
    assert CONFIGS[order[0]][:2] == (128, 128)
