"""Read measured costs and failures for a query about one GPU."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class MeasuredAnswer:
    """Measured costs of one config for one GPU and problem, at one power limit and clock setting.

    For each contributor, kernrec computes the median over sessions. The cost is the median over contributors
    (`db/schema/views.sql`). Other people's rows count only if the user has none, and old rows count only if there are
    none of the newest protocol. Rows from MIG slices never count.

    The 90 % intervals include the differences between sessions and between contributors. An interval is None if the
    only session stored no interval.
    """

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None
    """Joules for one computation of the problem, or None if energy was not measured."""
    power_w: float | None
    sessions: int
    protocol_version: int
    measured_at: datetime
    device: str | None
    """Name of the GPU according to the driver."""
    power_limit_w: float | None
    """Power limit in watts, or None for the default limit."""
    locked_sm_clock_hz: float | None
    locked_memory_clock_hz: float | None = None
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    measured_by: str | None = None
    """Program that measured. For an imported row, also the person or project that recorded."""
    replayed: bool = False
    """Whether the rows come from a replayed recording."""
    merged: bool = False
    """Whether the rows came from other people."""
    signers: tuple[str, ...] = ()
    """Public keys of the people who signed the rows. An empty key stands for unsigned rows."""
    database: str = ""
    """Database with the rows: `own`, `pulled`, or the path of a file."""
    contributors: int = 1
    """Number of people whose rows were combined."""
    spread_low_s: float | None = None
    """Lowest of the contributors' latencies, in seconds."""
    spread_high_s: float | None = None
    rescaled: int = 0
    """Number of contributors whose rows were scaled to the typical speed of their GPU's model."""
    others_s: float | None = None
    """Other people's median latency for this config, in seconds. None if the rows are not the user's own."""


@dataclass(frozen=True)
class FailedConfig:
    """A config that failed for one problem on one GPU."""

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    outcome: str
    failed_at: datetime


@dataclass(frozen=True)
class Evidence:
    measured: tuple[MeasuredAnswer, ...] = ()
    """Measured configs of the requested kernels, fastest first."""
    failed: tuple[FailedConfig, ...] = ()
    """Configs of the requested kernels that failed and did not succeed later. An incorrect config stays in this list
    even if it succeeded later, because races are intermittent."""
    foreign: tuple[MeasuredAnswer, ...] = ()
    """Fastest config of all kernels that were not requested, for each power limit and clock setting."""

    def __add__(self, other: "Evidence") -> "Evidence":
        """Combine two parts of the evidence for one problem."""
        if other == Evidence():
            return self
        measured, foreign = (
            tuple(sorted(rows, key=lambda row: row.latency_s))
            for rows in (self.measured + other.measured, self.foreign + other.foreign)
        )
        return Evidence(measured, self.failed + other.failed, foreign)


NO_EVIDENCE = Evidence()


_LONG_NUMBER = re.compile(r":-?\d{16}")
"""Matches an integer of 16 or more digits, which no tunable has."""

_Row = tuple[Any, ...]
"""Kernel, kernel hash, config as canonical JSON, and the other fields of a `MeasuredAnswer` or `FailedConfig`."""

ANSWERS = """
    SELECT problem.key, answer.kernel, kernel_hash, tunables, latency_s, energy_j, power_w, sessions, protocol_version,
           measured_at, device, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,
           latency_low_s, latency_high_s, energy_low_j, energy_high_j, measured_by, replayed, merged,
           contributors, spread_low_s, spread_high_s, rescaled
    FROM answer JOIN db.config AS config USING (config_id) JOIN db.problem AS problem USING (problem_id)
"""
_LIMITS = slice(10, 13)  # Positions of the power limit and the locked clocks in a row
_LATENCY, _MEASURED_AT, _REPLAYED, _MERGED, _OTHERS_S = 3, 8, -9, -8, -1
_COMBINED = 5  # Number of columns of `ANSWERS` from `merged` to the last one.

_ORDER = "latency_s, tunables, answer.kernel, kernel_hash, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz"

# For each config, list the people who signed its rows.
SIGNERS = """
    SELECT problem.key, whole_gpu_rows.kernel, kernel_hash, tunables,
           power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, list(DISTINCT signer ORDER BY signer) AS signers
    FROM whole_gpu_rows JOIN (SELECT measurement_id, signer FROM {merged}) AS origin USING (measurement_id)
    JOIN db.config AS config USING (config_id) JOIN db.problem AS problem USING (problem_id)
    WHERE outcome = 'ok'
"""

