"""Digests of the engine's results in `expected.json`, recorded when they equaled those of the former NumPy interpreter.
With KERNREC_UPDATE_EXPECTED=1, tests record their results instead of comparing them."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.ptx import Counts

FILE = Path(__file__).parent / "expected.json"


@cache
def table() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return recorded


def check(case: str, seen: Any) -> None:
    if os.environ.get("KERNREC_UPDATE_EXPECTED"):
        table()[case] = seen
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(table().items()))
        FILE.write_text("{\n" + text + "\n}\n", encoding="utf-8")
    assert seen == table().get(case), case


def digest(*parts: Any) -> str:
    """Return a hash of arrays, counts and texts, as 12 hexadecimal digits."""
    made = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            made.update(np.ascontiguousarray(part).tobytes())
        else:
            made.update(json.dumps(dict(sorted(part.items())) if isinstance(part, Counts) else part).encode())
    return made.hexdigest()[:12]


def one_nan(kind: str, bits: np.ndarray) -> np.ndarray:
    if "bf16" in kind:
        halves = bits.view("u2")
        return np.where(halves & np.uint16(0x7FFF) > 0x7F80, np.uint16(0x7FFF), halves)
    if "f" not in kind or kind == "tf32":
        return bits
    numbers = bits.view("f2" if "16" in kind else "f8" if kind == "f64" else "f4")
    return np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)
