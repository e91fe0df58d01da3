"""Build the recorded rows that ship in `db/prebuilt/recorded`, from the recordings in `../shared/data/library`.

Rows ship if their license allows it: serving backends from ai-dynamo/aiconfigurator (Apache-2.0), and f32 operators of
PyTorch that were recorded for NeuSight (MIT). `contents.json` counts the excluded rows:

- recordings that are excluded from training (`tools/evidence/recordings/files.py`);
- rows more than 5 % faster than physics allows (`kernrec.model.baselines.operating_point`), and powers more than 5 %
  above the power limit (a smaller excess is cut off);
- superseded backend versions of matmuls, invalid shapes, and all but a backend's fastest kernel for a problem.

Times are rounded to four digits and powers to 0.1 W. Each row has an interval (`Factors`).
"""

import gzip
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import duckdb
import numpy as np
import pyarrow as pa
import typer
from evidence.recordings.files import EXCLUSIONS, excluded, named, power_of, recorded_dicts
from evidence.recordings.matmul import EAGER
from front import DATA, ROOT, Data, script

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.baselines.operating_point import LEEWAY, least_s, rates_of, work_of
from kernrec.op import Op, find_op
from kernrec.store.connection import quoted
from kernrec.store.recorded import ORIGIN, WIDTHS

Array = np.ndarray
Row = dict[str, Any]

LEAST = 0.03
"""Minimum relative half-width of an interval: the 90th percentile of differences between repeats (A100 and H100)."""
ENOUGH = 200
"""Minimum number of ratios of times from which an interval is computed."""
_NEAR = 0.08
"""Maximum distance between two neighbors, in the logarithms of their sizes."""
_SAME_TIME = 0.03
"""Maximum logarithmic difference in time between two neighbors whose powers are compared."""
_LEAST_POWER = 0.05
"""Minimum relative half-width of the interval of a power: the accuracy that NVML documents."""


Key = tuple[Any, ...]
Factors = Mapping[Key, list[float]]
"""Logarithms of factors between times of the same problem, keyed by (source, backend, data type, GPU):

    repeats    the same version ran the same kernels again on a GPU of the same model
    versions   ratio of the speedups by a later version at two neighboring sizes `m`
    neighbors  times per unit of work of two problems with the same kernels and sizes within 8 %

Differences of two errors are divided by the square root of two. The interval of a time contains 90 % of the factors of
the GPU, backend and data type, or of a wider group if there are too few. It does not include differences between
versions. The interval of a power comes from neighbors that take equal times."""


def origin(row: Row) -> Key:
    """Return the key of a row's factors."""
    return row["source"], row["stack"], row["dtype"], row["gpu"]


def narrowest(factors: Factors, key: Key, but: str = "") -> Array:
    """Return at least `ENOUGH` factors, whose keys share as many leading fields with `key` as possible. Return an empty
    array if too few share the first field. Recordings of the GPU `but` are held out."""
    for same in (4, 3, 2, 1):
        groups = [logs for other, logs in factors.items() if other[:same] == key[:same] and other[3] != but]
        if sum(map(len, groups)) >= ENOUGH:
            return np.concatenate([np.asarray(logs) for logs in groups])
    return np.zeros(0)


def interval(factors: Array) -> tuple[float, float]:
    """Return the factors at the two ends of a 90 % interval, from logarithms of factors, (N,)."""
    low, high = np.quantile(factors, (0.05, 0.95)) if len(factors) else (0.0, 0.0)
    return float(np.exp(min(low, -np.log1p(LEAST)))), float(np.exp(max(high, np.log1p(LEAST))))


def neighbors(rows: Sequence[Row], dims: Sequence[str]) -> Array:
    """Return log ratios of time per unit of work between neighboring problems, for one GPU and backend."""
    from scipy.spatial import cKDTree

    factors = [np.zeros(0)]
    for group in grouped_by(rows, ("layout", "kernel")):
        if len(group) > 1:
            sizes = np.log([[max(float(row[name]), 0.5) for name in dims] for row in group])
            distance, nearest = cKDTree(sizes).query(sizes, k=2)
            per_work = np.log([row["latency_s"] / row["least_s"] for row in group])
            near = distance[:, 1] < _NEAR
            factors.append(per_work[nearest[near, 1]] - per_work[near])
    return np.asarray(np.concatenate(factors) / np.sqrt(2))


