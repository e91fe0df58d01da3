"""Check that random answers obey physical laws, or that larger batches are never faster.

    python -m tests.helpers.check_laws --questions 500 --seeds 1,2,3
    python -m tests.helpers.check_laws --batches 1-64 --gpu h100,b200 --dtype bf16,f8e4m3 [--workload vgg16] [--whole]

The output lists each broken law and their number; the exit status is 1 if a law is broken. By default, only
baselines are checked, which takes seconds per GPU. With --whole, whole answers are checked, which takes minutes.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import chain

from kernrec.errors import KernrecError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.op.workload import workloads
from kernrec.recommender import Recommender
from tests.helpers.batches import baselines_faster_with_more, faster_with_more
from tests.helpers.physics import answered


def _physics(count: int, seed: int) -> Iterator[str]:
    questions = 0
    for question, laws in answered(Recommender([]), count, seed):
        questions += 1
        yield from (f"{question}: {law}" for law in laws)
    print(f"seed {seed}: {questions} of {count} questions have an answer", flush=True)


def _batches(gpus: list[str], names: list[str], dtypes: list[str | None], batches: range, whole: bool) -> Iterator[str]:
    check = faster_with_more if whole else baselines_faster_with_more
    for gpu in gpus:
        for name in names:
            for dtype in dtypes:
                try:
                    yield from check(Recommender([]), find_gpu(gpu), name, batches, dtype)
                except KernrecError as error:
                    print(f"{gpu}, {name}, {dtype}: {error}", flush=True)


def main() -> int:
    """Run the checks that the command line selects; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=0)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--batches", default="1-64")
    parser.add_argument("--gpu", default=",".join(gpu.name for gpu in all_gpus()))
    parser.add_argument("--workload", default=",".join(workloads()))
    parser.add_argument("--dtype", default="")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if options.questions:
        broken: Iterator[str] = chain.from_iterable(
            _physics(options.questions, int(seed)) for seed in options.seeds.split(",")
        )
    else:
        first, last = options.batches.split("-")
        dtypes = [name or None for name in options.dtype.split(",")]
        some = range(int(first), int(last) + 1)
        broken = _batches(options.gpu.split(","), options.workload.split(","), dtypes, some, options.whole)
    count = 0
    for law in broken:
        count += 1
        print(law, flush=True)
    print(f"{count} broken")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
