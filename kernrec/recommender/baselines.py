"""Baselines: expected time and energy of today's libraries for a problem, to compare with kernrec's kernels.

The `source` of a baseline says where its costs come from:

    published     recordings of this problem on this GPU
    learned       a model of recordings of other problems on this GPU
    transferred   a model of recordings on other GPUs
    predicted     a physical model, if there are no recordings of similar problems
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernrec.gpu import GPU, find_gpu
from kernrec.model.analytical.power import RANDOM
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.baselines.backends import AT, is_wanted, released
from kernrec.model.baselines.epilogue import as_recorded, has_epilogue
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import cold_seconds, is_number, refuse_too_large
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.published_baselines import Recordings, version_of
from kernrec.store.recorded import RecordedBaseline
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.baselines.bound import BaselinePrediction
    from kernrec.model.baselines.model import GpuVendorModel
    from kernrec.recommender.context import GpuContext

NEARLY = 0.02
"""Relative difference up to which two latencies count as equal."""
_CACHED_SHARE = 0.1
"""Minimum fraction of a problem's data that L2 must hold for a note on cached data."""
_WEIGHTED = ("matmul", "matvec", "conv2d", "moe")
PREDICTED, PUBLISHED = str(Source.PREDICTED), "published"
_NAMED = 4
"""Maximum number of GPUs to name in the description of a transferred baseline."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Baseline(JsonForm):
    """Expected cost of a backend for a problem at an operating point, in SI units with 90 % intervals."""

    backend: str
    version: str | None
    """Version of the backend, or range of versions. It is None if the recordings state none."""
    source: str
    latency_s: Estimate
    power_w: float | None
    power_interval_w: Interval | None
    energy_j: Estimate | None
    """Energy in joules, or None if not known."""
    power_limit_w: float
    locked_clock_hz: float | None
    learned_on: tuple[str, ...]
    """Names of the GPUs on which the latencies behind this baseline were recorded."""
    recorded_as: str | None
    """Data type and layout of the recordings, or None if they are the same as the problem's."""
    power_transferred: bool
    """Whether the power was not recorded on this GPU."""
    power_predicted: bool = False
    """Whether the power was predicted rather than recorded."""
    warm: str = ""
    """Data, such as `weights`, that must be in L2 to reach this latency. The text may be empty."""
    host_time: bool = False
    """Whether the latency includes time of the host, because the backend was recorded without CUDA graphs."""
    provenance: Mapping[str, str] | None = None
    """Origin of a published baseline, with the keys `source`, `licence`, `recorded` (when and how) and `kernel`."""
    released: str | None = None
    """Release date of `version`, such as `2026-06-30`, or a range of dates. It is None if not known."""
    slowdown: float | None = None
    """Additional latency, as a fraction of the top recommendation's latency. Negative if the baseline is faster."""
    energy_saved: float | None = None
    """Energy that the baseline saves, as a fraction of the top recommendation's energy, or None if not known."""
    beaten: bool | None = None
    """Whether the top recommendation is faster even at the unfavorable ends of both latency intervals."""
    less_sure: bool | None = None
    """Whether this baseline's latency is less certain than the top recommendation's."""

    @property
    def latency_interval_s(self) -> Interval:
        return self.latency_s.low, self.latency_s.high

    @property
    def energy_interval_j(self) -> Interval | None:
        return None if self.energy_j is None else (self.energy_j.low, self.energy_j.high)

    @property
    def name(self) -> str:
        """Name and version of the backend for display."""
        if self.source == PREDICTED:
            return self.backend
        return f"{self.backend} {self.version}" if self.version else f"{self.backend} (version unknown)"

    @property
    def dated_name(self) -> str:
        """Name and version of the backend, with the month of the release if known, and a mark for host time."""
        months = " to ".join(dict.fromkeys(date[:7] for date in (self.released or "").split(" to ")))
        return self.name + f" ({months})" * bool(months) + " with host time" * self.host_time

    @property
    def faster(self) -> bool:
        """Whether the baseline is expected to be clearly faster than the top recommendation."""
        return self.slowdown is not None and self.slowdown < -NEARLY

    @property
    def advised(self) -> bool:
        """Whether to prefer the baseline: its latency interval ends below the top recommendation's expected latency."""
        return self.faster and (1 + (self.slowdown or 0.0)) * self.latency_interval_s[1] / self.latency_s < 1

    @property
    def basis(self) -> str:
        """Description of the data behind the costs."""
        as_ = f", as benchmarked, {self.warm} in L2" if self.warm else ""
        if self.source == PUBLISHED:
            return f"recorded on this GPU by {(self.provenance or {}).get('source', 'somebody')}{as_}"
        if self.source == PREDICTED:
            return "predicted from bytes, arithmetic and launch: there are no recordings of such problems"
        as_ = as_ if self.recorded_as is None else f" ({self.recorded_as}){as_}"
        if self.source == "learned":
            return f"learned on this GPU{as_}"
        gpus = list(dict.fromkeys(map(short_title, self.learned_on)))
        more = f" and {len(gpus) - _NAMED} more" if len(gpus) > _NAMED else ""
        return f"transferred from {', '.join(gpus[:_NAMED])}{more}{as_}"

    def scaled(self, share: float) -> "Baseline":
        """Return a copy with latency and energy multiplied by `share`."""
        energy = None if self.energy_j is None else self.energy_j.scaled(share)
        return replace(self, latency_s=self.latency_s.scaled(share), energy_j=energy)

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"faster": self.faster, "advised": self.advised}


