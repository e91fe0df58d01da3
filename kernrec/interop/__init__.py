"""Other tuners' files, in and out: results in T4 and Kernel Tuner's caches, kernels in T1.

`read_results` reads any results, `measurement_rows` makes rows of the database of what it read, `write_t4` gives rows
back to other tools; `load_spec` makes a kernel of a T1 description (or of our own). What others wrote is taken for what
it is: data that may be wrong, cut short or hostile.
"""

from kernrec.interop.foreign import Result, Results, external_hash, measurement_rows
from kernrec.interop.read import read_results
from kernrec.interop.specs import load_spec
from kernrec.interop.t4 import write_t4

__all__ = ["Result", "Results", "external_hash", "load_spec", "measurement_rows", "read_results", "write_t4"]
