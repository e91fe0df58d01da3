"""Test that texts assembled together have the machine code of texts assembled separately."""

import pytest

from kernrec.compile import CompileJob
from kernrec.compile.assemble_together import listings_together
from kernrec.compile.disassemble import COUNTS, disassembler, machine_code
from kernrec.compile.nvrtc import compile_to_ptx
from tests.helpers.paths import beside

pytestmark = pytest.mark.skipif(disassembler() is None, reason="there is no nvdisasm here")
SHARED_NAMES = beside(__file__, "shared_names.cu")


@pytest.fixture(autouse=True)
def reads_machine_code(monkeypatch):
    monkeypatch.delenv(COUNTS, raising=False)


@pytest.fixture(scope="module")
def texts(nvrtc):
    jobs = [CompileJob(SHARED_NAMES, 86, {"STEP": step}, options=("-lineinfo",) * (step > 2)) for step in (2, 3, 5)]
    return [compile_to_ptx(job).ptx for job in jobs]


def instructions(ptx, listing):
    code = machine_code(ptx, 86, listing)
    return {name: [(i.line, i.opcode, i.modifiers) for i in code[name].instructions] for name in code}


def test_texts_with_equal_names_keep_their_machine_code(texts):
    listings = listings_together(texts, 86)
    for ptx, listing in zip(texts, listings, strict=True):
        assert instructions(ptx, listing) == instructions(ptx, "")
        assert any("CALL" in each for code in instructions(ptx, "").values() for each in code)


@pytest.mark.parametrize("other", [
    ".version 7.0\n.target sm_80\n.address_size 64\n", ".visible .entry broken() { nothing; }",
])  # fmt: skip
def test_texts_that_cannot_be_assembled_together_have_no_listings(texts, other):
    ptx = texts[0] if "entry" in other else ""
    assert listings_together([texts[0], ptx + other], 86) == ["", ""]
