"""Requests for measurements that cannot be met."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.training.evaluate_models import evaluate
from kernrec.training.load_measurements import MeasurementRequest, load_measurements


def test_an_unknown_split_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown split 'row'"):
        evaluate(MeasurementRequest((tmp_path / "missing.duckdb",)), split="row")


def test_an_unknown_op_or_gpu_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    database = (tmp_path / "missing.duckdb",)
    for request in (MeasurementRequest(database, op="matmull"), MeasurementRequest(database, gpu="rtx4091")):
        with pytest.raises(UsageError, match="unknown"):
            load_measurements(request)
