"""Write the notes of an answer: one line each on what limits the accuracy or validity of its numbers."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import config_text
from kernrec.model.analytical.power import ZEROS
from kernrec.model.analytical.spread import SPREAD, Source
from kernrec.op.dtype import math_dtype
from kernrec.recommender.candidates import POWER_LIMIT, CandidateSet, KernelCandidates
from kernrec.recommender.estimate.measured_rows import NOTHING
from kernrec.recommender.estimate.operating_point import WARM, Conditions
from kernrec.recommender.infeasible import refusing_constraint
from kernrec.recommender.request import lowest_clock_hz
from kernrec.recommender.result import Recommendation, Remark
from kernrec.store import ProfileTable
from kernrec.util.human import Note, counted, human

PREDICTED_NOTE = Note(
    "source predicted: by the analytical model, never measured on a GPU",
    "The model counts instructions and memory traffic by static analysis, for a cold L2 unless `--l2 warm` is"
    " given. The 90 % interval is the range of its errors on recorded kernels. Predicted ratios between two configs"
    f" of one kernel are within a factor of {SPREAD.ratio:.2g} in 90 % of cases.",
)

DISAGREE = 1.1
"""Ratio up to which two latencies count as equal. Boards of one GPU model differ by a few per cent."""

LONGER = 1.02
"""Minimum ratio of the time in long runs to the time in short runs that deserves a note."""

BEYOND_LIMIT = 1.01
"""Maximum ratio of power draw to power limit that counts as a rounding error."""


def sources_of(recommendations: Iterable[Recommendation]) -> set[str]:
    return {
        estimate.source
        for recommendation in recommendations
        for estimate in (recommendation.latency_s, recommendation.energy_j)
    }


def notes(candidates: CandidateSet, recommendations: Sequence[Recommendation]) -> tuple[str, ...]:
    return tuple(of_recommendations(candidates, recommendations)())


def of_recommendations(
    candidates: CandidateSet, recommendations: Sequence[Recommendation], beside: Sequence[Recommendation] = ()
) -> Remark:
    """Return a function that writes the notes on an answer."""
    # Do not use `candidates` in `lines`, because the answer keeps `lines`, and would keep all candidates in memory.
    gpu = candidates.gpu
    scopes = candidates.scopes
    refused: list[str] = []
    measured: list[str] = []
    calibrations = [table.calibration for table in candidates.tables if table.calibration]
    if candidates.ranked.ranking.violated:
        refused += [f"{each.table.kernel.name}: {line}" for each in candidates.kernels for line in each.remarks]
    for number, kernel in enumerate(candidates.every_kernel):
        if kernel.table.unprofiled or kernel.measured[0] is not NOTHING:
            predicts = sources_of(recommendations) != {Source.MEASURED}
            measured += of_measurements(candidates.considered[number], predicts)

    def lines() -> Iterator[str]:
        sources = sources_of(recommendations)
        if Source.PREDICTED in sources:
            yield PREDICTED_NOTE
        if sources & {Source.TRANSFERRED, Source.LEARNED}:
            yield from dict.fromkeys(scope.note for scope in scopes)
        if sources & {Source.PREDICTED, Source.TRANSFERRED, Source.LEARNED}:
            yield from dict.fromkeys(
                f"coefficients of the analytical model: {fitted.summary}" for fitted in calibrations
            )
        yield from of_limits(gpu, recommendations)
        yield from of_peak(gpu, [c for c in (*recommendations, *beside) if c.latency_s.source != Source.MEASURED])
        yield from refused
        yield from measured

    return lines


def of_conditions(conditions: Conditions) -> Iterator[str]:
    """Yield a note if L2 is warm, and a note if inputs are zeros. No measurement has these conditions."""
    if conditions.l2 == WARM:
        yield Note(
            "L2 is warm: measurements, which start with a cold L2, are not used",
            "As much of a launch's data as fits in L2 is read and written there, without DRAM, as in a benchmark that"
            " repeats a launch.",
        )
    if conditions.inputs == ZEROS:
        yield Note(
            "inputs are zeros: measurements, which had random inputs, are not used",
            "Arithmetic on zeros takes about half the energy of random numbers, so that a power limit allows a higher"
            " clock.",
        )


def of_triton(candidates: CandidateSet) -> Remark:
    """Return a function that writes notes on why no Triton kernel of an op runs the problem."""
    problem, gpu, tables = candidates.problem, candidates.gpu, []
    for each in candidates.every_kernel:
        if each.table.kernel.triton:
            if each.counts[candidates.number]:
                return tuple
            tables.append(each.table)
    if not tables:
        return tuple

    def lines() -> Iterator[str]:
        if any(len(table.space.at(problem).rows) for table in tables):
            return
        for kernel in [table.kernel for table in tables]:
            needs = refusing_constraint(kernel, problem, gpu) or "another shape"
            named = set(re.findall(r"\w+", needs))
            meanings = (f"; {tunable.name}: {tunable.meaning}" for tunable in kernel.tunables if tunable.name in named)
            yield Note(
                f"{kernel.name} does not run this shape: it needs {needs}",
                f"Only code with this property was profiled{''.join(meanings)}.",
            )

    return lines


def of_peak(gpu: GPU, recommendations: Sequence[Recommendation]) -> Iterator[str]:
    """Yield a note on each kernel that is predicted to exceed the dense peak rate in the GPU's data sheet."""
    fastest: dict[str, Recommendation] = {}
    for recommendation in recommendations:
        problem = recommendation.problem
        if published_peak(gpu, problem.dtype) < problem.flops / recommendation.latency_s.value:
            fastest.setdefault(recommendation.kernel.name, recommendation)
    for name, recommendation in fastest.items():
        peak, boost = published_peak(gpu, recommendation.problem.dtype), gpu.boost_clock_hz
        yield Note(
            f"{name} is above the published peak: assumes {human(recommendation.clock_hz, 'Hz')},"
            f" not {human(boost, 'Hz')}",
            f"The data sheet states {human(peak, 'FLOP/s')} at the boost clock of {human(boost, 'Hz')}. Such GPUs run"
            " faster while power and temperature allow.",
        )


