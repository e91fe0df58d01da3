"""Answer a request for a whole network on one GPU, with all layers at the same operating point."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.op import Problem
from kernrec.op.dtype import canonical_dtype, math_dtype
from kernrec.op.workload import Layer, Workload
from kernrec.recommender.answer import costs_at
from kernrec.recommender.baselines import PREDICTED, Baseline, cold_costs
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.estimate.operating_point import COLD
from kernrec.recommender.estimate.physics import cold_seconds
from kernrec.recommender.infeasible import EIGHT_BITS
from kernrec.recommender.networks.backend import MIXTURE_OF_BACKENDS, backend_of, program_of
from kernrec.recommender.networks.exchange import Exchange, exchange_of
from kernrec.recommender.networks.layers import NetworkRequest, answer_as_it_runs, in_best_layouts, layers_of
from kernrec.recommender.networks.memory import memory_of, shortage
from kernrec.recommender.networks.result import LayerAnswer, NetworkAnswer
from kernrec.recommender.networks.total import (
    FASTEST,
    HEURISTIC,
    LOWEST_ENERGY,
    MIXTURE,
    RECOMMENDED,
    Costs,
    Total,
    costs_of,
    today_name,
)
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import KERNREC, MIXED, Objective, Query
from kernrec.recommender.result import Answer, Recommendation
from kernrec.util.human import Note, human

COVERED = 0.5
"""Minimum fraction of a network's FLOPs that a backend's baselines must cover for a total."""

CLEARLY = 0.1
"""Minimum fraction of a network's time that another backend must save for a note."""


