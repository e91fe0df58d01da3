"""Read recorded matmuls: serving backends by data type, cuBLAS from Inductor's recordings, and PyTorch's f32 matmuls.

Of each backend, the newest version is read, and older versions whose times differ. For bf16, `library/gemm_*` has more
recordings on three GPUs, and `library/serving_gemm_geforce` has recordings of PyTorch on two GPUs. In
`library/torch_linear_f32` (layout nt) and `torch_bmm_f32` (layout nn), `n` is the length of the reduction and `k` the
number of columns of the result.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import NAMES, excluded, named, parquet_columns, power_of
from kernrec.model.baselines.backends import AT, backend_of, by_number
from kernrec.model.baselines.bound import FLUSHED, GRAPH, Timing, features_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

_ALIKE = 0.11
"""Maximum logarithmic difference between times in other layouts and in layout nt, for 90 % of the times (0.11 on the
A100, 0.07 on the H100). f16 runs as fast as bf16, because tensor cores have the same rate for both."""
_OTHERS = ("nn", "tn", "tt")
_STATIC = " (static scales)"
"""Suffix of a backend's name if activations are scaled with static scales."""
_TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EAGER: Mapping[str, Sequence[str]] = _TABLES["eager"]
"""Backends recorded without CUDA graphs, keyed by data type."""
_MULTIPLES: Mapping[str, Mapping[str, int]] = _TABLES["multiples"]
"""Divisors that sizes must have, keyed by data type and dimension."""
_COLUMNS = ("m", "n", "k", "latency_s")
Kinds = dict[tuple[str, ...], dict[str, Array]]
"""Columns of matmuls, keyed by (system, framework, data type, version)."""
_VERSIONS = 0.05
"""Minimum median difference in time for keeping an older version that has no recorded power."""
INDUCTOR = RecordedSet(
    "inductor", "matmul", "product", {"PyTorch": dict.fromkeys(("a100-sxm4-80gb", "h100-sxm-96gb"), "of August 2024")},
    ("f16", "bf16", "f32", "tf32"), ("nn", "nt", "tn", "tt"), (), 0.0, FLUSHED, (), {}, (),
    _TABLES["origin"]["inductor"],
)  # fmt: skip
SINGLE = Timing(30000.0, 1.0, alone=True)
"""Timing of one call between two events. The shortest time of an A100 is 20 us, or about 30,000 clocks."""


def recordings(data: Path) -> list[Recording]:
    """Return the recorded sets of matmuls in the folder `data`."""
    library, serving = data / "library", Kinds()
    # Versions that both files contain come from the first file.
    for file, power in (("serving_gemm", power_of("serving_gemm")), ("serving_gemm_newest_versions", "NULL::DOUBLE")):
        names = ("system", "upper(framework) AS framework", "version", "dtype", *_COLUMNS, f"{power} AS power_w")
        columns = columns_of(library / f"{file}.parquet", names, f"m > 0 AND NOT ({excluded(file)})")
        serving = grouped(columns, "system", "framework", "dtype", "version") | serving
    by_dtype = (_of_dtype(library, dtype, serving) for dtype in ("bf16", *_MULTIPLES))
    return [*by_dtype, _inductor(data), _single(data)]


def _of_dtype(library: Path, dtype: str, serving: Kinds) -> Recording:
    names = [name for name, own in NAMES["serving_dtypes"].items() if own == dtype]
    versions: dict[str, dict[str, str | None]] = {}
    parts: list[Mapping[str, Any]] = []
    frameworks = {framework.upper(): name for framework, name in NAMES["backends"].items()}
    for recorded_as, (system, gpu), (framework, name) in product(names, NAMES["systems"].items(), frameworks.items()):
        backend = name + _STATIC * recorded_as.endswith("static")
        columns = {kind[3]: own for kind, own in serving.items() if kind[:3] == (system, framework, recorded_as)}
        for file, *of_whole, version in _TABLES["whole"] if dtype == "bf16" else ():
            if of_whole == [gpu, backend]:
                power = f"{power_of(file, 'power' if file.endswith('_power') else 'NULL::DOUBLE')} AS power_w"
                columns[version] = columns_of(
                    library / f"{file}.parquet", (*_COLUMNS, power), f"NOT ({excluded(file)})"
                )
        newest = max(columns, key=by_number, default="")
        for version in sorted(columns, key=by_number):
            own = columns[version]
            if version == newest or np.isfinite(own["power_w"]).any() or _differ(own, columns[newest]):
                stack = backend if version == newest else f"{backend}{AT}{version}"
                parts.append({**own, "gpu": gpu, "stack": stack, "dtype": dtype})
                versions.setdefault(stack, {})[gpu] = version
    if dtype == "bf16":
        geforce = grouped(columns_of(library / "serving_gemm_geforce.parquet", ("system", *_COLUMNS)), "system")
        for gpu in ("rtx3090", "rtx-a6000"):
            parts.append({**geforce[gpu,], "gpu": gpu, "stack": "PyTorch"})
            versions.setdefault("PyTorch", {})[gpu] = None
    alike = ("f16", *_OTHERS) if dtype == "bf16" else _OTHERS
    steps = {
        s: dict(_MULTIPLES.get(dtype, {})) for s in versions if backend_of(s) not in _TABLES["any_size"].get(dtype, ())
    }
    local = tuple(s for s in versions if backend_of(s) in EAGER.get(dtype, ()))
    case = "aligned" if dtype == "bf16" else "product"
    recorded = RecordedSet(
        dtype, "matmul", case, versions, (dtype,), ("nt",), alike, _ALIKE, GRAPH, ("n", "k"), steps,
        local, SERVING | {
            "library": "as called by the stacks; PyTorch: LLMServingSim, MIT",
            "recorded": f"{dtype}, nt, CUDA graphs, random inputs; PyTorch by its profiler; the newest versions with"
            " 5 or 6 copies of the weights, of which small ones are warm in L2",
        },
    )  # fmt: skip
    return joined([recording(recorded, columns) for columns in parts])


