"""What a recommendation is made of: choices with their costs, how sure they are, and what they are held against."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernrec.gpu import GPU
from kernrec.kernel import BoundLaunch, Kernel, bind_launches
from kernrec.op import Problem
from kernrec.recommender.ties import Place

if TYPE_CHECKING:
    from kernrec.model.prior.calibration import Calibration
    from kernrec.recommender.estimate.correction import Reach


@dataclass(frozen=True)
class Cost:
    """One quantity with its 90 % interval, in SI units; source: `measured`, `learned` or `prior`."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Comparison:
    """A choice held against another: `energy_saved` and `slowdown` as fractions of the other's energy and latency."""

    energy_saved: float
    slowdown: float


@dataclass(frozen=True)
class Choice:
    """One recommended config: what to run, what it is expected to cost, and where those numbers come from.

    place: among the choices. limit: the resource that takes longest. occupancy: resident warps over the most an SM
    holds, of the first launch. power_w: mean while running. clock_hz: core clock under the power limit, as predicted.
    sessions, measured_at, device: of a measured choice, in how many sessions, when last (ISO 8601) and on what (None
    where nobody said); of others 0 and None.
    """

    kernel: Kernel
    config: Mapping[str, int]
    problem: Problem
    gpu: GPU
    place: Place
    latency_s: Cost
    energy_j: Cost
    power_w: float
    clock_hz: float
    limit: str
    occupancy: float
    versus_fastest: Comparison
    versus_occupancy: Comparison
    sessions: int = 0
    measured_at: str | None = None
    device: str | None = None

    @property
    def source(self) -> str:
        """Where latency comes from; energy may be less well known, see `energy_j.source`."""
        return self.latency_s.source

    @cached_property
    def launches(self) -> tuple[BoundLaunch, ...]:
        """The launches that run the config, with grid, block, shared memory and arguments."""
        return bind_launches(self.kernel, self.config, self.problem, self.gpu.sm)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "rank": self.place.number,
            "ambiguous": self.place.ambiguous,
            "kernel": self.kernel.name,
            "kernel_hash": self.kernel.hash,
            "config": dict(self.config),
            "launches": [
                {
                    "entry": launch.entry,
                    "grid": list(launch.grid),
                    "block": list(launch.block),
                    "shared_bytes": launch.shared_bytes,
                }
                for launch in self.launches
            ],
            "latency_s": self.latency_s.value,
            "latency_interval_s": [self.latency_s.low, self.latency_s.high],
            "energy_j": self.energy_j.value,
            "energy_interval_j": [self.energy_j.low, self.energy_j.high],
            "power_w": self.power_w,
            "clock_hz": self.clock_hz,
            "source": self.source,
            "energy_source": self.energy_j.source,
            "limit": self.limit,
            "occupancy": self.occupancy,
            "versus_fastest": vars(self.versus_fastest),
            "versus_occupancy_heuristic": vars(self.versus_occupancy),
            "sessions": self.sessions,
            "measured_at": self.measured_at,
            "device": self.device,
        }


@dataclass(frozen=True)
class Recommendation:
    """The answer for one problem on one GPU: choices in order, out of `candidates` configs that can run.

    power_limit_w: the limit the costs hold under. notes: what the reader has to know, one line each. calibration,
    models: what predictions come from beside data sheets; None and empty where that is all.
    """

    problem: Problem
    gpu: GPU
    objective: str
    power_limit_w: float
    choices: tuple[Choice, ...]
    candidates: int
    notes: tuple[str, ...]
    calibration: "Calibration | None" = None
    models: "tuple[Reach, ...]" = ()

    @property
    def best(self) -> Choice:
        """The first choice."""
        return self.choices[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "op": self.problem.op,
            "shape": self.problem.dim,
            "dtype": self.problem.dtype,
            "layout": self.problem.layout,
            "gpu": self.gpu.name,
            "objective": self.objective,
            "power_limit_w": self.power_limit_w,
            "candidates": self.candidates,
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "models": [reach.as_dict() for reach in self.models],
            "choices": [choice.as_dict() for choice in self.choices],
            "notes": list(self.notes),
        }
