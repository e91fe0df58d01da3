"""How long a static profile takes: compilation, and emulation with counting, per variant, on one core.

    python tools/bench_profile.py [--variants 20]

Nothing comes from the compile cache. Exits 1 when emulation takes 1 s or more for a variant.
"""

import argparse
import random
import statistics
import sys
import time

from kernrec.compile import CompileCache, compile_source
from kernrec.kernel import all_kernels
from kernrec.profile.probe_profile import profile_variant
from kernrec.profile.profile_library import variants_of

SM = 86
AIM_S = 1.0


def main() -> int:
    """Prints median and maximum for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variants", type=int, default=20, help="variants per kernel")
    count = parser.parse_args().variants
    slowest = 0.0
    for kernel in all_kernels():
        variants = variants_of(kernel, [SM])
        compiling, emulating = [], []
        for variant in random.Random(kernel.name).sample(variants, min(count, len(variants))):
            configs = variant.configs[SM]
            defines = kernel.defines(configs[0], variant.dtype, variant.layout)
            start = time.perf_counter()
            compiled = compile_source(kernel.source, SM, defines, cache=CompileCache(None))
            compiling.append(time.perf_counter() - start)
            start = time.perf_counter()
            profile_variant(kernel, configs, variant.dtype, variant.layout, SM, compiled)
            emulating.append(time.perf_counter() - start)
        slowest = max(slowest, *emulating)
        print(
            f"{kernel.name}: {len(emulating)} of {len(variants)} variants on sm_{SM}: compile median"
            f" {statistics.median(compiling):.2f} s, max {max(compiling):.2f} s; emulate and fit median"
            f" {statistics.median(emulating):.2f} s, max {max(emulating):.2f} s"
        )
    return 0 if slowest < AIM_S else 1


if __name__ == "__main__":
    sys.exit(main())
