"""`python tools/bench.py NAME ...`: how long kernrec takes, and how much memory. Without a name all are listed.

Times are of the processor where others use the machine too; a command exits with status 1 where it misses an aim.
"""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it when it is imported

from front import main

if __name__ == "__main__":
    sys.exit(main("benchmarks"))
