"""Parse and format quantities such as `250W`, `3%` and `30m`."""

import re
from collections.abc import Mapping
from functools import partial

from kernrec.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-zA-Z%]*)\s*", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_CONFIGS = ("config", "configs")


def _parse(units: Mapping[str, float], example: str, flag: str, text: str) -> float:
    match = _NUMBER.fullmatch(text)
    if not match or match[2].lower() not in units:
        raise UsageError(
            f"{flag} {text!r}: expected a number with the unit {example.lstrip('0123456789')}, such as {example}"
        )
    return float(match[1]) * units[match[2].lower()]


watts = partial(_parse, {"w": 1.0, "kw": 1e3, "mw": 1e-3}, "250W")
"""Parse the value of the option `flag` in watts: `250W` -> 250.0. A unit is required."""
hertz = partial(_parse, {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}, "1410MHz")
duration = partial(_parse, _SECONDS, "100ms")
fraction = partial(_parse, {"%": 0.01}, "3%")


def whole_number(flag: str, text: str) -> int:
    """Parse a whole number of at least 1: `32k` -> 32768."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text.strip(), re.ASCII | re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise UsageError(f"{flag} {text!r:.60}: expected a whole number of at least 1, such as 8 or 4k")
    return int(match[1]) * (1024 if match[2] else 1)


def percent(value: float) -> str:
    """Format a relative change: 0.123 -> "+12 %". Changes below 10 % have one decimal."""
    if abs(value) < 0.0005:
        return "0.0 %"
    return f"{value * 100:+.0f} %" if abs(value) >= 0.0995 else f"{value * 100:+.1f} %"


def budget(flag: str, text: str) -> tuple[float | None, int | None]:
    """Parse a budget into seconds or a number of configs: `30m` -> (1800.0, None), `200configs` -> (None, 200)."""
    match = _NUMBER.fullmatch(text)
    unit = match[2].lower() if match else ""
    value = float(match[1]) if match else 0.0
    if unit in _CONFIGS and value >= 1.0 and value.is_integer():
        return None, int(value)
    if unit in _SECONDS and value > 0.0:
        return value * _SECONDS[unit], None
    raise UsageError(f"{flag} {text!r}: expected a time or a number of configs, such as 30m or 200configs")
