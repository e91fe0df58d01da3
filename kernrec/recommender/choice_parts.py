"""Parts of a recommendation: rank, comparisons and measurements."""

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
