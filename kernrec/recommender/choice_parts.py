"""Parts of a recommendation: rank, costs with intervals, comparisons and measurements."""

import math

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """Rank of a recommendation among the others.

    Attributes:
        number: rank from 1; tied recommendations share a rank.
        exact: whether every cost that the objective counts was measured.
        ambiguous: whether its intervals overlap those of a neighbor, or of the rows it is tied with.
    """

    number: int
    exact: bool
    ambiguous: bool

    def __str__(self) -> str:
        if not self.exact:
            return f"~{self.number}"
        return f"{self.number}=" if self.ambiguous else str(self.number)


@dataclass(frozen=True)
class Estimate(float):
    """One quantity in SI units with its 90 % interval; as a number it equals `value`."""

    value: float
    low: float
    high: float
    source: str
    """A `Source`; for a baseline `published`, `learned`, `transferred` or `predicted`."""
    own: float | None = None
    """Logarithmic half-width of the 90 % interval of the config's own error. It excludes the error that all configs of
    the kernel share on this problem and GPU. None if the two parts are not known separately."""

    __hash__ = float.__hash__
    __ne__ = object.__ne__  # the opposite of this class's `__eq__`, not of float's

    def __new__(cls, value: float, *_: object, **_others: object) -> "Estimate":
        return super().__new__(cls, value)

    @property
    def own_interval(self) -> tuple[float, float]:
        """Interval of the config's own error, for comparisons with other configs of the kernel on the problem."""
        if self.own is None:
            return self.low, self.high
        factor = math.exp(self.own)
        return self.value / factor, self.value * factor

    def as_dict(self, quantity: str, unit: str) -> dict[str, float | list[float]]:
        """Return the value and its intervals, such as `latency_s`, `latency_interval_s`, `latency_own_interval_s`."""
        whole: dict[str, float | list[float]] = {
            f"{quantity}_{unit}": self.value,
            f"{quantity}_interval_{unit}": [self.low, self.high],
        }
        if self.own is not None:
            whole[f"{quantity}_own_interval_{unit}"] = [*self.own_interval]
        return whole


@dataclass(frozen=True)
class Comparison:
    """Comparison of a config with a reference config."""

    energy_saved: float
    """Energy saved, as a fraction of the reference's energy."""
    slowdown: float
    """Additional latency, as a fraction of the reference's latency."""


@dataclass(frozen=True)
class MeasuredOn:
    """Time and place of a config's measurements."""

    sessions: int
    measured_at: str
    """Time of the latest measurement, UTC, ISO 8601."""
    device: str | None
    """Name of the GPU according to its driver; None if it was not recorded."""
    database: str
    """Database that holds the measurement: `own`, `pulled`, or a file."""
    signers: tuple[str, ...]
    """Public keys of the people who shared pulled rows; an empty text for unsigned rows."""
    contributors: int = 1
    """Number of people whose rows were combined; the cost is the median of their rows."""
    spread_s: tuple[float, float] | None = None
    """Lowest and highest latency of these people in seconds; None if there is only one."""
    rescaled: int = 0
    """Number of people whose rows were rescaled from their board to the GPU's typical speed."""

    def signed_by(self) -> list[dict[str, str | None]]:
        """Return the signers with the names that the user gave them."""
        if not self.signers:
            return []
        from kernrec.store.keys import signer_name

        return [{"name": signer_name(key), "key": key or None} for key in self.signers]
