"""Conversions beside machine code: what is read of a listing, and what contradicts a class."""

import compare_conversions
import pytest

from kernrec.ptx.ir.parser import parse

LISTING = """
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;
        /*0020*/                   I2FP.F32.U32 R7, R2 ;
        /*0030*/                   STG.E desc[UR4][R4.64], R7 ;
"""


def test_the_conversion_is_found_among_loads_and_stores() -> None:
    assert compare_conversions.conversion_of(LISTING) == "I2FP.F32.U32"
    assert compare_conversions.conversion_of("nothing") == ""


@pytest.mark.parametrize("conversion", compare_conversions.CONVERSIONS)
def test_every_conversion_is_a_kernel_that_parses_and_has_a_class(conversion: str) -> None:
    ptx = compare_conversions.kernel_of(conversion, compare_conversions.CONVERSIONS[conversion], 90)
    assert "k" in parse(ptx).entries
    assert compare_conversions.counted_class(conversion)


@pytest.mark.parametrize(
    ("code", "counted", "right"),
    [
        ("I2FP.F32.S32", "i2f", True),
        ("I2F.U32", "i2f", True),  # what there is before sm_86
        ("I2F.U32.RP", "f2i", True),
        ("I2FP.F32.S32", "f2i", False),
        ("F2I.TRUNC.NTZ", "f2i", True),
        ("F2I.TRUNC.NTZ", "cvt", False),
        ("F2F.F32.F64", "cvt64", True),
        ("F2F.F32.F64", "cvt", False),
        ("", "cvt", False),
    ],
)
def test_a_class_that_machine_code_contradicts_is_seen(code: str, counted: str, right: bool) -> None:
    assert compare_conversions.agrees(code, counted) is right
