"""Plans in the user's cache: a second process reads one instead of costing hundreds of shapes again.

A plan is stored with a hash of all its inputs: the request, the files of the package and of the shipped database, the
user's databases and models, and whether Triton is installed. One that does not match is made anew.
"""

import json
from hashlib import sha256
from importlib.util import find_spec
from os import scandir, stat_result
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import find_kernel
from kernrec.recommender import Query, Recommender
from kernrec.run.plan import Plan, PlanRow, Variant, make_plan
from kernrec.run.shapes import Shapes
from kernrec.util.cache import CacheEntry, cached


def cached_plan(recommender: Recommender, shapes: Shapes, gpu: GPU, query: Query) -> Plan:
    """The plan of `make_plan`, with the same arguments and errors; from the cache where it was made before."""
    request = json.dumps(
        [
            [shapes.op.name, shapes.dtype, shapes.layout, dict(shapes.fixed)],
            [[name, _values(values)] for name, values in shapes.ranged.items()],
            [gpu.name, repr(query)],
        ]
    )
    context = recommender.context
    made_of = [
        request,
        _shipped_files(),
        context.stack.files(),
        context.models.files(),
        find_spec("triton") is not None,
    ]
    name = f"plan.{shapes.op.name}.{sha256(request.encode()).hexdigest()[:16]}"
    made: list[Plan] = []

    def make() -> CacheEntry:
        made.append(make_plan(recommender, shapes, gpu, query))
        return {"aligned": made[0].aligned, "rows": [_as_facts(row) for row in made[0].rows]}, {}

    facts, _ = cached(name, json.dumps(made_of).encode(), make)
    if made:
        return made[0]
    try:
        rows = tuple(_from_facts(row) for row in facts["rows"])
        return Plan(shapes, gpu, query, tuple(facts["aligned"]), rows)
    except (KeyError, TypeError, ValueError, KernrecError):  # written by another version, or damaged
        return make_plan(recommender, shapes, gpu, query)


def _as_facts(row: PlanRow) -> dict[str, Any]:
    return row.as_dict() | {"kernel_hash": row.variant.kernel.hash}


def _from_facts(facts: dict[str, Any]) -> PlanRow:
    kernel = find_kernel(facts["kernel"])
    if kernel.hash != facts["kernel_hash"]:
        raise ValueError("another version of the kernel")
    first, last = facts["latency_s"]
    variant = Variant(kernel, kernel.config(facts["config"]))
    return PlanRow(facts["low"], facts["high"], facts["multiple_of"], variant, (first, last), facts["excess"])


def _values(values: Any) -> Any:
    return repr(values) if isinstance(values, range) else list(values)


def _shipped_files() -> str:
    """A hash of path, modification time and size of each file that ships: a checkout changes without its version."""
    digest = sha256()
    for folder in (Path(__file__).parents[1], paths.shipped("db/prebuilt")):
        for path, seen in _files(str(folder)):
            digest.update(f"{path} {seen.st_mtime_ns} {seen.st_size}\n".encode())
    return digest.hexdigest()


def _files(folder: str) -> list[tuple[str, stat_result]]:
    listed: list[tuple[str, stat_result]] = []
    for entry in sorted(scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            listed += _files(entry.path) if entry.name != "__pycache__" else []
        else:
            listed.append((entry.path, entry.stat()))
    return listed
