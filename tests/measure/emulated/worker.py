"""Measuring process on the emulated driver. A file holds the code that its parent compiled."""

import json
import os
from pathlib import Path

from device import use_emulated_device

from kernrec.measure.worker.worker import main

use_emulated_device(json.loads(Path(os.environ["EMULATED_PTX"]).read_text()))
main()
