"""Test that trees in kernrec's format predict the same as XGBoost, and that recordings obey data sheet limits."""

import json
from typing import Any

import numpy as np
import pytest
from evidence.recordings.files import parquet_columns
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.baselines import compact_trees
from kernrec.model.baselines.compact_trees import CompactTrees, compact
from kernrec.model.baselines.operating_point import LEEWAY, WINOGRAD, least_s, rates_of, work_of
from kernrec.op import find_op
from kernrec.store.recorded import contents
from tests.helpers.depth import few_examples
from tests.helpers.paths import ROOT

FOLDER = ROOT / "db/prebuilt/recorded"
L40S = find_gpu("l40s")


@pytest.mark.parametrize("rows", [4000, pytest.param(None, marks=[pytest.mark.slow, pytest.mark.deep], id="all")])
@pytest.mark.parametrize("op", tuple(contents()))
def test_no_shipped_recording_exceeds_gpu_limits(op, rows):
    sample = f" USING SAMPLE reservoir({rows} ROWS) REPEATABLE (7)" if rows else ""
    columns = parquet_columns(FOLDER / f"{op}.parquet", f"true{sample}")
    definition = find_op(op)
    dims = [dim.name for dim in definition.dims if dim.name in columns]
    named = ["dtype", "layout", *dims, *(["kernel"] if op == "conv2d" else [])]
    shapes = list(zip(*(columns[name].tolist() for name in named), strict=True))
    works = {}
    for shape in dict.fromkeys(shapes):
        problem = definition.problem(shape[0], shape[1], **dict(zip(dims, shape[2:], strict=False)))
        works[shape] = work_of(problem, shape[-1] if op == "conv2d" else None)
    flops, moved = np.array([works[shape] for shape in shapes]).T
    for gpu in np.unique(columns["gpu"]):
        device = find_gpu(str(gpu))
        for dtype in np.unique(columns["dtype"]):
            alike = (columns["gpu"] == gpu) & (columns["dtype"] == dtype)
            least = least_s(flops[alike], moved[alike], rates_of(device, str(dtype)))
            assert (least <= LEEWAY * 1.001 * columns["latency_s"][alike]).all()  # recorded times have four digits
        assert not (columns["power_w"][columns["gpu"] == gpu] > device.tdp_w).any()


def test_weights_in_l2_are_read_faster_than_from_dram():
    problem = find_op("matmul").problem("bf16", "nt", m=8, n=4096, k=4096)
    dram_s = problem.bytes / L40S.memory_bandwidth
    assert least_s(*work_of(problem), rates_of(L40S, "bf16")) < 0.5 * dram_s


def test_bytes_beyond_l2_come_from_dram():
    rates = rates_of(L40S, "bf16")
    moved = 10 * L40S.l2_bytes
    assert least_s(0.0, moved, rates) == pytest.approx(0.9 * moved / L40S.memory_bandwidth)
    assert least_s(1e15, 0.0, rates) == pytest.approx(1e15 / L40S.peak_flops("bf16", tensor=True))


def test_attention_of_100_mb_in_10_us_is_impossible_on_an_l40s():
    token = find_op("attention").problem("bf16", batch=64, heads=32, kv_heads=32, queries=1, keys=96, head_dim=128)
    assert token.bytes > 100e6
    assert least_s(*work_of(token), rates_of(L40S, "bf16")) > 1.8 * 9.87e-6


def test_winograd_needs_fewer_multiplications_than_implicit_gemm():
    problem = find_op("conv2d").problem("f32", n=1, c=64, h=56, w=56, k=64, r=3, s=3, stride=1, padding=1)
    for kernel in ("winogradForwardData4x4 + ampere_sgemm".lower(), "fft2d_r2c_32x32 + ampere_gcgemm", None):
        assert work_of(problem, kernel)[0] == problem.flops / WINOGRAD
    assert work_of(problem, "implicit_convolve_sgemm")[0] == problem.flops


def test_uneven_routing_reads_the_weights_of_fewer_experts():
    sizes = {"tokens": 64, "hidden": 2048, "intermediate": 1024, "experts": 128, "topk": 8}
    even, uneven = (find_op("moe").problem("bf16", "row", **sizes, routing=routing) for routing in (0, 120))
    assert 0.3 * work_of(even)[1] < work_of(uneven)[1] < work_of(even)[1]
    assert work_of(uneven)[0] == even.flops


