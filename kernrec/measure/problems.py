"""Find the problems that a user names for a campaign, and plan their measurements on a GPU model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import kernels_for
from kernrec.measure.campaign.plan import PlannedProblem, plan_library, plan_recordings
from kernrec.measure.device.replay import Recording, load_requested
from kernrec.measure.request import CollectRequest, Strategy, WantedProblem
from kernrec.op import Problem, all_ops, find_op
from kernrec.op.workload import Layer
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.networks.layers import NetworkRequest, in_best_layouts, layers_of, shapes_as_network
from kernrec.recommender.recommender import Recommender
from kernrec.store import Stack


def select_layers(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> list[Layer] | None:
    """Return the layers that a user names on the command line, each problem once. Return None if there are no names.

    Args:
        op: Name or alias of an op. If it is None or `all`, select every op that some kernel computes.
        shape: Dimensions of one problem, such as `m=4096,n=4096,k=4096`, or None for the layers of a workload.
        workload: Name or file of a workload, by default the standard workload of each op.
        dtype: Data type, by default that of the op or the layer.
        layout: Tensor layout, by default the layout that recommendations use on the GPU (`layers_on`).

    Raises:
        UsageError: A name is unknown, or no layer is left.
    """
    if op is None and workload is None and shape is None:
        return None
    every_op = op is None or op == "all"
    if shape:
        if every_op:
            raise UsageError("--shape needs --op, which defines the dimensions")
        (layer,) = shapes_as_network(str(op), [shape], dtype, layout).layers
        return [replace(layer, name=layer.problem.key)]
    if workload:
        wanted = [NetworkRequest(workload, None if every_op else op, dtype, layout)]
    else:
        ops = [each for each in all_ops() if kernels_for(each.name, dtype, layout)] if every_op else [find_op(str(op))]
        wanted = [NetworkRequest(None, each.name, dtype, layout) for each in ops]
    layers: dict[Problem, Layer] = {}
    for request in wanted:
        for layer in layers_of(request)[1]:
            problem = layer.problem
            # If the user named all ops, skip layers that no kernel computes. If the user named one op, report the
            # missing kernel later.
            if not every_op or kernels_for(problem.op, problem.dtype, None if layer.layout_free else problem.layout):
                before = layers.get(problem)
                layers[problem] = layer if before is None else replace(before, count=before.count + layer.count)
    if not layers:
        source = f"workload {workload}" if workload else "the standard workloads"
        unfit = "is computed by a kernel of kernrec" if every_op else f"has the op {op}"
        raise UsageError(f"no layer in {source} {unfit}")
    return list(layers.values())


def layers_on(wanted: Sequence[Layer | WantedProblem], gpu: GPU, database: Path) -> list[WantedProblem]:
    """Return the wanted problems. If the user named no layout, use the layout of recommendations for the GPU."""
    free = [each for each in wanted if isinstance(each, Layer) and each.layout_free]
    moved = {}
    if free:
        layers, _ = in_best_layouts(Recommender([database] if database.exists() else []).on(gpu), free)
        moved = {layer.problem: other.problem for layer, other in zip(free, layers, strict=True)}
    return [_wanted(each, moved.get(each.problem, each.problem)) for each in wanted]


def recordings_on(gpu: str, request: CollectRequest) -> list[tuple[WantedProblem, Recording]]:
    """Return (problem, recording) for each requested problem that was recorded on a GPU. If the request names no
    problems, return all recorded problems. Raise `UsageError` if none of the requested problems was recorded."""
    assert request.recording is not None
    keys = {key: each for each in request.wanted for key in _recorded_keys(each)}
    recordings = {each.problem.key: each for each in load_requested(request.recording, gpu, keys or None)}
    if not keys:
        return [(WantedProblem(key, each.problem), each) for key, each in recordings.items()]
    return [
        (_wanted(each, recordings[key].problem), recordings[key]) for key, each in keys.items() if key in recordings
    ]


def planned_on(gpu: str, request: CollectRequest) -> list[PlannedProblem]:
    """Plan the measurements of the requested problems on a GPU model. Raise `UsageError` if no config can run a
    problem, or a recording has none of the problems."""
    most = request.effort.configs if request.strategy is Strategy.ALL else None
    if request.recording is not None:
        recorded = [(each.name, recording) for each, recording in recordings_on(gpu, request)]
        return plan_recordings(recorded, most, request.seed)
    entry, effort = find_gpu(gpu), request.effort
    problems = [(each.name, each.problem) for each in layers_on(request.wanted, entry, request.database)]
    context = context_of(request, with_rows=request.kernel is not None)
    return plan_library(problems, entry, context, most, drawn=effort.drawn, seed=request.seed, kernel=request.kernel)


def context_of(request: CollectRequest, with_rows: bool) -> Context:
    """Return a context for predictions with the shipped profiles and the models beside the database. If `with_rows` is
    true, add the measurements in the database."""
    stored = [request.database] if with_rows and request.database.exists() else []
    models = ModelStore(request.database.parent / "models", Stack(stored))
    return Context(stored, models=models, triton=False)  # Devices measure only CUDA kernels.


def _wanted(wanted: Layer | WantedProblem, problem: Problem) -> WantedProblem:
    return WantedProblem(problem.key if wanted.name == wanted.problem.key else wanted.name, problem, wanted.count)


def _recorded_keys(wanted: Layer | WantedProblem) -> list[str]:
    problem = wanted.problem
    layouts = problem.definition.layouts if wanted.layout_free else ()
    bare = problem.key.removesuffix(problem.layout)
    return list(dict.fromkeys([problem.key, *(bare + layout for layout in layouts)]))
