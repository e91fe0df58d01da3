"""Ranking the configs of a launch in a process of its own, which has neither the user's CUDA context nor `__main__`.

`ranked` starts it: a JSON object on its standard input, another on its standard output.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernrec.compile.triton_process import answer_of
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.recommender.request import Objective
from kernrec.util.human import config_text
from kernrec.util.light_dataclass import dataclass

LOADING = "loading"
"""The value of KERNREC_TRITON in the processes that load the user's file: a launch there is a mistake."""


@dataclass(frozen=True)
class Ranking:
    """The configs of a kernel on its problem, the best first."""

    configs: tuple[dict[str, int], ...]
    costs: tuple[dict[str, float], ...]
    """Of each: predicted `latency_s` and `energy_j`."""
    failures: tuple[str, ...]
    """Why further configs have no place: config, line of the source, reason."""


def ranked(kernel: Kernel, folder: Path, gpu: GPU, objective: Objective) -> Ranking:
    """Ranks all configs of a kernel.

    Args:
        kernel: its spec fixes every argument.
        folder: of its source.
        gpu: the GPU that costs are predicted for.
        objective: what is minimized.

    Raises:
        UsageError: the kernel's arguments cannot be used.
        KernrecError: no config could be compiled and profiled; the message is the reason of the first.
    """
    request = {
        "spec": dict(kernel.spec),
        "source": kernel.source,
        "folder": str(folder),
        "gpu": gpu.name,
        "objective": objective.value,
    }
    answer = answer_of(
        "kernrec.triton.rank",
        json.dumps(request),
        kernel.name,
        work="ranks its configs",
        environment=_environment(),
    )
    if "refused" in answer:
        raise (UsageError if answer["misuse"] else KernrecError)(answer["refused"])
    return Ranking(tuple(answer["configs"]), tuple(answer["costs"]), tuple(answer["failures"]))


def _environment() -> dict[str, str]:
    """That of this process, in which modules are found as they are here."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "KERNREC_TRITON": LOADING}


def rank(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the process that `ranked` starts."""
    from kernrec import paths
    from kernrec.gpu import find_gpu
    from kernrec.kernel.spec_reader import kernel_from
    from kernrec.recommender.analyze.kernel import analyze
    from kernrec.recommender.analyze.profile_configs import ProfilingOptions
    from kernrec.recommender.request import Query

    source = request["spec"]["source"]
    kernel = kernel_from(request["spec"], source, request["source"])
    gpu = find_gpu(request["gpu"])
    count = len(kernel.listed.rows)  # type: ignore[union-attr]
    query = Query(Objective(request["objective"]), power_limit_w=gpu.tdp_w, top=count, each_config=True)
    options = ProfilingOptions(folder=Path(request["folder"]), processes=os.cpu_count() or 1)
    analysis = analyze(kernel, kernel.definition.problem(), gpu, paths.user_database(), query, options)
    choices = analysis.recommendation.choices
    return {
        "configs": [{name: int(value) for name, value in choice.config.items()} for choice in choices],
        "costs": [{"latency_s": float(c.latency_s.value), "energy_j": float(c.energy_j.value)} for c in choices],
        "failures": [f"{config_text(failure.config)}: {failure.message}" for failure in analysis.failures],
    }


def main() -> int:
    """The process that `ranked` starts; the exit status."""
    request = json.loads(sys.stdin.read())
    try:
        answer = rank(request)
    except KernrecError as error:
        answer = {"refused": str(error), "misuse": isinstance(error, UsageError)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
