"""Test attention against its definition, one query and one key at a time."""

from itertools import product
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernrec.errors import UsageError
from kernrec.op import Problem, decode_elements, find_op, inputs, reference
from kernrec.op.dtype import ELEMENT_BYTES

ATTENTION = find_op("attention")


@st.composite
def attentions(draw: st.DrawFn) -> Problem:
    def size(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    dims = {"batch": size(1, 2), "kv_heads": size(1, 3), "queries": size(1, 5), "head_dim": size(1, 4)}
    dims |= {"heads": dims["kv_heads"] * size(1, 3), "causal": size(0, 1)}
    dims["keys"] = size(dims["queries"] if dims["causal"] else 1, 8)
    dtype = draw(st.sampled_from(ATTENTION.dtypes))
    if dtype == "f8e4m3":
        dims |= {"scales": size(0, 1), "output": size(0, 1)}
    else:
        dims["kv_dtype"] = size(0, 1)
    if dims["causal"] or dims["queries"] == 1:
        dims["window"] = size(0, 9)
    return ATTENTION.problem(dtype, draw(st.sampled_from(ATTENTION.layouts)), **dims)


def decoded(problem: Problem, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in stored.items()}


def meeting(d: dict[str, int], query: int) -> range:
    """Return the keys that a query attends to."""
    last = d["keys"] - (d["queries"] - 1 - query) * d["causal"]
    return range(max(last - d["window"], 0) if d["window"] else 0, last)


@given(attentions(), st.integers(0, 100))
def test_attention_matches_its_definition(problem, seed):
    d = problem.sizes
    stored = inputs(problem, seed)
    values = decoded(problem, stored) | reference(problem, stored)
    assert values["o"].shape == problem.tensors["o"].shape == problem.tensors["q"].shape

    def vector(name: str, batch: int, head: int, token: int) -> np.ndarray:
        return values[name][batch, head, token] if problem.layout == "bhsd" else values[name][batch, token, head]

    def scale(name: str, batch: int, shared: int) -> float:
        scales = values.get(f"{name}_scale")
        return 1.0 if scales is None else float(scales[(batch, shared) if d["scales"] else 0])

    for b, h, i in product(range(d["batch"]), range(d["heads"]), range(d["queries"])):
        shared = h * d["kv_heads"] // d["heads"]
        keys = meeting(d, i)
        factor = scale("q", b, shared) * scale("k", b, shared) / sqrt(d["head_dim"])
        weights = [exp(vector("q", b, h, i) @ vector("k", b, shared, j) * factor) for j in keys]
        total = sum(weight * vector("v", b, shared, j) for j, weight in zip(keys, weights, strict=True))
        expected = total * scale("v", b, shared) / sum(weights)
        assert_allclose(vector("o", b, h, i), expected, atol=1e-12)


@given(attentions())
def test_grouped_queries_share_keys_and_values_in_memory(problem):
    d = problem.sizes
    assert d["group"] * d["kv_heads"] == d["heads"]
    met = {key for query in range(d["queries"]) for key in meeting(d, query)}
    q, kv = d["queries"] * d["heads"], len(met) * d["kv_heads"]
    scales = (3 * d["batch"] * d["kv_heads"] if d["scales"] else 3) if d["scaled"] else 2 * d["kv_dtype"]
    size = ELEMENT_BYTES[problem.dtype]
    of_o, of_kv = 2 if d["scaled"] else size, 1 if d["kv_dtype"] else size
    assert problem.bytes == d["batch"] * d["head_dim"] * (q * (size + of_o) + 2 * kv * of_kv) + 4 * scales


def test_large_scores_do_not_overflow():
    problem = ATTENTION.problem(heads=1, queries=2, head_dim=4)
    tensors = inputs(problem)
    large = reference(problem, tensors | {"q": 1000 * tensors["q"]})["o"]
    assert np.isfinite(large).all()


def test_inconsistent_heads_or_tokens_are_refused(refuses):
    refuses(lambda dims: ATTENTION.problem(head_dim=8, **dims), [
        {"heads": 6, "kv_heads": 4, "queries": 2}, {"heads": 2, "queries": 3, "keys": 2, "causal": 1},
        {"heads": 2, "queries": 3, "causal": 2}, {"heads": 2, "queries": 3, "window": 2},
        {"heads": 2, "queries": 3, "dtype": "fp8", "kv_dtype": 1},
    ])  # fmt: skip


def test_8_bit_attention_has_scales_per_tensor_or_head_and_16_bit_results():
    dims: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 3, "head_dim": 8}
    for spelling in ("fp8", "e4m3", "float8_e4m3fn"):
        assert ATTENTION.problem(spelling, **dims).dtype == "f8e4m3"
    plain, each = ATTENTION.problem("fp8", **dims), ATTENTION.problem("fp8", **dims, scales=1, output=1)
    for name in ("q_scale", "k_scale", "v_scale"):
        assert (plain.tensors[name].shape, each.tensors[name].shape) == ((1,), (2, 2))
        assert plain.tensors[name].dtype == "f32"
    assert [problem.tensors["o"].dtype for problem in (plain, each)] == ["bf16", "f16"]
    for name in ("scales", "output"):
        with pytest.raises(UsageError, match=f"dimension {name} is 1; only f8e4m3 has it; expected 0"):
            ATTENTION.problem("bf16", **dims | {name: 1})


def test_without_a_mask_there_may_be_more_queries_than_keys():
    assert ATTENTION.problem(heads=8, queries=4096, keys=77, head_dim=40).tensors["k"].shape == (1, 8, 77, 40)
