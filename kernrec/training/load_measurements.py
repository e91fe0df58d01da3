"""Read measurements from databases as training data, one row per config.

Library kernels and analyzed user kernels have a static profile and a prediction of the analytical model. Kernels with
unknown source only have tunables, and the roofline's time as prediction. Boards of one GPU model are scaled to a common
speed (`kernrec.store.gpu_scales`), because a throttled laptop shows which config is better, but not other boards'
times.
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
from kernrec.kernel import Kernel, kernels_of
from kernrec.model.analytical.calibration import Calibration, analytical_fingerprint
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.learn.features import ModelInputs
from kernrec.op import Problem, find_op
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.correction import inputs_of
from kernrec.recommender.estimate.prediction import costs_of_rows
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Database, Stack
from kernrec.store.gpu_scales import scales_among_few
from kernrec.store.schema import with_derived
from kernrec.training.contradictions import Stated, judge
from kernrec.training.dataset import Dataset, RowGroup

Array = np.ndarray

_OF_CONFIG = ("gpu", "problem_id", "kernel", "kernel_hash", "config_id")
"""Columns that identify a config of a kernel on a GPU and a problem."""
_LIMITS = ("power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz")
"""Columns that are set for measurements at other than the GPU's default power limit or clocks."""
_COLUMNS = (*_OF_CONFIG, "replayed", *_LIMITS, "latency_s", "energy_j", "power_w")


@dataclass(frozen=True)
class MeasurementRequest:
    """Selection of measurements."""

    databases: tuple[Path, ...] = ()
    """Databases to read, by default the user's. A config is read from the first database that contains it."""
    op: str | None = None
    """Name or alias of the op to read, or None to read all."""
    gpu: str | None = None
    """Name or alias of the GPU to read, or None to read all."""
    kernel: str | None = None
    """Kernel to read, or None to read all."""


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
    """Calibrations that the inputs of the groups use, keyed by architecture."""
    beneath: Mapping[str, str] = field(default_factory=dict)
    """Hash of the training data of each single-kernel model behind `RowGroup.beneath`, keyed by kernel."""

    @property
    def models_folder(self) -> Path:
        """Return the default folder for models and calibrations: `models` in the folder of the first database."""
        return self.databases[0].parent / "models"


class _GroupKey(NamedTuple):
    """Key of a group of rows, as stored in the database."""

    gpu: str
    problem: str
    kernel: str
    kernel_hash: str


class _Row(NamedTuple):
    """Measured config. Quantities that were not measured are NaN."""

    config: dict[str, Any]
    latency_s: float
    energy_j: float
    power_w: float
    clock_hz: float
    rest_w: float


def load_measurements(request: MeasurementRequest, calibrated: bool = True) -> Measurements:
    """Read measurements as groups of rows with their model inputs.

    Measurements at other than default power limits and clocks are ignored. So are replayed measurements, because they
    repeat a recording.

    Args:
        calibrated: whether to use the calibrations beside the databases. True trains a model that corrects calibrated
            predictions. False fits or evaluates calibrations.

    Raises:
        UsageError: the op or GPU is unknown, a file is not a database, or no measurement is usable.
    """
    gpu = None if request.gpu is None else find_gpu(request.gpu).name
    op = None if request.op is None else find_op(request.op).name
    databases = request.databases or (paths.user_database(),)
    left_out: Counter[str] = Counter()
    doubted: Counter[str] = Counter()
    groups_of_rows, problem_rows = _read_rows(databases, op, {"gpu": gpu, "kernel": request.kernel}, left_out)
    context = Context(databases, calibrated)
    kernels = _MeasuredKernels(context)
    groups = []
    for key, rows in sorted(groups_of_rows.items()):
        try:
            measured_on = find_gpu(key.gpu)
            problem = kernels.problem(problem_rows[key.problem], key)
        except UsageError:
            left_out["of an unknown GPU or op"] += len(rows)
            continue
        group = _row_group(kernels, measured_on, problem, key, list(rows.values()), left_out, doubted)
        if group is not None:
            groups.append(group)
    notes = tuple(f"left out {count} configs {reason}" for reason, count in left_out.items())
    notes += tuple(f"counted a tenth: {count} configs {reason}" for reason, count in doubted.items())
    if not groups:
        names = [f"of {name}" for name in (op, request.kernel) if name] + ([f"on {gpu}"] if gpu else [])
        reasons = f" ({'; '.join(notes)})" if notes else ""
        wanted = " ".join(["measurement", *names])
        advice = "" if reasons else "; `kernrec collect` and `kernrec db import` add measurements"
        raise UsageError(f"{', '.join(map(str, databases))}: no {wanted} to learn from{reasons}{advice}")
    return Measurements(tuple(databases), gpu, tuple(groups), notes, context.models.calibrations, kernels.beneath)


