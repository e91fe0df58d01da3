"""Read recorded spaces: tunables and measured times of every config of a kernel on one GPU.

The kernels of some spaces are public, and `spaces.toml` lists their recordings. `--sources` names a folder with copies
of the repositories (AutoTuningAssociation/benchmark_hub and fjwillemsen/kernel_tuner_paper, both MIT). Files are found
by the end of their path. kernrec wrote the specs in `kernels`, with tunables, launch and problem from the recorders'
descriptions.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from evidence.recordings import clock
from evidence.recordings.files import AbsentError, parquet_columns, present
from kernrec.interop.read_results import read_results
from kernrec.kernel import Config, Kernel
from kernrec.kernel.source_files import read_text, read_toml
from kernrec.kernel.spec_reader import kernel_from

Array = np.ndarray
SPECS = Path(__file__).resolve().parent / "kernels"
_MEASURED = frozenset({
    "outcome", "latency_s", "latency_low_s", "latency_high_s", "runs", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs", "duration_us",
})  # fmt: skip
"""Names of columns that are not tunables."""


@dataclass(frozen=True)
class Space:
    """Configs of a kernel that ran successfully on a GPU; arrays have one element per config, (C,)."""

    title: str
    tunables: Mapping[str, Array]
    """Values of each tunable by lower-case name, (C,), including tunables that do not vary."""
    measured: Mapping[str, Array]
    """`latency_s` and further figures of the file, (C,) each."""

    def __len__(self) -> int:
        return len(self.measured["latency_s"])

    @cached_property
    def matrix(self) -> Array:
        """Values of the tunables that vary, (C, T)."""
        varied = [values for values in self.tunables.values() if len(np.unique(values)) > 1]
        codes = [np.unique(v, return_inverse=True)[1] if v.dtype.kind in "OU" else v for v in varied]
        return np.column_stack(codes).astype(float)

    def take(self, rows: Array) -> "Space":
        """Return the space with only these configs."""
        tables = ({name: values[rows] for name, values in each.items()} for each in (self.tunables, self.measured))
        return Space(self.title, *tables)

    def distinct(self) -> "Space":
        """Return the space without configs that repeat the tunables of an earlier config."""
        return self.take(np.sort(np.unique(self.matrix, axis=0, return_index=True)[1]))


def read_space(path: Path, times: str = "latency_s") -> Space:
    """Read the configs of a file that ran successfully.

    For JSON files, `log_deviation` is the standard deviation of the logarithm of a launch's time.

    Args:
        path: a Parquet file, or JSON of Kernel Tuner (T4 or cache).
        times: column of the times of a Parquet file.
    """
    if path.suffix == ".parquet":
        table = parquet_columns(present(path))
        outcome = table.get("outcome", np.full(len(table[times]), "ok"))
        ran = np.array([str(each).lower() == "ok" for each in outcome]) & (table[times] > 0)
        table = {name: column[ran] for name, column in table.items()}
        measured = {name: column for name, column in table.items() if name in _MEASURED} | {"latency_s": table[times]}
        columns = {name.lower(): column for name, column in table.items() if name not in _MEASURED}
        if times != "latency_s":  # counters follow the tunables and the outcome
            columns = {name: columns[name] for name in list(columns)[: list(table).index("outcome")]}
        return Space(path.name.split(".")[0], columns, measured)
    results = [result for result in read_results(present(path)).results if result.latency_s is not None]
    if path.name == clock.FILE:
        raised = clock.raised_configs(path)
        results = [r for r in results if clock.config_key({k: int(v) for k, v in r.config.items()}) not in raised]
    columns = {name.lower(): np.array([float(r.config[name]) for r in results]) for name in results[0].config}
    samples = [result.samples_s or (float(result.latency_s or np.nan),) for result in results]
    measured = {
        "latency_s": np.array([result.latency_s for result in results], dtype=float),
        "mean_s": np.array([np.mean(each) for each in samples]),
        "log_deviation": np.array([np.std(np.log(each)) for each in samples]),
    }
    return Space(path.name.split(".")[0], columns, measured)


@dataclass(frozen=True)
class Recording:
    """Recording of a public kernel on one GPU."""

    gpu: str
    """Name in the GPU catalog."""
    file: str
    """Path under `spaces` of the recordings."""
    clock_hz: float | None = None
    """Core clock in Hz, if it is not the GPU's boost clock."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """Required values in columns that are not tunables of the spec."""
    unit_s: float = 1.0
    """Unit of the file's times in seconds."""
    label: str = ""
    """Text printed next to the GPU."""
    times: str = "latency_s"
    """Column of the file's times."""
    divides_zeros: bool = False
    """Whether the recorder left the kernel's constants at zero, which makes each IEEE division zero by zero."""
    unfit: str = ""
    """Reason why a recording measures more than the kernel; printed instead of figures."""

    @property
    def title(self) -> str:
        """Name of the GPU, followed by the label."""
        return f"{self.gpu} {self.label}".rstrip()


