"""Read measurements from databases as training data, one row per config.

Library kernels and analyzed user kernels have a static profile and a prediction of the analytical model. Kernels with
unknown source have only tunables, and the roofline's time as prediction.

Measurements on different boards of a GPU model are scaled to a common speed (`kernrec.store.gpu_scales`). For example,
a throttled laptop is slower than other boards, but ranks configs correctly.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.results import EXTERNAL
from kernrec.kernel import Kernel
from kernrec.model.analytical.calibration import Calibration, analytical_fingerprint
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.learn.features import ModelInputs
from kernrec.op import Problem, find_op
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.correction import inputs_of
from kernrec.recommender.estimate.space import costs_of_rows
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Database, Stack
from kernrec.store.gpu_scales import scales_for_training
from kernrec.store.schema import with_derived
from kernrec.training.contradictions import judge
from kernrec.training.dataset import Dataset, RowGroup

Array = np.ndarray

_CONFIG = "gpu, problem_id, kernel, kernel_hash, config_id"
"""Columns that identify a config of a kernel on a GPU and a problem."""
_LIMITED = "coalesce(power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz) IS NOT NULL"
"""SQL condition for a measurement at a non-default power limit or clock."""
_ROWS = f"""
    SELECT {_CONFIG}, coalesce(replayed, false), {_LIMITED} AS limited, latency_s, coalesce(energy_j, 'NaN'),
           coalesce(power_w, 'NaN'), coalesce(clock_hz, 'NaN'), coalesce(rest_w, 'NaN'), problem.key, op, dtype, layout,
           dims, tunables
    FROM answer JOIN db.problem AS problem USING (problem_id) JOIN db.config AS config USING (config_id, kernel)
    LEFT JOIN (
        SELECT {_CONFIG}, median(sm_clock_mean_hz) AS clock_hz, median(idle_w) AS rest_w FROM db.measurement
        WHERE outcome = 'ok' AND NOT {_LIMITED} GROUP BY ALL
    ) AS beside USING ({_CONFIG})
    WHERE op = coalesce($1, op) AND gpu = coalesce($2, gpu) AND kernel = coalesce($3, kernel)
    ORDER BY ALL
"""
"""SQL query for the fields of `_Row`. The parameters are op, GPU and kernel, or NULL to read all."""


@dataclass(frozen=True)
class MeasurementRequest:
    """Selection of measurements. Without an op, GPU or kernel, all are read."""

    databases: tuple[Path, ...] = ()
    """Databases to read, by default the user's. The first database that contains a config counts."""
    op: str | None = None
    """Name or alias of the op. `gpu` is a name or alias of the GPU."""
    gpu: str | None = None
    kernel: str | None = None


@dataclass(frozen=True)
class Measurements:
    """Measured rows by GPU, problem and kernel."""

    databases: tuple[Path, ...]
    gpu: str | None
    """Catalog name of the requested GPU, or None if all were requested."""
    groups: tuple[RowGroup, ...]
    """Groups of rows, at least one."""
    notes: tuple[str, ...]
    """Notes for the user: how many configs were ignored or have less weight, and why."""
    calibrations: Mapping[str, Calibration]
    """Calibrations in the groups' inputs, keyed by architecture."""
    beneath: Mapping[str, str] = field(default_factory=dict)
    """Hash of the training data of each kernel's own model, which an op's model corrects. Keyed by kernel."""

    @property
    def models_folder(self) -> Path:
        """Return the default folder for models and calibrations."""
        return self.databases[0].parent / "models"


class _Row(NamedTuple):
    """Measured config. Quantities that were not measured are NaN."""

    gpu: str
    problem_id: str
    kernel: str
    kernel_hash: str
    config_id: str
    replayed: bool
    limited: bool
    """Whether the power limit or a clock was not the GPU's default."""
    latency_s: float
    energy_j: float
    power_w: float
    clock_hz: float
    """Median clock in hertz at default limits. `rest_w` is the median power in watts of the idle GPU."""
    rest_w: float
    problem: str
    op: str
    dtype: str
    layout: str
    dims: str
    config: str


