import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.kernel.expression import MAX_DEPTH, MAX_LENGTH, parse


@given(st.text(max_size=60) | st.text(alphabet="ab01()+-*/%<>=!'\", .if els", max_size=40))
def test_any_text_is_parsed_or_refused_in_one_line(text):
    refusal = ""
    try:
        expression = parse(text)
        expression.evaluate(dict.fromkeys(expression.names, 3))
    except UsageError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 300


@pytest.mark.parametrize(("text", "value"), [
    ("7 // 2 * 2 + 7 % 2", 7), ("-7 // 2", -4), ("ceil_div(7, 2)", 4), ("2 ** 10", 1024), ("7 / 2", 3.5),
    ("1 < a <= 5 and not a == 4", True), ("10 if a > 5 else 20", 20), ("min(3, a, 9) + max(1, 2)", 5),
    ("(a > 1) + (a > 2) + (a > 100)", 2), ("dtype == 'f32' and layout != 'nhwc'", True),
    ("a // 0 + a % 0 + a / 0 + ceil_div(a, 0)", 0), ("\n  a +\n  1 ", 6), ("log2(1024) + log2(1) + log2(0)", 10),
    ("power_of_two(a)", False), ("power_of_two(4)", True),
])  # fmt: skip
def test_arithmetic_matches_python(text, value):
    assert parse(text).evaluate({"a": 5, "dtype": "f32", "layout": "nchw"}) == value


@pytest.mark.parametrize(("text", "column", "reason"), [
    ("", None, "empty"), ("a +", 1, "invalid syntax"), ("a.b", 1, "only integers"), ("a + b[0]", 6, "'['"),
    ("1.5 * a", 1, "only integers"), ("__import__('os')", 1, "unknown function"),
    ("a + ceildiv(1, 2)", 5, "did you mean ceil_div?"), ("min(1)", 1, "min takes 2 to 8 arguments"),
    ("log2(a, 1)", 1, "log2 takes 1 arguments"), ("1 + min", 5, "min is a function"), ("lambda: 1", 7, "':'"),
    ("True", 1, "only integers"), ("~a", 1, "'~'"), ("+a", 1, "only integers"), ("a is b", 1, "comparisons"),
    ("a in b", 1, "comparisons"), ("'ab' * 1000", 1, "text"), ("'ab' < dtype", 1, "text"), ("1_000", 1, "'1_'"),
    ("0x10", 1, "'0x'"), ("9223372036854775808", 1, "64 bits"), ("аbc", 1, "character"), ("a;b", 2, "';'"),
    ("min(*a)", 1, "takes 2 to 8"), ("min(a, b, default=1)", 1, "takes 2 to 8"),
])  # fmt: skip
def test_invalid_text_is_refused_with_its_column(text, column, reason):
    with pytest.raises(UsageError) as refusal:
        parse(text)
    message = str(refusal.value)
    assert reason in message
    assert column is None or f"column {column}:" in message
    assert "\n" not in message


def test_expression_depth_and_length_are_limited(refuses):
    refuses(parse, [
        "-" * 3000 + "1", "not " * 500 + "1", " + ".join("a" * 200), "1 if a else " * 200 + "1", "2 ** " * 300 + "2",
        "(" * 3999, "a" * (MAX_LENGTH + 1), "9" * 3900,
    ])  # fmt: skip


def test_nested_conditionals_compile_in_linear_time():
    text = "a"
    for _ in range(MAX_DEPTH - 2):
        text = f"(1 if b else {text})"
    assert parse(text).evaluate({"a": 7, "b": 0}) == 7


def test_nested_powers_in_expressions_stay_within_64_bits():
    value = parse("9 ** 9 ** 9 ** 9").evaluate({})
    assert -(2**63) <= value < 2**63


def test_value_of_the_wrong_type_is_refused_in_one_line(refuses):
    refuses(lambda text, names: parse(text).evaluate(names), [
        ("a + b", {"a": 1}), ("a * 1000000000", {"a": "f32"}), ("a + 1", {"a": None}), ("a + 1", {"a": 2**63}),
        ("a + 1", {"a": np.array(["x"])}), ("a == 'f32'", {"a": 3}), ("a == 'f32'", {"a": np.array([3])}),
        ("log2(a / 2)", {"a": 3}), ("(a / 2) ** 2", {"a": np.array([3])}),
        ("a + b", {"a": np.arange(3), "b": np.arange(4)}),
    ])  # fmt: skip


@given(st.integers(0, 2**31 - 1), st.integers(2, 2**31))
@example(2**31 - 1, 2)
@example(2**31 - 1, 2**31 - 1)
@example(2**31 - 1, 2**31)
@example(2**31 - 2, 2**31 - 1)
@example(2**31 - 1, 3)
@example(2**31 - 1, 641)
def test_fast_division_is_exact_below_2_to_the_31(n, d):
    multiplier, shift = (parse(f"magic_{part}(d)").evaluate({"d": d}) for part in ("mul", "shift"))
    assert 0 < multiplier < 2**32
    for close in {n, n // d * d, max(n // d * d - 1, 0)}:  # a multiple of d, and one less
        assert (multiplier * close >> 32) >> shift == close // d


@pytest.mark.parametrize("text", ["layout % bx == 0", "bx % layout == 0", "layout / bx > 1", "layout ** bx > 1"])
def test_text_in_an_arithmetic_expression_is_refused(text):
    with pytest.raises(UsageError, match="text 'row' where a number is expected"):
        parse(text).evaluate({"layout": "row", "bx": np.array([1, 2])})
