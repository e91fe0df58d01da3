"""Test that the cache of compiled code never returns partial files and never raises an error."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import CompileCache, Compiled, CompileError, Resources, compile_source

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
