"""A recorded space as searches see it: tunables that vary, and what was measured of each config."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evidence.recordings import clock as recorded_clock
from evidence.recordings.clock import config_key
from evidence.recordings.files import parquet_columns, present
from kernrec.interop.read_results import read_results

Array = np.ndarray
_MEASURED = frozenset({
    "outcome", "latency_s", "latency_low_s", "latency_high_s", "runs", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs",
})  # fmt: skip
"""Columns that are no tunables."""


@dataclass(frozen=True)
class Space:
    """One recording: C configs."""

    title: str
    names: tuple[str, ...]
    """The T tunables that vary."""
    tunables: Array
    """Their values, (C, T)."""
    measured: Mapping[str, Array]
    """(C,) each: `latency_s`, NaN for a config that did not run, and others that the file has."""

    def take(self, rows: Array) -> "Space":
        """The space of these configs alone."""
        return Space(self.title, self.names, self.tunables[rows], {k: v[rows] for k, v in self.measured.items()})

    def distinct(self) -> "Space":
        """Of rows with equal tunables the first."""
        return self.take(np.sort(np.unique(self.tunables, axis=0, return_index=True)[1]))


def read_space(path: Path, failed: bool = False) -> Space:
    """The configs of a file that ran, with `failed` also the others.

    Of JSON files `log_deviation` is measured, too: the standard deviation of the logarithm of a launch's time.
    """
    columns, measured = _parquet(present(path)) if path.suffix == ".parquet" else _results(present(path))
    if not failed:
        ran = measured["latency_s"] > 0
        columns, measured = ({k: v[ran] for k, v in table.items()} for table in (columns, measured))
    varied = {}
    for name, column in columns.items():
        values, codes = np.unique(column, return_inverse=True)
        if len(values) > 1:
            varied[name] = (codes if column.dtype.kind == "O" else column).astype(float)
    return Space(path.name.split(".")[0], tuple(varied), np.column_stack(list(varied.values())), measured)


_Tables = tuple[dict[str, Array], dict[str, Array]]
"""Columns of tunables, and of what was measured."""


def _parquet(path: Path) -> _Tables:
    table = parquet_columns(path)
    outcome = table.get("outcome", np.full(len(table["latency_s"]), "ok"))
    ran = np.array([str(each).lower() == "ok" for each in outcome]) & (table["latency_s"] > 0)
    measured = {name: table[name] for name in table if name in _MEASURED - {"outcome"}}
    for name in {"latency_s", "nvml_energy"} & measured.keys():
        measured[name] = np.where(ran, measured[name], np.nan)
    return {name: column for name, column in table.items() if name not in _MEASURED}, measured


def _results(path: Path) -> _Tables:
    results = read_results(path).results
    if path.name == recorded_clock.FILE:
        raised = recorded_clock.raised_configs(path)
        results = [r for r in results if config_key({k: int(v) for k, v in r.config.items()}) not in raised]
    logs = [np.log(result.samples_s) if result.samples_s else np.array([np.nan]) for result in results]
    columns = {name: np.array([float(result.config[name]) for result in results]) for name in results[0].config}
    means = [np.mean(result.samples_s) if result.samples_s else np.nan for result in results]
    reported = [result.latency_s or np.nan for result in results]
    return columns, {
        "latency_s": np.array(means), "reported_s": np.array(reported, dtype=float),
        "log_deviation": np.array([np.std(log) for log in logs]),
    }  # fmt: skip
