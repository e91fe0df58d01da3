"""Blocks of measurements between two runs of the reference kernels. A block in which the GPU drifted is void.

    references -- measurements of block 0 -- references -- measurements of block 1 -- references

A block ends with its problem, with the worker process, or when it is old: after a minute, and in a young session after
a quarter of the session's time. So a run that is killed leaves at most a quarter of its measurements in an open block;
the next run measures their configs again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kernrec.measure.campaign.device_session import DeviceSession
from kernrec.measure.campaign.journal import Records
from kernrec.measure.campaign.schedule import ScheduledMeasurement
from kernrec.measure.protocol.drift import DriftMonitor, describe_changes
from kernrec.store.measurement import Tier

REFERENCE_S = 60.0
"""Most seconds of a block."""
_FIRST_S, _SHARE = 4.0, 0.25
"""Seconds of the first block of a session, and of later ones as a share of the session's age."""


@dataclass(frozen=True)
class Block:
    """Measurements between two runs of the reference kernels."""

    number: int
    since_s: float
    """Time of its beginning on the campaign's clock."""
    items: list[ScheduledMeasurement] = field(default_factory=list)
    """Its measurements so far."""


class BlockControl:
    """Begins and ends the blocks of a campaign."""

    def __init__(self, session: DeviceSession, journal: Records, name: str, note: Callable[[str], None]) -> None:
        """Create a control; `begin` starts the first block.

        Args:
            session: Open device.
            journal: Records how each block ended.
            name: Name of the campaign's session in rows.
            note: Called with remarks for the user, one line each.
        """
        self._session = session
        self._journal = journal
        self._name = name
        self._note = note
        self.drift = DriftMonitor()
        self.present = Block(0, 0.0)
        self._started_s: float | None = None  # when the first block began
        self._energy_checked_s = 0.0  # when the energy of the reference kernels was last measured, which takes seconds
        self._energy_unchecked = False  # whether energy was measured since

    def begin(self, number: int, with_energy: bool) -> str | None:
        """Run the reference kernels and begin a block; return what has changed since the last one, if anything."""
        session = self._session
        costs, settings = session.measure_references(with_energy)
        if self.drift.drifted(costs):  # possibly just after a heavy load: a second run decides
            costs, settings = session.measure_references(with_energy)
        error = self.drift.update(costs)
        if with_energy:
            self._energy_checked_s, self._energy_unchecked = session.clock(), False
        before = session.opened_info.settings
        if settings != before:
            error = f"somebody changed the card: {describe_changes(before, settings)}"
            session.take_settings(settings)
            self.drift.rebase(costs)
        session.refresh_idle_power()
        self.present = Block(number, session.clock())
        if self._started_s is None:
            self._started_s = self.present.since_s
        return error

    @property
    def is_due(self) -> bool:
        """Whether the block should end before the next measurement."""
        since_s = self.present.since_s
        session_s = since_s - (since_s if self._started_s is None else self._started_s)
        due_s = min(REFERENCE_S, max(_FIRST_S, _SHARE * session_s))
        return not self._session.client.alive or self._session.clock() - since_s >= due_s

    def close(self) -> list[ScheduledMeasurement]:
        """End the block and begin another; return the measurements to repeat if the GPU drifted."""
        number, items = self.present.number, self.present.items
        if not items:
            return []
        self._energy_unchecked |= any(item.tier != Tier.SCREEN for item in items)
        with_energy = self._energy_unchecked and self._session.clock() - self._energy_checked_s >= REFERENCE_S
        error = self.begin(number + 1, with_energy)
        if error is None:
            self._journal.append({"closed": number, "session": self._name})
            return []
        self._journal.append({"drifted": number, "session": self._name, "error": error})
        again = [replace(item, again=True) for item in items if not item.again]
        self._note(f"{error}; {len(again)} measurements are repeated")
        return again
