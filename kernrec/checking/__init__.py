"""A kernel's source checked and analyzed in a process of its own: it may be wrong, endless, or hostile.

limits.py          time and memory of such a process, and the files that it sees
apart.py           the process: started, waited for, killed, and how it ended in one line
arrays.py          arrays on their way to it and back
worker.py          its program: compiling, emulating, analyzing
reference.py       expected outputs, as expressions of NumPy
launch.py          a source with the launch that is checked
check.py           `kernrec.check`: is the result right, within bounds and without races
analyze_source.py  `kernrec.analyze` of CUDA C++ or PTX: its bottleneck, and better blocks and power limits
"""