def published_peak(gpu: GPU, dtype: str) -> float:
    """Return the peak rate of dense arithmetic in a data type, in FLOP/s, at the clock in the GPU's data sheet."""
    return max(gpu.peak_flops(name, tensor) for name in (math_dtype(dtype), "f32") for tensor in (True, False))


def assumed_range(gpu: GPU) -> str:
    return Note(
        f"assumed: the {gpu.title} accepts {gpu.power_min_w:g} to {gpu.power_max_w:g} W",
        "No data sheet states the range. `nvidia-smi -q -d POWER` prints the range of a board.",
    )


def of_limits(gpu: GPU, recommendations: Sequence[Recommendation]) -> Iterator[str]:
    """Yield notes on power limits that lower the clock, cannot be held, were exceeded or differ between boards."""
    longer = max(((each.long_run_latency_s or 0.0) / each.latency_s.value for each in recommendations), default=0.0)
    if longer > LONGER:
        yield Note(
            "at the power limit, times are for runs of milliseconds; longer runs are slower",
            "Most recordings on this GPU run for milliseconds. In runs of a second or longer on random numbers, tensor"
            " cores take 1.5 times as much energy, so that the limit lowers the clock further. The JSON key"
            " `long_run_latency_s` has the time of each config.",
        )
    elif any(c.bottleneck == POWER_LIMIT and c.latency_s.source == Source.PREDICTED for c in recommendations):
        yield Note(
            "at the power limit, times are for runs of a second or longer",
            "A run of a few milliseconds may end before the limit lowers the clock.",
        )
    limits_w = dict.fromkeys(recommendation.power_limit_w for recommendation in recommendations)
    if gpu.power_range_assumed and any(limit_w != gpu.tdp_w for limit_w in limits_w):
        yield assumed_range(gpu)
    for limit_w in limits_w:
        if limit_w > gpu.power_max_w and not gpu.power_range_assumed:
            yield Note(
                f"{limit_w:g} W is above the {gpu.power_max_w:g} W of the reference {gpu.title}",
                "Boards of some makers accept it. `nvidia-smi -q -d POWER` prints the range of a board.",
            )
        predicted = [
            c for c in recommendations if c.power_limit_w == limit_w and c.energy_j.source is not Source.MEASURED
        ]
        held = [recommendation for recommendation in predicted if recommendation.power_w > limit_w / BEYOND_LIMIT]
        if held and min(recommendation.clock_hz for recommendation in held) <= lowest_clock_hz(gpu):
            yield Note(
                f"{limit_w:g} W is less than the {gpu.title} draws at its lowest clock",
                "The GPU is expected to pause to keep the limit. Some boards exceed such a limit instead.",
            )
        measured_w = max(
            (c.power_w for c in recommendations if c.power_limit_w == limit_w and c not in predicted), default=0.0
        )
        if measured_w > limit_w * BEYOND_LIMIT:
            yield f"the board exceeded its limit: {measured_w:.0f} W measured, {limit_w:g} W set"


