"""Baseline model: predict the latency and power of each backend for a problem on a GPU.

Boosted trees correct the lower bound of `kernrec.model.baselines.bound`. They learn log(measured / bound) for latency.
For power, they learn log(measured / power limit), or log(measured / power model) for ops with `PHYSICAL_POWER`. Each
recorded GPU has its own trees. All other GPUs share a few shallow trees, because deeper ones would overfit the recorded
GPUs. Predictions by shared trees have the source `transferred`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache

from kernrec.gpu import GPU, find_gpu
from kernrec.model.analytical.spread import Estimate
from kernrec.model.baselines.backends import AT
from kernrec.model.baselines.bound import BaselinePrediction, rate_of
from kernrec.model.baselines.epilogue import as_recorded, has_epilogue, with_epilogue
from kernrec.model.baselines.features.matmul import is_matvec
from kernrec.model.baselines.operating_point import raised, roofs_s
from kernrec.model.baselines.recorded_set import RecordedSet, SetModel
from kernrec.model.baselines.timed import Kind, Timed
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Latency = tuple[str, Estimate, float]
"""Name of a backend, its latency, and the part of the latency, in seconds, that the launch takes."""

_KEPT = 4096
"""Maximum number of predictions that a model caches."""
_KEPT_FEATURES = 256
"""Maximum number of problems whose features are cached until the power is requested."""


@dataclass(frozen=True)
class VendorModel:
    """Model of all backends that run one op."""

    op: str
    sets: tuple[SetModel, ...]
    """Recorded sets, in order of preference. For a problem and backend, the model uses the first set that covers the
    problem and contains the GPU. If no set contains the GPU, the model uses one with another GPU of the same
    architecture, or else the set with the most architectures."""

    _predicted: dict[tuple[Problem, str], tuple[BaselinePrediction, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _timed: dict[tuple[Problem, str], list[tuple[Timed, int]]] = field(default_factory=dict, repr=False, compare=False)
    """Cached times, keyed by problem and name of the GPU. An entry has a pair for each recorded set that predicts the
    problem: (times of several problems that were predicted together, index of this problem)."""
    _accepting: dict[tuple[str, str, str], list[tuple[int, RecordedSet, bool]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Cached results of `_nearest`, keyed by data type, layout and name of the GPU."""

    _kinds: dict[tuple[int, tuple[str, ...], str, str, str], Kind] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Cached `Kind` objects, keyed by index of the set, backends, data type, layout and name of the GPU."""

    def __repr__(self) -> str:
        return f"<VendorModel {self.op}: {', '.join(self.backends)} from {len(self.sets)} recorded sets>"

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the distinct names of all backends, without versions."""
        backends = (backend for entry in self.sets for backend in entry.recorded.backends)
        return tuple(dict.fromkeys(backend.partition(AT)[0] for backend in backends))

    def superseded(self, problem: Problem, gpu: GPU) -> frozenset[str]:
        """Return the backends whose recordings on a GPU belong to a superseded version, such as `vLLM@0.14.0`."""
        sets = (recorded for _, recorded, has_card in self._nearest(problem.dtype, problem.layout, gpu) if has_card)
        return frozenset(
            name for each in sets for name, devices in each.backends.items() if AT in name and gpu.name in devices
        )

    def predict_version(self, problem: Problem, gpu: GPU, backend: str) -> BaselinePrediction | None:
        """Predict a superseded version's costs, or return None if its recordings do not cover the problem and GPU."""
        plain = as_recorded(problem)
        for place, recorded, has_card in self._nearest(plain.dtype, plain.layout, gpu):
            if has_card and backend in recorded.backends and recorded.is_case(plain.sizes):
                (each,) = Timed.of(self._kind(place, (backend,), plain, gpu), [plain]).predictions(0)
                latency_s = with_epilogue(each.latency_s, problem, gpu)
                return replace(each, backend=backend.partition(AT)[0], latency_s=latency_s)
        return None

    def predict(self, problem: Problem, gpu: GPU) -> tuple[BaselinePrediction, ...]:
        """Return a prediction for each backend that can run a problem, fastest first. If a recorded set contains this
        GPU, the set's backends that were only recorded on other GPUs are excluded."""
        self.predict_many([problem], gpu)
        predictions = self._predicted[as_recorded(problem), gpu.name]
        if not has_epilogue(problem):
            return predictions
        return tuple(replace(each, latency_s=with_epilogue(each.latency_s, problem, gpu)) for each in predictions)

    def latencies(self, problem: Problem, gpu: GPU, beside: Sequence[Problem] = ()) -> list[Latency]:
        """Return the latency of each backend that can run a problem. This takes less time than `predict`. Also predict
        the problems in `beside`, and cache them for later calls."""
        plain = as_recorded(problem)
        if (predictions := self._predicted.get((plain, gpu.name))) is not None:
            latencies = [(each.backend, each.latency_s, each.busy["launch"]) for each in predictions]
        else:
            parts = self._parts(plain, gpu, beside)
            latencies = [timed.latency(place, i) for timed, i in parts for place in range(len(timed.kind.backends))]
        return _finished(latencies, problem, gpu)

    def fastest(self, problem: Problem, gpu: GPU, beside: Sequence[Problem] = ()) -> list[Latency]:
        """Return the entries of `latencies` for at least the fastest backend of each recorded set."""
        plain = as_recorded(problem)
        if (plain, gpu.name) in self._predicted:
            return self.latencies(problem, gpu)
        parts = self._parts(plain, gpu, beside)
        return _finished([timed.latency(timed.fastest(number), number) for timed, number in parts], problem, gpu)

    def at_least_roof(self, latency: Estimate, problem: Problem, gpu: GPU) -> Estimate:
        """Raise a latency to the problem's minimum time if it is below. No backend can be faster than the minimum time
        at the GPU's default power limit."""
        (least_s,) = roofs_s([problem], gpu)
        return raised(latency, least_s)

    def refusals(self, problem: Problem, gpu: GPU) -> Mapping[str, str]:
        """Return why backends that were recorded for similar problems cannot run this problem, keyed by backend."""
        refused: dict[str, str] = {}
        run: set[str] = set()
        plain = as_recorded(problem)
        for recorded in (entry.recorded for entry in self.sets if entry.recorded.covers(plain)):
            for backend in recorded.backends_on(gpu, plain):
                if (reason := recorded.refusal(backend, plain, gpu)) is None:
                    run.add(backend)
                else:
                    refused[backend] = reason
        return {backend: reason for backend, reason in refused.items() if backend not in run}

    def predict_many(self, problems: Sequence[Problem], gpu: GPU) -> None:
        """Predict several problems in little more time than one, and cache the results for `predict`."""
        if len(self._predicted) > _KEPT:
            self._predicted.clear()
        plain = dict.fromkeys(map(as_recorded, problems))
        new = [problem for problem in plain if (problem, gpu.name) not in self._predicted]
        for problem, parts in zip(new, self._time(new, gpu), strict=True):
            del self._timed[problem, gpu.name]
            predictions = [each for timed, number in parts for each in timed.predictions(number)]
            self._predicted[problem, gpu.name] = tuple(sorted(predictions, key=lambda each: each.latency_s.value))

    def _parts(self, problem: Problem, gpu: GPU, beside: Sequence[Problem]) -> list[tuple[Timed, int]]:
        if (parts := self._timed.get((problem, gpu.name))) is None:
            self._time([problem, *map(as_recorded, beside)], gpu)
            parts = self._timed[problem, gpu.name]
        return parts

    def _time(self, problems: Sequence[Problem], gpu: GPU) -> list[list[tuple[Timed, int]]]:
        """Return the entry of `_timed` for each problem, and compute missing entries."""
        if len(self._timed) > _KEPT_FEATURES:
            self._timed.clear()
        together: dict[Kind, list[tuple[Problem, list[tuple[Timed, int]]]]] = {}
        every = []
        for problem in problems:
            if (parts := self._timed.get(key := (problem, gpu.name))) is None:
                parts = self._timed[key] = []
                for kind in self._chosen(problem, gpu):
                    together.setdefault(kind, []).append((problem, parts))
            every.append(parts)
        for kind, alike in together.items():
            timed = Timed.of(kind, [problem for problem, _ in alike])
            for number, (_, parts) in enumerate(alike):
                parts.append((timed, number))
        return every

    def _chosen(self, problem: Problem, gpu: GPU) -> list[Kind]:
        """Return a `Kind` for each recorded set that can predict a problem, with the backends that the set predicts."""
        taken: tuple[str, ...] = ()
        chosen: list[Kind] = []
        sizes = problem.sizes
        # For f32 matmuls with few rows or columns, `physics` is more accurate than the few recordings.
        few_rows = self.op == "matmul" and problem.dtype == "f32" and is_matvec(sizes)
        for place, recorded, has_card in self._nearest(problem.dtype, problem.layout, gpu):
            if few_rows or not recorded.is_case(sizes):
                continue
            if taken and not has_card:
                break
            here = runs = recorded.backends_recorded(gpu, problem)
            if taken or recorded.multiples:
                runs = tuple([s for s in here if s not in taken and not recorded.misaligned(s, problem)])
            if runs:
                chosen.append(self._kind(place, runs, problem, gpu))
            taken += here
        return chosen

    def _kind(self, place: int, backends: tuple[str, ...], problem: Problem, gpu: GPU) -> Kind:
        key = place, backends, problem.dtype, problem.layout, gpu.name
        if (kind := self._kinds.get(key)) is None:
            kind = self._kinds[key] = Kind(self.sets[place], backends, gpu, problem.dtype, problem.layout)
        return kind

    def _nearest(self, dtype: str, layout: str, gpu: GPU) -> list[tuple[int, RecordedSet, bool]]:
        """Return (index, set, whether the set contains the GPU) for each recorded set that accepts a data type and
        layout. Sets that contain the GPU come first, then sets that contain its architecture. The list is empty if the
        GPU has no arithmetic in the data type."""
        key = dtype, layout, gpu.name
        if (nearest := self._accepting.get(key)) is None:
            there = [(n, e.recorded) for n, e in enumerate(self.sets) if e.recorded.accepts(dtype, layout)]
            there.sort(key=lambda entry: _farness(entry[1].gpus, gpu))
            nearest = [(place, recorded, gpu.name in recorded.gpus) for place, recorded in there]
            self._accepting[key] = nearest = nearest if rate_of(gpu, dtype) else []
        return nearest


def _finished(latencies: list[Latency], problem: Problem, gpu: GPU) -> list[Latency]:
    if not has_epilogue(problem):
        return latencies
    return [(backend, with_epilogue(latency, problem, gpu), launch_s) for backend, latency, launch_s in latencies]


@lru_cache(maxsize=1024)
def _farness(recorded: tuple[str, ...], gpu: GPU) -> tuple[bool, bool, int]:
    architectures = {find_gpu(name).arch for name in recorded}
    return gpu.name not in recorded, gpu.arch not in architectures, -len(architectures)