def booster(seed: int, rounds: int, levels: int) -> tuple[Any, np.ndarray]:
    import xgboost  # XGBoost takes 2 s to import, so only training imports it

    draw = np.random.default_rng(seed)
    matrix = draw.normal(size=(300, 4)).astype(np.float32)
    target = np.sin(3 * matrix[:, 0]) + matrix[:, 1] * (matrix[:, 2] > 0)
    settings = {
        "max_depth": levels, "max_leaves": 20, "grow_policy": "lossguide", "base_score": 0.0, "max_bin": 255,
        "nthread": 1,
    }  # fmt: skip
    return xgboost.train(settings, xgboost.QuantileDMatrix(matrix, target, max_bin=255), rounds), matrix


def trees(boosted: Any) -> list[dict]:
    return json.loads(boosted.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 7))
@few_examples(6)
def test_compressed_trees_predict_like_xgboost_within_rounding(seed, rounds, levels):
    boosted, matrix = booster(seed, rounds, levels)
    small = CompactTrees(*compact(trees(boosted), 4, 0.25))
    expected = boosted.inplace_predict(matrix) + 0.25
    assert small.predict(matrix) == pytest.approx(expected, abs=3e-3 * rounds)


@pytest.mark.parametrize(("name", "change"), [
    ("cut", lambda a: a[:-1]), ("column", lambda a: a + 4), ("cut", lambda a: np.full_like(a, 255)),
    ("leaf", lambda a: a[1:]), ("inner", lambda a: ~a), ("cuts", lambda a: a[2:]), ("nodes", lambda a: a[::-1] * 0),
])  # fmt: skip
def test_inconsistent_arrays_are_refused(name, change):
    facts, arrays = compact(trees(booster(3, 4, 5)[0]), 4, 0.0)
    with pytest.raises((ValueError, IndexError)):
        CompactTrees(facts, arrays | {name: change(arrays[name])})


def test_trees_with_too_many_nodes_are_refused(monkeypatch):
    facts, arrays = compact(trees(booster(3, 4, 5)[0]), 4, 0.0)
    monkeypatch.setattr(compact_trees, "_MOST_NODES", int(arrays["nodes"].sum()))
    assert CompactTrees(facts, arrays).features
    monkeypatch.setattr(compact_trees, "_MOST_NODES", int(arrays["nodes"].sum()) - 1)
    with pytest.raises(ValueError, match="more than"):
        CompactTrees(facts, arrays)


@few_examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_tree_prediction_equals_a_walk_from_root_to_leaf(seed, levels):
    draw = np.random.default_rng(seed)
    trees, features, inner = 40, 3, 2**levels - 1
    nodes = 2 * inner + 1
    cuts = np.array([-2.5, -0.0, 0.0, 1e-30, 1.5], dtype=np.float32)
    column, cut = draw.integers(0, features, (trees, inner)), draw.integers(0, len(cuts), (trees, inner))
    leaf = draw.integers(0, 256, (trees, inner + 1))
    arrays = {
        "nodes": np.full(trees, nodes, np.uint16), "inner": np.packbits(np.tile(np.arange(nodes) < inner, trees)),
        "column": column.ravel().astype(np.uint8), "cut": cut.ravel().astype(np.uint8),
        "cut_count": np.full(features, len(cuts), np.uint16), "cuts": np.tile(cuts, features),
        "leaf": leaf.ravel().astype(np.uint8), "leaf_low": np.full(trees, -8, np.float32),
        "leaf_step": np.ones(trees, np.float32),
    }  # fmt: skip
    matrix = draw.choice([-np.inf, *cuts], (9, features)).astype(np.float32)
    expected = []
    for row in matrix:
        reached = np.zeros(trees, int)
        for _ in range(levels):
            here = np.arange(trees), reached
            reached = 2 * reached + 1 + (row[column[here]] >= cuts[cut[here]])
        expected.append((leaf[np.arange(trees), reached - inner] - 8).sum())
    trained = CompactTrees({"base": 0.0, "levels": levels}, arrays)
    assert trained.predict(matrix).tolist() == expected
