"""Paths of the checkout, its tools and the recordings of real GPUs."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
RECORDINGS = ROOT.parent / "shared" / "data"
"""Folder of measurements of real GPUs, for developers and CI; tests skip if a file they need is missing."""
SPACES = RECORDINGS / "spaces"


def beside(test: str, name: str) -> str:
    """Return the text of a file in the folder `sources` beside a test module."""
    return (Path(test).parent / "sources" / name).read_text(encoding="utf-8")


def cases(test: str, name: str) -> list[Any]:
    """Return the cases of one table in the JSON file beside a test module, `sources/NAME.json` for `test_NAME.py`."""
    return json.loads(beside(test, f"{Path(test).stem.removeprefix('test_')}.json"))[name]
