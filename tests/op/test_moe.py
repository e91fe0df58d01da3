"""Test a mixture of experts against its definition, one token and one expert at a time."""

from math import exp, tanh

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernrec.op import Problem, decode_elements, find_op, inputs, problem_from_key, reference
from kernrec.op.dtype import FORMATS, weight_bytes

MOE = find_op("moe")
MIXTRAL = {"tokens": 64, "hidden": 4096, "intermediate": 14336, "experts": 8, "topk": 2}


@st.composite
def mixtures(draw: st.DrawFn) -> Problem:
    def size(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    ep, tp = size(1, 3), size(1, 2)
    dims = {"tokens": size(1, 5), "hidden": size(1, 5), "intermediate": tp * size(1, 4), "experts": ep * size(1, 3)}
    dims |= {"topk": size(1, dims["experts"]), "tp": tp, "ep": ep, "gated": size(0, 1)}
    return MOE.problem(draw(st.sampled_from(MOE.dtypes)), **dims)


@given(mixtures(), st.integers(0, 50))
def test_token_passes_through_its_top_scored_experts(problem, seed):
    d, stored = problem.sizes, inputs(problem, seed)
    values = {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in stored.items()}
    quantized = FORMATS.get(problem.dtype)

    def weight(name: str, expert: int, row: int, column: int) -> float:
        scale = values.get(f"{name}_scale")
        if scale is None:
            return float(values[name][expert, row, column])
        group, rows = (quantized.group, quantized.rows) if quantized else (10**6, 10**6)
        return float(values[name][expert, row, column] * scale[expert, row // rows, column // group])

    def product(name: str, expert: int, x: list[float]) -> list[float]:
        rows = range(values[name].shape[1])
        return [sum(weight(name, expert, row, k) * value for k, value in enumerate(x)) for row in rows]

    expected = np.zeros((d["tokens"], d["hidden"]))
    for token, x in enumerate(values["x"].tolist()):
        scores = values["scores"][token].tolist()
        chosen = sorted(range(d["experts"]), key=lambda e: -scores[e])[: d["topk"]]
        total = sum(exp(scores[e]) for e in chosen)
        for e in chosen:
            if e >= d["local_experts"]:
                continue
            inner = product("up", e, x)
            if d["gated"]:
                gates = product("gate", e, x)
                inner = [value * gate * (1 + tanh(gate / 2)) / 2 for value, gate in zip(inner, gates, strict=True)]
            else:
                inner = [max(value, 0) ** 2 for value in inner]
            expected[token] += exp(scores[e]) / total * np.array(product("down", e, inner))
    assert_allclose(reference(problem, stored)["y"], expected, atol=1e-9)


@given(mixtures())
def test_key_reads_back_and_flops_count_the_expert_passes(problem):
    d = problem.sizes
    assert problem_from_key(problem.key) == problem
    passes = -(-d["tokens"] * d["topk"] // d["ep"])
    assert problem.flops == passes * (3 if d["gated"] else 2) * 2 * d["hidden"] * d["columns"]


@pytest.mark.parametrize("dtype", MOE.dtypes)
def test_dtype_is_the_dtype_of_the_weights(dtype):
    problem = MOE.problem(dtype, **MIXTRAL)
    weights = sum(t.bytes for name, t in problem.tensors.items() if name not in ("x", "scores", "y"))
    assert weights == pytest.approx(8 * 3 * 4096 * 14336 * weight_bytes(dtype), rel=1e-4)
    assert problem.tensors["x"].dtype == problem.tensors["y"].dtype == ("f16" if dtype == "f16" else "bf16")


def test_indivisible_experts_are_refused(refuses):
    refuses(lambda change: MOE.problem(**MIXTRAL | change), [{"ep": 3}, {"tp": 5}, {"topk": 9}, {"routing": 501}])
