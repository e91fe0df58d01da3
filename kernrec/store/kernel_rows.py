"""A kernel and a problem as rows of a database, from which a query makes them again."""

import json
from typing import TYPE_CHECKING

from kernrec.store.database import Database

if TYPE_CHECKING:
    from kernrec.kernel import Kernel
    from kernrec.op import Problem


def remember(database: Database, kernel: "Kernel", problem: "Problem") -> None:
    """Adds a kernel and a problem to a database, from which `Context.kernel` makes them again."""
    row = {
        "name": kernel.name,
        "kernel_hash": kernel.hash,
        "op": kernel.op,
        "spec": json.dumps(kernel.spec),  # not in canonical form: the order of tunables and dimensions counts
        "source": kernel.source,
    }
    database.add("kernel", [row])
    database.add("problem", [problem.as_dict()])
