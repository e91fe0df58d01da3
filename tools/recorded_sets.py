"""Recorded spaces whose kernels are public: where the source, the spec and the measured rows of each come from.

The sources are not part of kernrec. `--sources` of the tools names a folder with copies of the repositories
(AutoTuningAssociation/benchmark_hub and fjwillemsen/kernel_tuner_paper, both MIT); files are found by the end of their
path. The specs in `tools/recorded_kernels` are kernrec's own: tunables, launch and problem as the recorders describe
them. The rows are in the folder of recorded data (`spaces`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import recorded_clock

from kernrec.errors import UsageError
from kernrec.interop.read_results import read_results
from kernrec.kernel import Config, Kernel
from kernrec.kernel.source_files import read_text, read_toml
from kernrec.kernel.spec_reader import kernel_from
from kernrec.store.connection import parquet_rows

SPECS = Path(__file__).resolve().parent / "recorded_kernels"

# What is stated of OpenCL's kernels for the compiler, which CUDA calls launch bounds.
_OPENCL_BOUNDS = ("__global__  void Xgemm(", "__global__ void __launch_bounds__(MDIMC * NDIMC) Xgemm(")
# OpenCL aligns vectors to their size; those of CUDA's own types that have no more than 16 bytes are.
_OPENCL_VECTOR = ("} float8;", "} __attribute__((aligned(32))) float8;")


@dataclass(frozen=True)
class Recording:
    """The rows of a set on one card."""

    card: str
    """Name in the GPU catalog."""
    file: str
    """In `spaces` of the recorded data."""
    clock_hz: float | None = None
    """The core clock, where it is known not to be the card's boost clock."""
    where: Mapping[str, int] = field(default_factory=dict)
    """Values that rows must have in columns that are no tunables of the spec; others are left out."""
    unit_s: float = 1.0
    """Seconds that a unit of the file's times stands for."""
    label: str = ""
    """What is printed beside the card."""
    times: str = "latency_s"
    """Column of the file's times."""
    divides_zeros: bool = False
    """Whether the recorder left the kernel's constants zero, so that each of its IEEE divisions is of zero by zero."""
    unfit: str = ""
    """What it measures beside the kernel: it is named, and left out."""


@dataclass(frozen=True)
class RecordedSet:
    """A kernel and its recordings."""

    name: str
    """Of the spec in `recorded_kernels`."""
    source: tuple[str, ...]
    """The ends of the paths of the files that make up the source, in order."""
    recordings: tuple[Recording, ...]
    most: int = 10_000
    """The most configs that are worth profiling: some kernels take minutes a config in the emulator."""
    prepare: Callable[[str], str] = str
    """What is done to the source before it is compiled."""


_HUB = "benchmark_hub"
_GEMM = "kernel_tuner_paper/kernels/gemm_opencl_cuda"

SETS = (
    RecordedSet(
        "convolution",
        (f"{_HUB}/currently_unused/kernels/convolution.cu",),
        (
            Recording("rtx2070-super", "convolution-rtx2070super-free-clock.parquet"),
            Recording("rtx2080ti", "convolution-rtx2080ti.parquet"),
            Recording("rtx3090", "convolution-rtx3090.parquet"),
            # Single launches leave the card at its base clock: the times are those of the recording below, which was
            # made there (tools/recorded_clock.py), of which only the rows that stage their input are of this source.
            Recording("a100-pcie-40gb", "convolution-a100-free-clock.parquet", 765e6, label="single"),
            Recording("a100-pcie-40gb", "convolution-a100.t4.json.gz", 765e6, {"use_shmem": 1}, label="765 MHz"),
            Recording("rtx-a4000", "convolution-a4000.t4.json.gz", None, {"use_shmem": 1}),
        ),
    ),
    RecordedSet(
        "pnpoly",
        (f"{_HUB}/currently_unused/kernels/pnpoly.cu",),
        (
            # Reads its points from the memory of the host, too (12.3 ms are 160 MB at 13 GB/s), but most of its configs
            # compute for longer.
            Recording("rtx2070-super", "pnpoly-rtx2070super-free-clock.parquet"),
            # Times at tile size 1 take as many instructions as the counters below show with the division's function for
            # zero by zero, twice those without: the polygon was never written.
            Recording("rtx3090", "pnpoly-rtx3090.parquet", divides_zeros=True, label="zero polygon"),
            # 1.77 GHz: instructions over the share of clocks that issue one, and over the duration.
            Recording(
                "rtx2080ti",
                "../counters/pnpoly-rtx2080ti.parquet",
                1.77e9,
                unit_s=1e-6,
                label="zero polygon",
                times="duration_us",
                divides_zeros=True,
            ),
            Recording(
                "rtx2080ti",
                "pnpoly-rtx2080ti.parquet",
                label="by PCIe",
                unfit="its times follow from the tile size alone, whatever is computed: the points come over PCIe",
            ),
            Recording(
                "a100-pcie-40gb",
                "pnpoly-a100-free-clock.parquet",
                label="by PCIe",
                unfit="nearly all its times are 13 to 16 or 29 ms, whatever is computed: the points come over PCIe",
            ),
        ),
        most=100,
    ),
    RecordedSet(
        "gemm",
        (
            "kernel_tuner_paper/kernels/cl_to_cuda.h",
            f"{_GEMM}/common.opencl",
            *(f"{_GEMM}/xgemm_part{n}.opencl" for n in (1, 2, 3)),
        ),
        (
            Recording("rtx2070-super", "gemm-rtx2070super-free-clock.parquet"),
            Recording("rtx2080ti", "gemm-rtx2080ti.parquet"),
            Recording("rtx3090", "gemm-rtx3090.kernel_tuner.json.gz"),
            Recording("a100-pcie-40gb", "gemm-a100-free-clock.parquet", label="free"),
        ),
        prepare=lambda text: text.replace(*_OPENCL_BOUNDS).replace(*_OPENCL_VECTOR),
    ),
    RecordedSet(
        "dedispersion",
        (f"{_HUB}/kernels/dedisp_milo/dedispersion.h", f"{_HUB}/kernels/dedisp_milo/dedispersion.cu"),
        (Recording("a100-pcie-40gb", "dedispersion-a100.parquet"),),
        most=30,
        prepare=lambda text: text.replace('#include "dedispersion.h"', ""),
    ),
    RecordedSet(
        "hotspot",
        (f"{_HUB}/kernels/hotspot_milo.cu",),
        (Recording("rtx-a4000", "hotspot-a4000-energy.parquet", 1560e6, label="1560 MHz"),),
    ),
    RecordedSet(
        "expdist",
        ("kernel_tuner_paper/kernels/expdist/expdist.cu",),
        (Recording("rtx-a4000", "expdist-a4000-energy.parquet", 1560e6, label="1560 MHz"),),
        most=30,
        # What it uses of CUB; the header of all of CUB is not for NVRTC.
        prepare=lambda text: text.replace("<cub/cub.cuh>", "<cub/block/block_reduce.cuh>"),
    ),
)


