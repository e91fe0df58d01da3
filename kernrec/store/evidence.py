"""What the log says when a recommendation asks: answers with their intervals, failures, and who else was faster."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class MeasuredAnswer:
    """What the log says of one config on one GPU and problem, at one power limit and clock.

    The rule: rows of the newest protocol only; in each session the most thorough tier, the median of its rows;
    then the median over `sessions`. `energy_j` and `power_w` are None where nobody measured energy;
    `power_limit_w` and the locked clocks are None for the card's default and an unlocked clock. The 90 % intervals
    cover both what a session states and what sessions differ by (`db/schema/002_answers.sql`); None where the only
    session stated none. measured_at: the latest, UTC. device: as the driver named it.
    replayed: a recording's rows said again, where nobody measured. A MIG slice's rows are in no answer.
    """

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None
    power_w: float | None
    sessions: int
    protocol_version: int
    measured_at: datetime
    device: str | None
    power_limit_w: float | None
    locked_sm_clock_hz: float | None
    locked_memory_clock_hz: float | None = None
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    replayed: bool = False


@dataclass(frozen=True)
class FailedConfig:
    """A config that did not run well on one GPU and problem: the outcome, and when it was last seen (UTC)."""

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    outcome: str
    failed_at: datetime


@dataclass(frozen=True)
class Evidence:
    """All that databases say of one GPU and problem.

    measured: of the kernels asked for, fastest first. failed: their configs that failed, but for those that ran well
    afterwards; what was `incorrect` once stays wrong, for a race does not show every time. foreign: of every other
    kernel, the fastest config at each power limit and clock.
    """

    measured: tuple[MeasuredAnswer, ...] = ()
    failed: tuple[FailedConfig, ...] = ()
    foreign: tuple[MeasuredAnswer, ...] = ()
