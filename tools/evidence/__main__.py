"""Compare kernrec with recordings: `python tools/evidence NAME [--data FOLDER] ...`. No name lists the experiments."""

import os
import sys
from pathlib import Path

# Use one thread: with such small matrices, a second thread mostly waits, and fitting the power model would take five
# times the processor time. NumPy reads this variable on import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOOLS = Path(__file__).resolve().parents[1]
# Remove this folder from the path, because modules in this folder would hide packages of the same name.
sys.path[:1] = [str(TOOLS), str(TOOLS.parent)]

from front import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("evidence.experiments"))
