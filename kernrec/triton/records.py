"""Store measurements in the user's database, and look up measurements there and in the database of `kernrec db pull`.

Each measurement belongs to a Triton tuning key. The measurement's session name contains the hash of the tuning key.
"""

import math
import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernrec import paths
from kernrec.kernel import Kernel
from kernrec.recommender.request import Objective
from kernrec.store import Database
from kernrec.store.measurement import EnergyReport, MeasuredDevice, Measurement, Outcome, ProblemRecord, Tier
from kernrec.store.stack import pulled_database
from kernrec.version import __version__

if TYPE_CHECKING:
    from kernrec.triton.machine import Machine

SESSION = "triton"
"""First word of a session name. The tuning hash, the number of configs to measure and a unique identifier follow."""


@dataclass(frozen=True)
class Result:
    """Measured latency and energy of a config, or the error of a failed config."""

    latency_s: float | None = None
    """Latency in seconds, or None if the config failed."""
    energy: EnergyReport = field(default_factory=EnergyReport)
    error: str | None = None
    compiled: bool = True
    """Whether the config could be compiled. It may still have failed at launch."""

    def value(self, objective: Objective) -> float:
        """Return the objective in SI units: infinity if the config failed, or NaN if the energy is missing."""
        if self.latency_s is None:
            return math.inf
        if objective is Objective.LATENCY:
            return self.latency_s
        energy = math.nan if self.energy.energy_j is None else self.energy.energy_j
        return energy * self.latency_s if objective is Objective.EDP else energy


def recorded_results(gpu: str, kernel: str, tuning_hash: str) -> list[tuple[int, dict[str, int], Result]]:
    """Return (proposed, config, result) for each measurement of a tuning key in the user's and the pulled database.

    `proposed` is the number of configs that were selected for measurement, or 0 if it is unknown. The config has
    kernrec's tunable names.

    Raises:
        UsageError: A database cannot be read.
    """
    own = paths.user_database()
    rows = []
    for path in filter(None, (own if own.exists() else None, pulled_database())):
        with Database.open(path) as database:
            rows += database.session_rows(gpu, kernel, f"{SESSION} {tuning_hash} ")
    results = []
    for session, config, latency_s, energy_j in rows:
        requested = session.split()[2]
        result = Result(latency_s, EnergyReport(energy_j=energy_j))
        results.append((int(requested) if requested.isdecimal() else 0, config, result))
    return results


def middle(results: Sequence[Result], objective: Objective) -> float:
    """Return the median of the objective over one config's results.

    Without a finite value, return infinity if a result failed, or NaN if none failed.
    """
    values = [result.value(objective) for result in results]
    return statistics.median(list(filter(math.isfinite, values)) or [min(values, key=math.isnan)])


@dataclass(frozen=True)
class Trial:
    """Measurements of several configs for one tuning key."""

    kernel: Kernel
    tuning_hash: str
    proposed: int
    """Number of configs that were selected for measurement. Configs that were not run have no result."""
    results: Sequence[tuple[Mapping[str, int], Result]]
    """Configs with kernrec's tunable names, and their results."""


def keep(trial: Trial, machine: "Machine", compiler: str) -> None:
    """Add a trial to the user's database atomically. Raise `UsageError` if the database cannot be written."""
    kernel = trial.kernel
    problem = kernel.definition.problem()
    session = f"{SESSION} {trial.tuning_hash} {trial.proposed} {uuid.uuid4().hex[:12]}"
    now = datetime.now(UTC).replace(tzinfo=None)
    device = MeasuredDevice(device=machine.name, device_uuid_hash=machine.uuid_hash, **machine.settings())
    record = ProblemRecord.of(problem)
    rows = [
        Measurement(
            gpu=machine.gpu.name,
            kernel=kernel.name,
            kernel_hash=kernel.hash,
            config=dict(config),
            problem=record,
            outcome=Outcome.OK if result.latency_s else Outcome.CONSTRAINT if result.compiled else Outcome.COMPILE,
            error=result.error,
            protocol_version=0,
            tier=Tier.FINAL,
            session=session,
            measured_at=now,
            measured_by=f"{compiler} autotune, kernrec {__version__}",
            compiler=compiler,
            latency_s=result.latency_s,
            **vars(result.energy),
            **vars(device),
        )
        for config, result in trial.results
    ]
    with Database.open(paths.user_database(), read_only=False, create=True) as database:
        database.add_kernel(kernel, problem)
        database.add_measurements(rows)