def grouped_by(rows: Iterable[Row], names: Sequence[str]) -> list[list[Row]]:
    """Return the rows of each combination of values, in order of appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def power_width(rows: Iterable[Row], dims: Sequence[str]) -> float:
    """Compare the power of neighbors in the first dimension if both take the same time. Return the relative half-width
    that contains 90 % of the differences. `rows` are of one GPU and backend."""
    differences = [np.zeros(0)]
    for line in grouped_by((row for row in rows if row["power_w"]), ("dtype", *dims[1:])):
        line.sort(key=lambda row: float(row[dims[0]]))
        seconds, watts = (np.log([row[name] for row in line]) for name in ("latency_s", "power_w"))
        differences.append(np.abs(np.diff(watts))[np.abs(np.diff(seconds)) < _SAME_TIME])
    every = np.concatenate(differences)
    return max(float(np.quantile(every, 0.9)) if len(every) >= ENOUGH else 0.0, _LEAST_POWER)


def coverage(factors: Factors, source: str) -> dict[str, float]:
    """Return the fractions of factors inside two intervals: one from other problems, and one from other GPUs."""
    halves, gpus = [], []
    for key, logs in factors.items():
        if key[0] == source and len(logs) >= ENOUGH:
            every = np.asarray(logs)
            low, high = np.log(interval(every[::2]))
            halves.append((every[1::2] >= low) & (every[1::2] <= high))
            if len(others := narrowest(factors, key, but=key[3])):
                low, high = np.log(interval(others))
                gpus.append((every >= low) & (every <= high))
    parts = {"problems held out": halves, "GPUs held out": gpus}
    return {name: round(float(np.concatenate(part).mean()), 3) for name, part in parts.items() if part}


POWER = "power_w"
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SOURCES: Mapping[str, Sequence[Mapping[str, str]]] = _TABLES["sources"]
"""File, columns and condition of the recordings of each op."""
_EXPRESSIONS = {
    "dtype": named("dtype", "serving_dtypes"), "system": named("system", "systems"),
    "framework": named("framework", "backends"), "device": named("device", "devices"),
    "distribution": named("distribution", {"balanced": 0, "power_law_1.01": 101, "power_law_1.2": 120}),
}  # fmt: skip


def run(
    ops: Annotated[list[str] | None, typer.Argument(help="ops by name; all by default")] = None,
    data: Data = DATA, out: Path = ROOT / "db/prebuilt/recorded",
) -> None:  # fmt: skip
    """Write a Parquet file for each op, and `contents.json`."""
    out.mkdir(parents=True, exist_ok=True)
    described = out / "contents.json"
    for name in ops or SOURCES:
        built = build(find_op(name), data / "library", out)
        print(name, built)
        contents = json.loads(described.read_text(encoding="utf-8")) if described.exists() else {}
        text = json.dumps(dict(sorted((contents | {name: built}).items())), indent=1)
        described.write_text(text + "\n", encoding="utf-8")
    if not ops:
        replayed_space(data / "spaces", out.parent / "replay")
    print(f"{sum(path.stat().st_size for path in out.glob('*.parquet')) / 1e6:.2f} MB in all")


def build(op: Op, library: Path, out: Path) -> dict[str, object]:
    """Write the Parquet file of an op, and return the op's entry in `contents.json`."""
    counted: Counter[str] = Counter()
    best: dict[Key, Row] = {}
    newer: dict[Key, Row] = {}
    factors: dict[Key, list[float]] = defaultdict(list)
    later: dict[Key, list[tuple[int, float]]] = defaultdict(list)

    def key_of(row: Row) -> Key:
        dims = (row[dim.name] for dim in op.dims if dim.name in row)
        return row["gpu"], row["stack"], row["variant"], row["dtype"], row["layout"], *dims

    @cache
    def work(kernel: str | None, dtype: str, layout: str, *sizes: int) -> tuple[float, float] | None:
        try:
            return work_of(op.problem(dtype, layout, **dict(zip(names, sizes, strict=True))), kernel)
        except UsageError:
            return None

    for row in read_rows(library, op):
        names = [dim.name for dim in op.dims if dim.name in row]
        key = key_of(row)
        flops_and_bytes = work(row["kernel"] if op.name == "conv2d" else None, *key[3:])
        if flops_and_bytes is None:
            counted["of no problem that kernrec supports"] += 1
            continue
        row["least_s"] = float(least_s(*flops_and_bytes, rates_of(find_gpu(row["gpu"]), row["dtype"])))
        if row["least_s"] > LEEWAY * row["latency_s"]:
            counted["faster than physically possible"] += 1
            continue
        if (other := best.get(key)) is not None:
            counted["slower than another kernel of the backend"] += 1
            fast, slow = sorted((row, other), key=itemgetter("latency_s"))
            if (fast["kernel"], fast["version"]) == (slow["kernel"], slow["version"]):
                factors[origin(fast)].append(float(np.log(slow["latency_s"] / fast["latency_s"])))
            row = fast
        best[key] = row
    for row in later_rows(library, op):
        key, latency_s = key_of(row), row["latency_s"]
        if (shipped := best.get(key)) is not None and latency_s != shipped["latency_s"]:
            line = *origin(shipped), shipped["variant"], shipped["n"], shipped["k"]
            later[line].append((shipped["m"], float(np.log(latency_s / shipped["latency_s"]))))
            possible = shipped["least_s"] <= LEEWAY * latency_s
            if possible and (key not in newer or latency_s < newer[key]["latency_s"]):
                newer[key] = shipped | row
    for line, ratios in later.items():
        # A later version may be faster for all m. Differences between neighbors do not contain the general speedup.
        factors[line[:4]] += (np.diff([ratio for _, ratio in sorted(ratios)]) / np.sqrt(2)).tolist()
    rows = list((best | newer).values())
    for row in rows:
        limit_w = find_gpu(row["gpu"]).tdp_w
        if row[POWER] is not None and row[POWER] > limit_w:
            above = row[POWER] > LEEWAY * limit_w
            counted["power above the limit" if above else "with power lowered to the limit"] += 1
            row[POWER] = None if above else limit_w
    widths = _add_widths(rows, names, factors)
    path = out / f"{op.name}.parquet"
    write(path, names, rows)

    def each(text: str) -> list[str]:
        return sorted({text.format_map(row) for row in rows})

    names_of = {"gpus": "{gpu}", "dtypes": "{dtype}", "backends": "{stack} {version}"}
    return {
        "rows": len(rows),
        **{name: each(text) for name, text in names_of.items()},
        "sources": each("{source} ({licence}), {recorded}"),
        "with_power": sum(row[POWER] is not None for row in rows),
        "left_out": dict(sorted(counted.items())),
        "excluded": excluded_rows(library, [each["file"] for each in SOURCES[op.name]]),
        "intervals": {
            "narrowest, median, widest": [round(float(width), 3) for width in np.quantile(widths, (0, 0.5, 1))],
            **{what: share for source in each("{source}") for what, share in coverage(factors, source).items()},
        },
        "bytes": path.stat().st_size,
        "sha256": sha256(path.read_bytes()).hexdigest(),
    }


