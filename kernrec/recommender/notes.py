"""Notes: what the reader of a recommendation has to know besides its numbers, one line each."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import config_text
from kernrec.model.prior.power import ZEROS
from kernrec.model.prior.spread import SPREADS
from kernrec.op.dtype import math_dtype
from kernrec.recommender.candidates import CandidateSet, KernelCandidates
from kernrec.recommender.estimate.engine import RunnableConfigs
from kernrec.recommender.estimate.estimates import Source
from kernrec.recommender.estimate.measured_rows import NOTHING
from kernrec.recommender.infeasible import refusing_constraint
from kernrec.recommender.result import Choice, Remark
from kernrec.recommender.sweep import lowest_clock_hz
from kernrec.store import ProfileTable
from kernrec.util.human import human

PRIOR_NOTE = (
    "source prior: predicted from static analysis, for a cold L2, measured on no GPU; the interval is the model's"
    f" spread (between two configs of a kernel {max(spread.ratio for spread in SPREADS):.2g} x)"
)

DISAGREE = 1.1
"""Two measurements of a config on two boards of a name differ by a few per cent."""

BEYOND_LIMIT = 1.01
"""A power above its limit by less than this factor is rounding."""


def sources_of(choices: Iterable[Choice]) -> set[Source]:
    """Where the costs of choices come from."""
    return {Source(estimate.source) for choice in choices for estimate in (choice.latency_s, choice.energy_j)}


def notes(candidates: CandidateSet, choices: Sequence[Choice]) -> tuple[str, ...]:
    """The notes of an answer with these choices."""
    return tuple(of_choices(candidates, choices)())


def of_choices(candidates: CandidateSet, choices: Sequence[Choice], beside: Sequence[Choice] = ()) -> Remark:
    """The notes of an answer with these choices, to be made when they are read; they hold no candidate set.

    beside: further rows of the answer.
    """
    sources, gpu = sources_of(choices), candidates.gpu
    predicted = [choice for choice in (*choices, *beside) if choice.source is not Source.MEASURED]
    predictions = bool(sources - {Source.MEASURED})
    scopes = [kernel.scope for kernel in candidates.kernels if kernel.scope]
    calibrations = [kernel.table.calibration for kernel in candidates.kernels]
    refused = [f"{kernel.table.kernel.name}: {line}" for kernel in candidates.kernels for line in kernel.remarks]
    estimated = {id(kernel.runnable): kernel for kernel in candidates.kernels} if predictions else {}
    measured = [
        line
        for considered in candidates.considered
        if considered.table.coverage.unprofiled or considered.measured[0] is not NOTHING
        for line in of_measurements(considered, estimated.get(id(considered)))
    ]

    def lines() -> Iterator[str]:
        if Source.PRIOR in sources:
            yield PRIOR_NOTE
        if Source.LEARNED in sources:
            yield from dict.fromkeys(scope.note for scope in scopes)
        if sources & {Source.PRIOR, Source.LEARNED}:
            yield from dict.fromkeys(f"the prior's coefficients: {fitted.summary}" for fitted in calibrations if fitted)
        yield from of_limits(gpu, choices)
        yield from of_peak(gpu, predicted)
        yield from refused
        yield from measured

    return lines


def of_inputs(inputs: str) -> Iterator[str]:
    """A line about other inputs than random numbers."""
    if inputs == ZEROS:
        yield (
            "inputs are taken to be zeros: arithmetic takes about half the energy of random numbers, and a power limit"
            " allows a higher clock; what was measured, with random inputs, is left out"
        )


def of_triton(candidates: CandidateSet) -> Remark:
    """Why no Triton kernel is among the answers about an op that has some for the data type, as `of_choices`."""
    considered = [each for each in candidates.considered if each.table.kernel.triton]
    if not considered or any(len(each.rows) for each in considered):
        return tuple
    problem, gpu, tables = candidates.problem, candidates.gpu, [each.table for each in considered]

    def lines() -> Iterator[str]:
        if any(len(table.space.at(problem).rows) for table in tables):
            return
        for kernel in [table.kernel for table in tables]:
            needs = refusing_constraint(kernel, problem, gpu) or "another shape"
            named = set(re.findall(r"\w+", needs))
            meanings = (f"; {tunable.name}: {tunable.meaning}" for tunable in kernel.tunables if tunable.name in named)
            yield f"no answer by {kernel.name}, which needs {needs!r}: other code was not profiled{''.join(meanings)}"

    return lines


def of_peak(gpu: GPU, choices: Sequence[Choice]) -> Iterator[str]:
    """Name the clock that a choice assumes whose rate is above the GPU's published dense peak."""
    fastest: dict[str, Choice] = {}
    for choice in choices:
        if published_peak(gpu, choice.problem.dtype) < choice.problem.flops / choice.latency_s.value:
            fastest.setdefault(choice.kernel.name, choice)
    for name, choice in fastest.items():
        yield (
            f"{name}: above the published peak of {human(published_peak(gpu, choice.problem.dtype), 'FLOP/s')}; assumes"
            f" {human(choice.clock_hz, 'Hz')}, above the published boost of {human(gpu.boost_clock_hz, 'Hz')}"
        )


