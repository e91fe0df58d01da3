"""Programs in the engine give what the expressions give one by one."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.kernel.columns import Columns
from kernrec.kernel.domain import ConfigRows
from kernrec.kernel.expression import implication, parse
from kernrec.kernel.library import all_kernels, find_kernel
from kernrec.kernel.space import Space
from tests.helpers.depth import few_examples
from tests.kernel.test_expression import INT64, INTEGER_TEXTS

DIMENSIONS = st.one_of(st.integers(1, 64), st.sampled_from([1000, 4096, 65536]))


@few_examples(60)
@given(
    st.lists(INTEGER_TEXTS, min_size=1, max_size=4),
    st.lists(INT64, min_size=1, max_size=3, unique=True),
    st.lists(INT64, min_size=1, max_size=4, unique=True),
    INT64,
    st.integers(0, 2**32 - 1),
)
@example(["(a // c)", "(a % c)", "(c // a)", "(c % a)"], [-(2**63), 2**63 - 1, 7, -7], [1], -1, 0)
@example(["(a // c)", "(a % c)", "(b ** c)", "abs(c)"], [-(2**63), 2**63 - 1, 7, -7], [-3, 5], 0, 0)
@example(["magic_mul(c)", "magic_shift(c)", "(a // b <= c)"], [5, 9], [2, 0], 2**31, 0)
def test_a_program_of_random_expressions_gives_their_values(
    texts: list[str], a: list[int], b: list[int], c: int, seed: int
) -> None:
    values = {"a": np.array(a), "b": np.array(b)}
    draw = np.random.default_rng(seed)
    rows = ConfigRows(9, values, {name: draw.integers(0, len(column), 9) for name, column in values.items()})
    lets = {"let": parse(texts[0])}
    expressions = [*map(parse, texts), parse(f"let + {texts[-1]}"), parse(f"({texts[-1]}) + c > b")]
    conditions = [implication(parse("a > c"), parse(f"{texts[0]} > 0")), parse("let != b")]
    single = Columns(rows, lets, {}).at({"c": c})
    expected = [np.broadcast_to(single.column(each), 9) for each in expressions]
    plain = Columns(rows, lets, {})
    held = plain.at({"c": c}).all_true(plain.test(conditions))
    columns = Columns(rows, lets, {})
    columns.compile(columns.test(conditions), expressions)
    assert columns.program is not None
    values_there = columns.at({"c": c})
    assert columns.tested is not None
    np.testing.assert_array_equal(values_there.all_true(columns.tested), held)
    for each, column in zip(expressions, expected, strict=True):
        assert each in columns.program.outputs or not columns.plan(each).dynamic
        np.testing.assert_array_equal(np.broadcast_to(values_there.column(each), 9), column, each.text)


@pytest.mark.parametrize("name", [kernel.name for kernel in all_kernels()])
@few_examples(6)
@given(st.data())
def test_a_kernel_s_expressions_have_the_same_values_in_its_program(name: str, data: st.DataObject) -> None:
    kernel = find_kernel(name)
    gpu = find_gpu("h200" if kernel.min_sm <= 90 else "b200")
    dtypes = [dtype for dtype in kernel.dtypes if kernel.dtype_min_sm.get(dtype, 0) <= gpu.sm]
    dtype, layout = data.draw(st.sampled_from(dtypes)), data.draw(st.sampled_from(kernel.layouts))
    single, columns = (Space(kernel, gpu.sm, gpu.limits, dtype, layout)._columns for _ in range(2))
    conditions = [plan.expression for plan in Space(kernel, gpu.sm, gpu.limits, dtype, layout)._test if plan.expression]
    plans = [single.plan(each) for each in (*conditions, *kernel.launch_expressions)]
    names = {ask: data.draw(DIMENSIONS) for plan in plans for ask in plan.asks}
    expected = single.at(names)
    columns.compile(columns.test(conditions), kernel.launch_expressions)
    values, count = columns.at(names), columns.configs.count
    assert columns.tested is not None
    np.testing.assert_array_equal(values.all_true(columns.tested), expected.all_true(single.test(conditions)))
    for each in kernel.launch_expressions:
        assert columns.program is not None
        assert each in columns.program.outputs or not columns.plan(each).dynamic
        there, alone = (np.broadcast_to(v.column(each), count) for v in (values, expected))
        np.testing.assert_array_equal(there, alone, each.text)
