"""Measurements as Parquet files: nothing is lost or doubled on the way out and back."""

from pathlib import Path

import pytest
from measured import bring_in, export

from kernrec.errors import UsageError
from kernrec.store import Database
from tests.helpers.recording import make_recording


def test_what_is_exported_and_imported_is_what_was_there(tmp_path: Path) -> None:
    database = make_recording(tmp_path / "r.duckdb", 30)
    ((path, rows),) = export(database, tmp_path / "measured")
    assert (path.name, rows) == ("rtx3090.matmul.parquet", 30)
    assert bring_in(tmp_path / "measured", tmp_path / "k.duckdb") == 30
    assert bring_in(tmp_path / "measured", tmp_path / "k.duckdb") == 0
    with Database.open(database) as first, Database.open(tmp_path / "k.duckdb") as second:
        assert first.content_hash() == second.content_hash()
        assert second.altered() == []


def test_a_file_only_grows(tmp_path: Path) -> None:
    export(make_recording(tmp_path / "one.duckdb", 30), tmp_path / "measured")
    ((_, rows),) = export(make_recording(tmp_path / "other.duckdb", 10), tmp_path / "measured")
    assert rows >= 30
    ((_, again),) = export(tmp_path / "other.duckdb", tmp_path / "measured")
    assert again == rows


def test_each_gpu_has_a_file_of_its_own(tmp_path: Path) -> None:
    for gpu in ("rtx3090", "rtx4090"):
        make_recording(tmp_path / "r.duckdb", 10, gpu)
    assert [path.name for path, _ in export(tmp_path / "r.duckdb", tmp_path / "m")] == [
        "rtx3090.matmul.parquet", "rtx4090.matmul.parquet",
    ]  # fmt: skip


def test_a_folder_without_measurements_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no measurements in"):
        bring_in(tmp_path, tmp_path / "k.duckdb")


def test_the_broad_campaign_asks_for_every_problem_once_and_for_enough_of_them() -> None:
    from campaign import broad, truth

    keys = [problem.key for _, problem in broad()]
    assert len(keys) == len(set(keys)) >= 40
    assert {problem.op for _, problem in broad()} >= {"matmul", "matvec", "conv2d"}
    assert len(truth()) >= 8