def short_title(name: str) -> str:
    """Return a short name of a GPU for display, such as `A100` for data-center GPUs."""
    title = find_gpu(name).title.removeprefix("NVIDIA ")
    first = title.split(" ")[0].split("-")[0]
    return first if any(c.isdigit() for c in first) else title


def baselines_of(
    context: "GpuContext", problem: Problem, point: OperatingPoint, backends: Sequence[str] = ()
) -> tuple[Baseline, ...]:
    """Return the expected cost of each backend for a problem at an operating point, fastest first.

    Without recordings of similar problems, a physical model predicts a single baseline. The result may be empty, such
    as for a data type that the GPU lacks.

    Args:
        backends: backends to include; all by default.

    Raises:
        UsageError: the GPU does not accept the power limit or clock.
        KernrecError: the problem does not fit the GPU's memory.
    """
    if context.conditions.inputs != RANDOM:
        return ()
    from kernrec.model.baselines.operating_point import at_point, recorded_within
    from kernrec.model.baselines.physics import derived

    gpu = context.gpu
    default = point.is_default(gpu)
    refuse_too_large(problem, gpu)
    model = model_of(context, problem)
    old = frozenset() if model is None else model.superseded(as_recorded(problem))
    recordings = Recordings.of(problem, gpu, old)
    predictions = recordings.ordered([each for each in (model.predict(problem) if model else ()) if is_number(each)])
    recorded = list(recordings.published(predictions, backends))
    # A recording replaces all predictions for its backend. If the recording has a variant, such as `static scales`, the
    # recording replaces only the prediction for the same variant.
    exact = {(row.backend, version_of(row) if row.variant else None) for row, _ in recorded if default or predictions}
    wanted = [
        each
        for each in predictions
        if is_wanted(each.backend, backends, each.version)
        and not exact.intersection([(each.backend, None), (each.backend, each.version)])
    ]
    if model is not None and (versions := old.intersection(backends)):
        others, rows = _of_versions(model, problem, versions, old - versions)
        wanted += others
        recorded += rows
    if default:
        baselines = [_baseline(each, problem, gpu, point) for each in at_point(wanted, gpu, point, problem)]
        for row, each in recorded:
            row_of_problem = None if has_epilogue(problem) else row
            baselines.append(_baseline(recorded_within(each, gpu, problem), problem, gpu, point, row_of_problem))
    else:
        # Include all backends, because backends share information about energy. A baseline must not depend on the
        # requested backends.
        carried = [*wanted, *(each for _, each in recorded if predictions)]
        others = [each for each in predictions if each.backend not in {baseline.backend for baseline in carried}]
        every = at_point([*carried, *others], gpu, point, problem)
        baselines = [_baseline(each, problem, gpu, point) for each in every[: len(carried)]]
    if not baselines and (by_physics := derived(problem, gpu)) is not None and is_wanted(by_physics.backend, backends):
        by_physics = _limited_by_more_rows(context, by_physics, problem)
        baselines = [
            _baseline(each, problem, gpu, point) for each in at_point([by_physics], gpu, point, as_recorded(problem))
        ]
    if hosted := timed_on_host(model, problem):
        baselines = [replace(baseline, host_time=baseline.backend in hosted) for baseline in baselines]
    return tuple(sorted(baselines, key=lambda baseline: baseline.latency_s))


def timed_on_host(model: "GpuVendorModel | None", problem: Problem) -> list[str]:
    """Return the backends whose recorded times include time of the host, because they ran without CUDA graphs."""
    sets = [] if model is None else [each.recorded for each in model.sets if problem.dtype in each.recorded.dtypes]
    return [backend for recorded in sets for backend in recorded.local]


def _limited_by_more_rows(
    context: "GpuContext", by_physics: "BaselinePrediction", problem: Problem
) -> "BaselinePrediction":
    """Lower the predicted latency of a matmul with few rows if the same matmul with more rows would be faster."""
    from kernrec.model.baselines.features.matmul import FEW_ROWS

    product = as_matmul(problem)
    if product.op != "matmul" or product.dim["m"] >= FEW_ROWS:
        return by_physics
    more = product.definition.problem(product.dtype, product.layout, **{**product.dim, "m": FEW_ROWS})
    latency = by_physics.latency_s
    model = model_of(context, more)
    for each in () if model is None else model.predict(more):
        if each.backend == by_physics.backend and is_number(each) and each.latency_s.value < latency.value:
            value = each.latency_s.value
            latency = replace(latency, value=value, low=min(latency.low, value), high=max(each.latency_s.high, value))
    return by_physics if latency is by_physics.latency_s else replace(by_physics, latency_s=latency)


