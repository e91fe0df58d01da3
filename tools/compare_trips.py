"""Hold the counts of long loops of which a few trips were emulated against those of all trips.

    python tools/compare_trips.py --sources FOLDER [--data ../shared/data] [--set expdist] [--configs 4] [--seed 1]

Random configs of a recorded kernel (`tools/recorded_sets.py`) are profiled twice: as `kernrec analyze` does, and with
every trip of every loop. Printed are the processor time of both, the share of the machine instructions that was not
emulated, and each metric that differs by more than 1 %. Exits 1 where the counts of instructions differ by more than
10 %, 2 where the sources or the recording are not there.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from recorded_sets import SETS, load_recorded_kernel, read_rows

from kernrec.compile.cache import CompileCache
from kernrec.compile.nvrtc import compile_job
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel, config_text
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.sample_profile import SAMPLING, ProfileTarget, profile_by_sampling
from kernrec.profile.tensor_values import Tensors

_WORTH_PRINTING = 0.01
_MOST = 0.10


@dataclass(frozen=True)
class Profiled:
    """What was counted of the first launch of a config."""

    counts: Mapping[str, float]
    """By metric, of an average block."""
    seconds: float
    """Of the processor."""


def main() -> int:
    """Compare configs of one kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the repositories of recorded kernels")
    parser.add_argument("--set", default="expdist", choices=[recorded.name for recorded in SETS])
    parser.add_argument("--configs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    recorded = next(known for known in SETS if known.name == arguments.set)
    recording = recorded.recordings[0]
    try:
        kernel = load_recorded_kernel(recorded, arguments.sources)
        rows = read_rows(recording, kernel, arguments.data / "spaces")
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    worst = 0.0
    for config in random.Random(arguments.seed).sample(list(rows.configs), arguments.configs):
        short, full = both(kernel, config, find_gpu(recording.card).sm)
        left_out = short.counts.get("extrapolated", 0.0) / short.counts["issue"]
        print(f"{config_text(config)}: {short.seconds:.1f} of {full.seconds:.1f} s, {left_out:.0%} not emulated")
        for metric, all_trips, some_trips in differences(short.counts, full.counts):
            print(f"    {metric:28} {all_trips:14.5g} {some_trips:14.5g} {some_trips / all_trips - 1:+8.1%}")
        worst = max(worst, abs(short.counts["issue"] / full.counts["issue"] - 1))
    print(f"machine instructions differ by at most {worst:.1%}")
    return int(worst > _MOST)


def both(kernel: Kernel, config: Config, sm: int) -> tuple[Profiled, Profiled]:
    """A config as it is profiled, and with every trip."""
    target = ProfileTarget(kernel.definition.problem(), sm)
    compiled = compile_job(compile_job_for(kernel, config, target.problem, sm), CompileCache.default())
    tensors = Tensors(kernel, target.problem)
    _ = tensors.filled  # made once, before times are taken
    profiled = []
    for extrapolate in (True, False):
        options = replace(SAMPLING, extrapolate=extrapolate)
        begin_s = time.process_time()
        profile = profile_by_sampling(kernel, config, target, compiled, tensors, options)[0].profile
        seconds = time.process_time() - begin_s
        profiled.append(Profiled(dict(zip(profile.metrics, profile.coefficients[:, 0].tolist(), strict=True)), seconds))
    return profiled[0], profiled[1]


def differences(short: Mapping[str, float], full: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """The metrics that differ, with their values of all trips and of some."""
    for metric, value in full.items():
        if value and abs(short.get(metric, 0.0) / value - 1) > _WORTH_PRINTING:
            yield metric, value, short.get(metric, 0.0)


if __name__ == "__main__":
    sys.exit(main())
