"""A context makes each static table once, and says what is missing."""

from pathlib import Path

import pytest

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import find_op
from kernrec.recommender.context import Context, own_databases
from kernrec.store import Database

GPU = find_gpu("a100")


def test_a_table_is_made_once_for_all_problems_of_a_dtype() -> None:
    context = Context([])
    small, large = (find_op("matmul").problem(m=m, n=256, k=256) for m in (64, 4096))
    table, *_ = context.tables(small, GPU)
    assert context.tables(large, GPU)[0] is table
    assert context.kernel_table(find_kernel("matmul_simt"), large, GPU) is table


def test_a_kernel_nobody_knows_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="matmul_simt"):
        Context([]).kernel("matmul_smit")


def test_databases_given_stand_for_the_users_own_also_where_they_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KERNREC_DB", raising=False)
    assert own_databases(None) == []
    assert own_databases([tmp_path / "team.duckdb"]) == [tmp_path / "team.duckdb"]
    Database.open(paths.user_database(), read_only=False, create=True).close()
    assert own_databases(None) == [paths.user_database()]
    assert own_databases([]) == []


def test_functions_of_several_files_with_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """Seen before: `--kernel matmul_kernel` took the one that was analyzed last, and said nothing."""
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
