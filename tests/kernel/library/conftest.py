"""Makes `trial`, what the tests of the library's kernels share, and `on_gpu` of the tools importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "tools")]
