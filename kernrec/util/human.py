"""Format values for people: numbers with units, counts, configs, rows of tables and notes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

PREFIXES = tuple(
    zip((1e12, 1e9, 1e6, 1e3, 1.0, 1e-3, 1e-6, 1e-9), ("T", "G", "M", "k", "", "m", "u", "n"), strict=True)
)


def human(value: float, unit: str) -> str:
    """Format a value with three significant digits and an SI prefix: 1.23e-5, "s" -> "12.3 us"."""
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
    """Format a count with its noun: 1, "row" -> "1 row"; 2, "row" -> "2 rows"; 2, "launch" -> "2 launches"."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "sh", "x", "s")) else "s"
    return f"{count} {noun}{ending}"


NOTHING_TO_TUNE = "(nothing to tune)"


def config_text(config: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items()) or NOTHING_TO_TUNE


def short(value: object) -> str:
    """Format a value with `repr`, and shorten the text to 39 characters if it has more than 40."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to print integers with thousands of digits.
        return "a number of thousands of digits"
    return shown if len(shown) <= 40 else shown[:36] + "..."


SIZES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("block_m", "block_n", "block_k")),
    ("", ("block_m", "block_n")),
    ("", ("block_q", "block_k")),
    ("", ("block_rows", "block_columns")),
    ("", ("tile_rows", "tile_columns")),
    ("", ("tile_p", "tile_q")),
    ("", ("rows", "columns")),
    ("w", ("warp_m", "warp_n")),
    ("t", ("thread_m", "thread_n")),
    ("o", ("out_p", "out_q")),
)
"""Groups of tunables that `short_config` prints together, such as `w64x32`. Each item is (prefix, tunables)."""

LETTERS: dict[str, tuple[str, int | None]] = {
    "head": ("h", None),
    "filter": ("f", None),
    "step": ("step", 1),
    "threads": ("t", None),
    "threads_per_row": ("t", None),
    "row_threads": ("r", None),
    "rows_per_block": ("b", 1),
    "lanes": ("l", None),
    "lanes_m": ("l", None),
    "warp_q": ("w", None),
    "warps_k": ("x", 1),
    "stages": ("s", 1),
    "num_stages": ("s", None),
    "num_warps": ("w", None),
    "group_m": ("g", None),
    "vector": ("v", 1),
    "packets": ("p", 1),
    "packs": ("p", 1),
    "passes": ("n", 1),
    "pixels": ("px", 1),
    "filters": ("f", 1),
    "unroll": ("u", 1),
    "fragments": ("f", 1),
    "raster": ("r", 1),
    "cluster": ("c", 1),
    "block_tiles": ("t", 1),
    "split_k": ("k", 1),
    "stream": ("stream", 0),
    "split_keys": ("k", 1),
    "split": ("k", 1),
    "min_blocks": ("m", 0),
    "async_copy": ("async", 0),
    "pointwise": ("pointwise", 0),
    "pack": ("pack", 0),
    "staged": ("staged", 0),
    "overlap": ("overlap", 0),
    "turns": ("turns", 0),
    "resident": ("resident", 0),
    "aligned": ("aligned", 0),
    "unaligned": ("unaligned=", 0),
}
"""(prefix that `short_config` prints instead of the name, default value to omit), keyed by tunable."""
_SWITCHES = {name for name, (_, neutral) in LETTERS.items() if neutral == 0} - {"min_blocks", "unaligned"}


def short_config(config: Mapping[str, int]) -> str:
    """Format a config in its short form, such as `128x128x32 w64x32 s3 k4`. Omit default values."""
    parts: list[str] = []
    left = dict(config)
    for letter, names in SIZES:
        if all(name in left for name in names):
            parts.append(letter + "x".join(str(left.pop(name)) for name in names))
    for name, value in left.items():
        letter, neutral = LETTERS.get(name, (f"{name}=", None))
        if value == neutral:
            continue
        parts.append(letter if name in _SWITCHES and value == 1 else f"{letter}{value}")
    return " ".join(parts) or (NOTHING_TO_TUNE if not config else "")


def codes_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return (code, description) of each part of a short config, such as ("wNxN", "warp_m x warp_n")."""
    codes: list[tuple[str, str]] = []
    left = list(names)
    for letter, sizes in SIZES:
        if all(name in left for name in sizes):
            codes.append((letter + "x".join("NNN"[: len(sizes)]), " x ".join(sizes)))
            left = [name for name in left if name not in sizes]
    for name in left:
        letter, neutral = LETTERS.get(name, (f"{name}=", None))
        code = letter if name in _SWITCHES else f"{letter}N"
        without = "" if neutral is None else f" (not shown: {neutral})"
        codes.append((code, "itself" if letter == f"{name}=" else name + without))
    return codes


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Apply `flat` to each row. Add None for missing columns, so that all rows have the same columns."""
    cells = [flat(row) for row in rows]
    none = dict.fromkeys(name for row in cells for name in row)
    return [none | row for row in cells]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert a row of nested mappings to plain values. Each key begins with `prefix`.

    Nested keys become `outer.inner`, and `latency_interval_s` becomes `latency_low_s` and `latency_high_s`. Configs and
    lists become text.
    """
    cells: dict[str, Any] = {}
    for name, value in row.items():
        key = prefix + name
        if name == "config":
            cells[key] = config_text(value)
        elif isinstance(value, Mapping):
            cells |= flat(value, key + ".")
        elif name.split("_")[-2:-1] == ["interval"]:
            quantity, _, unit = key.partition("_interval_")
            low, high = value or (None, None)
            cells |= {f"{quantity}_low_{unit}": low, f"{quantity}_high_{unit}": high}
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            cells[key] = json.dumps(value)
        elif isinstance(value, list | tuple):
            cells[key] = "; ".join(map(str, value))
        else:
            cells[key] = value
    return cells


class Note(str):
    """One-line note with an optional explanation. Notes with the same text are equal."""

    why: str

    def __new__(cls, text: str, why: str = "") -> "Note":
        note = super().__new__(cls, text)
        note.why = why
        return note
