"""Read recorded matmuls: serving backends by data type, cuBLAS from Inductor's recordings, and PyTorch's f32 matmuls.

Of each backend, the newest version is read, and older versions whose times differ. In bf16, `library/gemm_*` adds three
GPUs and `library/serving_gemm_geforce` two as backend PyTorch. In `library/torch_linear_f32` (layout nt) and
`torch_bmm_f32` (layout nn), `n` is the length of the reduction and `k` the number of columns of the result.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import SERVING_DTYPES, TORCH_DTYPES, excluded, named, power_of
from evidence.recordings.vendor import BACKENDS, DEVICES, SERVING, SYSTEMS, columns_of, grouped, joined, recording
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
_COLUMNS = ("m", "n", "k", "latency_s")
Kinds = dict[tuple[str, ...], dict[str, Array]]
"""Columns of matmuls, keyed by (system, framework, data type, version)."""
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


def recordings(data: Path) -> list[Recording]:
    """Return the recorded sets of matmuls in the folder `data`."""
    serving = _serving(data / "library")
    by_dtype = (_of_dtype(data / "library", dtype, serving) for dtype in ("bf16", *_MULTIPLES))
    return [*by_dtype, _inductor(data), _single(data)]


def _serving(library: Path) -> Kinds:
    """Return the rows of both files of serving backends. Versions that both contain come from the first file."""
    kinds: Kinds = {}
    for file, power in (("serving_gemm", power_of("serving_gemm")), ("serving_gemm_newest_versions", "NULL::DOUBLE")):
        names = ("system", "upper(framework) AS framework", "version", "dtype", *_COLUMNS, f"{power} AS power_w")
        columns = columns_of(library / f"{file}.parquet", names, f"m > 0 AND NOT ({excluded(file)})")
        kinds = grouped(columns, "system", "framework", "dtype", "version") | kinds
    return kinds


def _of_dtype(library: Path, dtype: str, serving: Kinds) -> Recording:
    names = [name for name, own in SERVING_DTYPES.items() if own == dtype]
    versions: dict[str, dict[str, str | None]] = {}
    parts: list[Mapping[str, Any]] = []
    frameworks = {framework.upper(): name for framework, name in BACKENDS.items()}
    for recorded_as, (system, gpu), (framework, name) in product(names, SYSTEMS.items(), frameworks.items()):
        backend = name + _STATIC * recorded_as.endswith("static")
        columns = {kind[3]: own for kind, own in serving.items() if kind[:3] == (system, framework, recorded_as)}
        for file, *of_whole, version in _WHOLE if dtype == "bf16" else ():
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
    return joined([recording(recorded, columns) for columns in parts])


def _differ(old: Mapping[str, Array], new: Mapping[str, Array]) -> bool:
    """Return whether the times of two versions differ by more than `_VERSIONS` in the median over common problems."""
    seconds = [
        dict(zip(zip(*(each[n].tolist() for n in "mnk"), strict=True), each["latency_s"].tolist(), strict=True))
        for each in (old, new)
    ]
    ratios = [seconds[0][problem] / seconds[1][problem] for problem in seconds[0].keys() & seconds[1].keys()]
    return bool(ratios) and float(np.median(np.abs(np.log(ratios)))) > _VERSIONS


def _inductor(data: Path) -> Recording:
    layout = " || ".join(f"if({side}_stride_1 = 1, 'n', 't')" for side in "ab")
    names = ("m", "n", "k", f"if(tf32, 'tf32', {named('dtype', TORCH_DTYPES)}) AS dtype", "a_stride_1", "b_stride_1",
             f"{layout} AS layout", "latency_s")  # fmt: skip
    # The recorded A100 reaches 1,735 GB/s, so it must be the 80 GB model.
    files = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm-96gb"}
    parts = [
        columns_of(data / "triton" / f"inductor_mm_{file}.parquet", names, "implementation = 'extern_mm'")
        | {"gpu": gpu} for file, gpu in files.items()
    ]  # fmt: skip
    return joined([recording(INDUCTOR, columns) for columns in parts])


def _single(data: Path) -> Recording:
    gpus = {device: gpu for device, gpu in DEVICES.items() if gpu != "a100-pcie-80gb"}
    recorded = RecordedSet(
        "single", "matmul", "batched", {"PyTorch": dict.fromkeys(gpus.values(), "2.1")}, ("f32",), ("nt", "nn"),
        ("tn", "tt"), _ALIKE, SINGLE, (), {}, (),
        _PYTORCH | {"recorded": "f32, one call timed, GPUs at their own clocks"},
    )  # fmt: skip
    parts, names = [], ("device", "batch", "m", "k AS n", "n AS k", "latency_s")
    for file, layout in (("torch_linear_f32", "nt"), ("torch_bmm_f32", "nn")):
        devices = grouped(columns_of(data / "library" / f"{file}.parquet", names), "device")
        parts += [
            recording(recorded, {**devices[device,], "gpu": gpu, "layout": layout})
            for device, gpu in gpus.items() if (device,) in devices
        ]  # fmt: skip
    return joined(parts)
