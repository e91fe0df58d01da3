"""Counts of long loops of which a few trips were emulated, beside those of all trips.

Random configs of a recorded kernel are profiled twice: as `kernrec analyze` does, and with every trip of every loop.
Printed are the processor time of both, the share of the machine instructions that was not emulated, and each metric
that differs by more than 1 %. Exits 1 where the counts of instructions differ by more than 10 %.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import replace

from front import DATA, Data, Sources

from kernrec.compile.cache import CompileCache
from kernrec.compile.nvrtc import compile_job
from kernrec.errors import unknown
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel, config_text
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.profile_target import ProfileTarget
from kernrec.profile.sample_profile import SAMPLING, profile_by_sampling
from kernrec.profile.tensor_values import Tensors

from .recorded_sets import SETS, read_rows

_WORTH_PRINTING, _MOST = 0.01, 0.10


def run(data: Data = DATA, sources: Sources = None, set: str = "expdist", configs: int = 4, seed: int = 1) -> int:
    """Compare configs of one kernel."""
    if set not in SETS:
        raise unknown("set", set, SETS)
    recording, kernel = SETS[set].recordings[0], SETS[set].kernel(sources)
    rows, worst = read_rows(recording, kernel, data / "spaces"), 0.0
    for config in random.Random(seed).sample(list(rows.configs), configs):
        (some, some_s), (every, every_s) = counted_twice(kernel, config, find_gpu(recording.card).sm)
        skipped = some.get("extrapolated", 0.0) / some["issue"]
        print(f"{config_text(config)}: {some_s:.1f} of {every_s:.1f} s, {skipped:.0%} not emulated", flush=True)
        for metric, value in every.items():
            if value and abs(some.get(metric, 0.0) / value - 1) > _WORTH_PRINTING:
                short = some.get(metric, 0.0)
                print(f"    {metric:28} {value:14.5g} {short:14.5g} {short / value - 1:+8.1%}")
        worst = max(worst, abs(some["issue"] / every["issue"] - 1))
    print(f"machine instructions differ by at most {worst:.1%}")
    return int(worst > _MOST)


def counted_twice(kernel: Kernel, config: Config, sm: int) -> list[tuple[Mapping[str, float], float]]:
    """Counts of an average block of the first launch, and seconds of the processor: as profiled, with every trip."""
    target = ProfileTarget(kernel.definition.problem(), sm)
    compiled = compile_job(compile_job_for(kernel, config, target.problem, sm), CompileCache.default())
    tensors = Tensors(kernel, target.problem)
    _ = tensors.filled  # made once, before times are taken
    counted: list[tuple[Mapping[str, float], float]] = []
    for extrapolate in (True, False):
        options, begin_s = replace(SAMPLING, extrapolate=extrapolate), time.process_time()
        profile = profile_by_sampling(kernel, config, target, compiled, tensors, options)[0].profile
        counts = dict(zip(profile.metrics, profile.coefficients[:, 0].tolist(), strict=True))
        counted.append((counts, time.process_time() - begin_s))
    return counted
