"""Find rows of recorded power that contradict the GPU or other rows, and reduce their weight in fits."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from evidence.recordings.power import Load
from kernrec.gpu import find_gpu
from kernrec.model.prior.power import PowerModel

DOUBTED = 0.1
"""Weight of a doubtful row."""
FALLS = 0.1
"""Minimum relative drop of power at a higher clock, for equal work, that marks a reading as misread."""
ABOVE = 0.05
"""Maximum fraction by which valid readings exceed a GPU's limit, bandwidth or clock."""


def judged(loads: Iterable[Load]) -> Iterator[Load]:
    """Return the loads. A load that contradicts the GPU or its sweep over clocks gets a `doubt` and the weight
    `DOUBTED`."""
    every = list(loads)
    sweeps: dict[tuple[str, str], list[Load]] = defaultdict(list)
    for load in every:
        if load.latency_s and load.about and not load.limit_w:
            sweeps[load.recording, load.about].append(load)
    falls = {id(load) for sweep in sweeps.values() for load in _below_lower_clocks(sweep)}
    for load in every:
        doubt = "less power at a higher clock" if id(load) in falls else contradiction(load)
        yield replace(load, doubt=doubt, weight=load.weight * DOUBTED) if doubt and not load.doubt else load


def contradiction(load: Load) -> str:
    """Describe why a load is impossible on its GPU, or return an empty text."""
    gpu = find_gpu(load.gpu)
    model = PowerModel.for_gpu(gpu)
    if load.clock_hz and not model.minimum_hz * (1 - ABOVE) <= load.clock_hz <= model.maximum_hz * (1 + ABOVE):
        return "a clock that the card does not have"
    if load.rates.get("dram.bytes", 0.0) > gpu.memory_bandwidth * (1 + ABOVE):
        return "more bandwidth than the card has"
    peak = gpu.fma_per_clk_sm["f32"] / 32 * gpu.sms * load.clock_hz
    if load.clock_hz and load.rates.get("issue.fma32", 0.0) > peak * (1 + ABOVE):
        return "more FMA than that clock allows"
    # At the lowest clock, a load may exceed the power limit.
    if load.limit_w and load.power_w > load.limit_w * (1 + ABOVE) and load.clock_hz > model.minimum_hz:
        return "more power than the limit"
    return ""


def _below_lower_clocks(sweep: list[Load]) -> Iterator[Load]:
    highest_w = 0.0
    for load in sorted(sweep, key=lambda load: load.clock_hz):
        if load.power_w < (1 - FALLS) * highest_w:
            yield load
        highest_w = max(highest_w, load.power_w)
