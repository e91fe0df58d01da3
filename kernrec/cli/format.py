"""Format words and numbers that several commands print."""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from kernrec.cli.table import text_width, wrapped
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.recommender import Estimate, Recommendation
    from kernrec.recommender.json_form import MeasuredOn
    from kernrec.recommender.result import Foreign

_UNKNOWN_DAY = "1970-01-01"
"""Placeholder date of a recording without a date."""
_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|[pnumkMGT]?(?:s|J|W|Hz|B))(?!\w))")
"""Matches the space between a number and its unit."""


class NotePrinter:
    """Prints each note once on standard error, even if several answers contain it."""

    def __init__(self, why: bool = False) -> None:
        """Set up the printer.

        Args:
            why: Also print each note's explanation below it.
        """
        self._why = why
        self._seen: set[str] = set()

    def print(self, notes: Iterable[str]) -> None:
        """Print the notes that were not printed before."""
        for note in notes:
            if note in self._seen:
                continue
            self._seen.add(note)
            print_line(f"note: {one_line(note)}", sys.stderr)
            if self._why and (explanation := getattr(note, "why", "")):
                print_line(f"    {one_line(explanation)}", sys.stderr)


def print_notes(notes: Iterable[str]) -> None:
    """Print each note once, on standard error."""
    NotePrinter().print(notes)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line of text, wrapped and indented at the terminal's width, or at 100 characters in a pipe.

    A note on standard error stays on one line if standard error is not a terminal, because logs hold one message per
    line.
    """
    stream = stream or sys.stdout
    if (stream is not sys.stderr or stream.isatty()) and len(text) > (width := text_width(stream)):
        start = text[: len(text) - len(text.lstrip())]
        text = "\n".join(wrapped(text.lstrip(), width, start, start + "    "))
    print(text, file=stream)


def one_line(text: str) -> str:
    """Replace line breaks and other control characters, which a file's content may add to a message."""
    return text if text.isprintable() else " ".join("".join(c if c.isprintable() else " " for c in text).split())


def source_text(recommendation: "Recommendation | Foreign") -> str:
    """Describe the sources of a row's costs. For a transferred latency, omit the source of the energy to save space."""
    if (
        recommendation.energy_j is None
        or recommendation.energy_j.source == recommendation.latency_s.source
        or recommendation.source == "transferred"
    ):
        return recommendation.source
    return f"{recommendation.source}, energy {recommendation.energy_j.source}"


def measurement_text(recommendation: "Recommendation | Foreign") -> str:
    """Describe where, how often, when and by whom a config was measured; empty if it was not measured."""
    if (measurement := recommendation.measurement) is None:
        return ""
    sessions = "1 session" if measurement.sessions == 1 else f"{measurement.sessions} sessions, last"
    of_title = getattr(getattr(recommendation, "gpu", None), "title", None)  # The table's title already names the GPU.
    device = "" if measurement.device in (None, of_title) else f"{measurement.device}, "
    signers = ", ".join(str(signer["name"]) for signer in measurement.signed_by())
    shared = f", {measurement.database} ({signers})" if signers else ""
    day = measurement.measured_at[:10]
    when = f" {day}" if day > _UNKNOWN_DAY else ""
    people = f", {_people_text(measurement)}" if measurement.spread_s else ""
    return f"{device}{sessions.removesuffix(', last') if not when else sessions}{when}{shared}{people}"


def _people_text(measurement: "MeasuredOn") -> str:
    """Return the range of several people's rows; the answer is their median."""
    assert measurement.spread_s is not None
    low, high = (human(value, "s") for value in measurement.spread_s)
    low = low.split(" ")[0] if low.split(" ")[1] == high.split(" ")[1] else low
    rescaled = f", {measurement.rescaled} rescaled" if measurement.rescaled else ""
    return f"{measurement.contributors} people {low} to {high}{rescaled}"


def interval_text(estimate: "Estimate", unit: str) -> str:
    """Format an estimate with its interval, with one unit if both share it."""
    low, high = human(estimate.low, unit).split(" ")[0], human(estimate.high, unit)
    if human(estimate.low, unit).split(" ")[1] != high.split(" ")[1]:
        low = human(estimate.low, unit)
    return f"{human(estimate.value, unit)} ({low} to {high})"
