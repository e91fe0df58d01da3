"""Test that estimates include the instructions and the time of a bias and an activation."""

import numpy as np
import pytest

from kernrec.compile import NoCompilerError, compile_source
from kernrec.compile.nvrtc import compiler
from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.op import encode_elements, find_op, inputs
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import parse
from kernrec.recommender import Objective, Query, Recommender

GPU = find_gpu("a100")
MATMUL = find_op("matmul")
WAYS = [(1, 0), (0, 1), (0, 2), (0, 3), (1, 2)]


@pytest.mark.parametrize(("name", "dtype"), [("matmul_simt", "f32"), ("matmul_mma", "f16"), ("matmul_tf32", "tf32")])
def test_epilogue_instructions_match_the_executed_ones(name, dtype):
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    kernel = find_kernel(name)
    space = Space(kernel, GPU.sm, GPU.limits, dtype, "nn")
    config = space.config(0)
    module = parse(compile_source(kernel.source, GPU.sm, kernel.defines(config, dtype, "nn")).ptx)

    def counted(bias: int, activation: int) -> dict[str, float]:
        problem = MATMUL.problem(dtype, "nn", m=64, n=64, k=32, bias=bias, activation=activation)
        outputs = {
            n: encode_elements(np.zeros(t.shape), dtype) for n, t in problem.tensors.items() if t.role == "output"
        }
        total: dict[str, float] = {}
        for _, counts in emulate_config(kernel, config, problem, GPU.sm, module, {**inputs(problem), **outputs}):
            for metric, count in counts.items():
                total[metric] = total.get(metric, 0.0) + count * 32 / (64 * 64)
        return total

    plain = counted(0, 0)
    for way in WAYS:
        executed = counted(*way)
        stated = MATMUL.finishing({"scaled": 0} | dict(zip(("bias", "activation"), way, strict=True)))
        for metric in ("issue.fma32", "issue.mufu", "issue.ld_global"):
            assert executed.get(metric, 0) - plain.get(metric, 0) == pytest.approx(stated.get(metric, 0.0)), (
                way,
                metric,
            )
        issued = sum(count for metric, count in stated.items() if metric.startswith("issue."))
        assert executed["issue"] - plain["issue"] == pytest.approx(issued, abs=1.2), way


def test_activation_costs_more_for_shorter_reductions():
    recommender = Recommender([])

    def share(k: int, cost: str, **finishing: int) -> float:
        def best(**more: int) -> float:
            dims = {"m": 4096, "n": 4096, "k": k} | more
            query = Query(Objective.LATENCY, source="predicted")
            answer = recommender.recommend("matmul", "a100", dims, "f16", query=query)
            return float(getattr(answer.best, cost).value)

        return best(**finishing) / best() - 1.0

    for cost in ("latency_s", "energy_j"):
        long, short = share(4096, cost, bias=1, activation=2), share(256, cost, bias=1, activation=2)
        assert 0.0 < long < 0.05
        assert long < short < 0.6
        assert share(256, cost, activation=1) < short
