"""Other tuners' files: T4 results and Kernel Tuner's caches, in and out, and T1 descriptions of kernels (t1.py).

`read_results` reads any of them, `measurement_rows` makes rows of the database of what it read, `write_t4` gives rows
back to other tools. What others wrote is taken for what it is: data that may be wrong, cut short or hostile.
"""

from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult, ForeignResults, external_hash, measurement_rows
from kernrec.interop.t4 import write_t4

__all__ = ["ForeignResult", "ForeignResults", "external_hash", "measurement_rows", "read_results", "write_t4"]
