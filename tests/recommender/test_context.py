"""Test that a context creates each static table once and reports missing data."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernrec.emit import emit
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import find_op
from kernrec.recommender.context import Context
from kernrec.store import Database
from kernrec.store.intake import merge
from tests.helpers.reading import reading_here

GPU = find_gpu("a100")


def test_table_is_built_once_for_all_problems_of_a_dtype():
    context = Context([])
    small, large = (find_op("matmul").problem(m=m, n=256, k=256) for m in (64, 4096))
    table, *_ = context.tables(small, GPU)
    assert context.tables(large, GPU)[0] is table
    assert context.kernel_table(find_kernel("matmul_simt"), large, GPU) is table


def test_functions_with_one_name_are_distinguished_by_file(tmp_path):
    """Once, `--kernel matmul_kernel` silently used the kernel that was analyzed last."""
    path = tmp_path / "own.duckdb"
    spec = {
        "name": "scale",
        "problem": {"tensors": {"x": {"shape": [64], "role": "inout"}}},
        "launch": [{"entry": "scale", "grid": ["1"], "block": ["64"], "arguments": ["x"]}],
    }
    for file in ("first.cu", "second.cu", "second.cu"):
        kernel = kernel_from({**spec, "source": file}, file, f"// {file}\n__global__ void scale(float* x) {{}}")
        with Database.open(path, read_only=False, create=True) as database:
            database.add_kernel(kernel, kernel.definition.problem())
    context = Context([path])
    assert context.own_kernels() == ["first.cu:scale", "second.cu:scale"]
    assert context.kernel("first.cu:scale").source_name == "first.cu"
    assert [call.source_name for call in context.calls("second.cu:scale")] == ["second.cu"]
    with pytest.raises(UsageError, match=r"kernel scale is in several files .* one of \w+\.cu:scale, \w+\.cu:scale"):
        context.kernel("scale")


SPEC = {
    "problem": {"tensors": {"x": {"shape": [64], "role": "inout"}}},
    "launch": [{"entry": "scale", "grid": ["1"], "block": ["64"], "arguments": ["x"]}],
}


def add_kernel(path: Path, name: str, file: str, code: str) -> str:
    """Store a kernel as its analysis would, and return its hash."""
    kernel = kernel_from(
        {**SPEC, "name": name, "source": file}, file, f"// {code}\n__global__ void scale(float* x) {{}}"
    )
    with Database.open(path, read_only=False, create=True) as database:
        database.add_kernel(kernel, kernel.definition.problem())
    return kernel.hash


def test_merged_kernel_cannot_replace_a_library_or_user_kernel(tmp_path):
    """Once, `Context.kernel` took the newest kernel, and `--emit cuda` printed code from an untrusted source."""
    own, theirs = tmp_path / "own.duckdb", tmp_path / "theirs.duckdb"
    mine = add_kernel(own, "scale", "scale.cu", "mine")
    for name in ("scale", "matmul_simt", "other"):
        add_kernel(theirs, name, "scale.cu", "false")
    with reading_here(), Database.open(own, read_only=False) as database:
        merge(database, theirs)
    context = Context([own])
    assert context.kernel("scale").hash == context.kernel("scale.cu:scale").hash == mine
    assert [call.hash for call in context.calls("scale")] == [mine]
    assert context.kernel("matmul_simt").hash == find_kernel("matmul_simt").hash
    assert find_kernel("matmul_simt").hash in {kernel.hash for kernel in context.newest_by_file("matmul_simt")}
    assert mine in {kernel.hash for kernel in context.newest_by_file("scale")}
    assert context.kernel("other").owner == f"unsigned, in {own}"
    assert context.kernel("scale").owner is None
    assert context.own_kernels() == ["other", "scale", "scale.cu:matmul_simt"]


def test_foreign_code_is_emitted_only_on_request(tmp_path):
    best = SimpleNamespace(kernel=replace(find_kernel("matmul_simt"), owner="unsigned, in x.duckdb"))
    answer = SimpleNamespace(gpu=GPU, best=best, problem=find_op("matmul").problem(m=64, n=64, k=64))
    for form in ("cuda", "ptx"):
        with pytest.raises(
            UsageError, match=r"neither yours nor kernrec's \(unsigned, in x.duckdb\); .*--untrusted-so"
        ):
            emit([answer], form)
