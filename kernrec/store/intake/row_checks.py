"""Check untrusted rows beyond the checks of the schema (`db/schema`).

Rows must be complete, in range and plain text. The key of a row must be a hash of its content.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.kernel.source_files import kernel_hash
from kernrec.op import all_ops, problem_from_key
from kernrec.op.problem import ANY_LAYOUT
from kernrec.store.database import LONGEST_SOURCE
from kernrec.store.exchange import used_columns, wrong_keys
from kernrec.store.intake.plausible_times import floor_s
from kernrec.store.measurement import NEWEST_PROTOCOL
from kernrec.store.schema import Layout
from kernrec.util.human import human

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LONGEST = {
    "reason": 200,
    "spec": 2**20,
    "source": LONGEST_SOURCE,
    "code": 2**16,
    "metrics": 2**16,
    "terms": 2**16,
    "figures": 2**16,
}
_LONGEST_TEXT = 8192
_LONGEST_LIST = 2**20
_LARGEST = "1e30"
# Control characters and marks of text direction. Printed, they could control the user's terminal.
_CONTROL = r"\x{00}-\x{08}\x{0e}-\x{1f}\x{7f}-\x{9f}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}"
_LINES = r"\t\n\v\f\r"
# Zero-width characters, which would let different sessions, devices, drivers or licenses have names that look equal.
_INVISIBLE = (
    r"\x{ad}\x{34f}\x{61c}\x{115f}\x{1160}\x{17b4}\x{17b5}\x{180b}-\x{180f}\x{200b}-\x{200d}\x{2060}-\x{2065}"
    r"\x{206a}-\x{206f}\x{3164}\x{fe00}-\x{fe0f}\x{feff}\x{ffa0}\x{fff0}-\x{fffb}\x{e0000}-\x{e0fff}"
)
_SEVERAL_LINES = ("spec", "source")
# Accept only numbers that fit Python's types and indexes, and only text without escaped control characters.
_NUMBER = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?"
_SCALAR = rf'({_NUMBER}|true|false|"([^"\\]|\\["\\])*")'
_FLAT_OBJECT = rf'^\{{("[^"\\]*":{_SCALAR}(,"[^"\\]*":{_SCALAR})*)?\}}$'
_FLAT = {"config": ("tunables",), "problem": ("dims",), "profile": ("code",), "measurement": ("event_reasons",)}
_CANONICAL = {"config": ("tunables",), "problem": ("dims",)}
"""Columns with canonical JSON, keyed by table name. Canonical JSON ensures that equal rows have equal keys."""
_REFERENCES = {"config_id": "config", "problem_id": "problem"}
_PROBLEM_KEY = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^,\[\]]*),([^,\[\]]*)")
_NAMES = {
    "kernel": ("name", "op"),
    "config": ("kernel",),
    "problem": ("op",),
    "profile": ("kernel", "entry"),
    "measurement": ("kernel", "session"),
}
_LONGEST_DIM = 15
"""Maximum number of digits of a dimension. The product of three dimensions then cannot overflow."""
_LEAST_POWER_W, _LEAST_CLOCK_HZ = 0.5, 1e7
_ABOVE_BOARD = 2.0
"""Maximum power, as a multiple of the GPU's highest power limit."""
_ABOVE_BOOST = 1.5
_OPS = frozenset(op.name for op in all_ops())
_MOST_NAMED = 3
_FIRST, _LAST = datetime(2026, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)


def check_rows(connection: "DuckDBPyConnection", table: str, layout: Layout, title: str) -> None:
    """Raise `UsageError` if a row of `db.<table>` is not valid. The message names the file `title`."""
    for problem, rows in faults(connection, table, layout):
        some = ", ".join(rows[:_MOST_NAMED]) + (", ..." if len(rows) > _MOST_NAMED else "")
        raise UsageError(f"{title}: rows of the table {table} {problem} ({some})")