def _of_versions(
    model: "GpuVendorModel", problem: Problem, versions: Collection[str], ignored: Collection[str]
) -> "tuple[list[BaselinePrediction], list[tuple[RecordedBaseline, BaselinePrediction]]]":
    """Return predictions and recordings for each `backend@version` in `versions`.

    A version with recordings gets no prediction. Recordings of a `backend@version` in `ignored` are skipped.
    """
    recordings = Recordings.of(problem, model.gpu, ignored)
    recorded = list(recordings.published((), tuple(versions)))
    there = {f"{row.backend}{AT}{row.version}" for row, _ in recorded}
    predictions = [model.predict_version(problem, name) for name in versions if name not in there]
    return [each for each in predictions if each is not None], recorded


def cold_baselines(
    context: "GpuContext", problem: Problem, point: OperatingPoint, backends: Sequence[str] = ()
) -> "list[Baseline]":
    """Return the baselines of a network layer whose weights are not in L2, fastest first."""
    baselines = [
        read_cold(baseline, problem, context.gpu) for baseline in baselines_of(context, problem, point, backends)
    ]
    return sorted(baselines, key=lambda baseline: baseline.latency_s)


def read_cold(baseline: Baseline, problem: Problem, gpu: GPU) -> Baseline:
    """Raise a baseline's latency to at least the time of reading the layer's data from DRAM."""
    latency, energy = cold_costs(baseline.latency_s, baseline.energy_j or baseline.latency_s, problem, gpu)
    if latency is baseline.latency_s:
        return baseline
    return replace(baseline, latency_s=latency, energy_j=energy if baseline.energy_j is not None else None, warm="")


def cold_costs(latency: Estimate, energy: Estimate, problem: Problem, gpu: GPU) -> tuple[Estimate, Estimate]:
    """Raise a network layer's latency to at least the time of reading the layer's data from DRAM."""
    least_s = cold_seconds(problem, gpu)
    if latency.value >= least_s:
        return latency, energy
    longer = least_s / latency.value
    latency = replace(latency, value=least_s, low=max(latency.low, least_s), high=max(latency.high * longer, least_s))
    return latency, energy.scaled(longer)


def beside(
    baselines: Iterable[Baseline], latency_s: float, energy_j: float, interval_s: Interval | None = None
) -> tuple[Baseline, ...]:
    """Return copies of baselines with a comparison to the top recommendation.

    Args:
        latency_s: latency of the top recommendation in seconds.
        energy_j: energy of the top recommendation in joules.
        interval_s: 90 % interval of `latency_s` in seconds, or None if the latency is exact.
    """
    low_s, high_s = interval_s or (latency_s, latency_s)
    return tuple(
        replace(
            baseline,
            slowdown=baseline.latency_s / latency_s - 1,
            energy_saved=None if baseline.energy_j is None else 1 - baseline.energy_j / energy_j,
            beaten=high_s < baseline.latency_interval_s[0],
            less_sure=baseline.latency_interval_s[1] / baseline.latency_interval_s[0] > high_s / low_s,
        )
        for baseline in baselines
    )


def predict_baselines(context: "GpuContext", problems: Iterable[Problem]) -> None:
    """Predict the baselines of many problems in one batch, so that later calls of `baselines_of` are fast."""
    together: dict[str, list[Problem]] = {}
    for problem in map(as_recorded, problems):
        together.setdefault(problem.op, []).append(problem)
    for alike in together.values():
        if (model := model_of(context, alike[0])) is not None:
            model.time(alike)


def model_of(context: "GpuContext", problem: Problem) -> "GpuVendorModel | None":
    return context.models.vendor_model_on(problem, context.gpu, context.conditions.inputs)


def _baseline(
    predicted: "BaselinePrediction",
    problem: Problem,
    gpu: GPU,
    point: OperatingPoint,
    recorded: RecordedBaseline | None = None,
) -> Baseline:
    latency, power = predicted.latency_s, predicted.power_w
    source = latency.source if recorded is None or latency.transferred else PUBLISHED
    energy = None
    if power is not None:
        energy_source = source if power.source == Source.LEARNED else power.source
        ends = latency.low * power.low, latency.high * power.high
        energy = Estimate(latency.value * power.value, *ends, energy_source)
    # A latency below the DRAM time means that the data was in L2, if L2 is large enough.
    cached = latency.value < cold_seconds(problem, gpu) and gpu.l2_bytes > _CACHED_SHARE * problem.bytes
    return Baseline(
        backend=predicted.backend,
        version=predicted.version,
        source=source,
        latency_s=replace(latency, source=source),
        power_w=None if power is None else power.value,
        power_interval_w=None if power is None else (power.low, power.high),
        energy_j=energy,
        power_limit_w=point.limit_w(gpu),
        locked_clock_hz=point.clock_hz,
        learned_on=predicted.gpus,
        recorded_as=predicted.recorded_as,
        power_transferred=power is not None and power.source != Source.LEARNED,
        power_predicted=power is not None and power.source == PREDICTED,
        warm=("weights" if problem.op in _WEIGHTED else "data") * cached,
        provenance=None if recorded is None else recorded.provenance,
        released=released(predicted.backend, predicted.version),
    )
