"""Advice for one kernel on one problem, a user's own or one of the library's, from the profiles that databases hold."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec import paths
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, config_text, find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.model.prior.calibration import Calibration
from kernrec.op import Problem
from kernrec.recommender.candidate_set import COUNTED
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.power_sweep import Limited, Ranked, power_limits
from kernrec.recommender.recommender import OBJECTIVES
from kernrec.recommender.ties import places
from kernrec.store import Database, Evidence, ProfileTable, Stack

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Reach


@dataclass(frozen=True)
class Advice:
    """Choices for a kernel in order (a front: fastest first), out of `candidates` configs.

    heuristic: what the occupancy heuristic picks, at the default power limit. Savings `versus_fastest` and
    `versus_occupancy` of a choice are against configs at the default power limit. blocks: of the first choice's first
    launch; sampled: how many of them were emulated, least and most over the configs (0: profiles hold on all blocks).
    """

    kernel: Kernel
    problem: Problem
    gpu: GPU
    objective: str
    choices: tuple[Limited, ...]
    heuristic: Limited
    candidates: int
    sampled: tuple[int, int]
    notes: tuple[str, ...]
    calibration: "Calibration | None" = None
    models: "tuple[Reach, ...]" = ()

    @property
    def best(self) -> Limited:
        """The first choice."""
        return self.choices[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "kernel": self.kernel.name,
            "kernel_hash": self.kernel.hash,
            "problem": self.problem.key,
            "shape": self.problem.dim,
            "gpu": self.gpu.name,
            "objective": self.objective,
            "candidates": self.candidates,
            "sampled_blocks": list(self.sampled),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "models": [reach.as_dict() for reach in self.models],
            "choices": [choice.as_dict() for choice in self.choices],
            "occupancy_heuristic": self.heuristic.as_dict(),
            "notes": list(self.notes),
        }


def check_asked(objective: str, top: int) -> None:
    """Raise `UsageError` for what `advise` cannot be asked."""
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if top < 1:
        raise UsageError(f"top is {top}; at least 1 is accepted")


def advise(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    profiles: Mapping[int, ProfileTable],
    *,
    objective: str = "pareto",
    top: int = 5,
    limits: Sequence[float] | None = None,
    evidence: Evidence | None = None,
    trained: Trained | None = None,
) -> Advice:
    """The choices for a kernel whose profiles are given.

    limits: power limits to try (W); None: a range of them, and those it was measured at. evidence: what is known of
    measurements (`Stack.evidence`); they stand in place of predictions. trained: what was learned from measurements.
    """
    check_asked(objective, top)
    evidence = evidence or Evidence()
    tried = limits
    if tried is None:
        used = {row.power_limit_w for row in evidence.measured if row.kernel_hash == kernel.hash}
        tried = [*power_limits(gpu), *sorted(w for w in used if w and gpu.power_min_w <= w <= gpu.power_max_w)]
    ranked = Ranked(kernel, problem, gpu, profiles, tried, evidence, trained)
    # The default limit is what choices are held against; where limits are given it need not be among them.
    first = 0 if limits is None else len(ranked.limits) - len(set(limits))
    picked = ranked.select(objective, top, first)
    choices = _placed([ranked.choice(limit, at) for limit, at in picked], objective)
    sampled = _sampled(profiles[0]) if kernel.sampled else (0, 0)
    return Advice(
        kernel=kernel,
        problem=problem,
        gpu=gpu,
        objective=objective,
        choices=choices,
        heuristic=ranked.choice(0, ranked.heuristic),
        candidates=len(ranked.rows),
        sampled=sampled,
        notes=_notes(ranked, profiles, choices, sampled),
        calibration=ranked.group.calibration,
        models=(ranked.learned,) if ranked.learned else (),
    )


def _placed(choices: Sequence[Limited], objective: str) -> tuple[Limited, ...]:
    """The choices, best first, each with its place among them."""
    costs = {"latency": [c.choice.latency_s for c in choices], "energy": [c.choice.energy_j for c in choices]}
    counted = list(zip(*(costs[name] for name in COUNTED[objective]), strict=True))
    found = places(
        [[(cost.low, cost.high) for cost in one] for one in counted],
        [all(cost.source == "measured" for cost in one) for one in counted],
    )
    return tuple(
        replace(one, choice=replace(one.choice, place=place)) for one, place in zip(choices, found, strict=True)
    )


def recommend_kernel(
    name: str,
    gpu: GPU,
    shape: Mapping[str, int],
    *,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "pareto",
    top: int = 5,
    limits: Sequence[float] | None = None,
    databases: Sequence[Path] | None = None,
    calibrated: bool = True,
) -> Advice:
    """Advice for a kernel of the user's or of the library, from profiles that a database holds.

    Raises `KernrecError` where there are none for the GPU's architecture or for the problem, saying what makes them.
    """
    kernel = find_own_kernel(name, databases)
    problem = kernel.definition.problem(dtype or kernel.dtypes[0], layout or kernel.layouts[0], **shape)
    profiles = profiles_of(kernel, problem, gpu, databases)
    stack = Stack(databases)
    evidence = stack.evidence(gpu.name, problem.op, [kernel.name], problem.key)
    trained = Trained.beside(databases, stack, calibrated)
    return advise(
        kernel, problem, gpu, profiles, objective=objective, top=top, limits=limits, evidence=evidence, trained=trained
    )


def profiles_of(
    kernel: Kernel, problem: Problem, gpu: GPU, databases: Sequence[Path] | None = None
) -> dict[int, ProfileTable]:
    """The profiles of a kernel for a GPU and problem, by launch. Raises `KernrecError` without any."""
    profiles = Stack(databases).profiles(kernel.name, kernel.hash, gpu.sm)
    again = f"`kernrec analyze {kernel.source_name} --spec ... --gpu {gpu.name}"
    if not profiles:
        raise KernrecError(f"kernel {kernel.name} was not analysed for {gpu.arch}: run {again}`")
    found = on_problem(kernel, problem, gpu, profiles)
    if not found:
        dims = ",".join(f"{name}={value}" for name, value in problem.dims)
        raise KernrecError(
            f"kernel {kernel.name} was not analysed on {problem.key} for {gpu.arch}: run {again} --shape {dims}`"
        )
    return found


def on_problem(
    kernel: Kernel, problem: Problem, gpu: GPU, profiles: Mapping[int, ProfileTable]
) -> dict[int, ProfileTable]:
    """The profiles that hold on a problem: all, or of a kernel profiled by samples those of the problem; else empty."""
    if not kernel.sampled:
        return dict(profiles)
    keys = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout).configs_on(problem).keys
    found = {index: _restricted(table, {*keys}) for index, table in profiles.items()}
    return found if any(table.variant_keys for table in found.values()) else {}


def _restricted(table: ProfileTable, keys: set[str]) -> ProfileTable:
    """The rows of a table whose codes are among `keys`."""
    rows = np.array([row for row, key in enumerate(table.variant_keys) if key in keys], dtype=np.int64)
    return replace(
        table,
        variant_keys=tuple(table.variant_keys[row] for row in rows.tolist()),
        registers=table.registers[rows],
        spill_bytes=table.spill_bytes[rows],
        stack_bytes=table.stack_bytes[rows],
        static_smem_bytes=table.static_smem_bytes[rows],
        counts=table.counts[rows],
    )


def _sampled(table: ProfileTable) -> tuple[int, int]:
    blocks = table.counts[:, table.metrics.index("blocks.sampled"), 0]
    return int(blocks.min()), int(blocks.max())


def _notes(
    ranked: Ranked, profiles: Mapping[int, ProfileTable], choices: Sequence[Limited], sampled: tuple[int, int]
) -> tuple[str, ...]:
    kernel, best = ranked.kernel, choices[0]
    notes = ranked.about(choices)
    if ranked.unprofiled:
        fastest = min(ranked.unprofiled, key=lambda one: one.latency_s)
        config = config_text(fastest.config)
        notes.append(
            f"{len(ranked.unprofiled)} configs were measured but could not be analysed, and are left out: the fastest"
            f" took {fastest.latency_s * 1e6:.4g} us with {config}"
        )
    if kernel.sampled:
        most = f"{sampled[0]} to {sampled[1]}" if sampled[0] < sampled[1] else f"{sampled[0]}"
        blocks = best.choice.launches[0].blocks
        notes.append(
            f"counts are those of a sample: {most} blocks of each config's first launch were emulated (the first"
            f" choice has {blocks}), from the middle of the grid and its ends, and scaled to the grid"
        )
    if kernel.sampled and ranked.group.spilling:
        left = "all that fit do, and none is left out" if ranked.group.spilled_in else "left out unless measured"
        notes.append(f"{ranked.group.spilling} configs spill registers, and what that moves is not counted: {left}")
    for what, said in (("branch", "branches"), ("load", "addresses of loads"), ("store", "addresses of stores")):
        found = sum(_count(table, f"depends.{what}") for table in profiles.values())
        if found:
            values = ", ".join(f"{name} {sample}" for name, sample in kernel.samples.items())
            notes.append(
                f"{said} depend on data in {found} configs: counted with the sample inputs"
                f" ({values or 'random values'}); other inputs may behave otherwise"
            )
    return tuple(notes)


def _count(table: ProfileTable, metric: str) -> int:
    if metric not in table.metrics:
        return 0
    return int((table.counts[:, table.metrics.index(metric), 0] > 0).sum())


def find_own_kernel(name: str, databases: Sequence[Path] | None = None) -> Kernel:
    """The kernel of this name: the newest that the user's databases hold, else one of the library.

    databases: None: the user's own. Raises `UsageError`.
    """
    known: list[str] = []
    for path in own_databases(databases):
        with Database.open(path) as database:
            for known_name, spec, source in database.kernels():
                known.append(known_name)
                if known_name == name:
                    return kernel_from(json.loads(spec), name, source)
    try:
        return find_kernel(name)
    except UsageError:
        if known:
            raise unknown("kernel", name, known) from None
        raise


def own_databases(databases: Sequence[Path] | None) -> list[Path]:
    """The databases given, else the user's own if there is one."""
    if databases:
        return [Path(path) for path in databases]
    own = paths.user_database()
    return [own] if own.exists() else []
