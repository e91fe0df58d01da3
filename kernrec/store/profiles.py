"""Read and write static profiles.

Importing DuckDB takes longer than the rest of a query, so shipped profiles are cached as arrays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store.connection import one_line, parquet_rows
from kernrec.util.cache import CacheEntry, cached
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True, eq=False)
class ProfileRow:
    """Static profile of one launch of a compiled kernel variant on one architecture."""

    kernel: str
    kernel_hash: str
    variant_key: str
    sm: int
    launch: int
    entry: str
    variant: Mapping[str, int | str]
    """Compile-time tunables, dtype and layout."""
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    ptx_hash: str
    compiler: str
    metrics: tuple[str, ...]
    terms: tuple[str, ...]
    counts: np.ndarray
    """Numbers of events, as an array of shape (metrics, 1 + loops): per block, and per iteration of each loop."""

    def columns(self) -> dict[str, object]:
        """Return the values for the table `profile`, keyed by column name."""
        if self.counts.shape != (len(self.metrics), len(self.terms)):
            shape = (len(self.metrics), len(self.terms))
            name = f"{self.kernel} {self.variant_key}"
            raise UsageError(f"profile of {name}: counts are {self.counts.shape}, not {shape}")
        return {COLUMN_OF_FIELD.get(name, name): value for name, value in vars(self).items()} | {
            "code": dict(self.variant),
            "metrics": " ".join(self.metrics),
            "terms": " ".join(self.terms),
            "counts": self.counts.ravel().tolist(),
        }


COLUMN_OF_FIELD = {"variant_key": "code_key", "variant": "code"}
"""Column names of fields that have another name in Python. Column names never change, because row keys depend on
them."""


@dataclass(frozen=True, eq=False)
class ProfileTable:
    """Static profiles of all compiled variants of one launch of a kernel on one architecture."""

    launch: int
    entry: str
    variant_keys: tuple[str, ...]
    """Key of each row's variant, in ascending order."""
    registers: np.ndarray
    """Registers per thread. All arrays except `counts` are int64 arrays of shape (rows,)."""
    spill_bytes: np.ndarray
    stack_bytes: np.ndarray
    static_smem_bytes: np.ndarray
    metrics: tuple[str, ...]
    terms: tuple[str, ...]
    counts: np.ndarray
    """Numbers of events, as float64 of shape (rows, metrics, 1 + loops). The last axis has the events per block, and
    then the events per iteration of each loop. Missing metrics are 0."""

    def column(self, metric: str) -> np.ndarray:
        """Return the events of one metric per block, outside of loops, as an array of shape (rows,)."""
        if metric not in self.metrics:
            return np.zeros(len(self.variant_keys))
        return self.counts[:, self.metrics.index(metric), 0]


