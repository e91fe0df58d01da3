"""A recommendation and its parts: choices with their costs, how sure these are, and comparisons."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import BoundLaunch, Kernel, bind_launches
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender import tabular
from kernrec.recommender.choice_parts import Comparison as Comparison
from kernrec.recommender.choice_parts import Estimate as Estimate
from kernrec.recommender.choice_parts import MeasuredOn as MeasuredOn
from kernrec.recommender.choice_parts import Place as Place
from kernrec.recommender.estimate.estimates import Source
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.json_names import AnswerNames, ChoiceNames
from kernrec.recommender.request import Objective
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.prior.calibration import Calibration
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.correction import ModelScope
    from kernrec.recommender.lines import Line

Remark = Callable[[], Iterable[str]]
"""Notes of an answer that are made when they are read."""


@dataclass(frozen=True)
class Saving:
    """The saving of the first choice's config at another operating point, at no loss of time."""

    point: OperatingPoint
    power_limit_w: float
    """The power limit there, the default one included."""
    slowdown: float
    """Fraction of the latency at the point that choices are compared at."""
    energy_saved: float
    """Fraction of the energy there."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "power_limit_w": self.power_limit_w,
            "locked_clock_hz": self.point.clock_hz,
            "slowdown": self.slowdown,
            "energy_saved": self.energy_saved,
        }


@dataclass(frozen=True)
class Choice(ChoiceNames):
    """One recommended config: what to run, what it is expected to cost, and where those numbers come from."""

    kernel: Kernel
    config: Mapping[str, int]
    problem: Problem
    gpu: GPU
    point: OperatingPoint
    """The power limit and clock that the costs hold at."""
    place: Place
    latency_s: Estimate
    energy_j: Estimate
    power_w: float
    """Mean power while running."""
    clock_hz: float
    """Core clock that is expected under the power limit."""
    bottleneck: str
    occupancy: float
    """Resident warps over the most an SM holds, of the first launch."""
    versus_fastest: Comparison
    """Against the fastest config of all kernels."""
    versus_occupancy: Comparison
    """Against the config of the same kernel that the occupancy heuristic picks."""
    measurement: MeasuredOn | None = None
    """None for a config that was not measured at this point."""
    alike: int = 0
    """How many more configs it stands for: the same machine code, or of costs that differ by less than half a percent
    and by one tunable."""
    unsure: float = 1.0
    """The factor by which its costs count more than expected beside what somebody ran; 1 for what somebody ran."""
    may_be_faster: bool = False
    """Whether it is expected to be faster than what comes first, but not by more than its error: measure it."""

    def __repr__(self) -> str:
        return tabular.choice_summary(self)

    @property
    def source(self) -> Source:
        """Where latency comes from; energy may be less well known, see `energy_j.source`."""
        return Source(self.latency_s.source)

    @property
    def power_limit_w(self) -> float:
        """The power limit that the costs hold under, the GPU's default included."""
        return self.point.limit_w(self.gpu)

    @cached_property
    def launches(self) -> tuple[BoundLaunch, ...]:
        """The launches that run the config, with grid, block, shared memory and arguments."""
        return bind_launches(self.kernel, self.config, self.problem, self.gpu.sm)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        measurement = self.measurement
        return {
            "rank": self.place.number,
            "ambiguous": self.place.ambiguous,
            "kernel": self.kernel.name,
            "kernel_hash": self.kernel.hash,
            "config": dict(self.config),
            "alike": self.alike,
            "may_be_faster": self.may_be_faster,
            "power_limit_w": self.power_limit_w,
            "locked_clock_hz": self.point.clock_hz,
            "launches": [
                {"entry": x.entry, "grid": list(x.grid), "block": list(x.block), "shared_bytes": x.shared_bytes}
                for x in self.launches
            ],
            **self.latency_s.as_dict("latency", "s"),
            **self.energy_j.as_dict("energy", "j"),
            "power_w": self.power_w,
            "clock_hz": self.clock_hz,
            "source": self.source,
            "energy_source": self.energy_j.source,
            "bottleneck": self.bottleneck,
            "occupancy": self.occupancy,
            "versus_fastest": vars(self.versus_fastest),
            "versus_occupancy_heuristic": vars(self.versus_occupancy),
            "sessions": measurement.sessions if measurement else 0,
            "measured_at": measurement.measured_at if measurement else None,
            "device": measurement.device if measurement else None,
            "database": measurement.database if measurement else None,
            "signed_by": measurement.signed_by() if measurement else [],
            "contributors": measurement.contributors if measurement else 0,
            "contributors_latency_s": list(measurement.spread_s) if measurement and measurement.spread_s else None,
            "rescaled": measurement.rescaled if measurement else 0,
        }


