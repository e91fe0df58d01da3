"""The problems that a user names to measure: one shape of an op, or the layers of a workload."""

from kernrec.errors import UsageError
from kernrec.interop.workload_files import find_workload
from kernrec.kernel import kernels_for
from kernrec.op import Op, Problem, all_ops, find_op, problem_from_shape
from kernrec.op.workload import default_workload


def select_problems(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> list[tuple[str, Problem]] | None:
    """The problems for what a user named.

    Args:
        op: name or alias of an op; None or `all`: every op that some kernel computes.
        shape: dimensions, `m=4096,n=4096,k=4096`; None: the layers of a workload.
        workload: name of a workload or a file of one; None: the standard workload of each op.
        dtype: data type; None: the default of the op or the layer.
        layout: tensor layout; None: the default of the op or the layer.

    Returns:
        (name of the layer or key, problem) pairs without repetition; None if no op, shape or workload was named.

    Raises:
        UsageError: for an unknown name, and if no problem is left.
    """
    if op is None and workload is None and shape is None:
        return None
    every_op = op is None or op == "all"
    if shape:
        if every_op:
            raise UsageError("--shape needs --op: the dimensions are an op's")
        problem = problem_from_shape(str(op), shape, dtype, layout)
        return [(problem.key, problem)]
    chosen = find_workload(workload) if workload else None
    problems: dict[str, tuple[str, Problem]] = {}
    for definition in all_ops() if every_op else [find_op(str(op))]:
        # Ops without a kernel are skipped if all were named; a single one gets its error later.
        if every_op and not kernels_for(definition.name, dtype, layout):
            continue
        for layer in (chosen or default_workload(definition)).layers_of(definition, dtype, layout):
            problems.setdefault(layer.problem.key, (layer.name, layer.problem))
    if not problems:
        source = f"workload {chosen.name}" if chosen else "the standard workloads"
        raise UsageError(f"no layer of {source} is {'one that a kernel here computes' if every_op else f'of op {op}'}")
    return list(problems.values())


def select_counted(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> list[tuple[str, Problem, float]]:
    """(name, problem, how often the workload has it) of what a user named; arguments and errors as `select_problems`.

    A workload may be a file. Layers that no kernel here computes are left out; where nothing is named there is nothing.
    """
    if shape or (op is None and workload is None):
        return [(name, problem, 1.0) for name, problem in select_problems(op, shape, workload, dtype, layout) or []]
    chosen = find_workload(workload) if workload else None
    ops = chosen.ops if chosen and op in (None, "all") else [op] if op not in (None, "all") else all_ops()
    counts: dict[Problem, tuple[str, float]] = {}
    for definition in (each if isinstance(each, Op) else find_op(str(each)) for each in ops):
        if kernels_for(definition.name, dtype, layout):
            for layer in (chosen or default_workload(definition)).layers_of(definition, dtype, layout):
                name, before = counts.get(layer.problem, (layer.name, 0.0))
                counts[layer.problem] = name, before + layer.count
    if not counts:
        source = f"workload {chosen.name}" if chosen else "the standard workloads"
        raise UsageError(f"no layer of {source} is {'of op ' + str(op) if op else 'one that a kernel here computes'}")
    return [(name, problem, count) for problem, (name, count) in counts.items()]
