"""Check and analyze kernel sources in a separate process, because a source may be wrong, never end, or be hostile.

child_process.py   starts the process with limits (time, memory, visible files) and reports its outcome in one line
worker.py          main program of the process: compiles, emulates, analyzes
reference.py       expected outputs, as NumPy expressions
check.py           `kernrec.check`: checks results, memory accesses and races
check_launch.py    `kernrec check`: checks the launches of a program
findings.py        findings with source line, thread, buffer and usual fix
analyze_source.py  `kernrec.analyze` for CUDA C++ or PTX: bottleneck, better blocks and power limits
"""
