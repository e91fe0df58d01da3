"""Other tuners' results, in and out: T4 files and Kernel Tuner's caches.

`read_results` reads any of them, `measurement_rows` makes rows of the database of what it read, `write_t4` gives rows
back to other tools. What others wrote is taken for what it is: data that may be wrong, cut short or hostile.
"""

from kernrec.interop.foreign import Result, Results, external_hash, measurement_rows
from kernrec.interop.read import read_results
from kernrec.interop.t4 import write_t4

__all__ = ["Result", "Results", "external_hash", "measurement_rows", "read_results", "write_t4"]