@dataclass(frozen=True)
class Foreign:
    """A measured config of a kernel that is not in the library: it can be compared with, but not emitted."""

    kernel: str
    config: Mapping[str, int]
    point: OperatingPoint
    latency_s: Estimate
    energy_j: Estimate | None
    """None where it was not measured."""
    replayed: bool
    """Whether the rows come from a recording that was replayed."""
    measurement: MeasuredOn
    measured_by: str | None
    """The program that measured, or of imported rows the tool and who recorded them."""

    @property
    def source(self) -> str:
        """Where the costs come from."""
        return "replayed" if self.replayed else Source.MEASURED

    @property
    def power_w(self) -> float | None:
        """Mean power while running."""
        return None if self.energy_j is None else self.energy_j.value / self.latency_s.value

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        energy = self.energy_j
        return {
            "kernel": self.kernel,
            "config": dict(self.config),
            "power_limit_w": self.point.power_limit_w,
            "locked_clock_hz": self.point.clock_hz,
            **self.latency_s.as_dict("latency", "s"),
            **(energy.as_dict("energy", "j") if energy is not None else {"energy_j": None, "energy_interval_j": None}),
            "source": self.source,
            "measured_by": self.measured_by,
            "sessions": self.measurement.sessions,
            "measured_at": self.measurement.measured_at,
            "device": self.measurement.device,
        }


@dataclass(frozen=True)
class KernelAnswer:
    """The part that only an answer about one kernel has."""

    kernel: Kernel
    heuristic: Choice
    """The pick of the occupancy heuristic, at the default power limit."""
    sampled_blocks: tuple[int, int]
    """How many blocks of the first launch were emulated, least and most over the configs; 0 where profiles hold on all
    blocks."""


