"""Build the recorded rows that ship in `db/prebuilt/recorded`, from the recordings in `../shared/data/library`.

    python tools/build_recorded.py [--data ../shared/data] [--out db/prebuilt/recorded]

Rows ship if their license allows it: serving backends from ai-dynamo/aiconfigurator (Apache-2.0), and f32 operators of
PyTorch that were recorded for NeuSight (MIT). `contents.json` counts the excluded rows:

- recordings that are excluded from training (`tools/evidence/recordings/files.py`);
- rows more than 5 % faster than physics allows (`kernrec.model.baselines.operating_point`), and powers more than 5 %
  above the power limit (a smaller excess is cut off);
- superseded backend versions of matmuls, invalid shapes, and all but a backend's fastest kernel for a problem.

Times are rounded to four digits and powers to 0.1 W. Each row has an interval (`Spread`).
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import duckdb
import numpy as np
import pyarrow as pa
import typer
from evidence.recordings.files import EXCLUSIONS, SERVING_DTYPES, excluded, named, power_of, recorded_dicts
from evidence.recordings.vendor import BACKENDS, DEVICES, SYSTEMS
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
"""Minimum number of factors from which an interval is computed."""
_NEAR = 0.08
"""Maximum distance between two neighbors, in the logarithms of their sizes."""
_SAME_TIME = 0.03
"""Maximum logarithmic difference in time between two neighbors whose powers are compared."""
_LEAST_POWER = 0.05
"""Minimum relative half-width of the interval of a power: the accuracy that NVML documents."""


@dataclass
class Spread:
    """Logarithms of factors between times of the same problem, for each GPU, backend and data type:

        repeats    the same version ran the same kernels again on a GPU of the same model
        versions   a later version ran the problem; its common factor along `m` is removed by differences of neighbors
        neighbors  times per unit of work of two problems with the same kernels and sizes within 8 %

    Differences of two errors are divided by the square root of two. The interval of a time contains 90 % of the factors
    of the GPU, backend and data type, or of a wider group if there are too few. It does not include differences between
    versions. The interval of a power comes from neighbors that take equal times.
    """

    again: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    """Logarithms of other times over the shipped time, keyed by (source, backend, data type, GPU)."""
    later: dict[tuple[object, ...], list[tuple[int, float]]] = field(default_factory=dict)
    """Pairs (`m`, logarithm of a later version's time over the row's time). A key consists of the key of `again`, the
    variant, `n` and `k`."""

    def add(self, row: Row, other_s: float) -> None:
        """Add another time that the same version took for a row's problem."""
        self.again.setdefault(_key(row), []).append(float(np.log(other_s / row["latency_s"])))

    def add_later(self, row: Row, other_s: float) -> None:
        """Add the time that a later version took for the matmul of a row."""
        line = self.later.setdefault((*_key(row), row["variant"], row["n"], row["k"]), [])
        line.append((row["m"], float(np.log(other_s / row["latency_s"]))))

    def remove_drift(self) -> None:
        """Convert the times of later versions to factors without differences between versions. The logarithm of a
        factor is the difference between two neighbors along `m`."""
        for key, line in self.later.items():
            ratios = np.array([ratio for _, ratio in sorted(line)])
            group: Any = key[:4]
            self.again.setdefault(group, []).extend((np.diff(ratios) / np.sqrt(2)).tolist())

    def factors(self, source: str, backend: str, dtype: str, gpu: str, but: str = "") -> Array:
        """Return logarithms of factors, from the narrowest group of recordings with enough factors for a GPU, backend
        and data type. If there is none, return an empty array. Recordings of the GPU `but` are held out."""
        wanted = source, backend, dtype, gpu
        for same in (4, 3, 2, 1):
            groups = [logs for key, logs in self.again.items() if key[:same] == wanted[:same] and key[3] != but]
            if sum(map(len, groups)) >= ENOUGH:
                return np.concatenate([np.asarray(logs) for logs in groups])
        return np.zeros(0)


def _key(row: Row) -> tuple[str, str, str, str]:
    return row["source"], row["stack"], row["dtype"], row["gpu"]


def interval(factors: Array) -> tuple[float, float]:
    """Return the factors at the two ends of a 90 % interval, from logarithms of factors, (N,)."""
    low, high = np.quantile(factors, (0.05, 0.95)) if len(factors) else (0.0, 0.0)
    return float(np.exp(min(low, -np.log1p(LEAST)))), float(np.exp(max(high, np.log1p(LEAST))))


