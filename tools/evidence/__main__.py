"""Compare with recordings: `python tools/evidence NAME [--data FOLDER] ...`. Without a name, list the experiments.

An experiment reports each missing recording in one line, and continues with the others.
"""

import os
import sys
from pathlib import Path

# Set one thread: matrices are so small that a second thread mostly waits, and fitting power would take five times the
# processor time. NumPy reads this variable on import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOOLS = Path(__file__).resolve().parents[1]
# The modules of this folder would hide packages of the same name.
sys.path[:1] = [str(TOOLS), str(TOOLS.parent)]

from front import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("evidence.experiments"))
