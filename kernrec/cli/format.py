"""Words and numbers that several commands print in the same way."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kernrec.cli.quantity import human

if TYPE_CHECKING:
    from kernrec.recommender import Choice, Cost


def print_notes(notes: Iterable[str]) -> None:
    """Each note once, on standard error."""
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)


def config_text(config: Mapping[str, int]) -> str:
    """A config as name=value pairs."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def source_text(choice: "Choice") -> str:
    """Where a choice's costs come from."""
    if choice.energy_j.source == choice.source:
        return choice.source
    return f"{choice.source}, energy {choice.energy_j.source}"


def occasion_text(choice: "Choice") -> str:
    """Where, how often and when a choice was measured; nothing for another."""
    if not choice.sessions or choice.measured_at is None:
        return ""
    sessions = "1 session" if choice.sessions == 1 else f"{choice.sessions} sessions, last"
    device = "" if choice.device is None else f"{choice.device}, "
    return f"{device}{sessions} {choice.measured_at[:10]}"


def interval_text(cost: "Cost", unit: str) -> str:
    """A cost with its interval, the unit once where it is the same."""
    low, high = human(cost.low, unit).split(" ")[0], human(cost.high, unit)
    if human(cost.low, unit).split(" ")[1] != high.split(" ")[1]:
        low = human(cost.low, unit)
    return f"{human(cost.value, unit)} ({low} to {high})"
