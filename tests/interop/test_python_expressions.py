"""Test that the expressions of tuning files evaluate as in Python, and that any other syntax is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop.python_expressions import Translator, read_values
from kernrec.kernel import parse

TRANSLATOR = Translator({"block_size_x": "block_size_x", "MWG": "mwg"}, {"MWG": [16, 64], "block_size_x": [32]}, 2)
sizes = st.integers(1, 1 << 14)


@pytest.mark.parametrize("text", [
    "MWG % (block_size_x * 2) == 0", "32 <= MWG * block_size_x <= 1024",
    "MWG > 8 or block_size_x == 1 and not MWG == 4", "MWG in [8, 16, 32]", "MWG not in (8, 16)",
    "int(MWG / block_size_x) * 4", "math.ceil(MWG / block_size_x)", "(MWG * 3) % ((MWG * block_size_x) / MWG) == 0",
    "MWG if block_size_x > 32 else 2 ** 3", "max(MWG, block_size_x) - min(MWG, 7)",
])  # fmt: skip
@given(mwg=sizes, block=sizes)
def test_translated_expression_has_its_python_value(text, mwg, block):
    names = {"MWG": mwg, "block_size_x": block, "math": math}
    ours = parse(TRANSLATOR.expression("it", text))
    assert ours.evaluate({"mwg": mwg, "block_size_x": block}) == eval(text, {}, names)


def test_kernel_tuner_variable_names_are_translated():
    def translated(text: str) -> str:
        return TRANSLATOR.expression("it", text)

    assert translated("ProblemSize[1] + max(MWG)") == "problem_size_y + 64"
    assert translated("min(MWG) * problem_size_x") == "16 * problem_size_x"
    assert translated('p["MWG"] && block_size_x != 3 || !MWG') == "mwg and block_size_x != 3 or not mwg"


@pytest.mark.parametrize(("text", "says"), [
    ("MWG.__class__", "not supported"), ("__import__('os')", "not supported"), ("eval('1')", "function eval"),
    ("[1 for x in MWG]", "not supported"), ("lambda p: p", "not supported"), ("MGW % 2", "did you mean MWG"),
    ("ProblemSize[2]", "has 2 dimensions"), ("MWG %% 2", "is not an expression"), ("MWG & 3 == 0", None),
    ("1 +" * 3000 + "1", "at most 4000"), ("(" * 500 + "1" + ")" * 500, "not an expression"),
])  # fmt: skip
def test_unsupported_python_is_refused(text, says):
    with pytest.raises(UsageError) as raised:
        parse(TRANSLATOR.expression("Conditions[0]", text))
    if says:
        assert "Conditions[0]" in str(raised.value)
        assert says in str(raised.value)


def test_invalid_list_of_tunable_values_is_refused_in_one_line(refuses):
    refuses(lambda text: read_values("TuningParameters b", text), [
        "range(10**9)", "[2**9999 for i in range(3)]", "open('x')", "[i for i in range(9) if i]", "7", "[x]", "[1/0]",
    ])  # fmt: skip
