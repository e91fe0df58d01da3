"""Format values, numbers with units, and counts for people."""

from collections.abc import Mapping

PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "u"),
    (1e-9, "n"),
)
"""Factors and their SI prefixes, largest first."""


def human(value: float, unit: str) -> str:
    """Format three significant digits with an SI prefix: 1.23e-5, "s" -> "12.3 us"."""
    for scale, prefix in PREFIXES:
        if abs(value) >= scale * 0.9995:
            shown = f"{value / scale:.3g}"
            return f"{float(shown):g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def memory_text(size: float) -> str:
    """Format bytes with three significant digits and a binary prefix: 25769803776 -> "24 GiB"."""
    prefixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
    power = max(number for number in range(len(prefixes)) if not number or size >= 0.9995 * 1024**number)
    return f"{float(f'{size / 1024**power:.3g}'):g} {prefixes[power]}B"


def counted(count: int, noun: str) -> str:
    """Format a count: 1, "row" -> "1 row"; 2, "row" -> "2 rows"; 2, "launch" -> "2 launches"."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "sh", "x", "s")) else "s"
    return f"{count} {noun}{ending}"


NOTHING_TO_TUNE = "(nothing to tune)"
"""Text of the only config of a kernel without tunables."""


def config_text(config: Mapping[str, object]) -> str:
    """Format a config as name=value pairs."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or NOTHING_TO_TUNE


def short(value: object) -> str:
    """Format `value` for a message: quoted if it is text, on one line, truncated if it is long."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to print integers with thousands of digits.
        return "a number of thousands of digits"
    return shown if len(shown) <= 40 else shown[:36] + "..."
