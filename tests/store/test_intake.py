"""Test that rows of untrusted files are checked before use, and nothing else in these files is executed."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.connection import connect_memory
from kernrec.store.exchange import key_expression
from kernrec.store.intake.read_file import FileReader
from kernrec.store.reader import Limits, read_untrusted
from kernrec.store.rows import columns, insert
from kernrec.store.schema import migrate
from tests.helpers.command import environment
from tests.helpers.depth import few_examples
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, measurement, merge, store_measurements

GPU_TABLE = "CREATE TABLE gpu (gpu_id VARCHAR NOT NULL, name VARCHAR NOT NULL, sm INTEGER NOT NULL, "


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    rows = [measurement(), measurement(config={"block_m": 32}, latency_s=2e-3)]
    return store_measurements(tmp_path_factory.mktemp("honest") / "theirs.duckdb", rows)


@pytest.fixture
def theirs(honest, tmp_path):
    return Path(shutil.copyfile(honest, tmp_path / "theirs.duckdb"))


def _matmul(m: str) -> dict[str, object]:
    return {"key": f"matmul[m={m},n=32,k=16]f32,nn", "dims": f'{{"k":16,"m":{m},"n":32}}'}


def change(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)


def refused(path: Path) -> str:
    """Return the error line for the rows of a file, from the code that the child process runs."""
    folder = path.parent / "taken"
    folder.mkdir()
    with pytest.raises(UsageError) as caught:
        FileReader(path, folder, Limits.of(path.stat().st_size)).read_database()
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


@pytest.mark.usefixtures("read_here")
def test_views_and_macros_in_a_merged_database_are_never_executed(theirs, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("latency_s\n1e-9\n")
    answer = "SELECT * REPLACE (1e-9 AS latency_s) FROM measurement"
    change(
        theirs,
        "DROP VIEW front; DROP VIEW best; DROP VIEW answer; DROP VIEW whole_gpu_rows",
        f"CREATE VIEW answer AS {answer}",
        f"CREATE VIEW whole_gpu_rows AS FROM read_csv('{secret}')",
        "CREATE VIEW front AS SELECT sum(a.range) FROM range(1000000000000) a",
        "CREATE MACRO median(x) AS 1e-9",
        "CREATE MACRO sha256(x) AS 'ffff'",
        "CREATE MACRO isfinite(x) AS true",
    )
    with Database.open(theirs) as database:
        assert [measured.latency_s for measured in database.measured(GPU, [KERNEL], PROBLEM.key)] == [1e-3, 2e-3]
        assert [row["latency_s"] for row in database.rows("front")] == []
        assert database.altered() == []
    with Database.memory() as database:
        assert merge(database, theirs) == 5
        assert [measured.latency_s for measured in database.measured(GPU, [KERNEL], PROBLEM.key)] == [1e-3, 2e-3]


@pytest.mark.usefixtures("read_here")
def test_database_cannot_reach_other_files(theirs, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with Database.open(theirs, read_only=False) as database:
        for statement in (
            f"FROM read_csv('{tmp_path / 'secret.csv'}')",
            f"COPY db.config TO '{tmp_path / 'out.csv'}'",
            f"ATTACH '{tmp_path / 'other.duckdb'}' AS other",
            "SET enable_external_access = true",
            "SET memory_limit = '100GB'",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                database._connection.execute(statement)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["secret.csv", "theirs.duckdb"]


class ReaderStartedError(Exception):
    """Raised if a process was started to read a file."""


@pytest.fixture
def no_reader(monkeypatch):
    monkeypatch.setattr("kernrec.store.reader.read_apart", Mock(side_effect=ReaderStartedError))


def test_unchanged_database_file_is_checked_only_once(theirs, monkeypatch):
    Database.open(theirs).close()
    monkeypatch.setattr("kernrec.store.reader.read_apart", None)
    Database.open(theirs).close()


def test_file_written_by_this_program_needs_no_check(tmp_path, no_reader):
    path = tmp_path / "own.duckdb"
    for _ in range(2):
        with Database.open(path, read_only=False, create=True) as database:
            database.add_measurements([measurement()])
            with Database.open(path, read_only=False) as again:  # while this process has it open
                assert again.counts()["measurement"] == 1
    Database.open(path).close()


def test_file_that_replaces_a_checked_file_is_checked(honest, tmp_path, no_reader):
    """The replacement has the name, size and time stamp of a checked file."""
    path = tmp_path / "own.duckdb"
    Database.open(path, read_only=False, create=True).close()
    Database.open(path).close()
    seen = path.stat()
    other = Path(shutil.copyfile(path, tmp_path / "other.duckdb"))
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    for place in (lambda: other.replace(path), lambda: Path(f"{path}.wal").write_bytes(b"")):
        place()
        with pytest.raises(ReaderStartedError):
            Database.open(path)


@pytest.mark.usefixtures("read_here")
def test_file_with_an_altered_row_is_inspected_but_not_used(theirs):
    change(theirs, "UPDATE measurement SET latency_s = latency_s / 1000")
    with pytest.raises(UsageError, match=r"do not match their key .*`kernrec db verify` lists the rows"):
        Database.open(theirs)
    with Database.open(theirs, check_rows=False) as database:
        assert len(database.altered()) == 2


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "ALTER TABLE config ADD COLUMN more VARCHAR DEFAULT ('a' || 'b')",
            "the table config does not have the columns",
        ),
        ("ALTER TABLE gpu ALTER figures SET DEFAULT 'a'", "the table gpu does not have the columns"),
        ("ALTER TABLE measurement ALTER device TYPE BIGINT", "the table measurement does not have the columns"),
        (
            f"DROP TABLE gpu; {GPU_TABLE} figures VARCHAR GENERATED ALWAYS AS (upper(name)))",
            "the table gpu does not have the columns",
        ),
        ("DROP TABLE gpu; CREATE VIEW gpu AS SELECT 1", "not one of kernrec's"),
    ],
)
@pytest.mark.usefixtures("read_here")
def test_tables_that_differ_from_the_schema_are_refused(theirs, statement, says):
    change(theirs, statement)
    for read_only in (True, False):
        with pytest.raises(UsageError, match=says):
            Database.open(theirs, read_only=read_only)
    assert says in refused(theirs)


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (("CREATE INDEX slow ON config (lower(kernel))",), "has indexes that are not kernrec's"),
        (
            ("DROP TABLE gpu", GPU_TABLE + "figures VARCHAR NOT NULL, CHECK (sm > length(repeat(name, 1000000))))"),
            "does not have the constraints",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("read_here")
def test_database_with_insert_triggers_opens_only_for_reading(theirs, statements, says):
    change(theirs, *statements)
    with pytest.raises(UsageError, match=says):
        Database.open(theirs, read_only=False)
    Database.open(theirs).close()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE measurement SET latency_s = latency_s / 1000", "do not match their key"),
        ("UPDATE config SET kernel = 'another'", "do not match their key"),
        ("UPDATE measurement SET energy_tick_s = 'nan'", "have no finite energy_tick_s"),
        ("UPDATE measurement SET temperature_end_c = 'inf'", "have no finite temperature_end_c"),
        ("UPDATE measurement SET error = 'a' || chr(27) || '[2J'", "have control or invisible characters in error"),
        ("UPDATE measurement SET device = 'a' || chr(10) || 'b'", "have control or invisible characters in device"),
        ("UPDATE measurement SET device = 'a' || chr(8238) || 'b'", "have control or invisible characters in device"),
        ("UPDATE measurement SET session = 'a' || chr(8203)", "have control or invisible characters in session"),
        ("UPDATE measurement SET device = 'a' || chr(65279)", "have control or invisible characters in device"),
        ("UPDATE measurement SET driver = 'a' || chr(8288)", "have control or invisible characters in driver"),
        ("UPDATE measurement SET latency_samples_s = [latency_s * 2]", "have samples that contradict their latency"),
        ("UPDATE measurement SET device = repeat('a', 10000)", "have a device of more than 8192 characters"),
        ("UPDATE measurement SET latency_samples_s = [1e-3, NULL]", "unknown values in latency_samples_s"),
        ("UPDATE measurement SET latency_samples_s = [1e-3, -1]", "samples that are not positive"),
        ("UPDATE measurement SET measured_at = '0001-01-01'", "measured at an impossible time"),
        ("UPDATE config SET tunables = repeat('[', 5000)", "have no flat JSON object in tunables"),
        ("DELETE FROM config", "refer to a config that is missing"),
        ("INSERT INTO measurement FROM measurement LIMIT 1", "rows of the table measurement occur twice"),
    ],
)
def test_impossible_rows_are_refused(theirs, statement, says):
    change(theirs, statement)
    assert says in refused(theirs)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("table", "row", "says"),
    [
        ("measurement", {"gpu": "h2000"}, "unknown GPU 'h2000'"),
        ("problem", {"key": "matmul[m=1,n=32,k=16]f32,nn"}, "have a key that does not match their columns"),
        ("problem", _matmul("0"), "are not accepted by matmul: matmul dimension m"),
        ("problem", _matmul("9" * 4000), "have no flat JSON object in dims"),
        ("config", {"tunables": '{"block_m":' + "9" * 5000 + "}"}, "have no flat JSON object in tunables"),
        ("config", {"tunables": r'{"block_m":"\q"}'}, "have no flat JSON object in tunables"),
        ("config", {"tunables": r'{"block_m":"\u001b[2J"}'}, "have no flat JSON object in tunables"),
        ("config", {"tunables": '{"block_m":64,"block_m":32}'}, "have repeated or unsorted names in tunables"),
        ("config", {"tunables": '{"b":1,"a":1}'}, "have repeated or unsorted names in tunables"),
        ("measurement", {"kernel": "another"}, "have a config of another kernel"),
        ("config", {"kernel": ""}, "have an empty kernel"),
        ("config", {"kernel": "matmul_s\u0456mt"}, "have non-ASCII characters in kernel"),
        ("measurement", {"kernel": ""}, "have an empty kernel"),
        ("measurement", {"protocol_version": 2**31 - 1}, "have a newer protocol than this kernrec knows (1)"),
        ("measurement", {"measured_at": "2099-01-01"}, "were measured at an impossible time"),
        ("measurement", {"power_limit_w": 1e29}, "have a power_limit_w out of range for h200-sxm"),
        ("measurement", {"energy_j": 1e-300}, "have an energy that h200-sxm cannot draw in their latency"),
        ("measurement", {"sm_clock_mean_hz": 1e12}, "have a sm_clock_mean_hz out of range for h200-sxm"),
        ("measurement", {"latency_low_s": 5e-3}, "have an interval that does not contain their latency_s"),
        ("measurement", {"latency_high_s": 9e-4}, "have an interval that does not contain their latency_s"),
        ("measurement", {"energy_j": 0.3, "energy_low_j": 0.4}, "does not contain their energy_j"),
        ("measurement", {"energy_j": 0.3, "energy_high_j": 0.1}, "does not contain their energy_j"),
    ],
)
@pytest.mark.usefixtures("read_here")
def test_rows_with_valid_keys_and_impossible_content_are_refused(theirs, table, row, says):
    """An untrusted source can compute valid keys, too."""
    with Database.open(theirs, read_only=False) as database:
        (stored, *_) = database.rows(table)
        del stored[f"{table}_id"]
        database.add(table, [stored | row])
    assert says in refused(theirs)


@pytest.mark.usefixtures("read_here")
def test_kernel_hash_must_match_its_source(theirs):
    spec = json.dumps({"tunables": {}})
    with Database.open(theirs, read_only=False) as database:
        database.add("kernel", [{"name": "k", "kernel_hash": "0" * 16, "op": "matmul", "spec": spec, "source": "evil"}])
    assert "have a spec or source that does not match their hash" in refused(theirs)


@pytest.mark.usefixtures("read_here")
def test_kernel_named_like_an_op_may_declare_its_own_problem(tmp_path):
    launch = {"entry": "matmul", "grid": ["1"], "block": ["64"], "arguments": ["x"]}
    problem = {"dims": {"width": 64}, "tensors": {"x": {"shape": ["width"], "role": "inout"}}}
    spec = {"name": "matmul", "source": "own.cu", "problem": problem, "launch": [launch]}
    kernel = kernel_from(spec, "own.cu", "__global__ void matmul(float* x) {}")
    with Database.open(tmp_path / "theirs.duckdb", read_only=False, create=True) as database:
        database.add_kernel(kernel, kernel.definition.problem())
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        merge(database, tmp_path / "theirs.duckdb")
        assert [row["key"] for row in database.rows("problem")] == ["matmul[width=64]f32,any"]
    change(tmp_path / "theirs.duckdb", "DELETE FROM kernel")
    assert "are not accepted by matmul: unknown matmul dimension 'width'" in refused(tmp_path / "theirs.duckdb")


def test_latency_below_the_hardware_bound_is_refused(theirs):
    """A matmul of 4096 x 4096 x 4096 in a microsecond would need 137 PFLOP/s."""
    large = find_op("matmul").problem(m=4096, n=4096, k=4096)
    with Database.open(theirs, read_only=False) as database:
        database.add_measurements([measurement(problem=large, latency_s=1e-6)])
    line = refused(theirs)
    assert "have a latency of 1 us, and matmul[m=4096,n=4096,k=4096]" in line.replace("1.00 us", "1 us")
    assert "on h200-sxm at its peak" in line


@pytest.mark.usefixtures("read_here")
def test_refused_file_adds_nothing(theirs):
    change(theirs, "UPDATE measurement SET latency_s = 1e-9")
    with Database.memory() as database:
        with pytest.raises(UsageError, match="do not match their key"):
            merge(database, theirs)
        assert set(database.counts().values()) == {0}


@pytest.mark.usefixtures("read_here")
def test_merge_refuses_if_a_stored_row_was_altered(honest):
    with Database.memory() as database:
        merge(database, honest)
        database._connection.execute("UPDATE db.measurement SET latency_s = 9 WHERE latency_s = 1e-3")
        with pytest.raises(UsageError, match="was changed after it was written; nothing was added"):
            merge(database, honest)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_contradictory_rows_are_stored_but_not_used(scale):
    """Two rows contradict each other about the same moment of one session, in either order."""
    true = measurement(block=0, position=3)
    others = [measurement(block=0, position=3, latency_s=1e-3 * scale)]
    others.append(measurement(block=0, position=4, config={"block_m": 32}))
    answers = []
    for rows in ([true, *others], [*reversed(others), true]):
        with Database.memory() as database:
            database.add_measurements(rows)
            answers.append([answer.config for answer in database.measured(GPU, [KERNEL], PROBLEM.key)])
            assert database.counts()["measurement"] == 3
            assert len(database.conflicts()) == 2
    assert answers == [[{"block_m": 32}]] * 2


def take(path: Path) -> None:
    with Database.memory() as database:
        merge(database, path)


@pytest.mark.parametrize("read", [Database.open, take])
def test_reader_out_of_memory_is_reported_in_one_line(theirs, monkeypatch, read):
    """The memory limit kills a real process. A crash of DuckDB looks the same."""
    small = Limits(cpu_s=20, wall_s=60, database_bytes=2**28, address_bytes=2**27, file_bytes=2**26, rows=1000)
    monkeypatch.setattr(Limits, "of", lambda size: small)
    with pytest.raises(UsageError, match=r"theirs\.duckdb") as caught:
        read(theirs)
    assert "\n" not in str(caught.value)


def test_more_rows_than_a_file_can_hold_are_refused(honest, tmp_path, refuses):
    few = Limits(cpu_s=20, wall_s=60, database_bytes=2**28, address_bytes=2**32, file_bytes=2**26, rows=1)
    refuses(lambda: FileReader(honest, tmp_path, few).read_database())


@pytest.mark.slow
def test_each_damaged_file_is_reported_in_one_line(honest, tmp_path):
    """Change bytes of a file. kernrec accepts all rows or none, and does not crash even if DuckDB does."""
    content, draw = honest.read_bytes(), random.Random(5)
    for number in range(6):
        damaged = bytearray(content)
        for _ in range(1 << number):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path = tmp_path / f"{number}.duckdb"
        path.write_bytes(damaged)
        folder = tmp_path / f"taken {number}"
        folder.mkdir()
        message = ""
        try:
            assert read_untrusted("database", path, folder)["measurement"] == 2
        except UsageError as error:
            message = str(error)
        assert "\n" not in message


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("\n\t\r"), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.every(2)
@pytest.mark.slow
@settings(few_examples(10), phases=[Phase.generate])
@given(rows=st.lists(st.tuples(texts, numbers, st.lists(numbers, max_size=3), st.datetimes()), min_size=1, max_size=20))
def test_duckdb_computes_the_same_keys_as_python(rows):
    with connect_memory() as connection:
        migrate(connection, 0)
        kinds = columns(connection, "measurement")
        usual = {"gpu": GPU, "kernel": "k", "kernel_hash": "a", "config_id": "c", "problem_id": "p"}
        usual |= {"protocol_version": 1, "tier": "final", "session": "s", "outcome": "crash"}
        insert(
            connection,
            "measurement",
            [
                usual
                | {"error": text, "temperature_end_c": number, "latency_samples_s": samples, "measured_at": moment}
                for text, number, samples, moment in rows
            ],
        )
        expression = key_expression("measurement", kinds)
        keys = connection.execute(f"SELECT measurement_id, {expression} FROM db.measurement").fetchall()
    assert [stored for stored, _ in keys] == [computed for _, computed in keys]


def test_row_that_duckdb_formats_unlike_python_is_unaltered():
    """DuckDB and Python write control characters differently."""
    with Database.memory() as database:
        database.add_measurements([measurement(outcome="crash", latency_s=None, error="a\x1fb")])
        assert database.altered() == []


KILLED_WHILE_IT_ADDS = """
import os, signal, sys
from pathlib import Path
from kernrec.store import Database, exchange
from tests.helpers.sharing import merge
exchange.add_rows = lambda *_: os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
with Database.memory() as own:
    merge(own, Path(sys.argv[1]))
"""


@pytest.mark.usefixtures("read_here")
def test_copy_left_by_a_killed_merge_is_removed_by_the_next(honest, tmp_path, monkeypatch):
    command = [sys.executable, "-c", KILLED_WHILE_IT_ADDS, str(honest)]
    killed = subprocess.run(command, env=environment(TMPDIR=str(tmp_path), TEMP=str(tmp_path)))
    assert killed.returncode != 0
    assert len(list(tmp_path.rglob("checked.duckdb"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Database.memory() as own:
        assert merge(own, honest) == 5
    assert list(tmp_path.iterdir()) == []
