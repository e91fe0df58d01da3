"""Numbers with units as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.util.human import human


@given(st.floats(1e-9, 1e15))
def test_value_is_shown_to_three_digits(value):
    number, unit = human(value, "s").split(" ")
    scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}[unit.removesuffix("s")]
    assert float(number) * scale == pytest.approx(value, rel=5.1e-3)
    assert value >= 1e15 * 0.9995 or float(number) < 1000
