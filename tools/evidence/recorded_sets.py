"""Recorded spaces whose kernels are public: where the source, the spec and the measured rows of each come from.

The sources are not part of kernrec. `--sources` names a folder with copies of the repositories
(AutoTuningAssociation/benchmark_hub and fjwillemsen/kernel_tuner_paper, both MIT); files are found by the end of their
path. `recorded_sets.toml` lists them. The specs in `recorded_kernels` are kernrec's own: tunables, launch and problem
as the recorders describe them. The rows are in the folder of recordings (`spaces`).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evidence.recordings import clock as recorded_clock
from evidence.recordings.files import AbsentError, parquet_dicts, present
from kernrec.interop.read_results import read_results
from kernrec.kernel import Config, Kernel
from kernrec.kernel.source_files import read_text, read_toml
from kernrec.kernel.spec_reader import kernel_from

SPECS = Path(__file__).resolve().parent / "recorded_kernels"


@dataclass(frozen=True)
class Recording:
    """The rows of a set on one card."""

    card: str
    """Name in the GPU catalog."""
    file: str
    """In `spaces` of the recordings."""
    clock_hz: float | None = None
    """The core clock, where it is known not to be the card's boost clock."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """Values that rows must have in columns that are no tunables of the spec; others are left out."""
    unit_s: float = 1.0
    """Seconds that a unit of the file's times stands for."""
    label: str = ""
    """Printed beside the card."""
    times: str = "latency_s"
    """Column of the file's times."""
    divides_zeros: bool = False
    """Whether the recorder left the kernel's constants zero, so that each of its IEEE divisions is of zero by zero."""
    unfit: str = ""
    """Why it does not measure the kernel alone; it is left out, and this is printed."""


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
    replace: tuple[tuple[str, str], ...] = ()
    """Texts of the source, and those that take their place before it is compiled."""

    def kernel(self, sources: Path | None) -> Kernel:
        """The kernel, of files below `sources`; `AbsentError` where one is not there."""
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


def _sets() -> dict[str, RecordedSet]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: RecordedSet(
            name,
            tuple(table["source"]),
            tuple(Recording(**recording) for recording in table["recordings"]),
            table.get("most", RecordedSet.most),
            tuple((old, new) for old, new in table.get("replace", ())),
        )
        for name, table in tables.items()
    }


SETS = _sets()


@dataclass(frozen=True)
class Rows:
    """Measured times of a kernel on one card: N configs that ran."""

    configs: Sequence[Config]
    """By the tunables of the spec."""
    latency_s: np.ndarray
    """(N,)."""
    energy_j: np.ndarray
    """Of a launch; NaN where it was not recorded, (N,)."""


def read_rows(recording: Recording, kernel: Kernel, folder: Path) -> Rows:
    """The rows of a recording that ran, of configs that the kernel's spec can express.

    Args:
        recording: which rows.
        kernel: names the tunables; those that a file lacks have the first value of the spec.
        folder: `spaces` of the recordings.
    """
    path = present(folder / recording.file)
    table: list[tuple[Mapping[str, int], float, float]]
    if path.suffix == ".parquet":
        rows = [{name.lower(): value for name, value in row.items()} for row in parquet_dicts(path)]
        ran = [row for row in rows if str(row.get("outcome", "ok")).lower() == "ok" and row[recording.times]]
        table = [(row, float(row[recording.times]), float(row.get("nvml_energy") or np.nan)) for row in ran]
    else:
        results = [result for result in read_results(path).results if result.latency_s is not None]
        table = [({k.lower(): int(v) for k, v in r.config.items()}, float(r.latency_s or 0.0), np.nan) for r in results]
    if recording.file == recorded_clock.FILE:
        raised = recorded_clock.raised_configs(path)
        table = [row for row in table if recorded_clock.config_key(row[0]) not in raised]
    table = [row for row in table if all(row[0].get(name) == value for name, value in recording.columns.items())]
    configs = [{t.name: int(values.get(t.name, t.values[0])) for t in kernel.tunables} for values, *_ in table]
    seconds, joules = np.array([row[1:] for row in table]).reshape(-1, 2).T
    return Rows(configs, seconds * recording.unit_s, joules)