def neighbors(rows: Sequence[Row], dims: Sequence[str], work_s: Callable[[Row], float]) -> Array:
    """Return log ratios of time per unit of work between neighboring problems, for one GPU and backend."""
    from scipy.spatial import cKDTree

    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row["layout"], row["kernel"]), []).append(row)
    factors = []
    for group in alike.values():
        sizes = np.log([[max(float(row[name]), 0.5) for name in dims] for row in group])
        distance, nearest = cKDTree(sizes).query(sizes, k=min(2, len(group)))
        if len(group) > 1:
            per_work = np.log([row["latency_s"] / work_s(row) for row in group])
            near = distance[:, 1] < _NEAR
            factors.append(per_work[nearest[near, 1]] - per_work[near])
    return np.concatenate(factors) / np.sqrt(2) if factors else np.zeros(0)


def power_width(rows: Iterable[Row], dims: Sequence[str]) -> float:
    """Return the relative half-width that contains 90 % of the differences in power between neighbors in the first
    dimension that take the same time, for rows of one GPU and backend."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row["power_w"]:
            lines.setdefault((row["dtype"], *(row[name] for name in dims[1:])), []).append(row)
    differences = []
    for line in lines.values():
        line.sort(key=lambda row: float(row[dims[0]]))
        seconds, watts = (np.log([row[name] for row in line]) for name in ("latency_s", "power_w"))
        near = np.abs(np.diff(seconds)) < _SAME_TIME
        differences.append(np.abs(np.diff(watts))[near])
    every = np.concatenate(differences) if differences else np.zeros(0)
    return max(float(np.quantile(every, 0.9)) if len(every) >= ENOUGH else 0.0, _LEAST_POWER)


def coverage(spread: Spread, source: str) -> dict[str, float]:
    """Return the fraction of factors inside intervals that come from other problems, and that come from other GPUs."""
    halves, gpus = [], []
    for key, logs in spread.again.items():
        if key[0] == source and len(logs) >= ENOUGH:
            every = np.asarray(logs)
            low, high = np.log(interval(every[::2]))
            halves.append((every[1::2] >= low) & (every[1::2] <= high))
            if len(others := spread.factors(*key, but=key[3])):
                low, high = np.log(interval(others))
                gpus.append((every >= low) & (every <= high))
    parts = {"problems held out": halves, "GPUs held out": gpus}
    return {name: round(float(np.concatenate(part).mean()), 3) for name, part in parts.items() if part}


AICONFIGURATOR = {
    "source": "github.com/ai-dynamo/aiconfigurator", "licence": "Apache-2.0",
    "recorded": "published by November 2026; CUDA graphs, random inputs",
}  # fmt: skip
NEUSIGHT = {
    "source": "github.com/sitar-lab/NeuSight", "licence": "MIT",
    "recorded": "published 2024; PyTorch 2.1, CUDA 12.1, cuDNN 8.9, one call timed",
}  # fmt: skip
POWER = "power_w"
ROUTING = {"balanced": 0, "power_law_1.01": 101, "power_law_1.2": 120}
Key = tuple[object, ...]


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
    spread = Spread()

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
        key: Any = key_of(row)
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
                spread.add(fast, slow["latency_s"])
            row = fast
        best[key] = row
    for later in later_rows(library, op):
        key, latency_s = key_of(later), later["latency_s"]
        if (shipped := best.get(key)) is not None and latency_s != shipped["latency_s"]:
            spread.add_later(shipped, latency_s)
            possible = shipped["least_s"] <= LEEWAY * latency_s
            if possible and (key not in newer or latency_s < newer[key]["latency_s"]):
                newer[key] = shipped | later
    spread.remove_drift()
    rows = list((best | newer).values())
    for row in rows:
        limit_w = find_gpu(row["gpu"]).tdp_w
        if row[POWER] is not None and row[POWER] > limit_w:
            above = row[POWER] > LEEWAY * limit_w
            counted["power above the limit" if above else "with power lowered to the limit"] += 1
            row[POWER] = None if above else limit_w
    widths = _add_widths(rows, names, spread)
    path = out / f"{op.name}.parquet"
    write(path, names, rows)

    def each(text: str) -> list[str]:
        return sorted({text.format_map(row) for row in rows})

    return {
        "rows": len(rows),
        "gpus": each("{gpu}"),
        "dtypes": each("{dtype}"),
        "backends": each("{stack} {version}"),
        "sources": each("{source} ({licence}), {recorded}"),
        "with_power": sum(row[POWER] is not None for row in rows),
        "left_out": dict(sorted(counted.items())),
        "excluded": excluded_rows(library, [file for file, *_ in SOURCES[op.name]]),
        "intervals": {
            "narrowest, median, widest": [round(float(width), 3) for width in np.quantile(widths, (0, 0.5, 1))],
            **{what: share for source in each("{source}") for what, share in coverage(spread, source).items()},
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


def _add_widths(rows: Sequence[Row], dims: Sequence[str], spread: Spread) -> list[float]:
    """Add to each row the interval of its GPU, backend and data type. Return the larger half-width of each row."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["source"], row["stack"], row["dtype"], row["gpu"]), []).append(row)
    widths = []
    for key, group in groups.items():
        factors = spread.factors(*key)
        if not len(factors):
            factors = neighbors(group, dims, lambda row: float(row["least_s"]))
        low, high = interval(factors)
        own = dict(zip(WIDTHS, (round(low, 4), round(high, 4), round(power_width(group, dims), 4)), strict=True))
        for row in group:
            row |= own
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