@dataclass(frozen=True)
class Rows:
    """What was measured of a kernel on one card: N configs that ran."""

    configs: Sequence[Config]
    """By the tunables of the spec."""
    latency_s: np.ndarray
    """(N,)."""


def load_recorded_kernel(recorded: RecordedSet, sources: Path) -> Kernel:
    """The kernel of a set, of files below `sources`; `UsageError` where one is not there."""
    parts = []
    for end in recorded.source:
        source = next((path for path in sorted(sources.rglob(Path(end).name)) if str(path).endswith(f"/{end}")), None)
        if source is None:
            raise UsageError(f"no {end} below {sources}")
        parts.append(read_text(source, end))
    spec = SPECS / f"{recorded.name}.toml"
    return kernel_from(read_toml(spec, spec.name), spec.name, recorded.prepare("\n".join(parts)))


def read_rows(recording: Recording, kernel: Kernel, folder: Path) -> Rows:
    """The rows of a recording that ran, of configs that the kernel's spec can express.

    Args:
        recording: which rows.
        kernel: names the tunables; those that a file lacks have the first value of the spec.
        folder: `spaces` of the recorded data.

    Raises:
        UsageError: there is no such file.
    """
    path = folder / recording.file
    if not path.is_file():
        raise UsageError(f"no {path}")
    table = _parquet(path, recording.times) if path.suffix == ".parquet" else _results(path)
    if recording.file == recorded_clock.FILE:
        table = _at_one_clock(table, path)
    configs, times = [], []
    for values, seconds in table:
        if all(values.get(name) == value for name, value in recording.where.items()):
            configs.append({t.name: int(values.get(t.name, t.values[0])) for t in kernel.tunables})
            times.append(seconds * recording.unit_s)
    return Rows(configs, np.array(times))


_Table = list[tuple[dict[str, int], float]]
"""(values by lower-case name, seconds) of each config that ran."""


def _parquet(path: Path, times: str) -> _Table:
    with parquet_rows(path) as (connection, source):
        cursor = connection.execute(f"FROM {source}")
        names = [column[0].lower() for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [(row, float(row[times])) for row in rows if row.get("outcome", "ok").lower() == "ok" and row[times]]


def _results(path: Path) -> _Table:
    ran = [result for result in read_results(path).results if result.latency_s is not None]
    return [({k.lower(): int(v) for k, v in r.config.items()}, float(r.latency_s or 0.0)) for r in ran]


def _at_one_clock(table: _Table, path: Path) -> _Table:
    """Without the configs that may have run at a raised clock."""
    recording = recorded_clock.read(path)
    raised = recorded_clock.raised(recording)
    left_out = {_key(c) for c, up in zip(recording.configs, raised.tolist(), strict=True) if up}
    return [(values, seconds) for values, seconds in table if _key(values) not in left_out]


def _key(config: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name.lower(), int(value)) for name, value in config.items()))
