"""From a database's measurements to what the learner is trained on and judged by.

Rows of the library's kernels, and of the user's own that were analysed, come with their static profile and prior. Rows
of kernels whose source nobody gave us come with their tunables alone, and the roofline's time in the prior's place.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.model.learn.features import ModelInputs
from kernrec.model.prior.calibration import Calibration
from kernrec.model.prior.prior_fingerprint import probe
from kernrec.op import Problem, find_op
from kernrec.recommender.estimate.candidates import Candidates
from kernrec.recommender.estimate.model_inputs import inputs_of
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.kernel_advice import find_own_kernel, profiles_of
from kernrec.recommender.power_sweep import candidates_of
from kernrec.recommender.recommender import Recommender
from kernrec.store import Database, Stack
from kernrec.training.dataset import Dataset, RowGroup

Array = np.ndarray

_COSTS = ("latency_s", "energy_j")
_LIMITS = ("power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz")


@dataclass(frozen=True)
class Measurements:
    """groups: by GPU, problem and kernel. left_out: rows that could not be used, by reason. calibrations: those of the
    prior that the groups' inputs hold, by architecture."""

    groups: tuple[RowGroup, ...]
    left_out: Mapping[str, int]
    calibrations: Mapping[str, Calibration]

    @property
    def problems(self) -> int:
        """How many problems there are, whatever the GPU."""
        return len({group.problem for group in self.groups})


@dataclass(frozen=True)
class _Row:
    config: dict[str, Any]
    latency_s: float
    energy_j: float


def read(
    databases: Iterable[Path], op: str | None = None, gpu: str | None = None, calibrated: bool = True
) -> Measurements:
    """The answers of all databases at the cards' own limits and clocks; of a config in several, the first one's.

    What was replayed is left out: it is what its recording says, once more and with noise.

    op, gpu: only these, by canonical name. calibrated: whether the prior is that of the calibrations beside the
    databases, which a model corrects; False where they are to be made. Raises `UsageError` for what is no database.
    """
    paths = list(databases)
    left_out: dict[str, int] = {}
    found: dict[tuple[str, str, str, str], dict[str, _Row]] = {}
    problems: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        with Database.open(path) as database:
            known = {row["problem_id"]: row for row in database.rows("problem")}
            configs = {row["config_id"]: str(row["tunables"]) for row in database.rows("config")}
            answers = database.rows("answer") if gpu is None else database.rows("answer", gpu=gpu)
        for row in answers:
            about = known[row["problem_id"]]
            if op is not None and about["op"] != op:
                continue
            if row["replayed"]:
                _count(left_out, "that were only replayed")
                continue
            if any(row[name] is not None for name in _LIMITS):
                _count(left_out, "measured at another power limit or clock")
                continue
            key = str(about["key"])
            problems[key] = about
            config = configs[row["config_id"]]
            latency, energy = (np.nan if row[name] is None else float(str(row[name])) for name in _COSTS)
            group = found.setdefault((str(row["gpu"]), key, str(row["kernel"]), str(row["kernel_hash"])), {})
            group.setdefault(
                config,
                _Row(json.loads(config), latency, energy),
            )
    trained = Trained.beside(paths, calibrated=calibrated)
    known_to = _Candidates(paths, trained)
    groups: list[RowGroup] = []
    for (card, key, kernel, digest), rows in sorted(found.items()):
        try:
            where = find_gpu(card)
            problem = known_to.problem(problems[key], kernel, digest)
        except UsageError:
            _count(left_out, "of an unknown GPU or op", len(rows))
            continue
        groups += _group(known_to, where, problem, kernel, digest, list(rows.values()), left_out)
    return Measurements(tuple(groups), left_out, trained.calibrations)