def published_peak(gpu: GPU, dtype: str) -> float:
    """Return the dense peak of a data type in FLOP/s at the clock of the data sheet."""
    return max(gpu.peak_flops(name, tensor) for name in (math_dtype(dtype), "f32") for tensor in (True, False))


def assumed_range(gpu: GPU) -> str:
    """Return the note on a GPU whose range of power limits is assumed."""
    return (
        f"the {gpu.title} is assumed to accept {gpu.power_min_w:g} to {gpu.power_max_w:g} W: no data sheet states it"
        " (`nvidia-smi -q -d POWER` tells)"
    )


def of_limits(gpu: GPU, choices: Sequence[Choice]) -> Iterator[str]:
    """Which power limits of the choices the card cannot hold, and which only some boards accept."""
    limits_w = dict.fromkeys(choice.power_limit_w for choice in choices)
    if gpu.power_range_assumed and any(limit_w != gpu.tdp_w for limit_w in limits_w):
        yield assumed_range(gpu)
    for limit_w in limits_w:
        if limit_w > gpu.power_max_w and not gpu.power_range_assumed:
            yield (
                f"a limit of {limit_w:g} W is above the {gpu.power_max_w:g} W of the reference {gpu.title}: boards of"
                " some makers accept it (`nvidia-smi -q -d POWER` tells)"
            )
        predicted = [c for c in choices if c.power_limit_w == limit_w and c.energy_j.source is not Source.MEASURED]
        held = [choice for choice in predicted if choice.power_w > limit_w / BEYOND_LIMIT]
        if held and min(choice.clock_hz for choice in held) <= lowest_clock_hz(gpu):
            yield (
                f"{limit_w:g} W is less than the {gpu.title} draws here at its lowest clock: it is expected to pause;"
                " some boards exceed such a limit instead"
            )
        measured_w = max((c.power_w for c in choices if c.power_limit_w == limit_w and c not in predicted), default=0.0)
        if measured_w > limit_w * BEYOND_LIMIT:
            yield f"measured {measured_w:.0f} W under a limit of {limit_w:g} W: the board did not keep it"


def of_measurements(considered: RunnableConfigs, rescaled: KernelCandidates | None) -> Iterator[str]:
    """Lines about the use of measurements; rescaled: the kernel's candidates where predictions of them are shown."""
    table, measured = considered.table, considered.measured[0]
    name = table.kernel.name
    if table.coverage.unprofiled and not table.kernel.sampled:
        yield f"{name}: {table.coverage.unprofiled} variants have no profile for {table.gpu.arch} and were left out"
    if measured.stale:
        yield f"{name}: {_configs(measured.stale)} measured with another version of its source, not used"
    if measured.elsewhere:
        yield f"{name}: {_configs(measured.elsewhere)} measured at another power limit or clock, not used"
    if measured.impossible:
        yield (
            f"{name}: {_configs(measured.impossible)} measured faster than a {table.gpu.title} can be, or far above the"
            " power limit, not used"
        )
    if measured.failures:
        by_outcome = ", ".join(f"{count} {outcome}" for outcome, count in sorted(measured.failures.items()))
        yield f"{name}: {_configs(len(measured.failed))} failed on this GPU and left out ({by_outcome})"
    recorded = [row.measured_by or "others" for row in measured.measured if row.protocol_version == 0]
    for recorder, count in sorted(Counter(recorded).items()) if recorded else ():
        yield f"{name}: {_configs(count)} measured by {recorder}, not by kernrec's protocol"
    if apart := [row for row in measured.measured if row.others_s and not _agrees(row.latency_s, row.others_s)]:
        most = max(apart, key=lambda row: abs(math.log(row.latency_s / (row.others_s or row.latency_s))))
        yield (
            f"{name}: others disagree about {_configs(len(apart))} that you measured: {human(most.latency_s, 's')}"
            f" here, {human(most.others_s or 0.0, 's')} theirs with {config_text(most.config)}; yours answer"
            " (`kernrec db withdraw --merged` takes theirs back)"
        )
    if rescaled is not None and rescaled.measurements is not None:
        scale = rescaled.measurements.rescaling
        yield (
            f"{name}: predictions put on the scale of {_configs(scale.configs)} measured"
            f" (latency x {scale.latency:.3g}, power x {scale.power:.3g})"
        )


