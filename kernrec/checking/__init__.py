"""Check and analyze kernel sources in a separate process, because a source may be wrong, endless or hostile.

limits.py          limits the process: time, memory and visible files
apart.py           starts the process, waits for it or kills it, and reports its outcome in one line
arrays.py          transfers arrays to the process and back
worker.py          main program of the process: compiles, emulates, analyzes
reference.py       expected outputs, as NumPy expressions
launch.py          source with the launch to check
check.py           `kernrec.check`: checks results, memory accesses and races
analyze_source.py  `kernrec.analyze` for CUDA C++ or PTX: bottleneck, better blocks and power limits
"""