@dataclass(frozen=True)
class RecordedSet:
    """Public kernel and its recordings."""

    name: str
    """Name of the spec in `kernels`."""
    source: tuple[str, ...]
    """Ends of the paths of the source files, in order."""
    recordings: tuple[Recording, ...]
    most: int = 10_000
    """Maximum number of configs to profile, because the emulator takes minutes per config of some kernels."""
    replace: tuple[tuple[str, str], ...] = ()
    """(text of the source, replacement before compilation) pairs."""

    def kernel(self, sources: Path | None) -> Kernel:
        """Return the kernel from files under `sources`. Raises `AbsentError` if a file is missing."""
        if sources is None:
            raise AbsentError(f"{self.name} is public; --sources names a folder with it")
        parts = []
        for end in self.source:
            paths = (path for path in sorted(sources.rglob(Path(end).name)) if str(path).endswith(f"/{end}"))
            if (path := next(paths, None)) is None:
                raise AbsentError(f"no {end} below {sources}")
            parts.append(read_text(path, end))
        text = "\n".join(parts)
        for old, new in self.replace:
            text = text.replace(old, new)
        spec = SPECS / f"{self.name}.toml"
        return kernel_from(read_toml(spec, spec.name), spec.name, text)


def _read_sets() -> dict[str, RecordedSet]:
    sets = {}
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        recordings = tuple(Recording(**recording) for recording in table["recordings"])
        replace = tuple((old, new) for old, new in table.get("replace", ()))
        sets[name] = RecordedSet(name, tuple(table["source"]), recordings, table.get("most", 10_000), replace)
    return sets


SETS = _read_sets()


@dataclass(frozen=True)
class Rows:
    """Measured times and energies of N configs of a public kernel on one GPU."""

    configs: Sequence[Config]
    """Values of the spec's tunables."""
    latency_s: Array
    energy_j: Array
    """Energy of a launch in joules; NaN if it was not recorded."""


def read_rows(recording: Recording, kernel: Kernel, folder: Path) -> Rows:
    """Read the rows of a recording that ran successfully.

    Args:
        recording: the recording.
        kernel: kernel with the tunables; a tunable that the file lacks has the spec's first value.
        folder: folder `spaces` of the recordings.
    """
    space = read_space(folder / recording.file, recording.times)
    for name, value in recording.columns.items():
        space = space.take(np.flatnonzero(space.tunables[name] == value))
    count = len(space)
    columns = [space.tunables.get(t.name, np.full(count, t.values[0])).astype(int).tolist() for t in kernel.tunables]
    names = [tunable.name for tunable in kernel.tunables]
    configs = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    energy = space.measured.get("nvml_energy", np.full(count, np.nan))
    return Rows(configs, space.measured["latency_s"] * recording.unit_s, np.where(energy > 0, energy, np.nan))
