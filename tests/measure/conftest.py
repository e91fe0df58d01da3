"""Lets the tests of measuring import what they share (rig.py); so do the processes that they start and kill."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
