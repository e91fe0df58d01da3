"""The version of the PTX ISA that code states: what it needs, and the same code for an older toolkit."""

import re

import pytest

from kernrec.compile.assemble import assembler
from kernrec.compile.ptx_isa import isa_of, toolkit_of, with_isa
from kernrec.errors import UsageError
from tests.helpers.ptx_text import elementwise

COPY = elementwise("copy", "mov.f32 %f2, %f1")
needs_ptxas = pytest.mark.skipif(assembler() is None, reason="ptxas is not installed")


@pytest.mark.parametrize(
    ("isa", "toolkit"), [((7, 0), "11.0"), ((8, 0), "12.0"), ((8, 6), "12.7"), ((9, 0), "13.0"), ((9, 5), "13.5")]
)
def test_ptx_version_maps_to_a_toolkit(isa, toolkit):
    assert toolkit_of(isa) == toolkit


@needs_ptxas
def test_code_without_newer_instructions_is_identical_in_an_older_isa():
    assert isa_of(COPY) == (8, 0)
    older = with_isa(COPY, (7, 0))
    assert isa_of(older) == (7, 0)
    assert older == COPY.replace(".version 8.0", ".version 7.0")
    assert with_isa(COPY, (8, 0)) == COPY
    hinted = COPY.replace("    ld.global", '    .pragma "used_bytes_mask 15";\n    ld.global', 1).replace("8.0", "8.4")
    assert with_isa(hinted, (8, 0)) == COPY
    assert "used_bytes_mask" in with_isa(hinted, (8, 3))


@needs_ptxas
@pytest.mark.parametrize(("instruction", "says"), [
    ("cvta.global.u64 %rd3, %rd3;\n    mbarrier.init.shared::cta.b64 [%rd3], 1", "(mbarrier.init.shared::cta.b64"),
    ("fence.mbarrier_init.release.cluster", "it needs 8.0, which is CUDA 12.0"),
])  # fmt: skip
def test_newer_instruction_is_named(instruction, says):
    ptx = re.sub(r"\.target sm_\d+", ".target sm_90", COPY).replace(
        "mov.f32 %f2, %f1", f"mov.f32 %f2, %f1;\n    {instruction}"
    )
    with pytest.raises(UsageError) as raised:
        with_isa(ptx, (7, 8) if "fence" in instruction else (7, 0))
    assert says in str(raised.value) or "has no target sm_90" in str(raised.value)


@needs_ptxas
def test_isa_older_than_the_target_is_refused():
    with pytest.raises(UsageError, match=r"PTX ISA 7\.0 has no target sm_89"):
        with_isa(re.sub(r"\.target sm_\d+", ".target sm_89", COPY), (7, 0))
