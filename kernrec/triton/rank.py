"""Rank the configs of a Triton launch in a separate process.

The process neither inherits the user's CUDA context nor runs the user's `__main__`. It reads a JSON object from
standard input and writes a JSON object to standard output.
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
"""Value of KERNREC_TRITON in the ranking process, where kernel launches are errors."""


@dataclass(frozen=True)
class Ranking:
    """Configs of a kernel, best first."""

    configs: tuple[dict[str, int], ...]
    costs: tuple[dict[str, float], ...]
    """Predicted `latency_s` and `energy_j` of each config, in the order of `configs`."""
    failures: tuple[str, ...]
    """Config, source line and reason of each failure, as a line of text."""


def ranked(kernel: Kernel, folder: Path, gpu: GPU, objective: Objective) -> Ranking:
    """Rank all configs of a kernel whose source file is in `folder`.

    Raises:
        UsageError: The kernel's arguments are invalid.
        KernrecError: No config could be compiled and profiled. The message gives the reason for the first config.
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
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "KERNREC_TRITON": LOADING}


def rank(request: Mapping[str, Any]) -> dict[str, Any]:
    """Rank the configs of the kernel in a JSON request. Return the fields of `Ranking` as JSON."""
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
    recommendations = analysis.answer.recommendations
    return {
        "configs": [
            {name: int(value) for name, value in recommendation.config.items()} for recommendation in recommendations
        ],
        "costs": [
            {"latency_s": float(c.latency_s.value), "energy_j": float(c.energy_j.value)} for c in recommendations
        ],
        "failures": [f"{config_text(failure.config)}: {failure.message}" for failure in analysis.failed],
    }


def main() -> int:
    """Read a request from standard input, print the ranking, and return the exit status."""
    request = json.loads(sys.stdin.read())
    try:
        answer = rank(request)
    except KernrecError as error:
        answer = {"refused": str(error), "misuse": isinstance(error, UsageError)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
