"""Divide measurements into blocks between runs of the reference kernels; blocks in which the GPU drifted are void.

    references -- measurements of block 0 -- references -- measurements of block 1 -- references

A block ends with its problem, with the worker process, or when it is old: after a minute, or after a quarter of a young
session's time. So a killed run leaves at most a quarter of its measurements in an open block. The next run measures
their configs again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kernrec.measure.campaign.device_session import DeviceSession
from kernrec.measure.campaign.journal import Records
from kernrec.measure.campaign.schedule import ScheduledMeasurement
from kernrec.measure.protocol.drift import DriftMonitor, describe_changes
from kernrec.store.measurement import Tier

REFERENCE_S = 60.0
"""Maximum seconds of a block."""
_FIRST_S, _SHARE = 4.0, 0.25
"""Seconds of a session's first block; length of later blocks as a fraction of the session's age."""


@dataclass(frozen=True)
class Block:
    """Measurements between two runs of the reference kernels."""

    number: int
    since_s: float
    """Start time on the campaign's clock."""
    items: list[ScheduledMeasurement] = field(default_factory=list)
    """Measurements so far."""


class BlockControl:
    """Control of a campaign's blocks: begins and ends them."""

    def __init__(self, session: DeviceSession, journal: Records, name: str, note: Callable[[str], None]) -> None:
        """Create a control; `begin` starts the first block.

        Args:
            session: Open device.
            journal: Records how each block ended.
            name: Name of the campaign's session in rows.
            note: Function to call with one-line notes for the user.
        """
        self._session = session
        self._journal = journal
        self._name = name
        self._note = note
        self.drift = DriftMonitor()
        self.present = Block(0, 0.0)
        self._started_s: float | None = None  # Start time of the first block.
        self._energy_checked_s = 0.0  # when the energy of the reference kernels was last measured, which takes seconds
        self._energy_unchecked = False  # Whether energy was measured since then.

    def begin(self, number: int, with_energy: bool) -> str | None:
        """Run the reference kernels and begin a block; return a description of changes since the last block, if any."""
        session = self._session
        costs, settings = session.measure_references(with_energy)
        if self.drift.drifted(costs):  # The GPU may just have been under heavy load, so a second run decides.
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
        """Return whether the block should end before the next measurement."""
        since_s = self.present.since_s
        session_s = since_s - (since_s if self._started_s is None else self._started_s)
        due_s = min(REFERENCE_S, max(_FIRST_S, _SHARE * session_s))
        return not self._session.client.alive or self._session.clock() - since_s >= due_s

    def close(self) -> list[ScheduledMeasurement]:
        """End the block and begin the next; if the GPU drifted, return the measurements to repeat."""
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
