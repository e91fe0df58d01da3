"""Baseline model: predict the latency and power of each backend for a problem on a GPU.

Boosted trees correct the lower bound of `kernrec.model.baselines.bound`. They learn log(measured / bound) for latency.
For power, they learn log(measured / power limit), or log(measured / power model) for ops with `PHYSICAL_POWER`. Each
recorded GPU has its own trees. All other GPUs share a few shallow trees, because deep trees would overfit the recorded
GPUs. Predictions by shared trees have the source `transferred`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from kernrec.gpu import GPU, find_gpu
from kernrec.model.analytical.spread import Estimate
from kernrec.model.baselines.backends import AT
from kernrec.model.baselines.bound import BaselinePrediction, rate_of
from kernrec.model.baselines.epilogue import as_recorded, has_epilogue, with_epilogue
from kernrec.model.baselines.features.matmul import is_matvec
from kernrec.model.baselines.recorded_set import RecordedSet, SetModel
from kernrec.model.baselines.timed import Kind, Timed
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Latency = tuple[str, Estimate, float]
"""Name of a backend, its latency, and the part of the latency in seconds that the launch takes."""

_KEPT = 128
"""Maximum number of cached problems: the size of a batch of candidates."""

_GPUS = 128
"""Maximum number of GPUs whose models are cached. The catalog is smaller."""


@dataclass(frozen=True)
class VendorModel:
    """Model of all backends that run one op."""

    op: str
    sets: tuple[SetModel, ...]
    """Recorded sets, in order of preference."""

    _on: dict[GPU, "GpuVendorModel"] = field(default_factory=dict, repr=False, compare=False)

    def on(self, gpu: GPU) -> "GpuVendorModel":
        """Return the cached model for one GPU."""
        if (bound := self._on.get(gpu)) is None:
            if len(self._on) >= _GPUS:
                self._on.clear()
            bound = self._on[gpu] = GpuVendorModel(self.op, self.sets, gpu)
        return bound


class GpuVendorModel:
    """Model of all backends that run one op, on one GPU."""

    def __init__(self, op: str, sets: Sequence[SetModel], gpu: GPU) -> None:
        self.op, self.sets, self.gpu = op, sets, gpu
        self._nearest: dict[tuple[str, str], list[Kind]] = {}
        """Cached results of `_kinds`, keyed by data type and layout."""
        self._timed: OrderedDict[Problem, list[tuple[Timed, int]]] = OrderedDict()
        """For each problem, a cached list of (times of several problems, index of the problem in these times)."""

    def superseded(self, problem: Problem) -> frozenset[str]:
        """Return the old versions of backends that were recorded on the GPU, such as `vLLM@0.14.0`."""
        return frozenset(name for kind in self._kinds(problem) for name in kind.superseded)

    def predict_version(self, problem: Problem, backend: str) -> BaselinePrediction | None:
        """Predict costs with an old backend version, such as `vLLM@0.14.0`. Return None if there are no recordings."""
        plain = as_recorded(problem)
        for kind in self._kinds(plain):
            recorded = kind.chosen.recorded
            if kind.on_gpu and backend in recorded.backends and recorded.is_case(plain.sizes):
                (each,) = Timed.of(kind, (backend,), [plain]).predictions(0)
                latency_s = with_epilogue(each.latency_s, problem, self.gpu)
                return replace(each, backend=backend.partition(AT)[0], latency_s=latency_s)
        return None

    def predict(self, problem: Problem) -> tuple[BaselinePrediction, ...]:
        """Return a prediction for each backend that can run a problem, fastest first."""
        plain = self._timed_form(problem)
        predictions = [each for timed, number in self._timed[plain] for each in timed.predictions(number)]
        predictions.sort(key=lambda each: each.latency_s.value)
        if not has_epilogue(problem):
            return tuple(predictions)
        return tuple(replace(each, latency_s=with_epilogue(each.latency_s, problem, self.gpu)) for each in predictions)

    def fastest(self, problem: Problem) -> list[Latency]:
        """Return the fastest latency from each recorded set. This takes less time than `predict`."""
        plain = self._timed_form(problem)
        latencies = [timed.latency(number) for timed, number in self._timed[plain]]
        if plain is problem:
            return latencies
        return [(name, with_epilogue(latency, problem, self.gpu), launch_s) for name, latency, launch_s in latencies]

    def latencies(self, problem: Problem) -> Iterator[Latency]:
        """Yield the latency of each backend for a problem without bias and activation."""
        for timed, number in self._timed[self._timed_form(problem)]:
            yield from (timed.latency(number, place) for place in range(len(timed.reader.backends)))

    def _timed_form(self, problem: Problem) -> Problem:
        """Cache the times of `as_recorded(problem)`, and return `as_recorded(problem)`."""
        if (plain := as_recorded(problem)) not in self._timed:
            self.time([plain])
        return plain

    def refusals(self, problem: Problem) -> Mapping[str, str]:
        """Return why some backends cannot run a problem, keyed by backend."""
        plain, able = as_recorded(problem), rate_of(self.gpu, problem.dtype)
        kinds = {id(kind.chosen): kind for kind in self._kinds(plain)}
        refused: dict[str, str] = {}
        run: set[str] = set()
        for entry in self.sets:
            recorded = entry.recorded
            if not (recorded.accepts(plain.dtype, plain.layout) and recorded.is_case(plain.sizes)):
                continue
            for backend in kinds[id(entry)].backends_for(plain.sizes) if able else recorded.backends:
                lacking = None if able else f"{self.gpu.title} has no {plain.dtype} arithmetic"
                if (reason := lacking or recorded.misaligned(backend, plain)) is None:
                    run.add(backend)
                else:
                    refused[backend] = reason
        return {backend: reason for backend, reason in refused.items() if backend not in run}

    def time(self, problems: Iterable[Problem]) -> None:
        """Predict and cache the times of several problems. One call for all problems is faster than separate calls.
        The problems must be results of `as_recorded`."""
        times: dict[Problem, list[tuple[Timed, int]]] = {each: [] for each in problems if each not in self._timed}
        together: dict[tuple[Kind, tuple[str, ...]], list[Problem]] = {}
        for problem in times:
            for chosen in self._chosen(problem):
                together.setdefault(chosen, []).append(problem)
        for (kind, backends), alike in together.items():
            timed = Timed.of(kind, backends, alike)
            for number, problem in enumerate(alike):
                times[problem].append((timed, number))
        while times and len(self._timed) > _KEPT:
            self._timed.popitem(last=False)
        self._timed.update(times)

    def _chosen(self, problem: Problem) -> list[tuple[Kind, tuple[str, ...]]]:
        """Return the recorded sets that can predict a problem, and the backends that each set predicts."""
        taken: tuple[str, ...] = ()
        chosen: list[tuple[Kind, tuple[str, ...]]] = []
        sizes = problem.sizes
        # For f32 matmuls with few rows or columns, predictions without recordings are more accurate (module `physics`).
        if self.op == "matmul" and problem.dtype == "f32" and is_matvec(sizes):
            return chosen
        for kind in self._kinds(problem):
            recorded = kind.chosen.recorded
            if not recorded.is_case(sizes):
                continue
            # If an earlier set of recordings covers this GPU, ignore recordings of other GPUs.
            if taken and not kind.on_gpu:
                break
            here = runs = kind.backends_for(sizes)
            if taken or recorded.multiples:
                runs = tuple([s for s in here if s not in taken and not recorded.misaligned(s, problem)])
            if runs:
                chosen.append((kind, runs))
            taken += here
        return chosen

    def _kinds(self, problem: Problem) -> list[Kind]:
        """Return a `Kind` for each recorded set that accepts a data type and layout, best sets first."""
        key = dtype, layout = problem.dtype, problem.layout
        if (kinds := self._nearest.get(key)) is None:
            accepting = [entry for entry in self.sets if entry.recorded.accepts(dtype, layout)]
            # Sets that contain the GPU come first, then sets that contain its architecture, then sets with the most
            # architectures.
            accepting.sort(key=lambda entry: _farness(entry.recorded, self.gpu))
            kinds = [Kind(entry, self.gpu, dtype, layout) for entry in accepting] if rate_of(self.gpu, dtype) else []
            self._nearest[key] = kinds
        return kinds


def _farness(recorded: RecordedSet, gpu: GPU) -> tuple[bool, bool, int]:
    architectures = {find_gpu(name).arch for name in recorded.gpus}
    return gpu.name not in recorded.gpus, gpu.arch not in architectures, -len(architectures)