def excluded_rows(library: Path, files: Sequence[str]) -> dict[str, int]:
    """Count the rows and the powers that `evidence.recordings.files` excludes for each file and reason."""
    counts: dict[str, int] = {}
    for each in EXCLUSIONS:
        if each.file in files:
            condition = f" AND {POWER} IS NOT NULL" if each.power_only else ""
            rows = recorded_dicts(library / f"{each.file}.parquet", f"({each.rows}){condition}", "count(*) AS n")
            name = f"{each.file}, {POWER if each.power_only else 'rows'}: {each.reason}"
            counts[name] = counts.get(name, 0) + int(rows[0]["n"])
    return counts


def _add_widths(rows: Sequence[Row], dims: Sequence[str], factors: Factors) -> list[float]:
    """Add to each row the interval of its GPU, backend and data type. Return the larger half-width of each row."""
    widths = []
    for group in grouped_by(rows, ("source", "stack", "dtype", "gpu")):
        own = narrowest(factors, origin(group[0]))
        low, high = interval(own if len(own) else neighbors(group, dims))
        ends = dict(zip(WIDTHS, (round(low, 4), round(high, 4), round(power_width(group, dims), 4)), strict=True))
        for row in group:
            row |= ends
        widths += [max(1 / low, high) - 1] * len(group)
    return widths


