"""Convert recordings of backends to the features and targets from which trees learn.

`kernrec.model.baselines.bound` computes the features. For cross-validation, the same problem is in the same fold on
every GPU, in every data type, layout and backend, and in every recorded set. Power is learned for a known time: its
features are the fractions of this time for which math, DRAM and L2 are busy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import RATIOS, features, features_of, power_base, rate_of, used
from kernrec.model.baselines.operating_point import LEEWAY, least_s, rates_of
from kernrec.model.baselines.recorded_set import BACKEND, RecordedSet

Array = np.ndarray

FOLDS = 5


@dataclass(frozen=True)
class Recording:
    """Rows of one recorded set. Arrays are (N,)."""

    recorded: RecordedSet
    gpu: Array
    backend: Array
    dtype: Array
    layout: Array
    dims: Mapping[str, Array]
    latency_s: Array
    power_w: Array
    """Power in watts. NaN if the power was not recorded or is known to be wrong."""

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, rows: Array) -> "Recording":
        columns = {name: getattr(self, name)[rows] for name in vars(self) if name not in ("recorded", "dims")}
        return replace(self, dims={name: sizes[rows] for name, sizes in self.dims.items()}, **columns)


@dataclass(frozen=True)
class Table:
    """Features and targets of a recording."""

    recording: Recording
    columns: Mapping[str, tuple[str, ...]]
    """Names of the features, keyed by quantity (`latency` or `power`)."""
    matrix: Mapping[str, Array]
    """Features of all rows, (N, F), keyed by quantity."""
    target: Mapping[str, Array]
    """Targets of all rows, (N,), keyed by quantity: log(measured / bound) for latency, and log(power / base) for power.
    A target is NaN if the quantity was not recorded, or if the time is shorter than the data sheet allows."""
    problem: Array
    """Number of each row's problem, (N,). Problems of equal sizes have equal numbers in all recordings of an op."""
    impossible: int
    """Number of rows whose time is shorter than the data sheet allows."""
    work_s: Array
    """`Bound.work_s` of each row, (N,), or NaN for ops without it."""

    @classmethod
    def of(cls, recording: Recording) -> "Table":
        kinds = np.stack([recording.gpu, recording.dtype, recording.layout], axis=1)
        rows = [np.flatnonzero((kinds == kind).all(axis=1)) for kind in np.unique(kinds, axis=0)]
        parts = [_of_kind(recording.take(own)) for own in rows]
        order = np.argsort(np.concatenate(rows))
        bound_s, least_s, base_w, work_s = np.concatenate([figures for figures, _ in parts])[order].T
        # If no power was recorded, learn only the latency.
        quantities = ("latency", "power")[: 1 + np.isfinite(recording.power_w).any()]
        columns = {quantity: tuple(parts[0][1][quantity]) for quantity in quantities}
        matrix = {
            quantity: np.concatenate([
                np.column_stack([np.broadcast_to(of_kind[quantity][name], len(figures)) for name in names])
                for figures, of_kind in parts
            ])[order].astype(np.float32)
            for quantity, names in columns.items()
        }  # fmt: skip
        sizes = np.stack([recording.dims[name] for name in features_of(recording.recorded.op).DIMS], axis=1)
        impossible = least_s > LEEWAY * recording.latency_s
        latency = np.where(impossible, np.nan, np.log(recording.latency_s / bound_s))
        target = {"latency": latency, "power": np.log(recording.power_w / base_w)}
        return cls(recording, columns, matrix, target, _numbers(sizes), int(impossible.sum()), work_s)

    def with_overheads(self, overheads_s: Mapping[str, float]) -> "Table":
        """Return a copy whose targets for latency are relative to the bound plus the backend's overhead in seconds."""
        added = np.array([overheads_s.get(backend, 0.0) for backend in self.recording.backend.tolist()])
        latency = self.target["latency"]
        shifted = latency - np.log1p(added * np.exp(latency) / self.recording.latency_s)
        return replace(self, target={**self.target, "latency": shifted})

    def fold(self) -> Array:
        """Return the fold of each row in cross-validation, (N,)."""
        return self.problem % FOLDS

    def on(self, gpu: str, quantity: str) -> Array:
        """Return the indices of a GPU's rows for which the quantity was recorded."""
        return np.flatnonzero((self.recording.gpu == gpu) & np.isfinite(self.target[quantity]))

    def carried(self, gpu: str, quantity: str) -> Array:
        """Return `on(gpu, quantity)` without rows of `local` backends, whose times do not carry over to other GPUs."""
        rows = self.on(gpu, quantity)
        return rows[~np.isin(self.recording.backend[rows], self.recording.recorded.local)]

    def carried_by(self, gpus: Sequence[str], quantity: str) -> Array:
        return np.concatenate([self.carried(gpu, quantity) for gpu in gpus])

    def gpus(self, quantity: str) -> list[str]:
        """Return the GPUs for which the quantity was recorded, sorted."""
        return sorted(set(self.recording.gpu[np.isfinite(self.target[quantity])].tolist()))

    def families(self, quantity: str) -> dict[str, list[str]]:
        """Return the GPUs with rows in `carried`, keyed by architecture."""
        gpus: dict[str, list[str]] = {}
        for gpu in self.gpus(quantity):
            if len(self.carried(gpu, quantity)):
                gpus.setdefault(find_gpu(gpu).arch, []).append(gpu)
        return gpus

    def ratios(self, quantity: str) -> Array:
        """Return the indices of the features that trees for unrecorded GPUs use."""
        return np.array([i for i, name in enumerate(self.columns[quantity]) if name.startswith((*RATIOS, BACKEND))])


def _of_kind(recording: Recording) -> tuple[Array, dict[str, Mapping[str, Array]]]:
    """Compute features of N rows that have the same GPU, data type and layout. Return an array of
    shape (N, 4): bound, shortest possible time, base power and `Bound.work_s`. Also return each quantity's features."""
    recorded, gpu, dtype = recording.recorded, find_gpu(str(recording.gpu[0])), str(recording.dtype[0])
    bound, made = features(recorded.op, gpu, dtype, str(recording.layout[0]), recording.dims, recorded.timing)
    base_w: Any = gpu.tdp_w
    if getattr(features_of(recorded.op), "PHYSICAL_POWER", False):
        base_w = power_base(gpu).watts(bound, recording.latency_s, gpu.tdp_w)
    flops, moved = bound.parts["math"] * rate_of(gpu, dtype), bound.parts["dram"] * gpu.memory_bandwidth
    work_s = np.nan if bound.work_s is None else bound.work_s
    figures = bound.total_s, least_s(flops, moved, rates_of(gpu, dtype)), base_w, work_s
    backends = tuple(recorded.backends)
    of_backend = {BACKEND + name: recording.backend == name for name in backends if len(backends) > 1}
    # Trees of the power do not use the backend, because the recordings of backends measured power in different ways.
    both: dict[str, Mapping[str, Array]] = {
        "latency": made | of_backend,
        "power": made | used(bound, recording.latency_s),
    }
    return np.column_stack([np.broadcast_to(each, len(recording)) for each in figures]), both


def _numbers(sizes: Array) -> Array:
    number = np.zeros(len(sizes), dtype=np.uint64)
    for column in sizes.T.astype(np.uint64):
        number = (number ^ column) * np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(29)
    return np.asarray((number >> np.uint64(2)).astype(np.int64))
