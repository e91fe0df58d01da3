"""How long a static profile takes: compilation, and emulation with counting, per variant, on one core.

Nothing comes from the compile cache. Exits 1 when emulation takes 1 s or more for a variant.
"""

import random
from functools import partial

from front import Table

from kernrec.compile import CompileCache, compile_source
from kernrec.kernel import all_kernels
from kernrec.profile.probe_profile import profile_variant
from kernrec.profile.profile_library import variants_of

from .timing import at_rank, spent

SM = 86
AIM_S = 1.0


def run(variants: int = 20) -> int:
    """Print median and maximum of a sample of the variants of each kernel."""
    slowest, table = 0.0, Table(f"on sm_{SM}, s")
    for kernel in all_kernels():
        possible = variants_of(kernel, [SM])
        compiling, emulating = [], []
        for variant in random.Random(kernel.name).sample(possible, min(variants, len(possible))):
            configs = variant.configs[SM]
            defines = kernel.defines(configs[0], variant.dtype, variant.layout)
            compile_it = partial(compile_source, kernel.source, SM, defines, cache=CompileCache(None))
            compiling.append(spent(compile_it))
            compiled = compile_source(kernel.source, SM, defines)
            emulating.append(
                spent(partial(profile_variant, kernel, configs, variant.dtype, variant.layout, SM, compiled))
            )
        worst = max(times.clock for times in emulating)
        slowest = max(slowest, worst)
        times = {
            "compile": at_rank(compiling).clock, "at most": max(each.clock for each in compiling),
            "emulate and fit": at_rank(emulating).clock, "most": worst,
        }  # fmt: skip
        table.row({"kernel": kernel.name, "timed": len(emulating), "variants": len(possible), **times})
    return 0 if slowest < AIM_S else 1
