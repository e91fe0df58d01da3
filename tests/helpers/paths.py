"""Paths of the checkout, its tools and the recordings of real GPUs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
RECORDINGS = ROOT.parent / "shared" / "data"
"""Folder of measurements of real GPUs, for developers and CI. Tests are skipped if a file is missing."""
SPACES = RECORDINGS / "spaces"


def beside(test: str, name: str, folder: str = "sources") -> str:
    return (Path(test).parent / folder / name).read_text(encoding="utf-8")
