"""Quantities as people type and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.quantity import fraction, hertz, human, percent, watts
from kernrec.errors import UsageError


def test_a_quantity_takes_its_unit() -> None:
    assert watts("--max-power", "250W") == watts("--max-power", " 0.25 kw ") == 250.0
    assert hertz("--clock", "1.41GHz") == hertz("--clock", "1410MHz") == 1.41e9
    assert fraction("--max-slowdown", "3%") == 0.03


@pytest.mark.parametrize("text", ["250", "W", "", "-3W", "3 %", "1e3e3W", "nanW"])
def test_a_quantity_without_one_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="such as 250W"):
        watts("--max-power", text)


@given(st.floats(1e-9, 1e15))
def test_what_is_shown_is_the_value_to_three_digits(value: float) -> None:
    number, unit = human(value, "s").split(" ")
    scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}[unit.removesuffix("s")]
    assert float(number) * scale == pytest.approx(value, rel=5.1e-3)
    assert value >= 1e15 * 0.9995 or float(number) < 1000


def test_percent_shows_its_sign() -> None:
    assert [percent(x) for x in (0.123, -0.5, 0.004, 0.0)] == ["+12 %", "-50 %", "+0.4 %", "0.0 %"]
