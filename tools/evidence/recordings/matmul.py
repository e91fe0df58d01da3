"""Read recorded matmuls: serving backends by data type, cuBLAS from Inductor's recordings, and PyTorch's f32 matmuls.

Of each backend, the newest version is read, and older versions whose times differ. In bf16, `library/gemm_*` adds three
GPUs and `library/serving_gemm_geforce` two as backend PyTorch. In `library/torch_linear_f32` (layout nt) and
`torch_bmm_f32` (layout nn), `n` is the length of the reduction and `k` the number of columns of the result.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import excluded, power_of
from evidence.recordings.vendor import BACKENDS, DEVICES, SERVING, SYSTEMS, columns_of, joined, recording
from kernrec.model.baselines.backends import AT, backend_of, by_number
from kernrec.model.baselines.bound import FLUSHED, GRAPH, Timing
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

_ALIKE = 0.11
"""Maximum logarithmic difference between times in other layouts and in layout nt, for 90 % of the times (0.11 on the
A100, 0.07 on the H100). f16 runs as fast as bf16, because tensor cores have the same rate for both."""
_OTHERS = ("nn", "tn", "tt")
_STATIC = " (static scales)"
"""Suffix of a backend's name if activations are scaled with static scales."""
_DTYPES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bfloat16",), "f8e4m3": ("fp8", "fp8_static"), "f8block": ("fp8_block",), "nvfp4": ("nvfp4",),
    "w8a16": ("int8_wo",), "w4a16": ("int4_wo",), "i8": ("sq",),
}  # fmt: skip
"""Names that the recordings use for kernrec's data types."""
_MULTIPLES: Mapping[str, Mapping[str, int]] = {
    "f8e4m3": {"n": 16, "k": 16}, "f8block": {"n": 128, "k": 128}, "nvfp4": {"n": 32, "k": 32},
    "w8a16": {"n": 32, "k": 32}, "w4a16": {"n": 32, "k": 32}, "i8": {"n": 16, "k": 16},
}  # fmt: skip
"""Divisors that sizes must have, keyed by data type and dimension. They are 16 bytes for rows of scaled 8-bit matmuls,
the limit of vLLM's CUTLASS kernel for nvfp4, and otherwise the smallest recorded divisors."""
_ANY_SIZE = {"f8block": ("vLLM",)}
"""Backends that were also recorded with other sizes, keyed by data type. vLLM runs such sizes with another kernel."""
_EAGER = {"f8block": ("vLLM",)}
"""Backends recorded without CUDA graphs, keyed by data type. Their shortest times are 50 us (H200) to 280 us (L40S)."""
_WHOLE = (
    ("gemm_a100", "a100-sxm4-80gb", "SGLang", "0.5.10"),
    ("gemm_l40s", "l40s", "vLLM", "0.24.0"),
    ("gemm_h200_power", "h200-sxm", "vLLM", "0.22.0"),
)
_KIND = ("system", "framework", "dtype", "version")
_VERSIONS = 0.05
"""Minimum median difference in time for keeping an older version that has no recorded power."""
_PYTORCH = {"source": "NeuSight, MIT", "licence": "MIT", "library": "PyTorch 2.1, CUDA 12.1"}
INDUCTOR = RecordedSet(
    "inductor", "matmul", "product", {"PyTorch": dict.fromkeys(("a100-sxm4-80gb", "h100-sxm-96gb"), "of August 2024")},
    ("f16", "bf16", "f32", "tf32"), ("nn", "nt", "tn", "tt"), (), 0.0, FLUSHED, (), {}, (),
    {
        "source": "AlnisM/autoheuristic-datasets, collected for PyTorch's AutoHeuristic",
        "licence": "none stated",
        "library": "cuBLAS as called by PyTorch of August 2024",
        "recorded": "single launches after a flush of L2, on GPUs whose clocks and limits were not stated",
    },
)  # fmt: skip
SINGLE = Timing(30000.0, 1.0, alone=True)
"""Timing of one call between two events. The shortest time of an A100 is 20 us, or about 30,000 clocks."""


def recordings(data: Path, _op: str) -> list[Recording]:
    """Return the recorded sets of matmuls in the folder `data`."""
    serving = _serving(data)
    return [*(_of_dtype(data, dtype, serving) for dtype in _DTYPES), _inductor(data), _single(data)]


def _serving(data: Path) -> dict[str, Array]:
    """Return the rows of both files of serving backends. Versions that both contain come from the first file."""
    file, shared = "serving_gemm", ("system", "upper(framework) AS framework", "version", "dtype", "m", "n", "k")
    sources = (
        (file, f"{power_of(file)} AS power_w", f"NOT ({excluded(file)})"),
        ("serving_gemm_newest_versions", "NULL::DOUBLE AS power_w", "true"),
    )
    columns, later = (
        columns_of(data / "library" / f"{name}.parquet", (*shared, "latency_s", power), f"m > 0 AND {condition}")
        for name, power, condition in sources
    )
    kinds = [list(zip(*(each[name].tolist() for name in _KIND), strict=True)) for each in (columns, later)]
    old = set(kinds[0])
    new = np.array([kind not in old for kind in kinds[1]])
    return {name: np.concatenate([values, later[name][new]]) for name, values in columns.items()}