@dataclass(frozen=True)
class Recommendation(AnswerNames):
    """The answer for one problem on one GPU."""

    problem: Problem
    gpu: GPU
    objective: Objective
    point: OperatingPoint
    """The operating point that choices are compared at; in a sweep each choice has its own."""
    choices: tuple[Choice, ...]
    """Best first; a Pareto front with the fastest first."""
    candidates: int
    """How many configs can run."""
    remarks: tuple[Remark, ...] = field(repr=False, compare=False)
    """Of `notes`, each is made when they are first read."""
    inputs: str = RANDOM
    """The input data that the kernel is taken to compute on, `random` or `zeros`."""
    calibration: "Calibration | None" = None
    """The fitted coefficients of the prior; None for the data sheet's."""
    models: "tuple[ModelScope, ...]" = ()
    about_kernel: KernelAnswer | None = None
    """Of a request about one kernel."""
    saving: Saving | None = None
    """None where it is little, or a power limit or clock was asked for."""
    beside: tuple[Choice, ...] = ()
    """The best CUDA kernel, or the best one in Triton, where none of its kind is among the choices."""
    foreign: tuple[Foreign, ...] = ()
    """The best by the objective first."""
    layout_chosen: bool = False
    """Whether nobody asked for the layout, and it is not the op's default."""
    no_kernel: str | None = None
    """Why no kernel runs the problem: then there are no choices, and the lines of stacks are the answer."""
    stacks: tuple[str, ...] = ()
    """The only stacks whose lines are wanted; all where it is empty."""
    source: str = ""
    """The only source that was asked for; all where it is empty."""
    context: "Context | None" = field(default=None, repr=False, compare=False)
    """Whose models of stacks are asked for lines; None for an answer without any."""

    def __repr__(self) -> str:
        return tabular.summary(self)

    def __str__(self) -> str:
        return tabular.text(self)

    def _repr_html_(self) -> str:
        return tabular.html(self)

    def to_arrow(self) -> Any:
        """Return the choices, then the baselines, as a `pyarrow.Table` with the columns of `--csv`.

        Pandas takes it by `.to_pandas()`, polars by `polars.from_arrow`.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        return tabular.arrow_table(tabular.plain_rows(self))

    @property
    def best(self) -> Choice:
        """The first choice; `KernrecError` for an answer by lines alone."""
        if self.no_kernel is not None:
            raise KernrecError(self.no_kernel)
        return self.choices[0]

    @cached_property
    def lines(self) -> "tuple[Line, ...]":
        """The lines of stacks at the operating point of the first choice, fastest first; computed when first read."""
        if self.context is None:
            return ()
        from kernrec.recommender.lines import beside, lines_of

        point = self.choices[0].point if self.choices else self.point
        lines = lines_of(self.context, self.problem, self.gpu, point, self.stacks)
        if self.source:
            lines = tuple(line for line in lines if line.source == self.source)
        if not self.choices:
            return lines
        latency = self.best.latency_s
        return beside(lines, latency.value, self.best.energy_j.value, (latency.low, latency.high))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Lines for the reader, besides the numbers; made when first read."""
        return tuple(line for remark in self.remarks for line in remark())

    @property
    def leading_stack(self) -> str | None:
        """The stack of `leading_line`, under the name that JSON has."""
        return None if self.leading_line is None else self.leading_line.stack

    @cached_property
    def leading_line(self) -> "Line | None":
        """The line of a stack that comes before the first choice: it costs less of what the objective counts, or the
        choice's lead over what was recorded of this card is less than its error. None where the choice comes first."""
        if not self.choices:
            return None
        own = self.value_of(self.best.latency_s.value, self.best.energy_j.value)
        for line in self.ranked_lines:
            recorded_here = line.source in ("published", "learned")
            sure = self.best.unsure if recorded_here and self.objective is not Objective.ENERGY else 1.0
            if self.value_of(line.latency_s, line.energy_j) < own * sure:
                return line
        return None

    @property
    def ranked_lines(self) -> "tuple[Line, ...]":
        """The lines of stacks, the best by the objective first."""
        return tuple(sorted(self.lines, key=lambda line: self.value_of(line.latency_s, line.energy_j)))

    def value_of(self, latency_s: float, energy_j: float | None) -> float:
        """Return what the objective counts; of a front the latency, and without a recorded energy infinity."""
        if self.objective in (Objective.LATENCY, Objective.PARETO):
            return latency_s
        if energy_j is None:
            return float("inf")
        return energy_j if self.objective is Objective.ENERGY else energy_j * latency_s

    @property
    def power_limit_w(self) -> float:
        """The power limit that choices are compared under."""
        return self.point.limit_w(self.gpu)

    @property
    def kernel(self) -> "Kernel | None":
        """The kernel that the request is about; None for an op."""
        return self.about_kernel.kernel if self.about_kernel else None

    @property
    def kernel_hash(self) -> str | None:
        """The hash of that kernel's source and spec."""
        return self.about_kernel.kernel.hash if self.about_kernel else None

    @property
    def sampled_blocks(self) -> tuple[int, int] | None:
        """How many of that kernel's blocks were emulated, least and most over the configs."""
        return self.about_kernel.sampled_blocks if self.about_kernel else None

    @property
    def occupancy_heuristic(self) -> "Choice | None":
        """The occupancy heuristic's pick of that kernel's configs."""
        return self.about_kernel.heuristic if self.about_kernel else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        about = self.about_kernel
        kernel: dict[str, Any] = {}
        if about is not None:
            kernel = {
                "kernel": about.kernel.name,
                "kernel_hash": about.kernel.hash,
                "sampled_blocks": list(about.sampled_blocks),
                "occupancy_heuristic": about.heuristic.as_dict(),
            }
        return {
            "op": self.problem.op,
            "problem": self.problem.key,
            "shape": self.problem.dim,
            "dtype": self.problem.dtype,
            "layout": self.problem.layout,
            "layout_chosen": self.layout_chosen,
            "gpu": self.gpu.name,
            "objective": self.objective,
            "power_limit_w": self.power_limit_w,
            "inputs": self.inputs,
            "candidates": self.candidates,
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "models": [scope.as_dict() for scope in self.models],
            **kernel,
            "saving": None if self.saving is None else self.saving.as_dict(),
            "no_kernel": self.no_kernel,
            "lines": [line.as_dict() for line in self.lines],
            "leading_stack": None if self.leading_line is None else self.leading_line.stack,
            "choices": [choice.as_dict() for choice in self.choices],
            "beside": [choice.as_dict() for choice in self.beside],
            "foreign": [row.as_dict() for row in self.foreign],
            "notes": list(self.notes),
        }