def provenance(data: Dataset, measurements: Measurements, calibrated: bool = True) -> dict[str, Any]:
    """Return the entry of a model card that describes the training data and the analytical model's version.

    Args:
        data: rows that the model was trained on.
        measurements: all measurements that were read, including these rows.
        calibrated: whether the calibrations in `measurements` were used.
    """
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
    """Return the part of `provenance` that depends only on the training rows, such as their number and hash."""
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


def _read_rows(
    databases: Sequence[Path], op: str | None, wanted: Mapping[str, str | None], left_out: Counter[str]
) -> tuple[dict[_GroupKey, dict[str, _Row]], dict[str, Mapping[str, Any]]]:
    """Read measured rows whose columns have the `wanted` values.

    Args:
        op: op to read, or None to read all.
        wanted: required value of each column, or None if any value is accepted.
        left_out: receives the number of unused rows by reason.

    Returns:
        The rows of each group by JSON text of the config, and the rows of the table `problem` by problem key.
    """
    groups: dict[_GroupKey, dict[str, _Row]] = {}
    problem_rows: dict[str, Mapping[str, Any]] = {}
    for path in databases:
        with Database.open(path) as database:
            problems = {row["problem_id"]: row for row in database.rows("problem")}
            configs = {row["config_id"]: str(row["tunables"]) for row in database.rows("config")}
            chosen = {name: value for name, value in wanted.items() if value is not None}
            condition = " AND ".join(f"{name} = ?" for name in chosen) or "true"
            query = f"SELECT {', '.join(_COLUMNS)} FROM answer WHERE {condition} ORDER BY ALL"
            answers = database.query(with_derived("answer", query, scales=scales_among_few()), list(chosen.values()))
            stated = _clocks_and_idle_powers(database)
        for row in (dict(zip(_COLUMNS, values, strict=True)) for values in answers):
            problem = problems[row["problem_id"]]
            if op is not None and problem["op"] != op:
                continue
            if row["replayed"]:
                left_out["that were only replayed"] += 1
                continue
            if any(row[name] is not None for name in _LIMITS):
                left_out["measured at a non-default power limit or clock"] += 1
                continue
            key = _GroupKey(str(row["gpu"]), str(problem["key"]), str(row["kernel"]), str(row["kernel_hash"]))
            problem_rows[key.problem] = problem
            config = configs[row["config_id"]]
            latency_s, energy_j, power_w = (
                np.nan if row[name] is None else float(str(row[name])) for name in ("latency_s", "energy_j", "power_w")
            )
            beside = stated.get(tuple(row[name] for name in _OF_CONFIG), (np.nan, np.nan))
            groups.setdefault(key, {}).setdefault(
                config, _Row(json.loads(config), latency_s, energy_j, power_w, *beside)
            )
    return groups, problem_rows


def _clocks_and_idle_powers(database: Database) -> dict[tuple[object, ...], tuple[float, float]]:
    """Return (median clock in hertz, median idle power in watts) at default limits, keyed by the values of
    `_OF_CONFIG`. A median without measurements is NaN."""
    own = " AND ".join(f"{name} IS NULL" for name in _LIMITS)
    query = (
        f"SELECT {', '.join(_OF_CONFIG)}, median(sm_clock_mean_hz), median(idle_w) FROM db.measurement "
        f"WHERE outcome = 'ok' AND {own} AND coalesce(sm_clock_mean_hz, idle_w) IS NOT NULL GROUP BY ALL"
    )
    return {
        tuple(of_config): (np.nan if clock_hz is None else clock_hz, np.nan if rest_w is None else rest_w)
        for *of_config, clock_hz, rest_w in database.query(query)
    }


