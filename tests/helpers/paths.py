"""Where the tests find what they read: the checkout, its tools, and recordings of real GPUs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
RECORDINGS = ROOT.parent / "shared" / "data"
"""Measurements of real GPUs, for developers and CI; a test that needs a file of it skips where it is absent."""
SPACES = RECORDINGS / "spaces"