def _differ(old: Mapping[str, Array], new: Mapping[str, Array]) -> bool:
    """Return whether the times of two versions differ by more than `_VERSIONS` in the median over common problems."""
    columns = ([version[name].tolist() for name in _COLUMNS] for version in (old, new))
    before, after = ({tuple(problem): seconds for *problem, seconds in zip(*c, strict=True)} for c in columns)
    ratios = [before[problem] / after[problem] for problem in before.keys() & after.keys()]
    return bool(ratios) and float(np.median(np.abs(np.log(ratios)))) > _VERSIONS


def _inductor(data: Path) -> Recording:
    layout = " || ".join(f"if({side}_stride_1 = 1, 'n', 't')" for side in "ab")
    names = ("m", "n", "k", f"if(tf32, 'tf32', {named('dtype', 'torch_dtypes')}) AS dtype", "a_stride_1", "b_stride_1",
             f"{layout} AS layout", "latency_s")  # fmt: skip
    # The recorded A100 reaches 1,735 GB/s, so it must be the 80 GB model.
    files = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm-96gb"}
    parts = [
        columns_of(data / "triton" / f"inductor_mm_{file}.parquet", names, "implementation = 'extern_mm'")
        | {"gpu": gpu} for file, gpu in files.items()
    ]  # fmt: skip
    return joined([recording(INDUCTOR, columns) for columns in parts])


def _single(data: Path) -> Recording:
    gpus = {device: gpu for device, gpu in NAMES["devices"].items() if gpu != "a100-pcie-80gb"}
    recorded = RecordedSet(
        "single", "matmul", "batched", {"PyTorch": dict.fromkeys(gpus.values(), "2.1")}, ("f32",), ("nt", "nn"),
        ("tn", "tt"), _ALIKE, SINGLE, (), {}, (),
        _TABLES["origin"]["single"],
    )  # fmt: skip
    parts, names = [], ("device", "batch", "m", "k AS n", "n AS k", "latency_s")
    for file, layout in (("torch_linear_f32", "nt"), ("torch_bmm_f32", "nn")):
        devices = grouped(columns_of(data / "library" / f"{file}.parquet", names), "device")
        parts += [
            recording(recorded, {**devices[device,], "gpu": gpu, "layout": layout})
            for device, gpu in gpus.items() if (device,) in devices
        ]  # fmt: skip
    return joined(parts)


SERVING = {"source": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"}


def recording(recorded: RecordedSet, columns: Mapping[str, Any]) -> Recording:
    """Create a recording. The columns, (N,) each or one value, are `gpu`, dimensions, `latency_s`, and `stack`,
    `dtype`, `layout` and `power_w` if they vary or are known. A missing dimension is 1."""
    first = {"stack": next(iter(recorded.backends)), "dtype": recorded.dtypes[0], "layout": recorded.layouts[0]}
    every, count = {"power_w": np.nan, **first, **columns}, len(columns["latency_s"])
    gpu, backend, dtype, layout = (np.broadcast_to(np.asarray(every[name], str), count) for name in ("gpu", *first))
    names = features_of(recorded.op).DIMS
    dims = {name: np.broadcast_to(np.asarray(every.get(name, 1)), count).astype(np.int64) for name in names}
    watts = np.broadcast_to(every["power_w"], count)
    return Recording(recorded, gpu, backend, dtype, layout, dims, every["latency_s"], watts)


def joined(parts: Sequence[Recording]) -> Recording:
    """Concatenate the rows of several recordings of one set."""
    first, dims = parts[0], {name: np.concatenate([part.dims[name] for part in parts]) for name in parts[0].dims}
    names = (name for name in vars(first) if name not in ("recorded", "dims"))
    columns: Any = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(first, dims=dims, **columns)


def columns_of(path: Path, names: Sequence[str], condition: str = "true") -> dict[str, Array]:
    """Return columns of a Parquet file. The rows are sorted, so their order is always the same."""
    return parquet_columns(path, f"{condition} ORDER BY ALL", ", ".join(names))


def grouped(columns: Mapping[str, Array], *names: str) -> dict[tuple[str, ...], dict[str, Array]]:
    """Return the columns of each combination of texts in the columns `names`, keyed by the combination."""
    keys = np.stack([columns[name].astype(str) for name in names], axis=1)
    kinds, number = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(number.ravel()))[:-1])
    return {
        tuple(kind): {name: column[rows] for name, column in columns.items()}
        for kind, rows in zip(kinds.tolist(), parts, strict=True)
    }
