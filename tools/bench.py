"""Measure kernrec's time and memory: `python tools/bench.py NAME ...`. Without a name, list all benchmarks.

Times are processor times. A command exits with status 1 if a result misses its aim.
"""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads the variable during its import.

from front import main

if __name__ == "__main__":
    sys.exit(main("benchmarks"))
