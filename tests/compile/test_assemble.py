"""Test the resources of user-supplied PTX, with and without an assembler, and the PTX that is refused."""

import pytest

from kernrec.compile import CompileError, assemble
from kernrec.compile.assemble import ESTIMATED, assembler, check_target
from kernrec.errors import UsageError
from kernrec.ptx import parse
from tests.helpers.paths import beside

SUM = beside(__file__, "sum.ptx")


def test_registers_are_marked_as_estimated_without_an_assembler(monkeypatch):
    monkeypatch.setattr(assemble, "assembler", lambda: None)
    compiled = assemble.assemble(SUM, 86, "sum.ptx")
    assert compiled.compiler == ESTIMATED
    resources = compiled.resources["sum"]
    assert resources.static_smem_bytes == 512
    assert 6 <= resources.registers <= 10  # two registers for an address, four for values
    if assembler() is not None:
        monkeypatch.undo()
        assembled = assemble.assemble(SUM, 86, "sum.ptx")
        assert assembled.cubin[:4] == b"\x7fELF"
        real = assembled.resources["sum"]
        assert real.static_smem_bytes == 512
        assert resources.registers <= 2 * real.registers


def test_assembler_error_is_quoted_with_its_line():
    if assembler() is None:
        pytest.skip("there is no ptxas here")
    wrong = SUM.replace("add.f32 %f1, %f1, %f2;", "add.often.f32 %f1, %f1, %f2;")
    line = wrong[: wrong.index("add.often")].count("\n") + 1
    with pytest.raises(CompileError, match=rf"^sum\.ptx:{line}: "):
        assemble.assemble(wrong, 86, "sum.ptx")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [(".version 8.0", ".version 99.9", "newer than"), ("sm_80", "sm_120", "for sm_120, which the GPU's sm_86 cannot")],
)
def test_ptx_of_a_future_version_or_another_gpu_is_refused(old, new, says):
    with pytest.raises(UsageError, match=says):
        check_target(parse(SUM.replace(old, new)), 86)