class _MeasuredKernels:
    """Problems, static profiles and models of measured kernels, from the library or databases."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own: dict[tuple[str, str], Kernel | None] = {}
        self.beneath: dict[str, str] = {}
        """Hash of the training data of each single-kernel model used so far, keyed by kernel."""

    def problem(self, row: Mapping[str, Any], key: _GroupKey) -> Problem:
        """Return the problem of a row of the table `problem`. Raise `UsageError` if no op or kernel declares it."""
        own = self._own_kernel(key)
        op = own.definition if own is not None and own.declares_problem else find_op(row["op"])
        return op.problem(row["dtype"], row["layout"], **json.loads(row["dims"]))

    def table(self, problem: Problem, gpu: GPU, key: _GroupKey) -> StaticTable | None:
        """Return the static table of a group's kernel, or None if the kernel has no source or no profiles."""
        kernel = self._own_kernel(key)
        # No kernel of the library computes a problem that a user's kernel declares.
        if kernel is None or not kernel.declares_problem:
            # The library may lack kernels for this data type and layout.
            with suppress(UsageError):
                library = kernels_of(problem, gpu.sm)
                named = (other for other in library if (other.name, other.hash) == (key.kernel, key.kernel_hash))
                kernel = next(named, kernel)
        if kernel is None:
            return None
        with suppress(KernrecError):
            return self._context.on(gpu).kernel_table(kernel, problem)
        return None

    def corrected(self, inputs: ModelInputs, problem: Problem, gpu: GPU, key: _GroupKey) -> Mapping[str, Array]:
        """Return the terms that a single-kernel model adds to log predictions, keyed by head. The result is empty if
        the kernel has no single-kernel model."""
        kernel = self._own_kernel(key)
        if kernel is None or (beneath := self._context.models.beneath(problem.op, kernel, gpu, problem.dtype)) is None:
            return {}
        ratios, _ = beneath.model.log_ratio(inputs, beneath.gpu_known)
        self.beneath[kernel.name] = str(beneath.trained.training["data_sha256"])
        return ratios

    def _own_kernel(self, key: _GroupKey) -> Kernel | None:
        if (key.kernel, key.kernel_hash) not in self._own:
            own = self._context.newest_by_file(key.kernel)
            self._own[key.kernel, key.kernel_hash] = next((k for k in own if k.hash == key.kernel_hash), None)
        return self._own[key.kernel, key.kernel_hash]


def _row_group(
    kernels: _MeasuredKernels,
    gpu: GPU,
    problem: Problem,
    key: _GroupKey,
    rows: list[_Row],
    left_out: Counter[str],
    doubted: Counter[str],
) -> RowGroup | None:
    """Return a group's usable rows with model inputs, or None if no row is usable.

    Add numbers to `left_out` (unused rows and energies) and `doubted` (rows with reduced weight), keyed by reason.
    """
    if key.kernel_hash.startswith(EXTERNAL):
        inputs, usable = _inputs_without_source(gpu, problem, [row.config for row in rows]), np.arange(len(rows))
    else:
        table = kernels.table(problem, gpu, key)
        if table is None:
            left_out["of a kernel whose source or profiles are not known (perhaps another version of it)"] += len(rows)
            return None
        inputs, usable = profiled_inputs(table, problem, [row.config for row in rows])
        left_out.update(_reasons(table, problem, [row.config for row in rows], usable))
        if not len(usable):
            return None
    latency = np.array([row.latency_s for row in rows])[usable]
    stated = Stated(*np.array([(row.energy_j, row.power_w, row.clock_hz, row.rest_w) for row in rows])[usable].T)
    judged = judge(inputs, latency, stated)
    left_out.update({reason: count for reason, count in judged.left_out.items() if count})
    doubted.update({reason: count for reason, count in judged.doubted.items() if count})
    energy = np.where(judged.wrong_energy, np.nan, stated.energy_j)
    beneath = kernels.corrected(inputs, problem, gpu, key)
    return RowGroup(
        gpu.name, problem.key, problem.op, key.kernel, key.kernel_hash, inputs, latency, energy, beneath, judged.trust
    )


def _reasons(
    table: StaticTable, problem: Problem, configs: Sequence[Mapping[str, int]], usable: Array
) -> dict[str, int]:
    """Return the number of unusable configs by reason. `usable` contains the indices of usable configs."""
    if len(usable) == len(configs):
        return {}
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
    """Return model inputs for a kernel with unknown source: the roofline's time as latency, and the TDP as power."""
    numbers = [
        {name: float(value) for name, value in config.items() if isinstance(value, (int, float))} for config in configs
    ]
    names = sorted({name for row in numbers for name in row})
    roofline = max(problem.flops / gpu.peak_flops("f32"), problem.bytes / gpu.memory_bandwidth)
    return ModelInputs(
        gpu=gpu,
        flops=float(problem.flops),
        bytes=float(problem.bytes),
        tunables={name: np.array([row.get(name, np.nan) for row in numbers]) for name in names},
        latency_s=np.full(len(configs), roofline),
        power_w=np.full(len(configs), gpu.tdp_w),
    )
