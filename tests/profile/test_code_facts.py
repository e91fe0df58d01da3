"""Test the facts about a launch that are read from a kernel's PTX."""

import pytest

from kernrec.profile.code_facts import facts_of
from kernrec.ptx import parse


@pytest.mark.parametrize(("factors", "tile"), [((64, -4), 64), ((64, 32), 32), ((-4,), 0)])
def test_tile_is_the_least_positive_factor_of_a_block_position(factors, tile):
    products = "".join(f"mul.lo.s32 %r2, %r1, {factor};\n" for factor in factors)
    code = f".reg .b32 %r<3>;\nmov.u32 %r1, %ctaid.x;\n{products}ret;\n"
    ptx = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{{\n{code}}}\n"
    assert facts_of(parse(ptx), "f").tiles == (tile, 0, 0)
