"""Write the best config of a Triton matmul as a lookup table for Inductor, with one entry per shape."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.files import Files
from kernrec.errors import UsageError
from kernrec.interop.inductor_table import entry, product_key

if TYPE_CHECKING:
    from kernrec.recommender.result import Choice, Recommendation

KERNEL = "matmul_triton"
"""Kernel of the library with the tunables of Inductor's template."""


def emit(answers: "Sequence[Recommendation]") -> Files:
    """Return the lookup table. Raises `UsageError` if an answer is not about the library's Triton matmul."""
    table = {}
    for answer in answers:
        choice = _choice(answer)
        problem = choice.problem
        dims = dict(problem.dims)
        config = {tunable.macro: choice.config[tunable.name] for tunable in choice.kernel.tunables}
        table[product_key(dims, problem.dtype, problem.layout)] = [entry(config, dims["k"], problem.dtype)]
    return {"lookup_table.json": (json.dumps(table, indent=2) + "\n").encode()}


def _choice(answer: "Recommendation") -> "Choice":
    """Return the best recommendation that Inductor's template can run."""
    for choice in answer.choices:
        if choice.kernel.name == KERNEL:
            return choice
    raise UsageError(f"Inductor's template has the tunables of {KERNEL}: give --kernel {KERNEL} and a --shape")
