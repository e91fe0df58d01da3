"""Test attention and mixtures of experts against their definitions, and quantized dtypes."""

from itertools import product
from math import exp, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernrec.errors import UsageError
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, problem_from_key, reference
from kernrec.op.dtype import ELEMENT_BYTES, FORMATS, activation_bytes, canonical_dtype, weight_bytes

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
def test_moe_reference_uses_the_top_scored_experts(problem, seed):
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
def test_key_reads_back_and_flops_count_each_expert_of_each_token(problem):
    d = problem.sizes
    assert problem_from_key(problem.key) == problem
    passes = -(-d["tokens"] * d["topk"] // d["ep"])
    assert problem.flops == passes * (3 if d["gated"] else 2) * 2 * d["hidden"] * d["columns"]


@pytest.mark.parametrize("dtype", MOE.dtypes)
def test_moe_dtype_is_the_dtype_of_its_weights(dtype):
    problem = MOE.problem(dtype, **MIXTRAL)
    weights = sum(t.bytes for name, t in problem.tensors.items() if name not in ("x", "scores", "y"))
    assert weights == pytest.approx(8 * 3 * 4096 * 14336 * weight_bytes(dtype), rel=1e-4)
    assert problem.tensors["x"].dtype == problem.tensors["y"].dtype == ("f16" if dtype == "f16" else "bf16")


def test_indivisible_experts_are_refused(refuses):
    refuses(lambda change: MOE.problem(**MIXTRAL | change), [{"ep": 3}, {"tp": 5}, {"topk": 9}, {"routing": 501}])


MATMUL = find_op("matmul")
OF_MATMUL = [dtype for dtype in MATMUL.dtypes if dtype in FORMATS]


@pytest.mark.parametrize("dtype", OF_MATMUL)
def test_weights_and_activations_have_the_bytes_of_their_dtype(dtype):
    m, n, k = 256, 512, 1024
    tensors = MATMUL.problem(dtype, m=m, n=n, k=k).tensors
    stored = {x: sum(t.bytes for name, t in tensors.items() if name in (x, f"{x}_scale")) for x in "ab"}
    per_row = 2 * n if dtype == "w8a16" else 0  # w8a16 has scales per row, not per group
    assert stored["b"] == weight_bytes(dtype) * n * k + per_row
    assert stored["a"] == activation_bytes(dtype) * m * k


@pytest.mark.parametrize("dtype", OF_MATMUL)
def test_quantized_matmul_sums_its_groups_with_their_scales(dtype):
    problem, quantized = MATMUL.problem(dtype, m=3, n=130, k=150), FORMATS[dtype]
    stored = inputs(problem, 3)
    a, b, *_ = values = [decode_elements(stored[name], problem.tensors[name].dtype) for name in stored]
    scale = dict(zip(stored, values, strict=True))
    expected = np.zeros((3, 130))
    for i, j, t in np.ndindex(3, 130, 150):
        term = a[i, t] * b[j, t]
        if "a_scale" in scale:
            term *= scale["a_scale"][i, t // quantized.activation_group]
        term *= scale["b_scale"][j // quantized.rows, t // quantized.group if quantized.group else 0]
        expected[i, j] += term
    assert_allclose(reference(problem, stored)["c"], expected * scale.get("ab_scale", 1.0), atol=1e-10)


@pytest.mark.parametrize(
    ("typed", "dtype"),
    [
        ("fp8_block", "f8block"), ("fp8-block", "f8block"), ("fp4", "nvfp4"), ("NVFP4", "nvfp4"), ("int4", "w4a16"),
        ("awq", "w4a16"), ("GPTQ", "w4a16"), ("int8_wo", "w8a16"), ("mxfp4", "mxfp4"), ("w4a8_mxfp4_mxfp8", "mxfp4f8"),
        ("w4afp8", "w4f8"), ("sq", "i8"), ("fp8", "f8e4m3"),
    ],
)  # fmt: skip
def test_format_names_of_serving_engines_are_accepted(typed, dtype):
    assert canonical_dtype(typed) == dtype


def test_unknown_format_suggests_the_nearest_or_lists_the_formats_of_the_op(refuses):
    refuses(lambda: MATMUL.problem("fp8_blok", m=1, n=1, k=1))
    refuses(lambda: find_op("conv").problem("fp4", c=1, h=3, w=3, k=1))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20))
def test_4_bit_encoding_rounds_to_nearest(values):
    numbers = np.array([s * x for s in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])
    stored = decode_elements(encode_elements(np.array(values), "f4e2m1"), "f4e2m1")
    least = np.abs(numbers[:, None] - np.array(values)).min(axis=0)
    assert_allclose(np.abs(stored - values), least, atol=1e-12)
    integers = decode_elements(encode_elements(np.array(values), "i4"), "i4")
    assert_allclose(integers, np.clip(np.rint(values), -8, 7))


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


def test_large_attention_scores_do_not_overflow():
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


def test_attention_without_a_mask_accepts_more_queries_than_keys():
    assert ATTENTION.problem(heads=8, queries=4096, keys=77, head_dim=40).tensors["k"].shape == (1, 8, 77, 40)
