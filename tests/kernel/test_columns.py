import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.kernel.columns import Columns
from kernrec.kernel.domain import ConfigRows
from kernrec.kernel.expression import implication, parse
from tests.helpers.refusals import Refuses

VALUES = {"s": np.array([1, 2, 3]), "t": np.array([4, 8]), "u": np.array([0, 5, 6, 7])}
LETS = {"st": parse("s * t"), "big": parse("st > 8"), "per": parse("ceil_div(m, st)")}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), max_size=200),
    st.sampled_from(["s", "7", "m", "st + u", "big + 1", "per * u", "u if big else per", "m // u", "scale * t"]),
    st.integers(1, 1000),
)
def test_evaluating_on_distinct_combinations_changes_no_value(
    rows: list[tuple[int, int, int]], text: str, m: int
) -> None:
    digits = {name: np.array([row[i] for row in rows], dtype=np.int64) for i, name in enumerate("stu")}
    columns = Columns(ConfigRows(len(rows), VALUES, digits), LETS, {"scale": 3})
    result = np.broadcast_to(columns.at({"m": m}).column(parse(text)), len(rows))
    for i, row in enumerate(rows):
        names = {name: int(VALUES[name][row[j]]) for j, name in enumerate("stu")} | {"m": m, "scale": 3}
        for name, let in LETS.items():
            names[name] = int(let.evaluate(names))
        assert result[i] == parse(text).evaluate(names)


def test_groups_join_exactly_the_rows_with_the_same_values() -> None:
    rng = np.random.default_rng(0)
    digits = {name: rng.integers(0, len(VALUES[name]), 300) for name in VALUES}
    index, first = ConfigRows(300, VALUES, digits).groups(["s", "u"])
    pairs = list(zip(digits["s"].tolist(), digits["u"].tolist(), strict=True))
    assert len(first) == len(set(pairs))
    assert [pairs[first[group]] for group in index] == pairs


def test_a_static_expression_is_evaluated_once_for_all_problems() -> None:
    digits = {"s": np.array([0, 1, 2] * 10)}
    columns = Columns(ConfigRows(30, {"s": VALUES["s"]}, digits), {}, {})
    first, second = (columns.at({"m": m}).column(parse("s * 7")) for m in (1, 2))
    assert np.array_equal(first, second)
    assert columns.plan(parse("s * 7")).value.tolist() == [7, 14, 21]


def test_text_used_as_a_number_is_refused_in_one_line(refuses: Refuses) -> None:
    columns = Columns(ConfigRows(3, {"s": VALUES["s"]}, {"s": np.arange(3)}), {}, {"dtype": "f32"})
    refuses(lambda: columns.at({}).column(parse("s * dtype")))
    refuses(lambda: columns.at({}).column(parse("s * m")))


def test_an_answer_kept_for_one_problem_is_given_for_no_other() -> None:
    columns = Columns(
        ConfigRows(4, {"s": VALUES["s"]}, {"s": np.array([0, 1, 2, 0])}), {"per": parse("ceil_div(m, s)")}, {}
    )
    for k in (1, 2):
        for m in range(100):  # more than are kept
            on_problem = columns.at({"m": m % 60, "k": k})
            np.testing.assert_array_equal(
                on_problem.column(parse("per * 2 + k")), 2 * -(-(m % 60) // np.array([1, 2, 3, 1])) + k
            )


def test_a_let_that_is_not_chosen_is_not_evaluated(refuses: Refuses) -> None:
    lets = {"wrong": parse("dtype * m"), "chosen": parse("s + m if m > 1 else wrong")}
    columns = Columns(ConfigRows(3, {"s": VALUES["s"]}, {"s": np.arange(3)}), lets, {"dtype": "f32"})
    np.testing.assert_array_equal(columns.at({"m": 2}).column(parse("chosen")), [3, 4, 5])
    refuses(lambda: columns.at({"m": 1}).column(parse("chosen")))


def test_order_of_constraints_changes_no_answer() -> None:
    columns = Columns(ConfigRows(3, {"s": VALUES["s"]}, {"s": np.arange(3)}), {}, {})
    rule = implication(parse("s == 3"), parse("m * s < 10"))
    test = columns.test([rule])
    for m in range(12):
        expected = [s != 3 or m * s < 10 for s in (1, 2, 3)]
        np.testing.assert_array_equal(columns.at({"m": m}).all_true(test), expected)
