"""Replace `triton.autotune` by a decorator that ranks all configs and measures only the best few.

>>> @kernrec.triton.autotune(configs=[...], key=["M", "N", "K"])
... @triton.jit
... def matmul(...): ...

The first launch with a new tuning key ranks all configs in a separate process, measures the best `top_k` on the GPU,
and stores the results in the user's database. Later processes measure nothing. With KERNREC_TRITON=offline, kernrec
never measures and uses the top recommendation.

`capture` writes every launch of a program to a folder of call files. It does not need a GPU.
"""

from kernrec.triton.calls.hooks import capture as capture
from kernrec.triton.decorators import autotune as autotune
from kernrec.triton.decorators import prune as prune


def __getattr__(name: str) -> object:
    if name == "record":
        raise AttributeError(
            "kernrec.triton.record was removed: set TRITON_CACHE_AUTOTUNING=1, and import the files that Triton writes"
            " (kernrec db import)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
