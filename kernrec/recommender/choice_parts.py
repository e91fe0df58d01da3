"""The parts of a choice: its place, its costs with their intervals, comparisons, and when it was measured."""

import math

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """The rank of a choice among the others.

    number: from 1; equal for choices that cannot be told apart. exact: measured in all that the objective counts.
    ambiguous: its intervals overlap those of the choice before or after it (a tied choice: of those it is tied with).
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
    """One quantity with its 90 % interval, in SI units; as a number it is its value."""

    value: float
    low: float
    high: float
    source: str
    """A `Source`; of a baseline `recorded`, `learned` or `transferred`."""
    own: float | None = None
    """Logarithmic half-width of the 90 % interval of the config's own error, that of the kernel on the problem and card
    left out; None where it is not known apart."""

    __hash__ = float.__hash__
    __ne__ = object.__ne__  # the opposite of this class's `__eq__`, not of float's

    def __new__(cls, value: float, *_: object, **_others: object) -> "Estimate":
        return super().__new__(cls, value)

    @property
    def own_interval(self) -> tuple[float, float]:
        """The interval of the config's own error: of another config of the kernel on the problem, it alone counts."""
        if self.own is None:
            return self.low, self.high
        factor = math.exp(self.own)
        return self.value / factor, self.value * factor

    def as_dict(self, quantity: str, unit: str) -> dict[str, float | list[float]]:
        """The value and its intervals: `latency_s`, `latency_interval_s` and `latency_own_interval_s`, for example."""
        whole: dict[str, float | list[float]] = {
            f"{quantity}_{unit}": self.value,
            f"{quantity}_interval_{unit}": [self.low, self.high],
        }
        if self.own is not None:
            whole[f"{quantity}_own_interval_{unit}"] = [*self.own_interval]
        return whole


@dataclass(frozen=True)
class Comparison:
    """A choice compared with another config."""

    energy_saved: float
    """Fraction of the other's energy."""
    slowdown: float
    """Fraction of the other's latency."""


@dataclass(frozen=True)
class MeasuredOn:
    """When and where a config was measured."""

    sessions: int
    measured_at: str
    """The latest time, UTC, ISO 8601."""
    device: str | None
    """The GPU as its driver names it; None where nobody recorded it."""
    database: str
    """Which database answered: `own`, `pulled`, or a file."""
    signers: tuple[str, ...]
    """Of rows that were pulled: the public keys of who shared them; empty text for unsigned ones."""
    contributors: int = 1
    """How many people's rows were combined: the cost is the median of theirs."""
    spread_s: tuple[float, float] | None = None
    """The least and the greatest of their latencies, where there are several."""
    rescaled: int = 0
    """How many of them have a card whose rows were put on the scale of its kind."""

    def signed_by(self) -> list[dict[str, str | None]]:
        """The signers with the names that the user gave them."""
        if not self.signers:
            return []
        from kernrec.store.keys import signer_name

        return [{"name": signer_name(key), "key": key or None} for key in self.signers]