class _Candidates:
    """The candidates of the kernels that were measured: the library's, and the user's own that a database holds."""

    def __init__(self, databases: Sequence[Path], trained: Trained) -> None:
        self._databases, self._trained = databases, trained
        self._library = Recommender(databases, trained=trained)
        self._own: dict[tuple[str, str], Kernel | None] = {}

    def problem(self, row: Mapping[str, Any], kernel: str, digest: str) -> Problem:
        """The problem of a row of the table: of an op, or declared by the kernel; `UsageError` for neither."""
        own = self._own_kernel(kernel, digest)
        op = own.definition if own is not None and own.declares_problem else find_op(row["op"])
        return op.problem(row["dtype"], row["layout"], **json.loads(row["dims"]))

    def find(self, problem: Problem, gpu: GPU, kernel: str, digest: str) -> Candidates | None:
        """Those of a kernel by name and hash; None where no source of this hash is known, or no profile."""
        try:
            of_op = self._library.candidates_for(problem, gpu)
        except KernrecError:
            of_op = []
        for candidates in of_op:
            if (candidates.kernel.name, candidates.kernel.hash) == (kernel, digest):
                return candidates
        if (own := self._own_kernel(kernel, digest)) is None:
            return None
        try:
            profiles = profiles_of(own, problem, gpu, self._databases)
            return candidates_of(own, problem, gpu, profiles, self._trained.calibration(gpu))
        except KernrecError:
            return None

    def _own_kernel(self, kernel: str, digest: str) -> Kernel | None:
        if (kernel, digest) not in self._own:
            try:
                found = find_own_kernel(kernel, self._databases)
            except KernrecError:
                found = None
            self._own[kernel, digest] = found if found is not None and found.hash == digest else None
        return self._own[kernel, digest]


def _group(
    known_to: _Candidates,
    gpu: GPU,
    problem: Problem,
    kernel: str,
    digest: str,
    rows: list[_Row],
    left_out: dict[str, int],
) -> Iterable[RowGroup]:
    candidates = None
    if not digest.startswith("external:"):
        candidates = known_to.find(problem, gpu, kernel, digest)
        if candidates is None:
            _count(
                left_out, "of a kernel whose source or profiles are not known (another version of it, say)", len(rows)
            )
            return
    if candidates is None:
        inputs, kept = _foreign(gpu, problem, rows), np.arange(len(rows))
    else:
        inputs, kept = _profiled(candidates, problem, rows)
        if len(kept) < len(rows):
            _count(left_out, "of configs that the library's space does not hold", len(rows) - len(kept))
        if not len(kept):
            return
    latency = np.array([row.latency_s for row in rows])[kept]
    energy = np.array([row.energy_j for row in rows])[kept]
    yield RowGroup(gpu.name, problem.key, problem.op, kernel, digest, inputs, latency, energy)


def _profiled(candidates: Candidates, problem: Problem, rows: list[_Row]) -> tuple[ModelInputs, Array]:
    """(inputs, which of `rows` they are about) of a library kernel's configs."""
    at = candidates.space.at(problem)
    place = candidates.space.find([row.config for row in rows])
    kept = np.flatnonzero(np.isin(place, candidates.rows(at)))
    prediction = candidates.predict(problem, at, place[kept])
    limited = candidates.apply_power_limit(prediction)
    return inputs_of(candidates, problem, at, prediction, limited, np.arange(len(kept))), kept


def _foreign(gpu: GPU, problem: Problem, rows: list[_Row]) -> ModelInputs:
    names = sorted({name for row in rows for name, value in row.config.items() if isinstance(value, (int, float))})
    roofline = max(problem.flops / gpu.peak_flops("f32"), problem.bytes / gpu.memory_bandwidth)
    return ModelInputs(
        gpu=gpu,
        flops=float(problem.flops),
        bytes=float(problem.bytes),
        tunables={name: np.array([_number(row.config.get(name)) for row in rows]) for name in names},
        latency_s=np.full(len(rows), roofline),
        power_w=np.full(len(rows), gpu.tdp_w),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else np.nan


def _count(left_out: dict[str, int], reason: str, rows: int = 1) -> None:
    left_out[reason] = left_out.get(reason, 0) + rows


def provenance(data: Dataset, databases: Sequence[Path], calibrations: Mapping[str, Calibration]) -> dict[str, Any]:
    """What a model's card says of the rows that it was trained on, and of the prior whose residuals it learned."""
    stack = Stack(databases)
    rows = [
        (group.gpu, group.problem, group.kernel, group.kernel_hash, group.latency_s.tolist(), group.energy_j.tolist())
        for group in data.groups
    ]
    return {
        "rows": len(data),
        "groups": len(data.groups),
        "problems": sorted({group.problem for group in data.groups}),
        "data_sha256": hashlib.sha256(repr(rows).encode()).hexdigest(),
        "measurements": stack.measurements(),
        "mark": stack.mark(),
        "prior": {"probe": probe(), "calibrations": {arch: one.hash for arch, one in sorted(calibrations.items())}},
    }
