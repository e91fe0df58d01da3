"""Test parsing and printing of quantities with units."""

from kernrec.cli.quantity import fraction, hertz, watts


def test_quantity_accepts_its_unit():
    assert watts("--max-power", "250W") == watts("--max-power", " 0.25 kw ") == 250.0
    assert hertz("--clock", "1.41GHz") == hertz("--clock", "1410MHz") == 1.41e9
    assert fraction("--max-slowdown", "3%") == 0.03


def test_quantity_without_a_unit_is_refused_with_an_example(refuses):
    refuses(lambda text: watts("--max-power", text), ["250", "W", "", "-3W", "3 %", "1e3e3W", "nanW"])