def of_measurements(considered: KernelCandidates, predicts: bool) -> Iterator[str]:
    """Yield notes on the measurements of a kernel, and on reasons to ignore some of them.

    `predicts` states whether the answer contains predictions.
    """
    table, measured = considered.table, considered.measured_rows
    name = table.kernel.name
    if table.unprofiled and not table.kernel.sampled:
        yield f"{name}: {table.unprofiled} variants left out: no profile for {table.gpu.arch}"
    if measured.stale:
        yield f"{name}: measurements of {_configs(measured.stale)} not used: other version of the source"
    if measured.elsewhere:
        yield f"{name}: measurements of {_configs(measured.elsewhere)} not used: other power limit or clock"
    if measured.impossible:
        yield Note(
            f"{name}: measurements of {_configs(measured.impossible)} not used: impossible",
            f"They are faster than a {table.gpu.title} can be, or far above its power limit.",
        )
    if measured.failures:
        by_outcome = ", ".join(f"{count} {outcome}" for outcome, count in sorted(measured.failures.items()))
        yield f"{name}: {_configs(len(measured.failed))} left out: failed on this GPU ({by_outcome})"
    recorded = [row.measured_by or "others" for row in measured.measured if row.protocol_version == 0]
    for recorder, count in sorted(Counter(recorded).items()) if recorded else ():
        yield f"{name}: {_configs(count)} measured by {recorder}, with another protocol"
    log_ratios = [abs(math.log(row.latency_s / row.others_s)) if row.others_s else 0.0 for row in measured.measured]
    if apart := sum(log_ratio > math.log(DISAGREE) for log_ratio in log_ratios):
        most = measured.measured[int(np.argmax(log_ratios))]
        yield Note(
            f"{name}: measurements of others differ from yours for {_configs(apart)}; yours are used",
            f"Largest difference: {human(most.latency_s, 's')} (you), {human(most.others_s or 0.0, 's')} (others) with"
            f" {config_text(most.config)}. `kernrec db withdraw --merged` removes theirs.",
        )
    if predicts and considered.measurements is not None:
        scale = considered.measurements.rescaling
        yield Note(
            f"{name}: predictions are scaled to {_configs(scale.configs)} measured here",
            f"Latency x {scale.latency:.3g}, power x {scale.power:.3g}.",
        )


def of_kernel(considered: KernelCandidates, best: Recommendation) -> Iterator[str]:
    """Yield notes on the profiles of a kernel, for an answer about this kernel only."""
    table = considered.table
    kernel = table.kernel
    if unprofiled := considered.unprofiled:
        fastest = min(unprofiled, key=lambda row: row.latency_s)
        yield Note(
            f"{_configs(len(unprofiled))} left out: measured, but could not be analyzed",
            f"The fastest took {fastest.latency_s * 1e6:.4g} us with {config_text(fastest.config)}.",
        )
    if not kernel.sampled:
        return
    unfit = table.unfit(considered.on_problem)
    if unfit.size and (reason := table.too_large(considered.on_problem, int(unfit[0]))):
        yield f"{_configs(len(unfit))} cannot be launched, such as {config_text(table.config(int(unfit[0])))}: {reason}"
    least, most = considered.sampled_blocks
    blocks = f"{least} to {most}" if least < most else f"{most}"
    yield Note(
        f"counts are scaled from a sample: {blocks} of {best.launches[0].blocks} blocks were emulated",
        "They are from the middle of the grid and its ends, of the first launch of each config. The number of all"
        f" blocks is that of the top recommendation. {_source_of_counts(table.launches[0].profiles)}",
    )
    for metric, loops, trips in (
        ("extrapolated", "only the first trips of long loops", "Later"),
        ("sampled", "only some trips of long loops that depend on data", "The other"),
    ):
        count, share = _extrapolated(considered, metric)
        if count:
            yield Note(
                f"{_configs(count)}: {loops} were emulated",
                f"{trips} trips are assumed to execute the same instructions. They are up to"
                f" {100 * share:.0f} % of a config's machine instructions.",
            )
    if table.spilling:
        yield Note(
            f"{_configs(table.spilling)} spill registers",
            "How often the spills run is estimated. Another version of the compiler may spill more or less.",
        )
    for metric, name in (("branch", "branches"), ("load", "addresses of loads"), ("store", "addresses of stores")):
        columns = [launch.profiles.column(f"depends.{metric}") for launch in table.launches]
        if count := sum(int(np.count_nonzero(column > 0)) for column in columns):
            values = ", ".join(f"{name} {sample}" for name, sample in kernel.initial_values.items())
            yield Note(
                f"{_configs(count)}: {name} depend on data; other inputs may cost more or less",
                f"The counts are those of the sample inputs: {values or 'random values'}.",
            )


def _extrapolated(considered: KernelCandidates, metric: str) -> tuple[int, float]:
    """Return the number of configs with unemulated instructions, and the highest fraction of these instructions."""
    configs, greatest = 0, 0.0
    for launch in considered.table.launches:
        left_out, issued = (launch.profiles.column(name) for name in (metric, "issue"))
        configs = max(configs, int(np.count_nonzero(left_out > 0)))
        greatest = max(greatest, float((left_out / issued).max()))
    return configs, greatest


def _source_of_counts(profiles: ProfileTable) -> str:
    share = float(profiles.column("from_code").min())
    if share <= 0.0:
        return "Instructions: counts from PTX."
    rest = "" if share > _WHOLE else f", counts from PTX for the other {100 * (1 - share):.0f} %"
    return f"Instructions: counts from machine code{rest}."


_WHOLE = 0.995  # Above this share, the rest would be printed as 0 %.


def _configs(count: int) -> str:
    return counted(count, "config")