def replayed_space(spaces: Path, out: Path) -> None:
    """Write the recorded search space that `--replay shipped` uses, without compile times and with five digits."""
    document = json.loads(gzip.decompress((spaces / "convolution-a4000.t4.json.gz").read_bytes()))
    for result in document["results"]:
        times = result["times"]
        result["times"] = {"runtimes": [float(f"{time:.4e}") for time in times.get("runtimes", ())]}
        for measurement in result["measurements"]:
            if isinstance(measurement["value"], float):
                measurement["value"] = float(f"{measurement['value']:.4e}")
    document["metadata"] |= {"source": "github.com/AutoTuningAssociation/benchmark_hub", "licence": "MIT"}
    out.mkdir(exist_ok=True)
    text = json.dumps(document, separators=(",", ":")).encode()
    (out / "convolution-rtx-a4000.t4.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))


def write(path: Path, dims: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows to a Parquet file, sorted by origin (GPU, backend, ...) and shape."""
    floats = ("latency_s", POWER, *WIDTHS)
    types = dict.fromkeys(ORIGIN, "VARCHAR") | dict.fromkeys(dims, "INTEGER") | dict.fromkeys(floats, "FLOAT")
    for row in rows:
        row["latency_s"] = float(f"{row['latency_s']:.3e}")
        row[POWER] = None if row[POWER] is None else round(row[POWER], 1)
    columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in types.items())
    order = ", ".join(f'"{name}"' for name in (*ORIGIN, *reversed(dims)))
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_pylist(rows))
        connection.execute(
            f"COPY (SELECT {columns} FROM rows ORDER BY {order}) TO {quoted(path)} "
            "(FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, COMPRESSION_LEVEL 19, ROW_GROUP_SIZE 122880)"
        )


def read_rows(library: Path, op: Op) -> Iterator[Row]:
    """Yield the recorded rows of an op, without excluded rows and powers."""
    for each in SOURCES[op.name]:
        file, kind = each["file"], each["file"].partition("_")[0]
        columns = f"{_TABLES['columns'][kind]}, {each['columns']}".format_map(_EXPRESSIONS)
        columns += f", {power_of(file)} AS {POWER}" if kind == "serving" else ""
        condition = f"{each.get('condition', 'true')} AND NOT ({excluded(file)})"
        for row in recorded_dicts(library / f"{file}.parquet", condition, columns):
            if kind == "torch":
                row["kernel"] = kernel_names(row["kernel"])
            eager = op.name == "matmul" and row["stack"] in EAGER.get(row["dtype"], ())
            yield row | _TABLES["origin"]["eager" if eager else kind]


def kernel_names(text: str) -> str:
    """Return the names of kernels in execution order, without templates, arguments and namespaces."""
    names = []
    for signature in filter(None, text.split(";")):
        bare = re.split(r"[<(]", signature.removeprefix("void "))[0]
        names.append(bare.split("::")[-1])
    return " + ".join(dict.fromkeys(names))


def later_rows(library: Path, op: Op) -> Sequence[Row]:
    """Return the linear layers that the newest serving backends ran. The power is NULL: the recorder cycles through
    five or six copies of the weights, so small weights stay in L2."""
    if op.name != "matmul":
        return ()
    columns = f"{_TABLES['columns']['serving']}, {SOURCES['matmul'][0]['columns']}, NULL AS {POWER}"
    return recorded_dicts(library / "serving_gemm_newest_versions.parquet", columns=columns.format_map(_EXPRESSIONS))


if __name__ == "__main__":
    script(run)
