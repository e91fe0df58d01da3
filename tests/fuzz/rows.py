"""Test rows of an untrusted user that have valid hashes and signatures but hostile values in one to three columns:
numbers at or beyond their bounds, impossible times, invalid tunables and problems, rows of other users, SQL and paths.

    python -m tests.fuzz.rows [--rows 1000000] [--batch 10000] [--seed 1] [--keep FOLDER]

    faults     the checks sort the rows of a batch into valid and invalid; a bundle of valid rows must be accepted
    whole      a bundle of the whole batch must be refused in one line if any row is invalid
    alone      a bundle with a single invalid row must be refused in one line (tested for a few rows)
    answers    the owner's measurements must give the same answers, and none of the owner's configs may fail

At the end, no command on the database may fail with a traceback. The exit status is 1 after any failure, and `--keep`
stores the bundles that caused it.
"""

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.intake.row_checks import faults
from kernrec.store.keys import Signer, make_key
from kernrec.store.measurement import NEWEST_PROTOCOL
from kernrec.store.measurement_log import evidence
from kernrec.store.rows import KEY_DIGITS, row_key
from kernrec.store.schema import layout_of
from kernrec.store.share.bundle import read_bundle, write_bundle
from kernrec.store.share.manifest import Manifest, Segment
from kernrec.store.share.place import ZipFile
from tests.helpers.command import run_here
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, HASH, KERNEL, PROBLEM, UUID_HASH, import_bundle, measurement

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row3 = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""Columns of a measurement, of its config and of its problem, all without keys."""
LAYOUT = layout_of()
OTHER_PROBLEM = find_op("matmul").problem(m=512, n=512, k=512)
_NINES = "9" * 5000
_TEXTS = (
    *(
        "", " ", "a", "ok", "crash", "own", "NULL", "nan", "1e309", "-1", "0x10", "true", "monday", "tuesday",
        "incorrect",
    ),
    *(GPU, KERNEL, HASH, "final", "../../etc/passwd", "/dev/stdin", "file:///etc/passwd", "a\x00b", "a\x1b[2J", "a\nb"),
    *("a\r", "\u202eabc", "\u2028", "\x7f", "'; DROP TABLE measurement; --", "$$", "{x}", "%s%s%n", "é" * 100),
    *("a" * 9000, "\U0001f600", "\ufeffa", "e\u0301", "{}", "[]", '{"a":1}', '{"block_m":64}', '{"block_m":64.0}'),
    *('{"block_m":"64"}', '{"block_m":true}', '{"block_m":null}', f'{{"block_m":{_NINES}}}', '{"block_m":1e999}'),
    *('{"block_m":1e99}', '{"block_m":-0}', '{"block_m":064}', r'{"block_m":"\q"}', r'{"block_m":"\u001b[2J"}'),
    *('{"block_m":{"a":1}}', '{"block_m":64,"block_m":32}', '{"":0}', '{"block_m":64}{}', '{"block_m":64'),
    *('{"power cap":1e300}', '{"power cap":-1}', '{"thermal":"x"}'),
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, 7, NEWEST_PROTOCOL + 1, 127, 2**15, 2**31 - 1, -(2**31))
_LONG = (*_WHOLE, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
_NUMBERS = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e-300, 1e-12, 1e-9, 3e-7, 1e-6, 1.0, 1e3, 1e6, 1e9, 1e29),
    *(1e30, 1e31, 1e300, 1.7976931348623157e308, -1.0, -1e-9, -1e300, 0.1 + 0.2, 700.0, 1400.0, 1401.0, 1.98e9, 1e5),
)
_DATES = (
    *("0001-01-01", "1969-12-31", "1970-01-01", "1999-12-31T23:59:59", "2000-01-01", "2026-03-01T12:00:00.000001"),
    *("2099-01-01", "9999-12-31T23:59:59"),
)
_DIMS = (
    *("0", "-1", "1", "64", "064", "+64", "6.4e1", "9" * 15, "9" * 16, "9" * 4200, "2147483648", "", " 64", "x", "64;"),
    "\u0666\u0664",  # the number 64 in Arabic digits
)
_KEYS = (
    *("matmul[m={},n=32,k=16]f32,nn", "matmul[m=64,n=32,k={}]f32,nn", "matmul[m={},n=32]f32,nn", "matmul[m={}"),
    *("conv2d[n={},c=64,h=56,w=56,k=64,r=3,s=3]f16,nchw", "attention[b={}]f16,x", "softmax[rows={},cols=7]f32,row"),
    *("matmul[m={},n=32,k=16,k=16]f32,nn", "mine[a={}]f32,x", "[{}],", "matmul[m={},n=32,k=16]f64,nn"),
    "matmul[m={},n=32,k=16]f32,zz",
)


def hostile(chance: random.Random, number: int) -> Row3:
    """Return a measurement, its config and its problem with one to three hostile columns."""
    kinds = LAYOUT.columns["measurement"]
    config: dict[str, Any] = {"kernel": KERNEL, "tunables": f'{{"block_m":{16 << chance.randrange(5)}}}'}
    problem: dict[str, Any] = dict(chance.choice((PROBLEM, OTHER_PROBLEM)).as_dict())
    problem["dims"] = json.dumps(problem["dims"], sort_keys=True, separators=(",", ":"))
    row: dict[str, Any] = {
        "gpu": GPU, "kernel": KERNEL, "kernel_hash": HASH, "protocol_version": 1, "tier": "final", "block": 0,
        "session": f"theirs {number % 5}", "position": number, "measured_at": datetime(2026, 3, 1, 12),
        "latency_s": 2e-3 * math.exp(chance.gauss(0.0, 0.3)), "outcome": "ok", "device_uuid_hash": "ffeeddccbbaa0011",
    }  # fmt: skip
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        part = chance.random()
        if part < 0.12:
            config[chance.choice(("tunables", "tunables", "kernel"))] = chance.choice(_TEXTS)
        elif part < 0.25:
            _change_problem(problem, chance)
        elif part < 0.35:  # pose as a row of the owner's session and GPU
            row |= {"session": "monday", "position": chance.choice((0, 1, 2)), "device_uuid_hash": UUID_HASH}
            row["latency_s"] = chance.choice((1e-3, 1e-4, 5e-4, 1e-6, 1.0))
            row["outcome"] = chance.choice(("ok", "incorrect", "crash", "quarantined"))
            row["replayed"] = chance.choice((None, True))
        else:
            name = chance.choice(list(kinds)[1:])
            row[name] = _value(kinds[name], chance)
    return row, config, problem


def _value(kind: str, chance: random.Random) -> Any:
    if kind == "DOUBLE":
        if chance.random() < 0.5:
            return chance.choice(_NUMBERS)
        return chance.choice((1.0, 1.0, -1.0)) * 10.0 ** chance.uniform(-320.0, 308.0)
    if kind == "DOUBLE[]":
        return [_value("DOUBLE", chance) for _ in range(chance.choice((0, 1, 3, 50)))]
    if kind == "TIMESTAMP":
        soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=chance.choice((-400, 0, 2, 400)))
        return chance.choice((soon, datetime.fromisoformat(chance.choice(_DATES))))
    if kind == "BOOLEAN":
        return chance.choice((True, False))
    if kind == "INTEGER":
        return chance.choice(_WHOLE)
    if kind == "BIGINT":
        return chance.choice(_LONG)
    return chance.choice(_TEXTS)


def _change_problem(problem: dict[str, Any], chance: random.Random) -> None:
    kind, dim = chance.randrange(4), chance.choice(_DIMS)
    if kind == 0:
        problem[chance.choice(list(problem))] = chance.choice(_TEXTS)
    elif kind == 1:  # only the key is wrong
        problem["key"] = chance.choice(_KEYS).format(dim)
    elif kind == 2:  # only the dimensions are wrong
        problem["dims"] = f'{{"k":16,"m":{dim},"n":32}}'
    else:  # key and dimensions are wrong but agree
        problem |= {"key": f"matmul[m={dim},n=32,k=16]f32,nn", "dims": f'{{"k":16,"m":{dim},"n":32}}'}
        problem |= {"op": "matmul", "dtype": "f32", "layout": "nn"}


TABLES = ("config", "problem", "measurement")
ALONE = 3
"""Number of refused rows per batch that are also tried in separate bundles."""


@dataclass
class Tried:
    """Results of the rows tried so far."""

    rows: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Number of refused rows by reason."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of failures."""


