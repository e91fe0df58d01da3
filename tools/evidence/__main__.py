"""`python tools/evidence NAME [--data FOLDER] ...`: compare with recordings; without a name, list the experiments.

An experiment reports in one line which recording is absent, and does the rest.
"""

import os
import sys
from pathlib import Path

# Matrices are so small that a second thread would mostly wait: a fit of power takes five times the processor time with
# two. NumPy reads this variable when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.parent)]  # in place of this folder, whose modules have names of packages

from front import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("evidence.experiments"))