def load_measurements(request: MeasurementRequest, calibrated: bool = True) -> Measurements:
    """Read measurements as groups of rows with their model inputs.

    Args:
        calibrated: Whether the inputs use the calibrations beside the databases.

    Raises:
        UsageError: The op or GPU is unknown, a file is not a database, or no measurement is usable.
    """
    gpu = None if request.gpu is None else find_gpu(request.gpu).name
    op = None if request.op is None else find_op(request.op).name
    databases = request.databases or (paths.user_database(),)
    context = Context(databases, calibrated)
    reader = _GroupReader(context)
    rows_of_groups: dict[tuple[str, ...], dict[str, _Row]] = {}
    for path in databases:
        with Database.open(path) as database:
            query = with_derived("answer", _ROWS, scales=scales_for_training())
            rows = database.query(query, [op, gpu, request.kernel])
        for row in map(_Row._make, rows):
            # A replay only repeats measurements of an earlier recording.
            if row.replayed or row.limited:
                reason = "that were only replayed" if row.replayed else "measured at a non-default power limit or clock"
                reader.left_out[reason] += 1
                continue
            key = row.gpu, row.problem, row.kernel, row.kernel_hash
            rows_of_groups.setdefault(key, {}).setdefault(row.config, row)
    by_key = (list(rows_of_groups[key].values()) for key in sorted(rows_of_groups))
    groups = tuple(group for rows in by_key if (group := reader.group(rows)) is not None)
    notes = tuple(f"left out {count} configs {reason}" for reason, count in reader.left_out.items())
    notes += tuple(f"counted a tenth: {count} configs {reason}" for reason, count in reader.doubted.items())
    if not groups:
        names = [f"of {name}" for name in (op, request.kernel) if name] + ([f"on {gpu}"] if gpu else [])
        reasons = f" ({'; '.join(notes)})" if notes else ""
        wanted = " ".join(["measurement", *names])
        advice = "" if reasons else "; `kernrec collect` and `kernrec db import` add measurements"
        raise UsageError(f"{', '.join(map(str, databases))}: no {wanted} to learn from{reasons}{advice}")
    return Measurements(tuple(databases), gpu, groups, notes, context.models.calibrations, reader.beneath)


def provenance(data: Dataset, measurements: Measurements, calibrated: bool = True) -> dict[str, Any]:
    """Return the entry of a model card that describes the training data and the analytical model's version."""
    stack = Stack(measurements.databases)
    calibrations = measurements.calibrations if calibrated else {}
    analytical = {
        "probe": analytical_fingerprint(),
        "calibrations": {arch: calibration.hash for arch, calibration in sorted(calibrations.items())},
    }
    kernels = {group.kernel for group in data.groups}
    beneath = {kernel: digest for kernel, digest in measurements.beneath.items() if kernel in kernels}
    about = {"measurements": stack.measurements(), "mark": stack.mark(), "prior": analytical}
    return provenance_of_rows(data) | about | ({"beneath": beneath} if beneath else {})


def provenance_of_rows(data: Dataset) -> dict[str, Any]:
    """Return the part of `provenance` that depends only on the training rows."""
    rows = [
        (group.gpu, group.problem, group.kernel, group.kernel_hash, group.latency_s.tolist(), group.energy_j.tolist())
        for group in data.groups
    ]
    return {
        "rows": len(data),
        "groups": len(data.groups),
        "problems": sorted({group.problem for group in data.groups}),
        "data_sha256": hashlib.sha256(repr(rows).encode()).hexdigest(),
    }