def faults(
    connection: "DuckDBPyConnection",
    table: str,
    layout: Layout,
    *,
    most: int = _MOST_NAMED + 1,
    latest: datetime | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Find the faulty rows of a table. The first fault may cause the others.

    Args:
        connection: Connection with the rows in `db.<table>`.
        table: One of `schema.TABLES`.
        most: Maximum number of keys to list for each fault.
        latest: Current time, by default the system time. A measurement is faulty if it is more than a day later.

    Yields:
        (description of a fault, keys of the faulty rows)
    """
    kinds = used_columns(connection, f"db.{table}", layout.columns[table])
    yield from _violated(connection, table, kinds, list(_conditions(table, layout, kinds, latest)), most)
    # Search all texts of a row at once, joined into one text. Search single columns only if a row matches. Skip the
    # table's key, because it is a hash.
    texts = [name for name, kind in kinds.items() if kind == "VARCHAR" and name != f"{table}_id"]
    for names, control in (
        (set(texts) - {*_SEVERAL_LINES}, _CONTROL + _LINES + _INVISIBLE),
        ({*texts} & {*_SEVERAL_LINES}, _CONTROL),
    ):
        some = f"SELECT 1 FROM db.{table} WHERE {_matches(f'concat({_listed(names)})', control)} LIMIT 1"
        if names and connection.execute(some).fetchone():
            each = [
                (f"have control or invisible characters in {name}", f"NOT {_matches(_listed([name]), control)}")
                for name in names
            ]
            yield from _violated(connection, table, kinds, each, most)
    wrong = wrong_keys(connection, table, f"db.{table}", kinds)
    if altered := [stored for _, (stored, _) in zip(range(most), wrong, strict=False)]:
        yield "do not match their key", altered
    if table == "problem":
        yield from _problem_faults(connection)
    elif table == "kernel":
        yield from _kernel_faults(connection)
    elif table == "measurement":
        catalog = [gpu.name for gpu in all_gpus()]
        for (name,) in connection.execute("SELECT DISTINCT gpu FROM db.measurement ORDER BY 1").fetchall():
            if name not in catalog:
                query = f"SELECT measurement_id FROM db.measurement WHERE gpu = $1 LIMIT {most}"
                yield (
                    f"are of an {unknown('GPU', name, catalog, 'kernrec list gpus')}",
                    [str(key) for (key,) in connection.execute(query, [name]).fetchall()],
                )
            elif conditions := list(_conditions_of_gpu(find_gpu(name), kinds)):
                yield from _violated(connection, table, kinds, conditions, most)
        yield from _latency_faults(connection, most)


def _conditions_of_gpu(gpu: GPU, kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (fault, SQL condition for valid rows) for the powers, energies and clocks of a GPU."""
    other = f"gpu <> '{gpu.name}'"
    most_w, most_hz = _ABOVE_BOARD * gpu.power_max_w, _ABOVE_BOOST * max(gpu.boost_clock_hz, gpu.tensor_clock_hz)
    bounds = {
        **dict.fromkeys(("power_w", "power_limit_w"), (_LEAST_POWER_W, most_w, "W")),
        "idle_w": (0.0, most_w, "W"),
        **dict.fromkeys(
            ("locked_sm_clock_hz", "sm_clock_mean_hz", "sm_clock_min_hz"), (_LEAST_CLOCK_HZ, most_hz, "Hz")
        ),
        **dict.fromkeys(
            ("locked_memory_clock_hz", "memory_clock_hz"), (_LEAST_CLOCK_HZ, _ABOVE_BOOST * gpu.memory_rate_hz, "Hz")
        ),
    }
    for name, (least, most, unit) in bounds.items():
        if name in kinds:
            range_ = f"{human(least, unit)} to {human(most, unit)}"
            yield (
                f"have a {name} out of range for {gpu.name} ({range_})",
                f"({other} OR {name} BETWEEN {least} AND {most})",
            )
    if "energy_j" in kinds and "latency_s" in kinds:
        power = f"energy_j / latency_s BETWEEN {_LEAST_POWER_W} AND {most_w}"
        yield f"have an energy that {gpu.name} cannot draw in their latency", f"({other} OR {power})"


def _latency_faults(connection: "DuckDBPyConnection", most: int) -> Iterator[tuple[str, list[str]]]:
    """Find measurements whose latency is too short for the GPU's peak performance."""
    rows = "db.measurement AS measurement JOIN db.problem AS problem USING (problem_id) WHERE outcome = 'ok'"
    least = f"SELECT gpu, problem.key, min(latency_s) FROM {rows} GROUP BY gpu, problem.key ORDER BY ALL"
    for gpu, key, least_s in connection.execute(least).fetchall():
        try:
            problem = problem_from_key(key)
        except UsageError:
            continue  # Skip a problem that the spec of a user's kernel declares.
        floor = floor_s(problem, find_gpu(gpu))
        if least_s < floor:
            query = (
                f"SELECT measurement_id FROM {rows} AND gpu = $1 AND problem.key = $2 AND latency_s < $3 LIMIT {most}"
            )
            below = connection.execute(query, [gpu, key, floor]).fetchall()
            needed = f"{key} needs {human(floor, 's')} on {gpu} at its peak"
            yield f"have a latency of {human(least_s, 's')}, and {needed}", [str(name) for (name,) in below]


def _violated(
    connection: "DuckDBPyConnection",
    table: str,
    kinds: Mapping[str, str],
    conditions: Sequence[tuple[str, str]],
    most: int,
) -> Iterator[tuple[str, list[str]]]:
    violated = [f"NOT coalesce({condition}, true)" for _, condition in conditions]
    counts = connection.execute(f"SELECT {', '.join(f'count_if({each})' for each in violated)} FROM db.{table}")
    for (problem, _), condition, count in zip(conditions, violated, counts.fetchall()[0], strict=True):
        if count:
            query = f"SELECT {next(iter(kinds))} FROM db.{table} WHERE {condition} LIMIT {most}"
            yield problem, [str(name) for (name,) in connection.execute(query).fetchall()]


def _matches(text: str, control: str) -> str:
    return f"regexp_matches({text}, '[{control}]')"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


def _conditions(
    table: str, layout: Layout, kinds: Mapping[str, str], latest: datetime | None
) -> Iterator[tuple[str, str]]:
    """Yield (fault, SQL condition for valid rows) for a table. A row also passes if the condition is NULL."""
    for expression in layout.checks[table]:
        yield f"are not {expression}", expression
    for name in layout.required[table]:
        yield f"have no {name}", f'"{name}" IS NOT NULL'
    for name in _NAMES.get(table, ()):
        yield f"have an empty {name}", f"{name} <> ''"
        if name != "session":  # Restrict characters, so that different names do not look alike.
            yield f"have non-ASCII characters in {name}", f"regexp_matches({name}, '^[ -~]*$')"
    for name, kind in kinds.items():
        column = f'"{name}"'
        if kind == "VARCHAR":
            longest = _LONGEST.get(name, _LONGEST_TEXT)
            yield f"have a {name} of more than {longest} characters", f"length({column}) <= {longest}"
        elif kind == "DOUBLE":
            yield f"have no finite {name}", f"isfinite({column}) AND abs({column}) < {_LARGEST}"
        elif kind == "DOUBLE[]":
            yield f"have more than {_LONGEST_LIST} {name}", f"len({column}) <= {_LONGEST_LIST}"
            yield f"have unknown values in {name}", f"len({column}) = list_count({column})"
            ends = f"isfinite(list_min({column})) AND isfinite(list_max({column}))"
            yield f"have values in {name} that are not finite", ends
    for name in kinds.keys() & _FLAT.get(table, ()):
        yield f"have no flat JSON object in {name}", f"regexp_matches({name}, '{_FLAT_OBJECT}')"
    for name in kinds.keys() & _CANONICAL.get(table, ()):
        names = f"json_keys(CASE WHEN regexp_matches({name}, '{_FLAT_OBJECT}') THEN {name} END)"
        yield f"have repeated or unsorted names in {name}", f"{names} = list_sort(list_distinct({names}))"
    if table == "profile":
        words = "len(string_split(metrics, ' ')) * len(string_split(terms, ' '))"
        yield "lack a count for each metric and term", f"len(counts) = {words}"
    if table == "retraction":
        for name, digits in (("measurement_id", "{32}"), ("signer", "{64}|"), ("signature", "{128}|")):
            yield f"have an invalid {name}", f"regexp_matches({name}, '^([0-9a-f]{digits})$')"
        yield "have an impossible time", _possible("retracted_at", latest)
    if table == "measurement":
        newest = f"protocol_version <= {NEWEST_PROTOCOL}"
        yield f"have a newer protocol than this kernrec knows ({NEWEST_PROTOCOL}); update it", newest
        yield "have samples that are not positive", "list_min(latency_samples_s) > 0"
        low, high = (f"list_{end}(latency_samples_s) * {factor}" for end, factor in (("min", 0.999), ("max", 1.001)))
        yield "have samples that contradict their latency", f"latency_s BETWEEN {low} AND {high}"
        for cost, unit in (("latency", "s"), ("energy", "j")):
            value, low, high = (f"{cost}{end}_{unit}" for end in ("", "_low", "_high"))
            for end, condition in ((low, f"{low} <= {value}"), (high, f"{value} <= {high}")):
                if end in kinds:
                    yield f"have an interval that does not contain their {value}", condition
        for name, start in _REFERENCES.items():
            yield f"refer to a {start} that is missing", f"{name} IN (SELECT {name} FROM db.{start})"
        of_kernel = "concat(config_id, ' ', kernel)"
        yield "have a config of another kernel", f"{of_kernel} IN (SELECT {of_kernel} FROM db.config)"
        # Imported recordings without a date have the time 1970-01-01.
        unknown_time = "measured_at = TIMESTAMP '1970-01-01'"
        yield "were measured at an impossible time", f"({unknown_time} OR {_possible('measured_at', latest)})"


def is_possible(moment: datetime) -> bool:
    """Return whether a system time lies in the years in which this version of kernrec may be in use."""
    return _FIRST <= moment < _LAST


def _possible(moment: str, latest: datetime | None) -> str:
    # The clock of the computer that measured may be ahead.
    tomorrow = ((latest or datetime.now(UTC)) + timedelta(days=1)).replace(tzinfo=None)
    return f"{moment} BETWEEN TIMESTAMP '2000-01-01' AND TIMESTAMP '{tomorrow:%Y-%m-%d %H:%M:%S}'"


def _problem_faults(connection: "DuckDBPyConnection") -> Iterator[tuple[str, list[str]]]:
    declared = _declared_ops(connection)
    cursor = connection.cursor().execute("SELECT problem_id, key, op, dims, dtype, layout FROM db.problem")
    while rows := cursor.fetchmany(1000):
        for name, key, op, dims, dtype, layout in rows:
            match = _PROBLEM_KEY.fullmatch(key)
            pairs = [pair.partition("=") for pair in match[2].split(",")] if match and match[2] else []
            stated = {dim: value for dim, _, value in pairs}
            stored = {dim: str(value) for dim, value in json.loads(dims).items()}
            if match is None or (match[1], stated, match[3], match[4]) != (op, stored, dtype, layout):
                yield "have a key that does not match their columns", [name]
            elif any(len(value.lstrip("-")) > _LONGEST_DIM for value in stored.values()):
                yield f"have a dimension of more than {_LONGEST_DIM} digits", [name]
            elif op in _OPS and (op, layout) not in declared:
                try:
                    problem_from_key(key)
                except UsageError as error:
                    yield f"are not accepted by {op}: {error}", [name]


def _declared_ops(connection: "DuckDBPyConnection") -> set[tuple[str, str]]:
    """Return (op name, layout) for each problem that the spec of a stored kernel declares."""
    cursor = connection.cursor().execute("SELECT name, spec FROM db.kernel")
    declared = set()
    while rows := cursor.fetchmany(10):
        for name, spec in rows:
            # Ignore an invalid spec here, because `_kernel_faults` reports it.
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                if isinstance(json.loads(spec).get("problem"), dict):
                    # Problems of a built-in op with the same name have other layouts, and are still checked.
                    declared.add((name, ANY_LAYOUT))
    return declared


def _kernel_faults(connection: "DuckDBPyConnection") -> Iterator[tuple[str, list[str]]]:
    cursor = connection.cursor().execute("SELECT kernel_id, kernel_hash, spec, source FROM db.kernel")
    while rows := cursor.fetchmany(10):
        for name, stated, spec, source in rows:
            try:
                actual = kernel_hash(json.loads(spec), source)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                yield "have an invalid kernel spec", [name]
                continue
            if actual != stated:
                yield "have a spec or source that does not match their hash", [name]
