"""What a recommendation reads of the measurement log: measured answers with their intervals, and failures."""

from datetime import datetime

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class MeasuredAnswer:
    """The measured costs of one config on one GPU and problem, at one power limit and clock.

    They are combined by the rule of `db/schema/views.sql`: of the newest protocol, in each session the rows of
    the most thorough tier, their median; then the median over sessions. The 90 % intervals cover both the uncertainty
    within a session and the differences between sessions; None if the only session states none. MIG slices count for
    nothing.
    """

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None
    """None if energy was not measured."""
    power_w: float | None
    sessions: int
    protocol_version: int
    measured_at: datetime
    """The latest, UTC."""
    device: str | None
    """Name given by the driver."""
    power_limit_w: float | None
    """None: the card's default."""
    locked_sm_clock_hz: float | None
    """None: not locked."""
    locked_memory_clock_hz: float | None = None
    """None: not locked."""
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    measured_by: str | None = None
    """The program that measured, or of an imported row the tool and who recorded it."""
    replayed: bool = False
    """Whether these are replayed rows, which count only where nothing was measured."""
    signers: tuple[str, ...] = ()
    """Of rows that were pulled: the public keys of who shared them; empty text for unsigned ones."""
    database: str = ""
    """The database of the stack that answered: `own`, the name of a remote, or a file."""


@dataclass(frozen=True)
class FailedConfig:
    """A config that failed on one GPU and problem."""

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    outcome: str
    failed_at: datetime
    """The latest, UTC."""


@dataclass(frozen=True)
class Evidence:
    """Everything that databases contain about one GPU and problem."""

    measured: tuple[MeasuredAnswer, ...] = ()
    """Of the requested kernels, fastest first."""
    failed: tuple[FailedConfig, ...] = ()
    """Configs of the requested kernels that failed and did not run well later; `incorrect` ones stay, because a race
    does not show every time."""
    foreign: tuple[MeasuredAnswer, ...] = ()
    """Of all other kernels, the fastest config at each power limit and clock."""
