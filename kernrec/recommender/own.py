"""Advice for one kernel on one problem: its configs under a range of power limits, ranked.

A power limit is a lever like a tunable, but none of the kernel's: the same config may be on the front twice, fast at
the default limit and frugal below it. The front here is over pairs (config, power limit).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec import paths
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.kernel.load import kernel_from
from kernrec.model.calibration import Calibration
from kernrec.model.power import PowerModel
from kernrec.op import Problem
from kernrec.recommender.answer import Choice, Comparison, Cost
from kernrec.recommender.candidates import Candidates
from kernrec.recommender.estimates import MEASURED, SOURCES
from kernrec.recommender.group import COUNTED
from kernrec.recommender.limited import at_limits, known_at
from kernrec.recommender.notes import of_known, of_predictions, sources_of
from kernrec.recommender.pareto import pareto_front, spread
from kernrec.recommender.rank import Place, places
from kernrec.recommender.recommender import OBJECTIVES
from kernrec.recommender.refusal import refusing_constraint
from kernrec.recommender.trained import Trained
from kernrec.store import Database, Evidence, ProfileTable, Stack

if TYPE_CHECKING:
    from kernrec.recommender.learned import Correction, Reach

POWER_LIMITS = 8
"""Power limits that are tried, from the least that a GPU accepts to the most."""


@dataclass(frozen=True)
class Limited:
    """A choice at a power limit."""

    choice: Choice
    power_limit_w: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {"power_limit_w": self.power_limit_w, **self.choice.as_dict()}


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
            "calibration": None if self.calibration is None else self.calibration.about(),
            "models": [reach.as_dict() for reach in self.models],
            "choices": [choice.as_dict() for choice in self.choices],
            "occupancy_heuristic": self.heuristic.as_dict(),
            "notes": list(self.notes),
        }


class Ranked:
    """All candidates of a kernel on a problem with their costs; arrays (limits, C), the default limit first.

    evidence: what databases say of the kernel on this problem and GPU; None: all costs are predictions. trained: what
    was learned from measurements; None: predictions are those of the prior with the data sheet's coefficients. learned:
    the model that corrects the prior, if one does.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        gpu: GPU,
        profiles: Mapping[int, ProfileTable],
        limits: Sequence[float],
        evidence: Evidence | None = None,
        trained: Trained | None = None,
    ) -> None:
        self.kernel, self.problem, self.gpu = kernel, problem, gpu
        self.group = candidates_of(kernel, problem, gpu, profiles, trained.calibration(gpu) if trained else None)
        self.at = self.group.space.at(problem)
        self.limits = list(dict.fromkeys([gpu.tdp_w, *limits]))
        found, measured = known_at(self.group.space, self.at, gpu, evidence or Evidence(), self.limits)
        self.known = found[0]
        runnable = self.group.rows(self.at, measured)
        self.unprofiled = [
            one for row, one in zip(self.known.rows, self.known.measured, strict=True) if row not in runnable
        ]
        self.rows = np.setdiff1d(runnable, self.known.failed)
        if not len(self.rows):
            raise KernrecError(f"no config of {kernel.name} can run {problem.key} on {gpu.name}: {self._why_none()}")
        self.prediction = self.group.predict(problem, self.at, self.rows)
        self.settled = [self.group.settle(self.prediction, limit) for limit in self.limits]
        model = trained.model(problem.op, gpu) if trained else None
        self.learned = model.reach(gpu, kernel) if model else None
        self.warnings = trained.warnings() if trained else ()
        self.costs, self.rescaling = at_limits(self.settled, self.rows, found, self._correction())
        if self.learned:
            self.learned = self.learned.after(max(len(costs.measured) for costs in self.costs))
        self.latency_s: np.ndarray = np.stack([c.estimates.latency_s for c in self.costs])
        self.energy_j: np.ndarray = np.stack([c.estimates.energy_j for c in self.costs])

    def _why_none(self) -> str:
        if len(self.known.failed):
            return f"{len(self.known.failed)} failed when they were measured"
        if not len(self.at.rows):
            return f"it needs {refusing_constraint(self.kernel, self.problem, self.gpu) or 'another shape'!r}"
        return (
            f"of {len(self.at.rows)} that its constraints leave none is profiled, fits an SM and does without spilling"
        )

    def _correction(self) -> "Correction | None":
        """What a model says of the candidates at the default power limit, where it was trained."""
        if self.learned is None:
            return None
        from kernrec.recommender.facts import facts_of
        from kernrec.recommender.learned import Correction

        where = np.arange(len(self.rows))
        facts = facts_of(self.group, self.problem, self.at, self.prediction, self.settled[0], where)
        return Correction.of(self.learned, where, self.learned.model.rows(facts))

    @cached_property
    def fastest(self) -> int:
        """The candidate that is fastest at the default limit."""
        return int(self.latency_s[0].argmin())

    @cached_property
    def heuristic(self) -> int:
        """The candidate that the occupancy heuristic picks."""
        row = self.group.occupancy_choice(self.at, self.rows)
        return int(np.searchsorted(self.rows, row))

    def cost(self, what: str, unit: str, limit: int, position: int) -> Cost:
        """What a candidate costs at one of the limits: (`latency`, `s`) or (`energy`, `j`)."""
        names = f"{what}_{unit}", f"{what}_low_{unit}", f"{what}_high_{unit}", f"{what}_source"
        value, low, high, source = (getattr(self.costs[limit].estimates, name)[position] for name in names)
        return Cost(float(value), float(low), float(high), SOURCES[source])

    def choice(self, limit: int, position: int) -> Limited:
        """One candidate at one of the limits."""
        latency, energy = float(self.latency_s[limit, position]), float(self.energy_j[limit, position])
        row, settled = int(self.rows[position]), self.settled[limit]
        measured = self.costs[limit].measured.get(position)

        def against(other: int) -> Comparison:
            return Comparison(
                1.0 - energy / float(self.energy_j[0, other]), latency / float(self.latency_s[0, other]) - 1.0
            )

        choice = Choice(
            kernel=self.kernel,
            config=self.group.space.config(row),
            problem=self.problem,
            gpu=self.gpu,
            place=Place(1, False, True),
            latency_s=self.cost("latency", "s", limit, position),
            energy_j=self.cost("energy", "j", limit, position),
            power_w=float(self.costs[limit].estimates.power_w[position]),
            clock_hz=float(settled.clock_hz[position]),
            limit=self.prediction.limit(position),
            occupancy=self.group.occupancy(self.at, row),
            versus_fastest=against(self.fastest),
            versus_occupancy=against(self.heuristic),
            sessions=measured.sessions if measured else 0,
            measured_at=measured.measured_at.isoformat() + "Z" if measured else None,
            device=measured.device if measured else None,
        )
        return Limited(choice, self.limits[limit])

    def about(self, choices: Iterable[Limited]) -> list[str]:
        """What the reader of choices has to know of where their costs come from, one line each."""
        sources = sources_of(limited.choice for limited in choices)
        rescaling = self.rescaling if sources - {"measured"} else None
        return [
            *self.warnings,
            *of_predictions(sources, [(self.group.calibration, self.learned)]),
            *of_known(self.kernel.name, self.known, rescaling),
        ]

    def select(self, objective: str, top: int, first: int = 0) -> list[tuple[int, int]]:
        """(limit, position) of the best, in order; limits before the `first` are not chosen from."""
        measured = np.stack([c.estimates.latency_source == MEASURED for c in self.costs[first:]])
        of_equals = 1.0 - 1e-9 * measured  # the measured one: at a limit that does not bind the prediction is the same
        latency, energy = (self.latency_s[first:] * of_equals).ravel(), (self.energy_j[first:] * of_equals).ravel()
        if objective == "pareto":
            picked = spread(pareto_front(latency, energy), latency, energy, top)
        else:
            value = {"latency": latency, "energy": energy, "edp": latency * energy}[objective]
            # The least at each candidate's best limit: a limit that binds nowhere is no choice of its own.
            by_config = value.reshape(-1, len(self.rows))
            best = by_config.argmin(axis=0)
            order = np.argsort(by_config.min(axis=0), kind="stable")[:top]
            picked = best[order] * len(self.rows) + order
        places = [divmod(int(place), len(self.rows)) for place in picked]
        return [(first + limit, position) for limit, position in places]


def candidates_of(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    profiles: Mapping[int, ProfileTable],
    calibration: Calibration | None = None,
) -> Candidates:
    """The candidates of one kernel, whose profiles may be those of a sample of blocks on this very problem."""
    power, sampled = PowerModel.for_gpu(gpu), problem if kernel.sampled else None
    return Candidates(kernel, gpu, power, problem.dtype, problem.layout, profiles, sampled, calibration)


def power_limits(gpu: GPU) -> list[float]:
    """The power limits that are tried for a GPU (W), in steps of whole watts."""
    return [round(float(limit)) for limit in np.linspace(gpu.power_min_w, gpu.power_max_w, POWER_LIMITS)]


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
    return found if any(table.code_keys for table in found.values()) else {}


def _restricted(table: ProfileTable, keys: set[str]) -> ProfileTable:
    """The rows of a table whose codes are among `keys`."""
    rows = np.array([row for row, key in enumerate(table.code_keys) if key in keys], dtype=np.int64)
    return replace(
        table,
        code_keys=tuple(table.code_keys[row] for row in rows.tolist()),
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
        config = " ".join(f"{name}={value}" for name, value in fastest.config.items())
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
