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


HEAD = ".version 8.0\n.target sm_86\n.address_size 64\n"
STORE = ".visible .entry NAME(.param .u64 p) {\n.reg .u64 %a; .local .u32 own;\nld.param.u64 %a, [p];\nBODY\nret;\n}\n"
ADD = "st.global.u64 [%a], %a; add.u64 %a, %a, 1; st.global.u64 [%a], %a;"


def text(name="k", body=ADD):
    return HEAD + STORE.replace("NAME", name).replace("BODY", body)


@pytest.mark.parametrize("texts", [
    [text(), text("add")], [text(), text("nounroll", f'.pragma "nounroll"; {ADD}')],
    [text(), text(), text(body="st.global.u64 [%a], 7;")],
])  # fmt: skip
def test_unusual_names_and_equal_texts_keep_their_machine_code(texts):
    for ptx, listing in zip(texts, listings_together(texts, 86), strict=True):
        assert instructions(ptx, listing) == instructions(ptx, "")


@pytest.mark.parametrize("other", [
    text("broken", "nothing;"), text("k__kr0_"), text(body="/* a comment\n.loc 1 2 3 */ st.global.u64 [%a], %a;"),
    text().replace("8.0", "7.1"),
])  # fmt: skip
def test_text_that_cannot_be_joined_has_no_listing(other):
    first, second, third = listings_together([text(), other, text("other")], 86)
    assert first
    assert not second
    assert third