def shipped_profiles(kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
    """Return the shipped static profiles for a kernel's source, keyed by launch number."""
    path = paths.shipped("db/prebuilt") / f"{kernel}.profile.parquet"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    facts, arrays = cached(
        f"{kernel}.sm_{sm}.profiles",
        f"{_CACHE_FORM} {kernel_hash}\n".encode() + content,
        lambda: arrays_of_tables(read_profiles(path, kernel, kernel_hash, sm)),
    )
    return tables_of_arrays(facts, arrays)


def tables_of_arrays(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[int, ProfileTable]:
    """Convert the result of `arrays_of_tables` back to profile tables, keyed by launch number."""
    tables = {}
    for table in facts["tables"]:
        launch = table["launch"]
        columns: dict[str, Any] = {name: arrays[f"{name}.{launch}"] for name in _ARRAYS}
        for name, value in table.items():
            columns[name] = tuple(value) if isinstance(value, list) else value
        tables[launch] = ProfileTable(**columns)
    return tables


_CACHE_FORM = 2
_ARRAYS = ("registers", "spill_bytes", "stack_bytes", "static_smem_bytes", "counts")


def arrays_of_tables(tables: Mapping[int, ProfileTable]) -> CacheEntry:
    """Convert profile tables, keyed by launch number, to JSON values and arrays."""
    return (
        {"tables": [{k: v for k, v in vars(table).items() if k not in _ARRAYS} for table in tables.values()]},
        {f"{name}.{launch}": getattr(table, name) for launch, table in tables.items() for name in _ARRAYS},
    )


def read_profiles(path: Path, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
    """Read a kernel's static profiles from a Parquet file, keyed by launch number. Raise `UsageError` if the file is
    damaged."""
    with one_line(path), parquet_rows(path) as (connection, source):
        return query_profiles(connection, source, kernel, kernel_hash, sm)


def query_profiles(
    connection: "DuckDBPyConnection", source: str, kernel: str, kernel_hash: str, sm: int
) -> dict[int, ProfileTable]:
    """Read a kernel's static profiles from an SQL table, keyed by launch number."""
    chosen = f"FROM {source} WHERE sm = $1 AND kernel_hash = $2 AND kernel = $3"
    values = [sm, kernel_hash, kernel]
    # A second query returns the `counts` of all rows as one flat array. The counts of row i end at `ends[i]`.
    columns = connection.execute(
        "SELECT launch, entry, code_key, registers, spill_bytes, stack_bytes, static_smem_bytes, compiler, metrics, "
        f"terms {chosen}",
        values,
    ).fetchnumpy()
    flat = connection.execute(f"SELECT unnest(counts) AS counts {chosen}", values).fetchnumpy()["counts"]
    launches = columns["launch"]
    kinds = list(zip(columns["metrics"].tolist(), columns["terms"].tolist(), strict=True))
    sizes = {kind: len(kind[0].split()) * len(kind[1].split()) for kind in set(kinds)}
    ends = np.cumsum([sizes[kind] for kind in kinds], dtype=np.int64)
    tables = {}
    for launch in sorted(set(launches.tolist())):
        rows = _newest(np.flatnonzero(launches == launch), columns["code_key"], columns["compiler"])
        tables[launch] = _table(launch, rows, columns, kinds, ends, flat)
    return tables


def _newest(rows: np.ndarray, keys: np.ndarray, compilers: np.ndarray) -> np.ndarray:
    def age(row: int) -> tuple[list[int], str]:
        name, _, version = compilers[row].rpartition(" ")
        return [int(part) if part.isdigit() else 0 for part in version.split(".")], name

    several = len(set(compilers[rows].tolist())) > 1
    ordered = sorted(rows.tolist(), key=age) if several else rows.tolist()
    by_key = {keys[row]: row for row in ordered}
    return np.array([by_key[key] for key in sorted(by_key)], dtype=np.int64)


def _table(
    launch: int,
    rows: np.ndarray,
    columns: Mapping[str, np.ndarray],
    kinds: list[tuple[str, str]],
    ends: np.ndarray,
    flat: np.ndarray,
) -> ProfileTable:
    of_kind: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows.tolist()):
        of_kind.setdefault(kinds[row], []).append(place)
    metrics = list(dict.fromkeys(metric for kind in of_kind for metric in kind[0].split()))
    terms = list(dict.fromkeys(term for kind in of_kind for term in kind[1].split()))
    counts = np.zeros((len(rows), len(metrics), len(terms)))
    for (kind_metrics, kind_terms), places in of_kind.items():
        to_metric = [metrics.index(metric) for metric in kind_metrics.split()]
        to_term = [terms.index(term) for term in kind_terms.split()]
        size = len(to_metric) * len(to_term)
        values = flat[ends[rows[places], None] - size + np.arange(size)]
        counts[np.ix_(places, to_metric, to_term)] = values.reshape(-1, len(to_metric), len(to_term))
    return ProfileTable(
        launch=launch,
        entry=str(columns["entry"][rows[0]]),
        variant_keys=tuple(columns["code_key"][rows].tolist()),
        registers=columns["registers"][rows].astype(np.int64),
        spill_bytes=columns["spill_bytes"][rows].astype(np.int64),
        stack_bytes=columns["stack_bytes"][rows].astype(np.int64),
        static_smem_bytes=columns["static_smem_bytes"][rows].astype(np.int64),
        metrics=tuple(metrics),
        terms=tuple(terms),
        counts=counts,
    )
