"""Test that cubins are decoded as nvdisasm decodes them, and that damaged cubins raise no error."""

import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.compile import CompileJob
from kernrec.compile.compiled import toolkit_program
from kernrec.compile.machine_code import LEAVES, read_machine_code
from kernrec.compile.nvrtc import compile_alone
from kernrec.compile.opcodes import access_bytes, opcode_of
from tests.helpers.depth import few_examples
from tests.helpers.paths import beside

SOURCE = beside(__file__, "many_opcodes.cu")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+(?:@!?U?P[0-9T]+ )?\s*([A-Z][A-Z0-9_]*)([.\w]*)([^;]*);")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
_LABEL = re.compile(r"([.$\w]+):")
_BYTES = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
LOADS = ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LD", "ST")


@pytest.fixture(scope="module", params=[75, 80, 86, 90, 100, 120])
def compiled(nvrtc, request):
    return request.param, compile_alone(CompileJob(SOURCE, request.param))


def listed(text):
    """Return (position, line, opcode, moved bytes, target) for each instruction in nvdisasm's output."""
    rows, labels, line = [], {}, 0
    for row in text.splitlines():
        if match := _INSTRUCTION.match(row):
            address, opcode, marks, operands = match.groups()
            target = re.search(r"`\(([.$\w]+)\)", operands)
            sizes = [_BYTES[mark] for mark in marks.split(".") if mark in _BYTES]
            rows.append((int(address, 16) // 16, line, opcode, (sizes or [4])[-1], target and target[1]))
        elif match := _LINE.match(row):
            line = int(match[1])
        elif match := _LABEL.match(row):
            labels[match[1]] = len(rows)
    return [(*row, labels.get(target)) for *row, target in rows]


@pytest.mark.skipif(toolkit_program("nvdisasm") is None, reason="there is no nvdisasm here")
def test_instructions_lines_and_targets_equal_those_of_nvdisasm(compiled, tmp_path):
    sm, code = compiled
    (tmp_path / "k.cubin").write_bytes(code.cubin)
    command = [toolkit_program("nvdisasm"), "-c", "-gp", "-ndf", tmp_path / "k.cubin"]
    rows = listed(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ours = read_machine_code(code.cubin, sm)["k"].instructions
    theirs = {position: rest for position, *rest in rows}
    assert len(ours) > 100
    for ins in ours:
        line, opcode, moved, target = theirs[ins.position]
        same_code = {"REDG": "RED"}.get(opcode, opcode)
        assert (ins.line, ins.opcode) == (line, same_code) or ins.name == "other"
        assert opcode not in LOADS or ins.moved_bytes == moved
        assert opcode != "BRA" or ins.target == target
    left_out = [theirs[position][1] for position in theirs.keys() - {ins.position for ins in ours}]
    assert "CALL" in left_out
    assert not {"LDG", "STG", "BAR"}.intersection(left_out)


def test_code_of_gpus_before_turing_is_not_decoded(compiled):
    assert read_machine_code(compiled[1].cubin, 70) == {}


def test_blocks_start_after_branches_and_at_their_targets(compiled):
    sm, code = compiled
    decoded = read_machine_code(code.cubin, sm)["k"]
    starts = decoded.starts
    assert starts[0] == 0
    assert list(starts) == sorted({*starts})
    for ins in decoded.instructions:
        assert ins.opcode not in LEAVES or ins.position + 1 in starts
        assert ins.opcode != "BRA" or ins.target in starts
    backward = [ins for ins in decoded.instructions if ins.target is not None and ins.target < ins.position]
    assert [ins.opcode for ins in backward] != []


@pytest.mark.parametrize(("low", "high", "sm", "opcode", "name", "moved"), [
    (0x0000000402047981, 0x000EA8000C1E9D00, 80, "LDG", "ld_global", 16),
    (0xFE000004020C797E, 0x001EA80008121910, 100, "LDG", "ld_global", 32),
    (0x0000000085C7FAE, 0x000FE8000B181A1A, 100, "LDGSTS", "cp_async", 16),
    (0x000000FFFF087224, 0x000FE400078E0002, 86, "IMAD", "move", None),
    (0x000000FFFF037224, 0x000FE200000E0605, 86, "IMAD", "imad", None),
    (0x00000000FF017431, 0x000FE200000001FF, 90, "HFMA2", "move", None),
    (0x0000000000007918, 0x000FC00000000000, 90, "NOP", "padding", None),
    (0x0000000302017236, 0x000FE20000000000, 75, "HMMA", "mma", None),
    (0x0000000302017236, 0x000FE20000000000, 90, "VIADD", "alu", None),
    (0x00000000000071FF, 0x000FE20000000000, 90, "?", "other", None),
])  # fmt: skip
def test_opcode_class_and_size_follow_from_the_encoding(low, high, sm, opcode, name, moved):
    assert opcode_of(low, high, sm) == (opcode, name)
    assert moved is None or access_bytes(low, high, sm) == moved


@settings(few_examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
)
def test_damaged_cubin_raises_no_error(compiled, length, changes):
    sm, code = compiled
    damaged = bytearray(code.cubin[: round(len(code.cubin) * length)])
    for place, value in changes:
        if damaged:
            damaged[int(place * len(damaged))] = value
    codes = read_machine_code(bytes(damaged), sm)
    assert all(code.starts[0] == 0 for code in codes.values())
