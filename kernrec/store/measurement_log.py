"""The log of measurements as queries read it: every answer and failure of one GPU and op, in memory, by problem.

Opening a DuckDB file takes longer than answering from one, and an open one cannot be written to by others. So a program
that asks many questions reads the log of its GPU and op once; one that asks a single question reads that problem alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kernrec.store.evidence import Evidence, FailedConfig, MeasuredAnswer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Row = tuple[Any, ...]
"""kernel, kernel_hash, config as canonical JSON, then the other fields of `MeasuredAnswer` or `FailedConfig`."""

_ANSWERS = """
    SELECT problem.key, answer.kernel, kernel_hash, tunables, latency_s, energy_j, power_w, sessions, protocol_version,
           measured_at, device, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,
           latency_low_s, latency_high_s, energy_low_j, energy_high_j, replayed
    FROM answer JOIN config USING (config_id) JOIN problem USING (problem_id)
    WHERE gpu = $1
"""
_LIMITS = slice(10, 13)  # of a row: power limit and locked clocks
_LATENCY, _AT, _REPLAYED = 3, 8, -1

# What is quarantined says something of the card, not of the config; `constraint` is what the space knows itself.
# A failure that was replayed is older than anything that ran well.
_FAILURES = """
    SELECT problem.key, whole_card_rows.kernel, kernel_hash, tunables, outcome,
           max(CASE WHEN replayed THEN TIMESTAMP '1970-01-01' ELSE measured_at END)
    FROM whole_card_rows JOIN config USING (config_id) JOIN problem USING (problem_id)
    WHERE gpu = $1 AND outcome IN ('compile', 'timeout', 'crash', 'incorrect')
"""


@dataclass(frozen=True, eq=False)
class MeasurementLog:
    """What one database says of a GPU: by problem's key, the rows of `answer`, and failures by outcome."""

    answers: Mapping[str, list[_Row]]
    failures: Mapping[str, list[_Row]]


def read_log(connection: "DuckDBPyConnection", gpu: str, op: str, problem_key: str | None = None) -> MeasurementLog:
    """The log of a GPU and op, or of one problem alone."""
    where, values = "AND problem.op = $2", [gpu, op]
    if problem_key is not None:
        found = connection.execute("SELECT problem_id FROM problem WHERE key = ?", [problem_key]).fetchone()
        if found is None:
            return MeasurementLog({}, {})
        # As a constant it reaches the scan of the log, which a join would read whole.
        where, values = "AND problem_id = $2", [gpu, found[0]]
    return MeasurementLog(
        _by_problem(connection.execute(f"{_ANSWERS} {where} ORDER BY latency_s, tunables", values).fetchall()),
        _by_problem(connection.execute(f"{_FAILURES} {where} GROUP BY ALL ORDER BY ALL", values).fetchall()),
    )


def evidence(logs: Sequence[MeasurementLog], kernels: Iterable[str], problem_key: str) -> Evidence:
    """What the logs of several databases say of a problem.

    Of each answer that of the first database that has one counts, a replayed one only where no database has another.
    """
    if not any(problem_key in log.answers or problem_key in log.failures for log in logs):
        return Evidence()
    names = frozenset(kernels)
    answers: dict[_Row, _Row] = {}
    foreign: dict[_Row, _Row] = {}
    failures: list[_Row] = []
    for log in logs:
        for row in log.answers.get(problem_key, ()):
            if row[0] in names:
                about = (*row[:3], *row[_LIMITS])
                if about not in answers or answers[about][_REPLAYED] > row[_REPLAYED]:
                    answers[about] = row
            elif (limits := row[_LIMITS]) not in foreign or _before(row, foreign[limits]):
                foreign[limits] = row
        failures += [row for row in log.failures.get(problem_key, ()) if row[0] in names]
    well: dict[_Row, datetime] = {}
    if failures:
        for row in answers.values():
            well[row[:3]] = max(well.get(row[:3], row[_AT]), row[_AT])
    failed = [row for row in failures if row[3] == "incorrect" or row[4] > well.get(row[:3], datetime.min)]
    return Evidence(
        tuple(MeasuredAnswer(*row) for row in _with_config(sorted(answers.values(), key=_latency))),
        tuple(FailedConfig(*row) for row in _with_config(failed)),
        tuple(MeasuredAnswer(*row) for row in _with_config(sorted(foreign.values(), key=_latency))),
    )


def _before(row: _Row, other: _Row) -> bool:
    return (row[_REPLAYED], row[_LATENCY]) < (other[_REPLAYED], other[_LATENCY])


def _latency(row: _Row) -> float:
    return float(row[_LATENCY])


def _by_problem(found: list[_Row]) -> dict[str, list[_Row]]:
    rows: dict[str, list[_Row]] = {}
    for key, *row in found:
        rows.setdefault(key, []).append(tuple(row))
    return rows


def _with_config(found: Sequence[_Row]) -> Iterable[_Row]:
    """The rows with their config parsed."""
    # One text for all configs: a parser's start costs more than a config.
    configs = json.loads(f"[{','.join(row[2] for row in found)}]")
    return ((*row[:2], config, *row[3:]) for row, config in zip(found, configs, strict=True))
