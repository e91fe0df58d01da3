"""Look up published times of backends, such as vLLM, in Parquet files that ship with kernrec.

The first query about an op copies its rows to the user's cache, in one file of arrays for each GPU and data type. Later
queries map the file that they need into memory. The arrays are sorted by a hash of the problem's dimensions, without
the number of items such as images (`padded_dimension`).
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b, sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.op import Op, Problem, find_op
from kernrec.op.scaled_workload import padded_dimension
from kernrec.util.files import write_whole
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

ORIGIN = ("gpu", "dtype", "layout", "stack", "version", "variant", "kernel", "source", "licence", "recorded")
"""Columns that describe a row and its source, in the sort order of the files."""
WIDTHS = ("fastest", "slowest", "power_error")
"""Columns that define 90 % intervals. The interval of the time begins at the recorded time multiplied by `fastest`, and
ends at the recorded time multiplied by `slowest`. `power_error` is the relative half-width of the power's interval."""


@dataclass(frozen=True)
class RecordedBaseline:
    """Published time and power of a backend, such as vLLM or cuBLAS, for a problem on a GPU."""

    backend: str
    version: str
    variant: str
    """Text that distinguishes recordings of one backend and dtype, such as `static scales`. May be empty."""
    kernel: str
    """Kernel or library that ran. Empty if unknown."""
    latency_s: float
    power_w: float | None
    """Mean power in watts while calls run in a loop. None if it was not recorded."""
    latency_interval_s: tuple[float, float]
    """90 % interval, in seconds, of the time in a new measurement, even with a later version of the backend."""
    power_interval_w: tuple[float, float] | None
    source: str
    licence: str
    recorded: str
    """Date and method of the recording, in words."""

    @property
    def provenance(self) -> dict[str, str]:
        """Publisher, license, date and method of the recording, and the kernel that ran."""
        return {name: getattr(self, name) for name in ("source", "licence", "recorded", "kernel")}


def recorded_baselines(problem: Problem, gpu: GPU) -> tuple[RecordedBaseline, ...]:
    """Return the published times of backends for this problem and GPU, fastest first."""
    items, rows = rows_beside(problem, gpu)
    baselines = [recorded_baseline(problem, row, gpu) for _, number, _, row in rows if number == items]
    return tuple(sorted(baselines, key=lambda baseline: baseline.latency_s))


def has_recorded(op: str, gpu: GPU) -> bool:
    return gpu.name in contents().get(op, {}).get("gpus", ())


def rows_beside(problem: Problem, gpu: GPU) -> tuple[int, list[tuple[tuple[str, str, str], int, float, int]]]:
    """Return the recordings of problems that differ from `problem` at most in their number of items, such as images.

    Returns:
        (number of items of the problem, recordings). Each recording is ((backend, version, variant), number of items,
        time in seconds, row number in the table). Recordings with fewer items come first.
    """
    if not has_recorded(problem.op, gpu):
        return 0, []
    table, (key, items) = _table(problem.op, gpu.name, problem.dtype), _key_of(problem, gpu.name)
    start, end = (int(table.keys.searchsorted(table.keys.dtype.type(key), side)) for side in ("left", "right"))
    rows = []
    for row in range(start, end):
        named = table.origins[table.origin.item(row)]
        backend = named["stack"], named["version"], named["variant"]
        rows.append((backend, table.items.item(row), table.latency_s.item(row), row))
    return items, rows


def recorded_baseline(problem: Problem, row: int, gpu: GPU) -> RecordedBaseline:
    """Return the recording for a problem in the given row of the published table (see `rows_beside`)."""
    table = _table(problem.op, gpu.name, problem.dtype)
    named = table.origins[int(table.origin[row])]
    seconds, power, error = float(table.latency_s[row]), float(table.power_w[row]), float(named["power_error"])
    return RecordedBaseline(
        named["stack"], named["version"], named["variant"], named["kernel"], seconds, power if power > 0 else None,
        (seconds * named["fastest"], seconds * named["slowest"]),
        (power / (1 + error), min(power * (1 + error), gpu.tdp_w)) if power > 0 else None,
        named["source"], named["licence"], named["recorded"],
    )  # fmt: skip


@cache
def contents() -> Mapping[str, Mapping[str, Any]]:
    """Return the `rows`, `gpus`, `sources`, `left_out` and `sha256` of each op's Parquet file, keyed by op."""
    try:
        text = (_folder() / "contents.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return dict(json.loads(text))


def _row_keys(
    op: Op, gpu: str, dtype: str, layout: str, dims: "Mapping[str, np.ndarray]"
) -> "tuple[np.ndarray, np.ndarray]":
    """Return arrays of the results of `_key_of`, for recordings with the same GPU, dtype and layout."""
    import numpy as np

    count = len(next(iter(dims.values())))
    keys = np.full(count, _seed(op.name, gpu, dtype, layout), np.uint64)
    items, batched = np.zeros(count, np.uint64), dims.get("batch", np.ones(count)) > 1
    alone, together = (padded_dimension(op.name, layout, each) for each in (False, True))
    for dim in op.dims:
        values = dims.get(dim.name, np.full(count, dim.default)).astype(np.uint64)
        if op.name == "attention" and dim.name == "causal":
            values = np.where(dims["queries"] == 1, np.uint64(0), values)
        counts = np.where(batched, dim.name == together, dim.name == alone)
        items = np.where(counts, values, items)
        keys = keys * np.uint64(_FACTOR) + np.where(counts, np.uint64(0), values)
    return keys, items


def _key_of(problem: Problem, gpu: str) -> tuple[int, int]:
    """Return (hash of the GPU and problem, number of items). The hash does not depend on the number of items."""
    sizes = problem.sizes
    counted = padded_dimension(problem.op, problem.layout, sizes.get("batch", 1) > 1)
    # A single query attends to all keys, whether the attention is causal or not.
    single = problem.op == "attention" and sizes["queries"] == 1
    key = _seed(problem.op, gpu, problem.dtype, problem.layout)
    for dim in problem.definition.dims:
        fixed = dim.name != counted and not (single and dim.name == "causal")
        key = (key * _FACTOR + (sizes[dim.name] if fixed else 0)) & _WORD
    return key, 0 if counted is None else sizes[counted]


def _seed(*names: str) -> int:
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "little")


