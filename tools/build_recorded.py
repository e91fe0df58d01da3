"""Build the recorded rows that ship in `db/prebuilt/recorded`, from the recordings in `../shared/data/library`.

    python tools/build_recorded.py [--data ../shared/data] [--out db/prebuilt/recorded]

Rows ship if their license allows it: serving backends from ai-dynamo/aiconfigurator (Apache-2.0), and f32 operators of
PyTorch that were recorded for NeuSight (MIT). `contents.json` counts the excluded rows:

- recordings that are excluded from training (`tools/evidence/recordings/files.py`);
- rows more than 5 % faster than physics allows (`kernrec.model.baselines.operating_point`), and powers more than 5 %
  above the power limit (a smaller excess is cut off);
- superseded backend versions of matmuls, invalid shapes, and all but a backend's fastest kernel for a problem.

Times are rounded to four digits and powers to 0.1 W. Each row has an interval (`tools/evidence/recordings/spread.py`).
"""

import argparse
import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from evidence.recordings.files import EXCLUSIONS, excluded, parquet_dicts, power_of
from evidence.recordings.spread import Spread, coverage, interval, neighbors, power_width
from evidence.recordings.vendor import BACKENDS, SYSTEMS
from front import DATA, ROOT

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.baselines.operating_point import LEEWAY, least_s, rates_of, work_of
from kernrec.op import Op, Problem, find_op
from kernrec.store.connection import connect_memory, exchange_folder, quoted
from kernrec.store.recorded import ORIGIN, WIDTHS

AICONFIGURATOR = {
    "source": "github.com/ai-dynamo/aiconfigurator", "licence": "Apache-2.0",
    "recorded": "published by November 2026; CUDA graphs, random inputs",
}  # fmt: skip
NEUSIGHT = {
    "source": "github.com/sitar-lab/NeuSight", "licence": "MIT",
    "recorded": "published 2024; PyTorch 2.1, CUDA 12.1, cuDNN 8.9, one call timed",
}  # fmt: skip
DTYPES = {
    "bfloat16": "bf16", "fp8": "f8e4m3", "fp8_static": "f8e4m3", "fp8_block": "f8block", "nvfp4": "nvfp4",
    "int8_wo": "w8a16", "int4_wo": "w4a16", "sq": "i8", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4f8",
    "w4afp8": "w4f8",
}  # fmt: skip
"""kernrec's data types, keyed by their name in the recordings."""
POWER = "power_w"
ROUTING = {"balanced": 0, "power_law_1.01": 101, "power_law_1.2": 120}
Row = dict[str, Any]

IMPOSSIBLE = "faster than physically possible"
ABOVE_LIMIT, AT_LIMIT = "power above the limit", "with power lowered to the limit"
NO_PROBLEM, SLOWER = "of no problem that kernrec supports", "slower than another kernel of the backend"


