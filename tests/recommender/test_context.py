"""A context makes each static table once, and says what is missing."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import find_op
from kernrec.recommender.context import Context, own_databases

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


def test_databases_given_come_before_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KERNREC_DB", raising=False)
    assert own_databases(None) == []
    assert own_databases([tmp_path / "team.duckdb"]) == [tmp_path / "team.duckdb"]