_WORD = (1 << 64) - 1
_FACTOR = 0xD1342543DE82EF95
"""Multiplier for the hash of a problem, from Steele and Vigna, "Computationally Easy, Spectrally Good Multipliers". A
test checks that no two shipped problems have the same hash."""


_COLUMNS = {"keys": "<u8", "items": "<u4", "latency_s": "<f4", "power_w": "<f4", "origin": "<u2"}


@dataclass(frozen=True, eq=False)
class _Table:
    """Recordings of an op on a GPU in a data type, one per row, sorted by key and then by number of items."""

    origins: tuple[Mapping[str, Any], ...]
    """Distinct combinations of values in the columns `ORIGIN` and `WIDTHS`."""
    keys: "np.ndarray"
    items: "np.ndarray"
    """Number of items, such as images, of each recording's problem, or 0 if no dimension counts items."""
    latency_s: "np.ndarray"
    power_w: "np.ndarray"
    """Watts, or 0 if the power was not recorded."""
    origin: "np.ndarray"
    """Index of each recording in `origins`."""


@cache
def _table(op: str, gpu: str, dtype: str) -> _Table:
    import numpy as np

    from kernrec.util.array_file import mapped, pack, unpack

    digest = contents()[op]["sha256"]
    folder, name = paths.cache() / "recorded", f"{op}.{digest[:16]}"
    with suppress(OSError, ValueError, KeyError, TypeError):
        # Do not verify the checksum, because a verification would read the whole file.
        facts, arrays = unpack(mapped(folder / f"{name}.{gpu}.{dtype}.arrays"), intact=True)
        return _Table(tuple(facts["origins"]), **arrays)
    tables = _read(op, digest)
    # Also cache an empty table, so that the next query does not read all rows again.
    empty = {column: np.empty(0, kind) for column, kind in _COLUMNS.items()}
    facts, arrays = tables.setdefault((gpu, dtype), ({"origins": []}, empty))
    if paths.cache().parent.parent.is_dir():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for key, table in tables.items():
                write_whole(folder / ".".join((name, *key, "arrays")), pack(*table))
            for other in folder.glob(f"{op}.*"):
                if not other.name.startswith(f"{name}."):
                    other.unlink()
    return _Table(tuple(facts["origins"]), **arrays)


def _folder() -> Path:
    return paths.shipped("db/prebuilt") / "recorded"


def _read(op: str, digest: str) -> "dict[tuple[str, str], tuple[dict[str, Any], dict[str, np.ndarray]]]":
    """Return the metadata and the arrays of each table of an op, keyed by GPU and data type."""
    import numpy as np

    from kernrec.store.connection import parquet_rows

    path = _folder() / f"{op}.parquet"
    try:
        digest_now = sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        digest_now = ""
    if digest_now != digest:
        raise KernrecError(f"{path} is not the file that contents.json beside it describes: reinstall kernrec")
    definition, named = find_op(op), ", ".join((*ORIGIN, *WIDTHS))
    with parquet_rows(path) as (connection, source):
        groups = connection.execute(f"SELECT {named}, count(*) FROM {source} GROUP BY ALL ORDER BY ALL").fetchall()
        present = [d[0] for d in connection.execute(f"FROM {source} LIMIT 0").description or ()]
        dims = [dim.name for dim in definition.dims if dim.name in present]
        sizes = "".join(f'"{name}", ' for name in dims)
        rows = connection.execute(
            f"SELECT {sizes} latency_s, coalesce(power_w, 0) AS power_w FROM {source} ORDER BY {named}"
        ).fetchnumpy()
    columns = {name: np.asarray(column) for name, column in rows.items()}
    tables, start = {}, 0
    for (gpu, dtype), some in groupby(groups, itemgetter(0, 1)):
        alike, first, keys, items, origin = list(some), start, list[np.ndarray](), list[np.ndarray](), []
        for number, group in enumerate(alike):
            sizes_here = {name: columns[name][start : start + group[-1]] for name in dims}
            of_group = _row_keys(definition, gpu, dtype, group[2], sizes_here)
            keys.append(of_group[0])
            items.append(of_group[1])
            origin.append(np.full(group[-1], number))
            start += group[-1]
        arrays = {
            "keys": np.concatenate(keys), "items": np.concatenate(items), "origin": np.concatenate(origin),
            "latency_s": columns["latency_s"][first:start], "power_w": columns["power_w"][first:start],
        }  # fmt: skip
        order = np.lexsort((arrays["items"], arrays["keys"]))
        origins = [dict(zip((*ORIGIN, *WIDTHS), group, strict=False)) for group in alike]
        tables[gpu, dtype] = {"origins": origins}, {name: arrays[name][order].astype(t) for name, t in _COLUMNS.items()}
    return tables
