"""Bind a request to one GPU model, and read what the user's files contain about it."""

from functools import cached_property

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.plan import PlannedProblem, plan_library, plan_recordings
from kernrec.measure.device.replay import Recording, load_recordings
from kernrec.measure.request import CollectRequest, Strategy, WantedProblem
from kernrec.op import Problem
from kernrec.op.workload import Layer
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.networks.layers import in_best_layouts
from kernrec.recommender.recommender import Recommender
from kernrec.store import Stack


class RequestOnGpu:
    """A request for measurements on one GPU model, and what the user's files contain about it."""

    def __init__(self, request: CollectRequest, gpu: str) -> None:
        """Bind a request to a GPU model, given by its name in the GPU catalog."""
        self.request = request
        self.gpu = find_gpu(gpu)
        self._stored = [request.database] if request.database.exists() else []

    @cached_property
    def databases(self) -> Context:
        """Shipped profiles, the measurements in the database, and the models beside the database."""
        models = ModelStore(self.request.database.parent / "models", Stack(self._stored))
        return Context(self._stored, models=models, triton=False)  # Devices measure only CUDA kernels.

    @property
    def problems(self) -> list[WantedProblem]:
        """Requested problems. Problems without a requested layout have the layout that kernrec recommends."""
        wanted = self.request.wanted
        free = [each for each in wanted if isinstance(each, Layer) and each.layout_free]
        moved = {}
        if free:
            layers, _ = in_best_layouts(Recommender(self._stored).on(self.gpu), free)
            moved = {layer.problem: other.problem for layer, other in zip(free, layers, strict=True)}
        return [_named(each, moved.get(each.problem, each.problem)) for each in wanted]

    @cached_property
    def recordings(self) -> list[tuple[WantedProblem, Recording]]:
        """Requested problems that were recorded on the GPU, with their recordings. Return all recordings if no problem
        was requested. Raise `UsageError` if there are none."""
        assert self.request.recording is not None
        keys = {key: each for each in self.request.wanted for key in _recorded_keys(each)}
        by_key = {each.problem.key: each for each in load_recordings(self.request.recording, self.gpu.name)}
        if not keys:
            return [(WantedProblem(key, each.problem), each) for key, each in by_key.items()]
        chosen = [(_named(each, by_key[key].problem), by_key[key]) for key, each in keys.items() if key in by_key]
        if not chosen:
            examples = ", ".join(list(by_key)[:3])
            raise UsageError(f"{self.request.recording} holds none of the requested problems; it holds {examples}")
        return chosen

    def planned(self) -> list[PlannedProblem]:
        """Plan the measurements of the requested problems. Raise `UsageError` if no config can run a problem, or a
        recording has none of the problems."""
        request, effort = self.request, self.request.effort
        most = effort.configs if request.strategy is Strategy.ALL else None
        if request.recording is not None:
            recorded = [(wanted.name, recording) for wanted, recording in self.recordings]
            return plan_recordings(recorded, most, request.seed)
        problems = [(each.name, each.problem) for each in self.problems]
        context = self.databases.on(self.gpu)
        return plan_library(problems, context, most, drawn=effort.drawn, seed=request.seed, kernel=request.kernel)


def _named(wanted: Layer | WantedProblem, problem: Problem) -> WantedProblem:
    return WantedProblem(problem.key if wanted.name == wanted.problem.key else wanted.name, problem, wanted.count)


def _recorded_keys(wanted: Layer | WantedProblem) -> list[str]:
    problem = wanted.problem
    layouts = problem.definition.layouts if isinstance(wanted, Layer) and wanted.layout_free else ()
    bare = problem.key.removesuffix(problem.layout)
    return list(dict.fromkeys([problem.key, *(bare + layout for layout in layouts)]))