class Attack:
    """An owner's database, and an untrusted user who signs hostile bundles."""

    def __init__(self, folder: Path, keep: Path | None = None) -> None:
        self.own, self._folder, self._keep = folder / "own.duckdb", folder, keep
        make_key(folder / "key")
        self._signer = Signer.of(folder / "key")
        rows = [measurement(position=i, config={"block_m": 16 << i}, latency_s=1e-3 * (i + 1)) for i in range(3)]
        rows += [measurement(position=5, problem=OTHER_PROBLEM, energy_j=0.3), measurement(session="tuesday")]
        rows.append(measurement(position=6, config={"block_m": 256}, outcome="incorrect", latency_s=None))
        with Database.open(self.own, read_only=False, create=True) as database:
            database.add_measurements(rows)
        self.before = self.answers()

    def answers(self) -> list[str]:
        """Return the answers from the owner's measurements, and the owner's configs that count as failed."""
        lines = []
        with Database.open(self.own) as database:
            for problem in (PROBLEM, OTHER_PROBLEM):
                log = database.log(GPU, [problem.key])
                here = evidence([log], [KERNEL], problem.key)
                lines += [
                    repr(
                        (
                            problem.key, row.kernel_hash, dict(row.config), row.latency_s, row.latency_low_s,
                            row.energy_j, row.sessions,
                        )
                    )
                    for row in here.measured
                    if not row.merged
                ]  # fmt: skip
                mine = [dict(row.config) for row in here.measured if not row.merged]
                failed = [dict(row.config) for row in here.failed if row.kernel_hash == HASH]
                lines += [repr((problem.key, "failed", config)) for config in mine if config in failed]
        return sorted(lines)

    def try_batch(self, count: int, chance: random.Random, tried: Tried) -> None:
        rows = [hostile(chance, tried.rows + i) for i in range(count)]
        tried.rows += count
        with closing(_untrusted()) as connection:
            _insert(connection, rows)
            whole = self._bundle(connection, "whole", "true")
            refused = list(_refused(connection, tried.refused))
            self._expect_taken(connection, tried)
        if refused:
            self._expect_refused(whole, tried)
        for key in chance.sample(refused, min(ALONE, len(refused))):
            with closing(_untrusted()) as connection:
                _insert(connection, [row for row in rows if _key("measurement", _full(row)) == key])
                self._expect_refused(self._bundle(connection, "alone", "true"), tried)
        if (after := self.answers()) != self.before:
            changed = sorted(set(after) ^ set(self.before))
            tried.wrong.append(f"answers are others: {changed[:3]}")
            self._kept("own", self.own)

    def _expect_taken(self, connection: "DuckDBPyConnection", tried: Tried) -> None:
        ((left,),) = connection.execute("SELECT count(*) FROM db.measurement").fetchall()
        if not left:
            return
        bundle = self._bundle(connection, "taken", "true")
        try:
            with Database.open(self.own, read_only=False) as database:
                import_bundle(database, read_bundle(ZipFile(bundle)))
            tried.taken += left
        except Exception as error:  # every exception is a finding
            tried.wrong.append(f"what the checks let pass is refused: {error!r:.300}")
            self._kept("taken", bundle)

    def _expect_refused(self, bundle: Path, tried: Tried) -> None:
        try:
            with Database.open(self.own, read_only=False) as database:
                import_bundle(database, read_bundle(ZipFile(bundle)))
            tried.wrong.append("a bundle with a refused row is taken")
        except KernrecError as error:
            if str(error).isprintable():
                return
            tried.wrong.append(f"refused in more than one line: {str(error)[:300]!r}")
        except Exception as error:
            tried.wrong.append(f"a traceback: {error!r:.300}")
        self._kept(bundle.stem, bundle)

    def _bundle(self, connection: "DuckDBPyConnection", name: str, condition: str) -> Path:
        """Write and sign a bundle of the rows that fulfil `condition`."""
        segments, files = [], {}
        for table in TABLES:
            path = self._folder / f"{name}-{table}.parquet"
            connection.execute(f"COPY (FROM db.{table} WHERE {condition}) TO '{path}' (FORMAT parquet)")
            ((count,),) = connection.execute(f"SELECT count(*) FROM db.{table}").fetchall()
            digest = sha256(path.read_bytes()).hexdigest()
            segments.append(Segment(table, digest, path.stat().st_size, count))
            files[segments[-1].name] = path
        about = {"gpus": [GPU], "ops": ["matmul"], "tools": [], "days": []}
        manifest = Manifest(tuple(segments), (), "2026-03-01T12:00:00", "kernrec", provenance=about, schema=9)
        bundle = self._folder / f"{name}.zip"
        bundle.unlink(missing_ok=True)
        write_bundle(ZipFile(bundle), manifest, files, self._signer)
        return bundle

    def _kept(self, name: str, path: Path) -> None:
        if self._keep:
            self._keep.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self._keep / f"{name}-{time.time_ns()}{path.suffix}")

    def ask(self, tried: Tried) -> None:
        """Run commands on the database with all accepted rows, and record tracebacks in `tried`."""
        shape = "m=64,n=32,k=16"
        for words in (
            ("recommend", "--op", "matmul", "--shape", shape, "--gpu", GPU, "--json"),
            ("explain", "--op", "matmul", "--shape", shape, "--gpu", GPU),
            ("db", "info"),
            ("db", "verify"),
            ("db", "info", "--coverage"),
            ("train", "--op", "matmul"),
        ):
            try:
                done = run_here(*words, "--db", str(self.own), variables=os.environ | {"KERNREC_DB": str(self.own)})
            except Exception as error:
                tried.wrong.append(f"{' '.join(words)}: a traceback: {error!r:.300}")
                continue
            if done.returncode not in (0, 1, 2):
                tried.wrong.append(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-300:]!r}")


