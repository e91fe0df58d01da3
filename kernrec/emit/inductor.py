"""Write the best config of a Triton matmul as a lookup table for Inductor, with one entry per shape."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.files import Files
from kernrec.errors import UsageError
from kernrec.interop.triton_results import entry, product_key

if TYPE_CHECKING:
    from kernrec.recommender.result import Answer, Recommendation

KERNEL = "matmul_triton"
"""Kernel of the library with the tunables of Inductor's template."""


def emit(answers: "Sequence[Answer]") -> Files:
    """Return the lookup table. Raises `UsageError` if an answer is not about the library's Triton matmul."""
    table = {}
    for answer in answers:
        recommendation = _recommendation(answer)
        problem = recommendation.problem
        dims = dict(problem.dims)
        config = {tunable.macro: recommendation.config[tunable.name] for tunable in recommendation.kernel.tunables}
        table[product_key(dims, problem.dtype, problem.layout)] = [entry(config, dims["k"], problem.dtype)]
    return {"lookup_table.json": (json.dumps(table, indent=2) + "\n").encode()}


def _recommendation(answer: "Answer") -> "Recommendation":
    """Return the best recommendation that Inductor's template can run."""
    for recommendation in answer.recommendations:
        if recommendation.kernel.name == KERNEL:
            return recommendation
    raise UsageError(f"Inductor's template has the tunables of {KERNEL}: give --kernel {KERNEL} and a --shape")