# Query the median latency that other people measured for each config.
_OTHERS = """
    SELECT problem.key, whole_gpu_rows.kernel, kernel_hash, tunables,
           power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, median(latency_s)
    FROM whole_gpu_rows JOIN db.config AS config USING (config_id) JOIN db.problem AS problem USING (problem_id)
    WHERE outcome = 'ok' AND merged AND NOT replayed
"""

# Skip quarantined rows, which say nothing about the config. Skip the outcome `constraint`, because the search
# space already excludes configs that cannot be launched.
_FAILED = "outcome IN ('compile', 'timeout', 'crash', 'incorrect')"

# Date a failure in a replayed recording to 1970, so that any successful run supersedes it.
FAILURES = f"""
    SELECT problem.key, whole_gpu_rows.kernel, kernel_hash, tunables, outcome,
           max(CASE WHEN replayed THEN TIMESTAMP '1970-01-01' ELSE measured_at END) AS failed_at,
           bool_and(merged) AS merged
    FROM whole_gpu_rows JOIN db.config AS config USING (config_id) JOIN db.problem AS problem USING (problem_id)
    WHERE {_FAILED}
"""

# First check if any config failed, because listing failures takes longer.
_FAILED_HERE = f"FROM db.measurement WHERE {_FAILED}"


@dataclass(frozen=True, eq=False)
class MeasurementLog:
    """Measured costs and failures on one GPU, in one database, keyed by problem key."""

    answers: Mapping[str, list[_Row]]
    failures: Mapping[str, list[_Row]]


def read_log(
    connection: "DuckDBPyConnection", gpu: str, problems: Sequence[str], signed: bool = False
) -> MeasurementLog:
    """Read the measured costs and the failures on a GPU. If `signed` is True, also read the signers."""
    ids = connection.execute("SELECT problem_id FROM db.problem WHERE key IN (SELECT unnest(?))", [problems]).fetchall()
    if not ids:
        return MeasurementLog({}, {})
    # State the values in the condition, so that DuckDB filters during the scan. A join would read the whole table.
    condition, values = f"gpu = $1 AND problem_id IN ({', '.join(quoted(name) for (name,) in ids)})", [gpu]
    some = f"SELECT EXISTS ({_FAILED_HERE} AND {condition}), EXISTS (FROM db.merged WHERE {condition})"
    failed, merged = connection.execute(some, values).fetchone() or (True, True)

    def rows_of(relation: str, query: str) -> list[_Row]:
        from kernrec.store.schema import with_derived

        return connection.execute(with_derived(relation, query, condition), values).fetchall()

    def by_config(needed: bool, query: str) -> dict[_Row, Any]:
        rows = rows_of("whole_gpu_rows", f"{query} GROUP BY ALL") if needed else []
        return {row[:-1]: row[-1] for row in rows}

    answers = rows_of("answer", f"{ANSWERS} ORDER BY {_ORDER}")
    signers = by_config(signed, SIGNERS.format(merged=f"db.merged WHERE {condition}"))
    # Only the user's own rows are compared with other people's latency.
    others = by_config(merged and not all(row[-_COMBINED] for row in answers), _OTHERS)

    def whole(row: _Row) -> _Row:
        columns, (from_others, *combined) = row[:-_COMBINED], row[-_COMBINED:]
        name = (*row[:4], *row[1:][_LIMITS])
        others_s = None if from_others else others.get(name)
        return (*columns, from_others or signed, tuple(signers.get(name, ())), "", *combined, others_s)

    failures = rows_of("whole_gpu_rows", f"{FAILURES} GROUP BY ALL ORDER BY ALL") if failed else []
    return MeasurementLog(
        _by_problem([whole(row) for row in answers]),
        _by_problem([(*row[:-1], row[-1] or signed) for row in failures]),
    )


