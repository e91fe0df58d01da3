"""List the configs of a kernel that were already measured, in random order."""

import json
from pathlib import Path
from random import Random

from kernrec.errors import UsageError
from kernrec.kernel import Config, Kernel
from kernrec.op import Problem
from kernrec.store import Database
from kernrec.util.human import counted


def recorded_configs(database: Path, kernel: Kernel, problem: Problem) -> list[Config]:
    """Return the configs of a kernel with rows about a problem, on any GPU, in random but reproducible order.

    Raises:
        UsageError: the file is not a database, or has no such rows. The message describes similar rows.
    """
    with Database.open(database) as opened:
        problems = {row["problem_id"]: str(row["key"]) for row in opened.rows("problem")}
        tunables = {row["config_id"]: str(row["tunables"]) for row in opened.rows("config")}
        rows = opened.rows("unretracted_rows", kernel=kernel.name)
    same = [row for row in rows if row["kernel_hash"] == kernel.hash]
    texts = sorted({tunables[row["config_id"]] for row in same if problems[row["problem_id"]] == problem.key})
    if not texts:
        elsewhere = sorted({problems[row["problem_id"]] for row in same})
        reason = f"has no rows of kernel {kernel.name}"
        if elsewhere:
            reason = f"has rows of {kernel.name} on {', '.join(elsewhere[:3])}, not on {problem.key}"
        elif rows:
            reason = f"has {counted(len(rows), 'row')} of another source or spec of {kernel.name}, none of this one"
        raise UsageError(f"--effort recorded: {database} {reason}")
    Random(0).shuffle(texts)
    return [json.loads(text) for text in texts]