def _agrees(first_s: float, second_s: float) -> bool:
    return max(first_s, second_s) <= DISAGREE * min(first_s, second_s)


def of_kernel(considered: RunnableConfigs, best: Choice) -> Iterator[str]:
    """Lines about the profiles of the kernel that an answer is about."""
    table = considered.table
    kernel, coverage = table.kernel, table.coverage
    if considered.unprofiled:
        fastest = min(considered.unprofiled, key=lambda row: row.latency_s)
        yield (
            f"{_configs(len(considered.unprofiled))} measured but could not be analyzed, and left out: the fastest"
            f" took {fastest.latency_s * 1e6:.4g} us with {config_text(fastest.config)}"
        )
    if not kernel.sampled:
        return
    unfit = table.unfit(considered.on_problem)
    if unfit.size and (reason := table.too_large(considered.on_problem, int(unfit[0]))):
        yield f"{_configs(len(unfit))} cannot be launched, such as {config_text(table.config(int(unfit[0])))}: {reason}"
    least, most = considered.sampled_blocks
    blocks = f"{least} to {most}" if least < most else f"{most}"
    yield (
        f"counts are those of a sample: {blocks} blocks of each config's first launch were emulated (the first"
        f" choice has {best.launches[0].blocks}), from the middle of the grid and its ends, and scaled to the grid"
    )
    count, share = _extrapolated(considered, "extrapolated")
    if count:
        yield (
            f"trips of long loops are extrapolated in {_configs(count)} (up to {100 * share:.0f} % of the"
            " machine instructions): counted, not emulated"
        )
    count, share = _extrapolated(considered, "sampled")
    if count:
        yield (
            f"long loops whose trips depend on data are sampled in {_configs(count)}: some trips are emulated, those"
            f" between are counted like them (up to {100 * share:.0f} % of the machine instructions)"
        )
    if coverage.spilling:
        yield (
            f"{_configs(coverage.spilling)} spill registers: how often is estimated, and another version of the"
            " compiler may spill more or less"
        )
    for metric, name in (("branch", "branches"), ("load", "addresses of loads"), ("store", "addresses of stores")):
        if count := sum(_with_metric(launch.profiles, f"depends.{metric}") for launch in table.launches):
            values = ", ".join(f"{name} {sample}" for name, sample in kernel.initial_values.items())
            yield (
                f"{name} depend on data in {_configs(count)}: counted with the sample inputs"
                f" ({values or 'random values'}); other inputs may behave otherwise"
            )


def _extrapolated(considered: RunnableConfigs, metric: str) -> tuple[int, float]:
    """How many configs have trips of loops that were counted but not emulated (`extrapolated`, or `sampled` where they
    depend on data), and the greatest share of these."""
    configs, greatest = 0, 0.0
    for launch in considered.table.launches:
        profiles = launch.profiles
        if metric in profiles.metrics:
            left_out, issued = (profiles.counts[:, profiles.metrics.index(m), 0] for m in (metric, "issue"))
            configs = max(configs, int(np.count_nonzero(left_out > 0)))
            greatest = max(greatest, float((left_out / issued).max()))
    return configs, greatest


def _with_metric(profiles: ProfileTable, metric: str) -> int:
    """How many configs have any of a metric."""
    if metric not in profiles.metrics:
        return 0
    return int(np.count_nonzero(profiles.counts[:, profiles.metrics.index(metric), 0] > 0))


def _configs(count: int) -> str:
    return f"{count} config" if count == 1 else f"{count} configs"
