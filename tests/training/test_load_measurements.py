"""Test requests for measurements that cannot be met."""

import numpy as np
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.measurement import Measurement
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from tests.helpers.recording import make_measured_database


def test_unknown_op_or_gpu_is_refused_before_reading(tmp_path):
    database = (tmp_path / "missing.duckdb",)
    for request in (MeasurementRequest(database, op="matmull"), MeasurementRequest(database, gpu="rtx4091")):
        with pytest.raises(UsageError, match="unknown"):
            load_measurements(request)


def test_contradictory_energy_is_named_and_dropped_but_its_time_is_kept(tmp_path):
    right, wrong = tmp_path / "right.duckdb", tmp_path / "wrong.duckdb"
    make_measured_database(right, problems=1, configs=4)
    with Database.open(right) as database:
        rows = [measurement.columns() for measurement in database.measurements()]
    watts = rows[0]["energy_j"] / rows[0]["latency_s"]
    rows[0] |= {"energy_j": 2.0 * rows[0]["energy_j"], "power_w": watts}
    with Database.open(wrong, read_only=False, create=True) as database:
        database.add_measurements(map(Measurement.from_columns, rows))
    before, after = (load_measurements(MeasurementRequest((path,))) for path in (right, wrong))
    for column, counts in (("energy_j", [4, 3]), ("latency_s", [4, 4])):
        read = [np.concatenate([getattr(group, column) for group in each.groups]) for each in (before, after)]
        assert [int(np.isfinite(values).sum()) for values in read] == counts
    assert not before.notes
    assert any("only in their energy" in note for note in after.notes), after.notes
