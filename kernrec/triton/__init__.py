"""A drop-in for `triton.autotune`: configs are ranked first, and only the best few are measured, once.

>>> import kernrec.triton
>>> @kernrec.triton.autotune(configs=[...], key=["M", "N", "K"])
... @triton.jit
... def matmul(...): ...

The first launch with a new tuning key ranks all configs (compiled and emulated in a process of its own), measures the
best `top_k` on the GPU and keeps what was measured in the user's database. From then on, in every process, the database
answers. With KERNREC_TRITON=offline nothing is measured and the first choice is taken.

Triton is imported only when a function is decorated.

`record` keeps what a program's own `@triton.autotune` measures; `capture` writes every launch of a program to a folder
of calls, without a GPU (`kernrec.triton.calls`).
"""

from kernrec.triton.calls.hooks import capture as capture
from kernrec.triton.decorators import autotune as autotune
from kernrec.triton.decorators import prune as prune
from kernrec.triton.listener import record as record