def evidence(logs: Sequence[MeasurementLog], kernels: Iterable[str], problem_key: str) -> Evidence:
    """Combine several databases' evidence for kernels on a problem. `logs` are in order of precedence.

    For each config, only the first database with measurements counts. Rows from a replayed recording count only if no
    database has a measurement of the config.
    """
    if not any(problem_key in log.answers or problem_key in log.failures for log in logs):
        return NO_EVIDENCE
    names, rank, latency = frozenset(kernels), itemgetter(_REPLAYED, _LATENCY), itemgetter(_LATENCY)
    answers: dict[_Row, _Row] = {}
    foreign: dict[_Row, _Row] = {}
    failures: list[_Row] = []
    for log in logs:
        # Process the user's own rows first, so that other people's rows of the same config do not replace them.
        for row in sorted(log.answers.get(problem_key, ()), key=itemgetter(_MERGED)):
            if row[0] in names:
                config_key = (*row[:3], *row[_LIMITS])
                first = answers.get(config_key)
                if first is None or first[_REPLAYED] > row[_REPLAYED]:
                    answers[config_key] = row
                elif not first[_MERGED] and first[_OTHERS_S] is None and row[_MERGED] and not row[_REPLAYED]:
                    answers[config_key] = (*first[:_OTHERS_S], row[_LATENCY])
            elif (limits := row[_LIMITS]) not in foreign or rank(row) < rank(foreign[limits]):
                foreign[limits] = row
        failures += [row for row in log.failures.get(problem_key, ()) if row[0] in names]
    ran_well: dict[_Row, datetime] = {}
    if failures:
        for row in answers.values():
            ran_well[row[:3]] = max(ran_well.get(row[:3], row[_MEASURED_AT]), row[_MEASURED_AT])
    failed = [row for row in failures if row[3] == "incorrect" or row[4] > ran_well.get(row[:3], datetime.min)]
    measured = [MeasuredAnswer(*row) for row in _with_config(sorted(answers.values(), key=latency))]
    # Skip other people's rows of a config that the user measured, even if they write it differently (64.0 for 64, or
    # true for 1).
    mine = [row for row in measured if not row.merged]
    if len(mine) not in (0, len(measured)):
        named = {_named(row) for row in mine}
        measured = [row for row in measured if not row.merged or _named(row) not in named]
    ran_here = {(row.kernel, row.kernel_hash, frozenset(row.config.items())) for row in mine if failed}
    return Evidence(
        tuple(measured),
        tuple(
            FailedConfig(*row[:-1])
            for row in _with_config(failed)
            if not (row[-1] and (*row[:2], frozenset(row[2].items())) in ran_here)
        ),
        tuple(MeasuredAnswer(*row) for row in _with_config(sorted(foreign.values(), key=latency))),
    )


def _named(row: MeasuredAnswer) -> tuple[Any, ...]:
    limits = (row.power_limit_w, row.locked_sm_clock_hz, row.locked_memory_clock_hz)
    return row.kernel, row.kernel_hash, frozenset(row.config.items()), limits


def _by_problem(rows: list[_Row]) -> dict[str, list[_Row]]:
    by_problem: dict[str, list[_Row]] = {}
    for key, *row in rows:
        by_problem.setdefault(key, []).append(tuple(row))
    return by_problem


def _with_config(rows: Sequence[_Row]) -> Iterable[_Row]:
    # Parse all configs in one call, because a call costs more than parsing one config.
    texts = f"[{','.join(row[2] for row in rows)}]"
    try:
        configs = json.loads(texts)
    except (ValueError, RecursionError):
        raise _bad_config(rows) from None
    if _LONG_NUMBER.search(texts):
        raise _bad_config(rows)
    return ((*row[:2], config, *row[3:]) for row, config in zip(rows, configs, strict=True))


def _bad_config(rows: Sequence[_Row]) -> UsageError:
    def is_config(text: str) -> bool:
        try:
            return isinstance(json.loads(text), dict) and not _LONG_NUMBER.search(text)
        except (ValueError, RecursionError):
            return False

    kernel, kernel_hash, text = next((row[:3] for row in rows if not is_config(row[2])), rows[0][:3])
    return UsageError(
        f"invalid config {text[:60]!r} in a row of {kernel} ({kernel_hash}); `kernrec db withdraw --kernel {kernel}"
        " --merged` removes other people's rows of this kernel"
    )


RETRACTED = "SELECT count(*) FROM db.measurement SEMI JOIN db.retraction USING (measurement_id)"
