"""Test that rows that differ only in ignored columns are merged into their median."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_results import ImportSummary, Recording, import_bound
from kernrec.kernel import Kernel, load_kernel
from kernrec.store import Database
from tests.interop.test_bind import SOURCE, SPEC

ROWS = """bx,tile,padding,time_ms,outcome
32,1,0,0.40,ok
32,1,1,0.50,ok
32,1,2,0.20,ok
64,1,0,0.30,ok
64,1,1,0.30,CompilationFailedConfig
64,2,0,0.30,ok
128,1,1,,CompilationFailedConfig
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "scale.cu").write_text(SOURCE)
    (tmp_path / "scale.toml").write_text(SPEC)
    return load_kernel(tmp_path / "scale.toml")


def imported(kernel: Kernel, folder: Path, rows: str = ROWS, **recording: object) -> tuple[ImportSummary, list[float]]:
    """Import rows; return the summary of the import and the stored times in seconds, ascending."""
    path = folder / "rows.csv"
    path.write_text(rows)
    with Database.memory() as database:
        stated = Recording(path, gpu="rtx3090", **recording)  # type: ignore[arg-type]
        done = import_bound(database, stated, kernel, kernel.definition.problem())
        times = [row["latency_s"] for row in database.rows("measurement") if row["latency_s"] is not None]
        return done, sorted(float(str(time)) for time in times)


def test_median_of_repeated_rows_is_stored(kernel, tmp_path):
    done, times = imported(kernel, tmp_path, ignored=("padding",))
    assert times == pytest.approx([0.3e-3, 0.3e-3, 0.4e-3])
    assert (done.results, sum(done.parts[0].outcomes.values()) - done.parts[0].outcomes["ok"]) == (4, 1)
    note = "1 config had several times, up to a factor of 2.50 apart; the median of each was kept, 3 rows were skipped"
    assert note in done.notes


def test_all_unknown_columns_are_named(kernel, tmp_path):
    rows = ROWS.replace("padding", "padding,swizzle,warmth").replace("ok", "1,2,ok")
    with pytest.raises(UsageError) as raised:
        imported(kernel, tmp_path, rows)
    assert "columns 'padding', 'swizzle', 'warmth' are neither" in str(raised.value)
    assert "--map ignore=padding,swizzle,warmth leaves them out" in str(raised.value)
