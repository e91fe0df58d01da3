"""How long answers for whole networks take: `kernrec compare` cold and warm, many shapes at once and one by one.

    python tools/bench_networks.py [--gpus h200,l40s,rtx4090,a100] [--workload llama-3-8b-decode] [--shapes 1000]

Cold is a new process (with its caches on disk as they are); warm a second comparison in one process, for another
network of the same ops that was not asked before. Times are of the processor, which a busy machine changes little.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from kernrec.gpu import find_gpu
from kernrec.op.workload import Workload, workload
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.compare_gpus import compare_gpus, find_gpus
from kernrec.recommender.many import answer_many
from kernrec.recommender.network import NetworkRequest


def main() -> None:
    """Prints a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="h200,l40s,rtx4090,a100")
    parser.add_argument("--workload", default="llama-3-8b-decode")
    parser.add_argument("--shapes", type=int, default=1000)
    options = parser.parse_args()
    command = [sys.executable, "-m", "kernrec", "compare", "--workload", options.workload, "--gpu", options.gpus]
    cold = sorted(_of_child(command) for _ in range(5))[2]
    print(f"compare, cold: {cold:.2f} s of processor time, a new process (median of 5)")
    recommender, gpus = Recommender([]), find_gpus(options.gpus)
    network = workload(options.workload)

    def ask(shown: Workload) -> Callable[[], object]:
        return lambda: compare_gpus(recommender, gpus, NetworkRequest(shown), Query(Objective.LATENCY))

    ask(network)()
    warm = sorted(_timed(ask(_other(network, number)))[0] for number in range(1, 6))[2]
    print(f"compare, warm: {warm * 1e3:.0f} ms for {len(network.layers)} new layers on {len(gpus)} GPUs (median of 5)")
    _many(recommender, options.shapes)
    same = sorted(_timed(ask(network))[0] for _ in range(5))[2]
    print(f"compare, again: {same * 1e3:.1f} ms for the same layers")


def _many(recommender: Recommender, count: int) -> None:
    """Many shapes at once against one by one, which is timed on a tenth of them."""
    draw, card = random.Random(1), find_gpu("h200")
    dims = {name: [64 * draw.randrange(1, 65) for _ in range(count)] for name in "mnk"}
    few = {name: values[:2] for name, values in dims.items()}
    for objective in (Objective.LATENCY, Objective.ENERGY):
        query = Query(objective, top=1)
        answer_many(recommender, "matmul", "h200", few, query, dtype="f16", layout="nt")
        start = time.process_time()
        answers = answer_many(recommender, "matmul", "h200", dims, query, dtype="f16", layout="nt")
        together = time.process_time() - start
        some = answers.problems[2 : 2 + count // 10]
        start = time.process_time()
        for problem in some:
            recommender.answer_problem(problem, card, query)
        alone = (time.process_time() - start) / len(some) * count
        print(
            f"{count} shapes of matmul, objective {objective}: {together:.2f} s at once, {alone:.2f} s one by one,"
            f" {alone / together:.1f} times as quick"
        )


def _other(network: Workload, number: int) -> Workload:
    """A network of the same ops whose shapes were not asked before: every first dimension is a little larger."""
    layers = []
    for layer in network.layers:
        op, dims = layer.problem.definition, dict(layer.problem.dim)
        grown = "keys" if "keys" in dims else next(iter(dims))
        dims[grown] += 8 * number
        layers.append(replace(layer, problem=op.problem(layer.problem.dtype, layer.problem.layout, **dims)))
    return replace(network, layers=tuple(layers))


def _timed(call: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def _of_child(command: list[str]) -> float:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    return used() - before


if __name__ == "__main__":
    main()