def answer_network(
    recommender: Recommender, gpu_name: str | GPU, wanted: NetworkRequest, query: Query
) -> NetworkAnswer:
    """Return a recommendation and a baseline for each layer of a network on a GPU, and the totals.

    Raises:
        UsageError: a name is unknown, or a value is impossible.
        DoesNotFitError: the network does not fit in the GPU's memory, and the request does not ignore memory.
        KernrecError: no layer can be run.
    """
    gpu = gpu_name if isinstance(gpu_name, GPU) else find_gpu(gpu_name)
    if query.clocks:
        raise UsageError("'--clock any' needs a --shape; for a network, --clock sweep tries several clocks")
    if query.l2 != COLD:
        raise UsageError("l2 'warm' needs one problem: between two passes of a network, other layers use L2")
    _refuse_dtype(gpu, wanted.dtype)
    if query.power_limit_w is None and query.clock_hz is None:
        query = replace(query, power_limit_w=gpu.tdp_w)
    query = within_power(query, gpu)
    on_gpu = recommender.on(gpu, query.conditions)
    workload, asked_layers = layers_of(wanted)
    memory = memory_of(workload, asked_layers)
    if not (memory.fits(gpu) or wanted.ignore_memory):
        shared = wanted.workload.tp if isinstance(wanted.workload, Workload) else 1
        raise shortage(
            workload, memory, gpu, lambda batch, tp: layers_of(replace(wanted, batch=batch, tp=tp // shared))
        )

    # A layer without a kernel may use any backend. Without `max_power_w`, the power limit of `query` still applies.
    of_all_backends = replace(query, backends=(), max_power_w=None)

    def answer(problem: Problem) -> Answer:
        return on_gpu.answer_op(problem, of_all_backends)

    points = (query.point,)
    layers, layouts_chosen = in_best_layouts(on_gpu, asked_layers, points)
    on_gpu.prepare([layer.problem for layer in layers], points)
    answered: list[tuple[Layer, Answer]] = []
    alternatives: list[Mapping[str, Costs]] = []
    left_out, adjusted = list(workload.unknown), dict.fromkeys(workload.notes)
    for original, layer in zip(asked_layers, layers, strict=True):
        try:
            # A shape that is not part of a network gets the same notes on layouts as a request for one problem.
            if original.alone:
                fixed, message = not original.layout_free, ""
                result = on_gpu.answer_op(original.problem, of_all_backends, fixed)
            else:
                result, message = answer_as_it_runs(layer.problem, gpu, wanted.dtype is not None, answer)
        except KernrecError as error:
            left_out.append(f"{layer.name}: {error}")
            continue
        adjusted |= dict.fromkeys([message] if message else [])
        answered.append((layer, result))
        alternatives.append({})
        if result.recommendations:  # The candidates are still in the cache.
            candidates = on_gpu.candidates(result.problem, points)
            alternatives[-1] = _alternatives(candidates, result.best, original.alone)
    if not answered:
        raise KernrecError(f"no layer of {workload.name} can be run on {gpu.name}: {left_out[0]}")
    by_backend = backend_of(on_gpu.context, workload, answered, query, wanted.backend)
    (backend, baselines), *others = by_backend.items()
    network = tuple(
        LayerAnswer(*each, baseline, query.objective, alternatives=costs)
        for each, baseline, costs in zip(answered, baselines, alternatives, strict=True)
    )
    exchange = exchange_of(workload, layers, gpu)
    compared = backend if _is_covered(network, baselines) else ""
    # The headline is the backend's total in three cases: the layers form one network, the user requested backends, or
    # kernrec has no recommendation for any layer.
    chosen = query.backends or wanted.backend == MIXED or not any(layer.best for layer in network)
    headline = today_name(compared) if compared and (chosen or workload.one_network) else RECOMMENDED
    whole = NetworkAnswer(
        workload=workload,
        gpu=gpu,
        query=query,
        layers=tuple([replace(layer, of_kernrec=headline == RECOMMENDED) for layer in network]),
        left_out=tuple(left_out),
        totals=_totals(network, compared, exchange, query, not left_out),
        layouts_chosen=layouts_chosen,
        backend=compared,
        headline_name=headline,
        exchange=exchange,
        memory=memory,
    )
    faster = _faster(whole, others)
    adjusted |= dict.fromkeys(_remarks(whole, backend, wanted.backend == KERNREC))
    return replace(whole, adjusted=tuple(adjusted), faster=faster)


def _is_covered(layers: Sequence[LayerAnswer], baselines: Sequence[Baseline | None]) -> bool:
    flops = [layer.count * layer.answer.problem.flops for layer in layers]
    covered = sum(count for count, baseline in zip(flops, baselines, strict=True) if baseline is not None)
    return covered >= COVERED * sum(flops)


def _faster(answer: NetworkAnswer, others: Sequence[tuple[str, Sequence[Baseline | None]]]) -> str:
    """Return a sentence on the fastest other backend if it takes clearly less time, or an empty text."""
    if answer.headline_name == RECOMMENDED or not answer.workload.one_network or answer.objective is Objective.ENERGY:
        return ""
    layers, today = answer.layers, answer.headline
    latencies = {answer.backend: today.latency_s}
    for name, baselines in others:
        if _is_covered(layers, baselines):
            costs = [
                (layer.count, layer.costs if baseline is None else costs_of(baseline))
                for layer, baseline in zip(layers, baselines, strict=True)
            ]
            latencies[name] = Total.of(name, costs, answer.exchange, today.complete).latency_s
    faster, least_s = min(latencies.items(), key=lambda item: item[1].value)
    if (saved := 1 - least_s / today.latency_s) < CLEARLY:
        return ""
    within = least_s.high >= today.latency_s.low  # The error may be larger than the difference.
    hosted = [layer.baseline.backend for layer in layers if layer.baseline is not None and layer.baseline.host_time]
    return (
        f"{answer.gpu.name}, batch {answer.batch}: {faster} {'may' if within else 'is expected to'} take"
        f" {human(least_s.value, 's')}, {saved * 100:.0f} % less time than {answer.backend}"
        f"{', within the error' if within else ''}: --backend {faster.lower()}"
        + "".join(f"; times of {name} include the host's" for name in dict.fromkeys(hosted))
    )


def within_power(query: Query, gpu: GPU) -> Query:
    """Return the query with a power limit of at most `max_power_w`. Raise `UsageError` if the GPU accepts none."""
    if (most_w := query.max_power_w) is None or query.point.limit_w(gpu) <= most_w:
        return query
    if most_w < gpu.power_min_w:
        raise UsageError(
            f"max power is {most_w:g} W, but the power limit of the {gpu.title} cannot be set below "
            f"{gpu.power_min_w:g} W"
        )
    return replace(query, power_limit_w=most_w)


def _refuse_dtype(gpu: GPU, dtype: str | None) -> None:
    if dtype is None or (name := canonical_dtype(dtype)) not in EIGHT_BITS:
        return
    if not gpu.multiplies(math_dtype(name)):
        able = [other for other in (*EIGHT_BITS, "bf16", "f16") if gpu.tensor_rate(math_dtype(other))]
        raise UsageError(f"{gpu.title} has no {dtype} arithmetic; it has {', '.join(able) or 'f32'}")


def _alternatives(candidates: CandidateSet, best: Recommendation, alone: bool) -> Mapping[str, Costs]:
    number = next(i for i, kernel in enumerate(candidates.kernels) if kernel.table.kernel is best.kernel)
    heuristic = candidates.starts[number] + candidates.kernels[number].heuristic
    positions = {FASTEST: candidates.fastest, LOWEST_ENERGY: int(candidates.energy_j[0].argmin()), HEURISTIC: heuristic}
    costs = {name: costs_at(candidates, 0, position) for name, position in positions.items()}
    if alone:  # Only the layers of a network displace each other's data from L2.
        return costs
    return {name: cold_costs(*each, candidates.problem, candidates.gpu) for name, each in costs.items()}


def _totals(
    layers: Sequence[LayerAnswer], backend: str, exchange: Exchange | None, query: Query, complete: bool
) -> tuple[Total, ...]:
    names = [RECOMMENDED, *([today_name(backend), MIXTURE] if backend else [])]
    if any(layer.alternatives for layer in layers):
        names += [FASTEST, LOWEST_ENERGY, HEURISTIC]
    costs = []
    for layer in layers:
        of_backend = {today_name(backend): layer.baseline_costs or layer.costs, MIXTURE: layer.run_costs}
        costs.append((layer.count, {**of_backend, **layer.alternatives}, layer.costs))
    totals = [
        Total.of(name, [(count, by_total.get(name, own)) for count, by_total, own in costs], exchange, complete)
        for name in names
    ]
    value = query.objective.scalar.value_of
    return tuple(sorted(totals, key=lambda total: value(total.latency_s, total.energy_j)))


def _remarks(answer: NetworkAnswer, backend: str, kernrec_only: bool) -> Iterator[str]:
    layers, query, tp = answer.layers, answer.query, answer.workload.tp
    with_baseline = [(layer.name, layer.baseline) for layer in layers if layer.baseline is not None]
    without = [layer.name for layer in layers if layer.baseline is None]
    whose = backend or " or ".join(query.backends) or "any backend"
    if with_baseline and without and not kernrec_only:
        counted = "kernrec's kernels are used there" if answer.backend else "so it has no total"
        why = f"No baseline: {', '.join(without)}."
        if not answer.backend:
            why += f" The others do less than {100 * COVERED:.0f} % of the operations."
        lacking = " or ".join(query.backends) or whose
        yield Note(f"no {lacking} baseline for {len(without)} of {len(layers)} layer types; {counted}", why)
    elif without and query.backends and not kernrec_only:
        yield f"no baseline of {whose} for any layer"
    others = [(name, baseline.backend) for name, baseline in with_baseline if program_of(baseline) != backend]
    if others and backend not in ("", MIXTURE_OF_BACKENDS):
        names = ", ".join(dict.fromkeys(backend for _, backend in others))
        yield f"{_listed([name for name, _ in others])}: only {names} has a baseline, so its costs are used"
    warm = [
        (layer.name, layer.baseline.backend)
        for layer in layers
        if layer.baseline is not None
        and not (layer.layer.alone or layer.baseline.source == PREDICTED)
        and layer.baseline.latency_s.value <= cold_seconds(layer.answer.problem, answer.gpu)
    ]
    if warm and answer.backend:
        names = ", ".join(dict.fromkeys(backend for _, backend in warm))
        yield Note(
            f"{_listed([name for name, _ in warm])}: {names} was recorded with data in L2, so its time is raised",
            "It is raised to the time of reading the layer's data from DRAM, because other layers use L2 between two"
            " passes. `kernrec recommend --shape` shows the recorded time.",
        )
    unpowered = [name for name, baseline in with_baseline if baseline.power_predicted]
    if unpowered and answer.backend:
        yield Note(
            f"power of {whose} is predicted for {_listed(unpowered, 2)}",
            f"Only the time was recorded. The power model predicts power for: {', '.join(unpowered)}.",
        )
    if tp > 1:
        yield f"totals are for one of the {tp} GPUs; joules per token are for all {tp}"
    if answer.exchange is not None:
        yield answer.exchange.note
    if not answer.fits:
        yield Note(f"does not fit the {answer.gpu.title}: these costs assume enough memory", f"{answer.memory}.")


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
