"""Format configs briefly: `128x128x32 w64x32 s3 k4` for block, warp, stages and split of a matmul.

Sizes along several axes are joined by x; other tunables have one or two letters. Neutral values, such as a split into
one part or a switch that is off, are omitted. A tunable without a short form is written as name=value.
"""

from collections.abc import Mapping, Sequence

from kernrec.util.human import NOTHING_TO_TUNE

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
"""(letter, tunables joined after it), used if a config has all of them."""

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
"""(prefix of a tunable's value, value to omit). Switches (0 and 1) print no value."""
_SWITCHES = {name for name, (_, neutral) in LETTERS.items() if neutral == 0} - {"min_blocks", "unaligned"}


def short_config(config: Mapping[str, int]) -> str:
    """Return a config in short form, sizes first."""
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
    """Return the parts of `short_config` for these tunables, in order, as (code, tunables)."""
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