def main() -> None:
    """Write a Parquet file for each op, and `contents.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", help="ops by name; all by default")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "db/prebuilt/recorded")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    described = arguments.out / "contents.json"
    for name in arguments.ops or READERS:
        built = build(find_op(name), arguments.data / "library", arguments.out)
        print(name, built)
        contents = json.loads(described.read_text(encoding="utf-8")) if described.exists() else {}
        text = json.dumps(dict(sorted((contents | {name: built}).items())), indent=1)
        described.write_text(text + "\n", encoding="utf-8")
    if not arguments.ops:
        replayed_space(arguments.data / "spaces", arguments.out.parent / "replay")
    total = sum(path.stat().st_size for path in arguments.out.glob("*.parquet"))
    print(f"{total / 1e6:.2f} MB in all")


def build(op: Op, library: Path, out: Path) -> dict[str, object]:
    """Write the Parquet file of an op, and return the op's entry in `contents.json`."""
    counted = dict.fromkeys((IMPOSSIBLE, ABOVE_LIMIT, AT_LIMIT, NO_PROBLEM, SLOWER), 0)
    best: dict[tuple[object, ...], Row] = {}
    works: dict[tuple[object, ...], tuple[Problem, tuple[float, float]] | None] = {}
    spread = Spread()
    for row in READERS[op.name](library):
        dims = {dim.name: row[dim.name] for dim in op.dims if dim.name in row}
        identity = (row["dtype"], row["layout"], *dims.values())
        if identity not in works:
            problem = _problem(op, row, dims)
            works[identity] = None if problem is None else (problem, work_of(problem))
        if (problem_work := works[identity]) is None:
            counted[NO_PROBLEM] += 1
            continue
        if op.name == "conv2d":
            problem_work = problem_work[0], work_of(problem_work[0], row["kernel"])
        row["least_s"] = float(least_s(*problem_work[1], rates_of(find_gpu(row["gpu"]), row["dtype"])))
        if row["least_s"] > LEEWAY * row["latency_s"]:
            counted[IMPOSSIBLE] += 1
            continue
        key = (row["gpu"], row["stack"], row["variant"], *identity)
        if (other := best.get(key)) is not None:
            counted[SLOWER] += 1
            fast, slow = sorted((row, other), key=lambda row: float(row["latency_s"]))
            if (fast["kernel"], fast["version"]) == (slow["kernel"], slow["version"]):
                spread.add(fast, slow["latency_s"])
            row = fast
        best[key] = row
    newer: dict[tuple[object, ...], Row] = {}
    for key, later in LATER[op.name](library) if op.name in LATER else ():
        shipped = newer.get(key) or best.get(key)
        if shipped is not None and later["latency_s"] != best[key]["latency_s"]:
            spread.add_later(best[key], later["latency_s"])
            possible = best[key]["least_s"] <= LEEWAY * later["latency_s"]
            if possible and (key not in newer or later["latency_s"] < shipped["latency_s"]):
                newer[key] = best[key] | later
    spread.remove_drift()
    best |= newer
    rows = list(best.values())
    names = [dim.name for dim in op.dims if dim.name in rows[0]]
    for row in rows:
        _limit_power(row, counted)
    widths = _add_widths(rows, names, spread)
    path = out / f"{op.name}.parquet"
    write(path, names, rows)
    sources = {row["source"] for row in rows}
    return {
        "rows": len(rows),
        "gpus": sorted({str(row["gpu"]) for row in rows}),
        "dtypes": sorted({str(row["dtype"]) for row in rows}),
        "backends": sorted({f"{row['stack']} {row['version']}" for row in rows}),
        "sources": sorted({f"{row['source']} ({row['licence']}), {row['recorded']}" for row in rows}),
        "with_power": sum(row["power_w"] is not None for row in rows),
        "left_out": {reason: count for reason, count in counted.items() if count},
        "excluded": excluded_rows(library, FILES[op.name]),
        "intervals": {
            "narrowest, median, widest": [round(float(width), 3) for width in np.quantile(widths, (0, 0.5, 1))],
            **{what: share for source in sorted(sources) for what, share in coverage(spread, source).items()},
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
            rows = parquet_dicts(library / f"{each.file}.parquet", f"({each.rows}){condition}", "count(*) AS n")
            name = f"{each.file}, {POWER if each.power_only else 'rows'}: {each.reason}"
            counts[name] = counts.get(name, 0) + int(rows[0]["n"])
    return counts


def _limit_power(row: Row, counted: dict[str, int]) -> None:
    limit_w = find_gpu(row["gpu"]).tdp_w
    if row[POWER] is not None and row[POWER] > limit_w:
        above = row[POWER] > LEEWAY * limit_w
        counted[ABOVE_LIMIT if above else AT_LIMIT] += 1
        row[POWER] = None if above else limit_w


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


def _problem(op: Op, row: Row, dims: dict[str, object]) -> Problem | None:
    try:
        return op.problem(str(row["dtype"]), str(row["layout"]), **dims)
    except UsageError:
        return None


def write(path: Path, dims: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows to a Parquet file, sorted by origin (GPU, backend, ...) and shape."""
    names = {name: [row[name] for row in rows] for name in (*ORIGIN, *WIDTHS, *dims)}
    times = [float(f"{float(str(row['latency_s'])):.3e}") for row in rows]
    powers = [None if row["power_w"] is None else round(float(str(row["power_w"])), 1) for row in rows]
    with connect_memory() as connection, exchange_folder(connection) as folder:
        whole = list(zip(*names.values(), times, powers, strict=True))
        source = folder / "rows.json"
        columns = (*names, "latency_s", "power_w")
        with source.open("w", encoding="utf-8") as file:
            for row in whole:
                file.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")
        types = dict.fromkeys(ORIGIN, "VARCHAR") | dict.fromkeys(dims, "INTEGER")
        types |= dict.fromkeys(("latency_s", "power_w", *WIDTHS), "FLOAT")
        order = ", ".join(f'"{name}"' for name in (*ORIGIN, *reversed(dims)))
        connection.execute(
            f"COPY (FROM read_json({quoted(source)}, format='nd', columns={types}) ORDER BY {order}) "
            f"TO {quoted(folder / 'rows.parquet')} "
            "(FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, COMPRESSION_LEVEL 19, ROW_GROUP_SIZE 122880)"
        )
        path.write_bytes((folder / "rows.parquet").read_bytes())


# ---- readers of the recordings --------------------------------------------------------------------------------


def _serving(library: Path, name: str) -> Iterator[tuple[dict[str, object], Row]]:
    file = f"serving_{name}"
    columns = f"* REPLACE ({power_of(file)} AS {POWER})"
    for raw in parquet_dicts(library / f"{file}.parquet", f"NOT ({excluded(file)})", columns):
        kernel = re.sub(r"^trt_flow_/.*PLUGIN_V2_(\w+)_\d+$", r"\1", raw["kernel_source"])
        yield raw, {
            "gpu": SYSTEMS[raw["system"]], "dtype": DTYPES[raw["dtype"]], "stack": BACKENDS[raw["framework"]],
            "version": raw["version"], "variant": "static scales" if raw["dtype"] == "fp8_static" else "",
            "kernel": kernel, "latency_s": raw["latency_s"], "power_w": raw["power_w"], **AICONFIGURATOR,
        }  # fmt: skip


def _torch(library: Path, name: str, condition: str = "true") -> Iterator[tuple[dict[str, object], Row]]:
    file = f"torch_{name}_f32"
    for raw in parquet_dicts(library / f"{file}.parquet", f"{condition} AND NOT ({excluded(file)})"):
        device = str(raw["device"])
        kernels = str(raw.get("kernels") or raw.get("kernel") or "")
        yield raw, {
            "gpu": find_gpu(device).name, "dtype": "f32", "stack": "PyTorch", "version": "2.1", "variant": "",
            "kernel": kernel_names(kernels), "latency_s": raw["latency_s"], "power_w": None, **NEUSIGHT,
        }  # fmt: skip


def kernel_names(text: str) -> str:
    """Return the names of kernels in execution order, without templates, arguments and namespaces."""
    names = []
    for signature in filter(None, text.split(";")):
        bare = re.split(r"[<(]", signature.removeprefix("void "))[0]
        names.append(bare.split("::")[-1])
    return " + ".join(dict.fromkeys(names))


def matmul(library: Path) -> Iterator[Row]:
    """Yield linear layers of serving backends and of PyTorch, and batched matmuls of PyTorch."""
    for raw, row in _serving(library, "gemm"):
        yield row | {"layout": "nt", "m": raw["m"], "n": raw["n"], "k": raw["k"], "batch": 1}
    for name, layout in (("linear", "nt"), ("bmm", "nn")):
        for raw, row in _torch(library, name):
            # The recorder's grids cover M x K. Therefore, its N is the length of the reduction, and its K is the number
            # of result columns.
            yield row | {"layout": layout, "m": raw["m"], "n": raw["k"], "k": raw["n"], "batch": raw["batch"]}


def attention(library: Path) -> Iterator[Row]:
    """Yield causal attention over prompts, and attention of single queries during decoding."""
    for raw, row in _serving(library, "attention_prefill"):
        queries = raw["isl"]
        eight = raw["kv_cache_dtype"] == "fp8" and raw["dtype"] != "fp8"
        yield row | _heads(raw) | {"queries": queries, "keys": queries, "causal": 1, "kv_dtype": int(eight)}
    for raw, row in _serving(library, "attention_decode"):
        keys = int(str(raw["isl"])) + int(str(raw["step"]))
        cached = {"dtype": "bf16", "kv_dtype": int(raw["dtype"] == "fp8")}
        yield row | _heads(raw) | {"queries": 1, "keys": keys, "causal": 0} | cached


def _heads(raw: dict[str, object]) -> Row:
    return {
        "layout": "bshd", "batch": raw["batch_size"], "heads": raw["num_heads"], "kv_heads": raw["num_key_value_heads"],
        "head_dim": raw["head_dim"], "window": raw["window_size"] or 0,
    }  # fmt: skip


def moe(library: Path) -> Iterator[Row]:
    renamed = {
        "tokens": "num_tokens", "hidden": "hidden_size", "intermediate": "inter_size", "experts": "num_experts",
        "topk": "topk", "tp": "moe_tp_size", "ep": "moe_ep_size",
    }  # fmt: skip
    for raw, row in _serving(library, "moe"):
        dims = {dim: raw[column] for dim, column in renamed.items()}
        gated = int("nongated" not in str(raw["kernel_source"]))
        yield row | dims | {"layout": "row", "routing": ROUTING[str(raw["distribution"])], "gated": gated}


def conv2d(library: Path) -> Iterator[Row]:
    for raw, row in _torch(library, "conv2d"):
        dims = {dim: raw[dim] for dim in ("n", "c", "h", "k", "r", "stride", "padding")}
        yield row | dims | {"layout": "nchw", "w": raw["h"], "s": raw["r"]}


def _rows(op: str, library: Path) -> Iterator[Row]:
    for raw, row in _torch(library, "rowwise", f"op = '{op}'"):
        yield row | {"layout": "row", "rows": raw["rows"], "columns": raw["columns"]}


def later_products(library: Path) -> Iterator[tuple[tuple[object, ...], Row]]:
    """Yield (key, new columns) of linear layers that the newest serving backends ran, without power. The keys are those
    of `build`. The recorder cycles through five or six copies of the weights, so small weights stay in L2."""
    backends = {name.upper(): backend for name, backend in BACKENDS.items()}
    for raw in parquet_dicts(library / "serving_gemm_newest_versions.parquet"):
        variant = "static scales" if raw["dtype"] == "fp8_static" else ""
        gpu, backend = SYSTEMS[raw["system"]], backends[raw["framework"].upper()]
        yield (gpu, backend, variant, DTYPES[raw["dtype"]], "nt", raw["m"], raw["n"], raw["k"], 1), {
            "latency_s": raw["latency_s"], "version": raw["version"], "kernel": raw["kernel_source"], "power_w": None,
        }  # fmt: skip


LATER = {"matmul": later_products}
"""Functions that read later recordings of the same problems, keyed by op."""
FILES = {
    "matmul": ("serving_gemm", "torch_linear_f32", "torch_bmm_f32"), "moe": ("serving_moe",),
    "attention": ("serving_attention_prefill", "serving_attention_decode"), "conv2d": ("torch_conv2d_f32",),
    "softmax": ("torch_rowwise_f32",), "layernorm": ("torch_rowwise_f32",),
}  # fmt: skip
"""Names of the files to read, keyed by op."""
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "matmul": matmul, "attention": attention, "moe": moe, "conv2d": conv2d,
    "softmax": partial(_rows, "softmax"), "layernorm": partial(_rows, "ln"),
}  # fmt: skip
"""Functions that read the rows, keyed by op."""

if __name__ == "__main__":
    main()
