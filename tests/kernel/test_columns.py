"""Test the engine's config spaces: expressions over combinations of tunables, and hostile specs."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.kernel.expression import Expression, implication, parse
from kernrec.util.engine import query
from tests.helpers.depth import few_examples
from tests.kernel.test_expression import INT64, INTEGER_TEXTS

VALUES = {"s": np.array([1, 2, 3]), "t": np.array([4, 8]), "u": np.array([0, 5, 6, 7])}
LETS = {"st": parse("s * t"), "big": parse("st > 8"), "per": parse("ceil_div(m, st)")}


def space(
    values: dict[str, np.ndarray],
    rows: np.ndarray | None = None,
    lets: dict[str, Expression] | None = None,
    facts: dict[str, object] | None = None,
    conditions: tuple[Expression, ...] = (),
) -> object:
    """Return a space of all combinations, or of `rows`: an array (rows, tunables) of indices into the values."""
    return query.Space(values, rows, lets or {}, facts or {}, [], list(conditions), 10_000)


def column(made: object, expression: str, **names: int) -> object:
    return query.Problem(made, names, {}, False, 0.0, 0.0).column(parse(expression))


def held(made: object, count: int, **names: int) -> list[bool]:
    holds = np.ones(count, dtype=bool)
    query.Problem(made, names, {}, False, 0.0, 0.0).test(holds)
    return holds.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), max_size=200),
    st.sampled_from(
        ["s", "7", "m", "st + u", "big + 1", "per * u", "u if big else per", "m // u", "scale * t", "m / u"]
    ),
    st.integers(1, 1000),
)
def test_values_equal_those_of_distinct_combinations(rows, text, m):
    digits = np.array(rows, dtype=np.int64).reshape(-1, 3)
    result = np.broadcast_to(column(space(VALUES, digits, LETS, {"scale": 3}), text, m=m), len(rows))
    for i, row in enumerate(rows):
        names = {name: int(VALUES[name][row[j]]) for j, name in enumerate("stu")} | {"m": m, "scale": 3}
        for name, let in LETS.items():
            names[name] = int(let.evaluate(names))
        assert result[i] == parse(text).evaluate(names)


@few_examples(60)
@given(
    st.lists(INTEGER_TEXTS, min_size=1, max_size=4),
    st.lists(INT64, min_size=1, max_size=3, unique=True),
    st.lists(INT64, min_size=1, max_size=4, unique=True),
    INT64,
)
@example(["(a // c)", "(a % c)", "(c // a)", "(c % a)"], [-(2**63), 2**63 - 1, 7, -7], [1], -1)
@example(["(a // c)", "(a % c)", "(b ** c)", "abs(c)"], [-(2**63), 2**63 - 1, 7, -7], [-3, 5], 0)
@example(["magic_mul(c)", "magic_shift(c)", "(a // b <= c)"], [5, 9], [2, 0], 2**31)
def test_columns_of_random_expressions_match_each_config(texts, a, b, c):
    values, lets = {"a": np.array(a), "b": np.array(b)}, {"let": parse(texts[0])}
    conditions = (implication(parse("a > c"), parse(f"{texts[0]} > 0")), parse("let != b"))
    made = space(values, None, lets, {}, conditions)
    configs = [{"a": x, "b": y, "c": c} for x in a for y in b]
    names = [config | {"let": int(lets["let"].evaluate(config))} for config in configs]
    assert held(made, len(configs), c=c) == [all(each.evaluate(here) for each in conditions) for here in names]
    for text in (*texts, f"let + {texts[-1]}", f"({texts[-1]}) + c > b"):
        expected = [parse(text).evaluate(here) for here in names]
        np.testing.assert_array_equal(np.broadcast_to(column(made, text, c=c), len(configs)), expected, text)


def test_text_used_as_a_number_is_refused_in_one_line():
    made = space({"s": VALUES["s"]}, facts={"dtype": "f32"})
    with pytest.raises(ValueError, match="expression 's \\* dtype': text 'f32' where a number is expected"):
        column(made, "s * dtype")
    with pytest.raises(ValueError, match="expression 's \\* m' needs m"):
        column(made, "s * m")
    assert column(made, "m if dtype == 'f32' else 0", m=3) == 3


def test_circular_lets_are_refused():
    lets = {"a": parse("b + 1"), "b": parse("a + 1")}
    with pytest.raises(ValueError, match="nested too deeply"):
        column(space({}, None, lets), "a")