class _GroupReader:
    """Converter of measured rows to groups of training rows."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernels: dict[tuple[str, str], Kernel | None] = {}
        self.left_out: Counter[str] = Counter()
        """Number of unused rows and energies, keyed by reason."""
        self.doubted: Counter[str] = Counter()
        """Number of rows with reduced weight, keyed by reason."""
        self.beneath: dict[str, str] = {}
        """Hash of the training data of each single-kernel model used so far, keyed by kernel."""

    def group(self, rows: list[_Row]) -> RowGroup | None:
        """Return the usable rows with their model inputs, or None if no row is usable."""
        first, configs = rows[0], [json.loads(row.config) for row in rows]
        kernel = self._kernel(first.kernel, first.kernel_hash)
        try:
            gpu = find_gpu(first.gpu)
            op = kernel.definition if kernel is not None and kernel.declares_problem else find_op(first.op)
            problem = op.problem(first.dtype, first.layout, **json.loads(first.dims))
        except UsageError:
            self.left_out["of an unknown GPU or op"] += len(rows)
            return None
        if first.kernel_hash.startswith(EXTERNAL):
            inputs, usable = _inputs_without_source(gpu, problem, configs), np.arange(len(rows))
        else:
            table = None
            with suppress(KernrecError):
                table = None if kernel is None else self._context.on(gpu).kernel_table(kernel, problem)
            if table is None:
                reason = "of a kernel whose source or profiles are not known (perhaps another version of it)"
                self.left_out[reason] += len(rows)
                return None
            inputs, usable = profiled_inputs(table, problem, configs)
            self.left_out.update(_reasons(table, problem, configs, usable))
            if not len(usable):
                return None
        measured = [(row.latency_s, row.energy_j, row.power_w, row.clock_hz, row.rest_w) for row in rows]
        latency, energy, *others = np.array(measured)[usable].T
        judged = judge(inputs, latency, energy, *others)
        self.left_out.update({reason: count for reason, count in judged.left_out.items() if count})
        self.doubted.update({reason: count for reason, count in judged.doubted.items() if count})
        energy = np.where(judged.wrong_energy, np.nan, energy)
        ratios: Mapping[str, Array] = {}
        if kernel is not None:
            beneath = self._context.models.beneath(problem.op, kernel, gpu, problem.dtype)
            if beneath is not None:
                ratios, _ = beneath.model.log_ratio(inputs, beneath.gpu_known)
                self.beneath[kernel.name] = str(beneath.trained.training["data_sha256"])
        identity = gpu.name, problem.key, problem.op, first.kernel, first.kernel_hash
        return RowGroup(*identity, inputs, latency, energy, ratios, judged.trust)

    def _kernel(self, name: str, digest: str) -> Kernel | None:
        if (name, digest) not in self._kernels:
            kernels = self._context.newest_by_file(name)
            self._kernels[name, digest] = next((kernel for kernel in kernels if kernel.hash == digest), None)
        return self._kernels[name, digest]


def _reasons(
    table: StaticTable, problem: Problem, configs: Sequence[Mapping[str, int]], usable: Array
) -> dict[str, int]:
    """Return the number of unusable configs, keyed by reason. `usable` contains the indices of usable configs."""
    space = table.space.at(problem)
    place = table.space.find(configs)
    inside = place >= 0
    inside[inside] = space.valid[place[inside]]
    profiled = inside.copy()
    profiled[inside] = table.profiled(space)[place[inside]]
    counts = {
        "that are not in the kernel's space": int((~inside).sum()),
        f"that have no profile (`kernrec analyze ... --gpu {table.gpu.name} --effort recorded` makes them)": int(
            (inside & ~profiled).sum()
        ),
        "that do not fit on the GPU or spill": int(profiled.sum()) - len(usable),
    }
    return {reason: count for reason, count in counts.items() if count}


def profiled_inputs(
    table: StaticTable, problem: Problem, configs: Sequence[Mapping[str, int]]
) -> tuple[ModelInputs, Array]:
    """Return (model inputs, indices) of the configs that have a profile and can run on a problem."""
    space = table.space.at(problem)
    place = table.space.find(configs)
    usable = np.flatnonzero(np.isin(place, table.runnable(space)))
    rows = place[usable]
    costs = costs_of_rows(table, space, rows)
    limited = table.power.apply_power_limit(NominalCosts(*costs.nominal))
    return inputs_of(table, rows, limited, costs, np.arange(len(rows))), usable


def _inputs_without_source(gpu: GPU, problem: Problem, configs: Sequence[Mapping[str, Any]]) -> ModelInputs:
    """Return model inputs for a kernel with unknown source: the roofline's time, and the TDP as power."""
    numbers = [
        {name: float(value) for name, value in config.items() if isinstance(value, (int, float))} for config in configs
    ]
    names = sorted({name for row in numbers for name in row})
    roofline = max(problem.flops / gpu.peak_flops("f32"), problem.bytes / gpu.memory_bandwidth)
    tunables = {name: np.array([row.get(name, np.nan) for row in numbers]) for name in names}
    quantities = {"flops": problem.flops, "bytes": problem.bytes, "latency_s": roofline, "power_w": gpu.tdp_w}
    return ModelInputs.of(gpu, tunables, len(configs), **quantities)
