"""Files of other tuners: T4 results and Kernel Tuner's caches, in and out, and T1 descriptions of kernels (t1.py).

`read_results` reads any file of results, `to_measurements` makes measurements of them, and `write_t4` writes
measurements for other tools. Files of others are untrusted: their data may be wrong, cut short or hostile.
"""

from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult, ForeignResults, external_hash, to_measurements
from kernrec.interop.t4 import write_t4

__all__ = ["ForeignResult", "ForeignResults", "external_hash", "read_results", "to_measurements", "write_t4"]
