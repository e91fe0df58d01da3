"""Numbers with units as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.util.human import counted, human


@given(st.floats(1e-9, 1e15))
def test_values_are_shown_with_three_digits(value):
    number, unit = human(value, "s").split(" ")
    scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}[unit.removesuffix("s")]
    assert float(number) * scale == pytest.approx(value, rel=5.1e-3)
    assert value >= 1e15 * 0.9995 or float(number) < 1000


def test_counts_use_plurals() -> None:
    counts = [counted(1, "launch"), counted(2, "launch"), counted(0, "row"), counted(3, "class")]
    assert counts == ["1 launch", "2 launches", "0 rows", "3 classes"]