_SERVING = f"""{named("system", SYSTEMS)} AS gpu, {named("framework", BACKENDS)} AS stack, version, latency_s,
    CASE WHEN dtype = 'fp8_static' THEN 'static scales' ELSE '' END AS variant,
    regexp_replace(kernel_source, '^trt_flow_/.*PLUGIN_V2_(\\w+)_\\d+$', '\\1') AS kernel"""
_TORCH = f"""{named("device", DEVICES)} AS gpu, 'f32' AS dtype, 'PyTorch' AS stack, '2.1' AS version, '' AS variant,
    latency_s, COLUMNS('^kernels?$') AS kernel, NULL AS {POWER}"""
_DTYPE = f"{named('dtype', SERVING_DTYPES)} AS dtype"
_PRODUCT = f"{_DTYPE}, 'nt' AS layout, m, n, k, 1 AS batch"
_HEADS = """'bshd' AS layout, batch_size AS batch, num_heads AS heads, num_key_value_heads AS kv_heads, head_dim,
    coalesce(window_size, 0) AS "window" """
SOURCES: Mapping[str, Sequence[tuple[str, str, str]]] = {
    # In PyTorch's recordings, N is the length of the reduction, and K is the number of columns of the result: the
    # recorder's grids cover M x K.
    "matmul": (
        ("serving_gemm", _PRODUCT, "true"),
        ("torch_linear_f32", "'nt' AS layout, m, k AS n, n AS k, batch", "true"),
        ("torch_bmm_f32", "'nn' AS layout, m, k AS n, n AS k, batch", "true"),
    ),
    "attention": (
        ("serving_attention_prefill", f"{_DTYPE}, {_HEADS}, isl AS queries, isl AS keys, 1 AS causal,"
         " CAST(kv_cache_dtype = 'fp8' AND dtype <> 'fp8' AS INT) AS kv_dtype", "true"),
        ("serving_attention_decode", f"'bf16' AS dtype, {_HEADS}, 1 AS queries, isl + step AS keys, 0 AS causal,"
         " CAST(dtype = 'fp8' AS INT) AS kv_dtype", "true"),
    ),
    "moe": ((
        "serving_moe", f"{_DTYPE}, 'row' AS layout, num_tokens AS tokens, hidden_size AS hidden,"
        " inter_size AS intermediate, num_experts AS experts, topk, moe_tp_size AS tp, moe_ep_size AS ep,"
        f" CAST({named('distribution', ROUTING)} AS INT) AS routing,"
        " CAST(kernel_source NOT LIKE '%nongated%' AS INT) AS gated", "true",
    ),),
    "conv2d": (
        ("torch_conv2d_f32", "'nchw' AS layout, n, c, h, h AS w, k, r, r AS s, stride, padding", "true"),
    ),
    "softmax": (("torch_rowwise_f32", "'row' AS layout, rows, columns", "op = 'softmax'"),),
    "layernorm": (("torch_rowwise_f32", "'row' AS layout, rows, columns", "op = 'ln'"),),
}  # fmt: skip
"""(File, SQL columns of the problem, condition) of the recordings of each op."""


def read_rows(library: Path, op: Op) -> Iterator[Row]:
    """Yield the recorded rows of an op, without excluded rows and powers."""
    for file, columns, condition in SOURCES[op.name]:
        torch = file.startswith("torch")
        every = _TORCH if torch else f"{_SERVING}, {power_of(file)} AS {POWER}"
        path = library / f"{file}.parquet"
        for row in recorded_dicts(path, f"{condition} AND NOT ({excluded(file)})", f"{every}, {columns}"):
            if torch:
                row["kernel"] = kernel_names(row["kernel"])
            yield row | (NEUSIGHT if torch else AICONFIGURATOR)


def kernel_names(text: str) -> str:
    """Return the names of kernels in execution order, without templates, arguments and namespaces."""
    names = []
    for signature in filter(None, text.split(";")):
        bare = re.split(r"[<(]", signature.removeprefix("void "))[0]
        names.append(bare.split("::")[-1])
    return " + ".join(dict.fromkeys(names))


def later_rows(library: Path, op: Op) -> Sequence[Row]:
    """Return the linear layers that the newest serving backends ran, without power. The recorder cycles through five or
    six copies of the weights, so small weights stay in L2."""
    if op.name != "matmul":
        return ()
    columns = f"{_SERVING}, NULL AS {POWER}, {_PRODUCT}"
    return recorded_dicts(library / "serving_gemm_newest_versions.parquet", columns=columns)


if __name__ == "__main__":
    script(run)