def _untrusted() -> "DuckDBPyConnection":
    """Return a database that has the schema's columns but none of its checks."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("ATTACH ':memory:' AS db")
    for table in (*TABLES, "kernel"):
        columns = ", ".join(f'"{name}" {kind}' for name, kind in LAYOUT.columns[table].items())
        connection.execute(f"CREATE TABLE db.{table} ({columns})")
    return connection


def _full(row: Row3) -> dict[str, Any]:
    measured, config, problem = row
    return {"config_id": _key("config", config), "problem_id": _key("problem", problem), **measured}


def _key(table: str, row: Mapping[str, Any]) -> str:
    """Return the key of a row, or another hash if the row has no key, for example with an infinite value."""
    try:
        return row_key(table, row)
    except ValueError:
        return sha256(repr(row).encode()).hexdigest()[: KEY_DIGITS[table]]


def _insert(connection: "DuckDBPyConnection", rows: Sequence[Row3]) -> None:
    parts = (
        ("config", [row[1] for row in rows]),
        ("problem", [row[2] for row in rows]),
        ("measurement", [_full(row) for row in rows]),
    )
    for table, values in parts:
        kinds = LAYOUT.columns[table]
        _, *names = kinds
        distinct = {_key(table, row): row for row in values}
        filled: list[list[Any]] = [list(distinct), *([row.get(name) for row in distinct.values()] for name in names)]
        columns = ", ".join(f'unnest(${i}::{kind}[]) AS "{name}"' for i, (name, kind) in enumerate(kinds.items(), 1))
        connection.execute(f"INSERT INTO db.{table} BY NAME SELECT {columns}", filled)


def _refused(connection: "DuckDBPyConnection", refused: Counter[str]) -> Iterator[str]:
    """Delete all refused rows and the rows that refer to them. Yield the keys of deleted measurements."""
    for table in TABLES:
        key, again = f"{table}_id", True
        while again:  # deleting rows can cause faults in other rows
            again = False
            for problem, keys in faults(connection, table, LAYOUT, most=10**9):
                again = True
                taken_out = connection.execute(
                    f"DELETE FROM db.{table} WHERE {key} IN (SELECT unnest($1::VARCHAR[])) RETURNING {key}", [keys]
                ).fetchall()
                if table == "measurement" and taken_out:
                    refused[problem.split(": ")[0].split(", and ")[0][:60]] += len(taken_out)
                    yield from (str(each) for (each,) in taken_out)


def attack(rows: int, batch: int, seed: int, keep: Path | None = None, show: bool = False) -> Tried:
    tried, chance = Tried(), random.Random(f"rows {seed}")
    with tempfile.TemporaryDirectory(prefix="rows-") as name, reading_here():
        attacked = Attack(Path(name), keep)
        begin_s = time.process_time()
        while tried.rows < rows:
            attacked.try_batch(min(batch, rows - tried.rows), chance, tried)
            if show:
                spent = time.process_time() - begin_s
                wrong = len(tried.wrong)
                print(f"{tried.rows:9} rows {tried.taken:9} taken {wrong:4} wrong {spent:8.1f} s", flush=True)
        attacked.ask(tried)
    return tried


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for bundles that showed something wrong")
    arguments = parser.parse_args()
    tried = attack(arguments.rows, arguments.batch, arguments.seed, arguments.keep, show=True)
    for problem, count in tried.refused.most_common():
        print(f"{count:9} {problem}")
    for line in tried.wrong:
        print(line, file=sys.stderr)
    return int(bool(tried.wrong))


if __name__ == "__main__":
    sys.exit(main())
