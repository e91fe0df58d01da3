"""The bound of products and the walk down trees as Python and compiled: equal results, but for last bits of powers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.vendor import compact_trees, timed
from kernrec.model.vendor.bound import FLUSHED, GRAPH, Bound, Timing, features
from kernrec.model.vendor.features import matmul
from kernrec.model.vendor.model_file import load
from kernrec.op import find_op
from tests.helpers.core_forms import draws, in_both_forms
from tests.helpers.depth import few_examples

ALONE = Timing(30000.0, 1.0, alone=True)
CARDS = st.sampled_from((
    ("p100", "f32"), ("v100-pcie-16gb", "f32"), ("a100", "f32"), ("rtx4090", "f32"), ("rtx4090", "bf16"),
    ("h200", "f16"), ("b200", "f8e4m3"), ("a100", "w4a16"),
))  # fmt: skip


@few_examples(40)
@given(draws, CARDS, st.sampled_from(("nn", "nt", "tn", "tt")), st.sampled_from((GRAPH, FLUSHED, ALONE)))
def test_products_have_the_same_bound_and_features_in_both_forms(
    draw: np.random.Generator, card: tuple[str, str], layout: str, timing: Timing
) -> None:
    name, dtype = card
    dims = dict(zip(matmul.DIMS, (2.0 ** draw.uniform(0, (6, 14, 14, 14), (9, 4))).astype(int).T, strict=True))
    dims["batch"] = np.where(draw.random(9) < 0.5, 1, dims["batch"])

    def of_card() -> tuple[Bound, dict[str, np.ndarray]]:
        return features("matmul", find_gpu(name), dtype, layout, dims, timing)

    def seconds() -> list[np.ndarray]:
        bound, _ = of_card()
        return [bound.total_s, *bound.parts.values(), np.asarray(bound.work_s)]

    in_both_forms(matmul, seconds, 1e-12)
    in_both_forms(matmul, lambda: list(of_card()[1].values()), 1e-12, 1e-12)  # logarithms may be nearly 0


@few_examples(30)
@given(draws, st.integers(0, 6), st.integers(1, 30))
def test_rows_reach_the_same_leaves_in_both_forms(draw: np.random.Generator, levels: int, rows: int) -> None:
    trees, features, inner = 70, 5, 2**levels - 1  # in groups of `core.GROUP`
    nodes = 2 * inner + 1
    node = np.arange(trees * nodes)
    split = node % nodes < inner
    left = np.where(split, 2 * node + 1 - node // nodes * nodes, node)
    threshold = np.where(split, draw.normal(size=len(node)), np.nan).astype(np.float32)
    leaf = draw.normal(size=len(node)).astype(np.float32)
    start, feature = np.arange(trees) * nodes, draw.integers(0, features, len(node))
    trained = compact_trees.CompactTrees(start, left, feature, threshold, leaf, 0.5, levels)
    matrix = draw.normal(size=(rows, features)).astype(np.float32)
    some = draw.random(matrix.shape) < 0.5  # values as large as a threshold go right
    matrix[some] = draw.choice(np.append(threshold[split], [0.0, -0.0]), some.sum())
    in_both_forms(compact_trees, lambda: [trained.predict(matrix)], 1e-12)


@few_examples(30)
@given(draws, st.integers(1, 6))
def test_a_row_reaches_the_leaf_that_its_comparisons_lead_to(draw: np.random.Generator, levels: int) -> None:
    trees, features, inner = 40, 3, 2**levels - 1
    nodes = 2 * inner + 1
    node = np.arange(trees * nodes)
    split = node % nodes < inner
    left = np.where(split, 2 * node + 1 - node // nodes * nodes, node)
    values = np.array([-np.inf, -2.5, -0.0, 0.0, 1e-30, 1.5], dtype=np.float32)
    threshold = np.where(split, draw.choice(values[1:], len(node)), np.nan).astype(np.float32)
    leaf, feature = draw.integers(-8, 9, len(node)).astype(np.float32), draw.integers(0, features, len(node))
    trained = compact_trees.CompactTrees(np.arange(trees) * nodes, left, feature, threshold, leaf, 0.0, levels)
    matrix = draw.choice(values, (9, features))
    expected = []
    for row in matrix:
        reached = np.arange(trees) * nodes
        for _ in range(levels):
            reached = left[reached] + (row[feature[reached]] >= threshold[reached])
        expected.append(leaf[reached].sum())
    assert trained.predict(matrix).tolist() == expected


@few_examples(10)
@given(draws, st.sampled_from((("a100", "f16"), ("h200", "bf16"), ("rtx4090", "f32"), ("rtx3090", "bf16"))))
def test_lines_of_stacks_are_the_same_in_both_forms(draw: np.random.Generator, of_card: tuple[str, str]) -> None:
    name, dtype = of_card
    card, op = find_gpu(name), find_op("matmul")
    shapes = (2.0 ** draw.uniform(4, 13, (5, 3))).astype(int).tolist()
    problems = [op.problem(dtype, "nt", m=m, n=n, k=k) for m, n, k in shapes]

    def lines() -> list[np.ndarray]:
        model = load(paths.shipped("db/prebuilt") / "models" / "vendor" / "matmul.json")
        model.predict_many(problems, card)
        every = [each for problem in problems for each in model.predict(problem, card)]
        watts = [0.0 if each.power_w is None else each.power_w.value for each in every]
        return [np.array([each.latency_s.value for each in every]), np.array(watts)]

    in_both_forms((matmul, timed, compact_trees), lines, 1e-12)
