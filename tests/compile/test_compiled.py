"""Test parsing of compiler and assembler output."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import CompileCache, Compiled, CompileError, Resources, compile_source
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


RESULT = Compiled(
    ".version 9.0\n// é", b"\x7fELF\n\0\xff" * 50, {"k": Resources(32, 0, 4, 8, 1024)}, "nvrtc 13.5", "log\n"
)


def stored(cache: CompileCache):
    return [path for path in cache.folder.rglob("*") if path.is_file()]


def test_cache_returns_equal_values(cache):
    assert cache.get("ab12") is None
    cache.put("ab12", RESULT)
    assert cache.get("ab12") == RESULT
    assert cache.get("ab13") is None
    cache.put("ab12", RESULT)
    assert [path.name for path in stored(cache)] == ["ab12.z"]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_entry_is_treated_as_missing_and_replaced(cache, damage):
    cache.put("ab12", RESULT)
    (file,) = stored(cache)
    file.write_bytes(file.read_bytes()[:-3] if damage is None else damage)
    assert cache.get("ab12") is None
    cache.put("ab12", RESULT)
    assert cache.get("ab12") == RESULT


def test_cache_stores_compile_errors_but_not_accidents_or_missing_headers(nvrtc, cache):
    for source in ("void f( {", '#include "nowhere.h"'):
        with pytest.raises(CompileError) as first:
            compile_source(source, 80, cache=cache)
    assert "nowhere.h" in str(first.value)
    (file,) = stored(cache)
    again = cache.get(file.stem)
    assert isinstance(again, CompileError)
    assert str(again).startswith("kernel.cu:1: ")
    assert not CompileError("slow", reason="timeout").lasting


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser writes anywhere")
def test_read_only_folder_is_still_read(cache):
    cache.put("ab12", RESULT)
    cache.folder.chmod(0o500)
    try:
        cache.put("cd34", RESULT)
        assert cache.get("ab12") == RESULT
        assert cache.get("cd34") is None
    finally:
        cache.folder.chmod(0o700)


@given(st.lists(st.text()), st.lists(st.text()))
def test_keys_are_equal_only_for_equal_parts(first, second):
    assert (CompileCache.key(*first) == CompileCache.key(*second)) == (first == second)