def _of_dtype(data: Path, dtype: str, serving: Mapping[str, Array]) -> Recording:
    whole = _WHOLE if dtype == "bf16" else ()
    versions: dict[str, dict[str, str | None]] = {}
    parts: list[tuple[str, str, Mapping[str, Array], Array]] = []
    frameworks = {framework.upper(): name for framework, name in BACKENDS.items()}
    for recorded_as in _DTYPES[dtype]:
        for system, gpu in SYSTEMS.items():
            for framework, name in frameworks.items():
                backend = name + _STATIC * recorded_as.endswith("static")
                kind = (("system", system), ("framework", framework), ("dtype", recorded_as))
                rows = np.flatnonzero(np.all([serving[column] == value for column, value in kind], axis=0))
                by_version = {str(v): rows[serving["version"][rows] == v] for v in set(serving["version"][rows])}
                columns = {v: {n: c[r] for n, c in serving.items() if n not in ("dtype", "system")}
                           for v, r in by_version.items()}  # fmt: skip
                for file, *of_whole, version in whole:
                    if of_whole == [gpu, backend]:
                        columns[version] = _of_whole(data, file)
                ordered = sorted(columns, key=by_number)
                for version in ordered:
                    newest = version == ordered[-1]
                    if (
                        newest
                        or np.isfinite(columns[version]["power_w"]).any()
                        or _differ(columns[version], columns[ordered[-1]])
                    ):
                        named = backend if newest else f"{backend}{AT}{version}"
                        parts.append((gpu, named, columns[version], columns[version]["power_w"]))
                        versions.setdefault(named, {})[gpu] = version
    if dtype == "bf16":
        names = ("system", "m", "n", "k", "latency_s")
        geforce = columns_of(data / "library" / "serving_gemm_geforce.parquet", names)
        for system, gpu in (("rtx3090", "rtx3090"), ("rtx-a6000", "rtx-a6000")):
            columns_here = {name: column[geforce["system"] == system] for name, column in geforce.items()}
            parts.append((gpu, "PyTorch", columns_here, np.full(len(columns_here["m"]), np.nan)))
            versions.setdefault("PyTorch", {})[gpu] = None
    alike = ("f16", *_OTHERS) if dtype == "bf16" else _OTHERS
    steps = {s: dict(_MULTIPLES.get(dtype, {})) for s in versions if backend_of(s) not in _ANY_SIZE.get(dtype, ())}
    local = tuple(s for s in versions if backend_of(s) in _EAGER.get(dtype, ()))
    case = "aligned" if dtype == "bf16" else "product"
    recorded = RecordedSet(
        dtype, "matmul", case, versions, (dtype,), ("nt",), alike, _ALIKE, GRAPH, ("n", "k"), steps,
        local, SERVING | {
            "library": "as called by the stacks; PyTorch: LLMServingSim, MIT",
            "recorded": f"{dtype}, nt, CUDA graphs, random inputs; PyTorch by its profiler; the newest versions with"
            " 5 or 6 copies of the weights, of which small ones are warm in L2",
        },
    )  # fmt: skip
    return joined([recording(recorded, gpu, {**c, "stack": np.full(len(p), s)}, p) for gpu, s, c, p in parts])


def _of_whole(data: Path, file: str) -> dict[str, Array]:
    column = "power" if file.endswith("_power") else "CAST(NULL AS DOUBLE)"
    names = ("m", "n", "k", "latency_s", f"{power_of(file, column)} AS power_w")
    columns = columns_of(data / "library" / f"{file}.parquet", names, f"NOT ({excluded(file)})")
    return columns | {"power_w": np.ma.filled(np.ma.asarray(columns["power_w"], dtype=float), np.nan)}


def _differ(old: Mapping[str, Array], new: Mapping[str, Array]) -> bool:
    """Return whether the times of two versions differ by more than `_VERSIONS` in the median over common problems."""
    seconds = [
        dict(zip(zip(*(each[n].tolist() for n in "mnk"), strict=True), each["latency_s"].tolist(), strict=True))
        for each in (old, new)
    ]
    ratios = [seconds[0][problem] / seconds[1][problem] for problem in seconds[0].keys() & seconds[1].keys()]
    return bool(ratios) and float(np.median(np.abs(np.log(ratios)))) > _VERSIONS


def _inductor(data: Path) -> Recording:
    names = ("m", "n", "k", "dtype", "tf32", "a_stride_1", "b_stride_1", "latency_s")
    spelled = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
    parts = []
    # The recorded A100 reaches 1,735 GB/s, so it must be the 80 GB model.
    for file, gpu in (("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm-96gb")):
        path = data / "triton" / f"inductor_mm_{file}.parquet"
        columns = columns_of(path, names, "implementation = 'extern_mm'")
        dtypes = [spelled[str(name)] for name in columns["dtype"]]
        columns["dtype"] = np.array(["tf32" if t else name for name, t in zip(dtypes, columns["tf32"], strict=True)])
        letters = [np.where(columns[f"{side}_stride_1"] == 1, "n", "t") for side in "ab"]
        columns["layout"] = np.char.add(*letters)
        parts.append(recording(INDUCTOR, gpu, columns))
    return joined(parts)


def _single(data: Path) -> Recording:
    gpus = {device: gpu for device, gpu in DEVICES.items() if gpu != "a100-pcie-80gb"}
    recorded = RecordedSet(
        "single", "matmul", "batched", {"PyTorch": dict.fromkeys(gpus.values(), "2.1")}, ("f32",), ("nt", "nn"),
        ("tn", "tt"), _ALIKE, SINGLE, (), {}, (),
        _PYTORCH | {"recorded": "f32, one call timed, GPUs at their own clocks"},
    )  # fmt: skip
    parts = []
    for file, layout in (("torch_linear_f32", "nt"), ("torch_bmm_f32", "nn")):
        names = ("device", "batch", "m", "k AS n", "n AS k", "latency_s")
        columns = columns_of(data / "library" / f"{file}.parquet", names)
        for device, gpu in gpus.items():
            own = {name: column[columns["device"] == device] for name, column in columns.items()}
            if count := len(own["m"]):
                parts.append(recording(recorded, gpu, own | {"layout": np.full(count, layout)}))
    return joined(parts)
