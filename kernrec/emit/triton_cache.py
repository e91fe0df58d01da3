"""Predictions as Triton's own autotune cache: with TRITON_CACHE_AUTOTUNING=1 Triton takes the best, without measuring.

The files go into Triton's cache folder. They say that they hold predictions; kernrec's drop-in and `db import` take
none of them.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernrec.emit.files import Files
from kernrec.emit.machine_code import source_folder
from kernrec.errors import UsageError
from kernrec.kernel import Kernel
from kernrec.recommender.request import Objective
from kernrec.version import __version__

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def emit(answers: "Sequence[Recommendation]") -> Files:
    """The files of the cache for the choices of one Triton function.

    Raises:
        UsageError: a kernel without an autotuner; an objective that is no time.
    """
    from kernrec.compile.triton_cache import predicted_cache

    (answer,) = answers
    kernel = answer.best.kernel
    if kernel.triton is None or not kernel.declares_problem:
        raise UsageError(f"{kernel.name} is not an analyzed function with @triton.autotune: `kernrec analyze f.py:f`")
    if answer.objective in (Objective.ENERGY, Objective.EDP):
        raise UsageError(f"Triton's cache holds times, and --objective is {answer.objective}: give latency")
    times: dict[tuple[tuple[str, int], ...], list[float]] = {}
    for choice in answer.choices:
        config = tuple((tunable.macro, int(choice.config[tunable.name])) for tunable in kernel.tunables)
        latency = choice.latency_s
        triple = [value * 1e3 for value in (latency.value, latency.low, latency.high)]
        times[config] = min(times.get(config, triple), triple)
    files = predicted_cache(
        {
            "source": kernel.source,
            "name": kernel.source_name,
            "folder": str(source_folder(kernel) or ""),
            "function": kernel.launches[0].entry,
            "sm": answer.gpu.sm,
            "by": f"kernrec {__version__}, for {answer.gpu.name}; nothing was measured",
            "arguments": _arguments(kernel, answer.problem.tensors, dict(answer.problem.dims)),
            "times": [[dict(config), triple] for config, triple in times.items()],
        }
    )
    return {name: text.encode() for name, text in files.items()}


def _arguments(kernel: Kernel, tensors: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of the call by parameter: values, and the types of tensors."""
    assert kernel.triton is not None
    arguments: dict[str, Any] = {}
    for name, text in zip(kernel.triton.parameters, kernel.spec["launch"][0]["arguments"], strict=False):
        kind, _, value = text.partition(" ")
        if not value:
            arguments[name] = {"dtype": tensors[kind].dtype}
        elif value in dims:
            arguments[name] = dims[value]
        else:
            arguments[name] = float(value) if kind.startswith("f") else int(value)
    for name, literal in kernel.spec.get("defines", {}).items():
        arguments[name] = literal if str(literal).startswith("tl.") else ast.literal_eval(str(literal))
    return arguments
