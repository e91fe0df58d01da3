"""Test parsing of compiler and assembler output."""

import pytest

from kernrec.compile import Resources
from kernrec.compile.compiled import first_error, parse_resources

CALLS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_80'
ptxas info    : Function properties for k2
ptxas         .     400 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 400 bytes cumulative stack size, 2048 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for _Z1ff
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function '_Z2k3IfEvPT_' for 'sm_80'
ptxas info    : Function properties for _Z2k3IfEvPT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 360 bytes cmem[0]
"""


def test_each_entry_point_has_its_own_resources_without_those_of_callees():
    assert parse_resources(CALLS) == {
        "k2": Resources(38, spill_store_bytes=8, spill_load_bytes=12, stack_bytes=400, static_smem_bytes=2048),
        "_Z2k3IfEvPT_": Resources(8, 0, 0, 0, 0),
    }
    assert parse_resources("") == {}


@pytest.mark.parametrize(("log", "line"), [
    (
        'k.cu(3): warning #177-D: unused\n  x\n\nk.cu(7): error: identifier "b" is undefined\nk.cu(9): error: z',
        'k.cu:7: identifier "b" is undefined',
    ),
    ("k.cu(1): catastrophic error: could not open source file", "k.cu:1: could not open source file"),
    ("k.cu(4): error #20: bad", "k.cu:4: bad"),
    (
        "ptxas info    : 0 bytes gmem\nptxas error   : Entry function 'k' uses too much shared data\n",
        "k.cu: Entry function 'k' uses too much shared data",
    ),
    ("\n", "k.cu: the compiler failed without a message"),
])  # fmt: skip
def test_first_error_is_one_line_with_its_source_and_line(log, line):
    assert first_error(log, "k.cu") == line
