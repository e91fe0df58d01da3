"""Write notes and errors about backends, and about sizes that are worth padding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernrec.errors import KernrecError
from kernrec.model.analytical.power import RANDOM
from kernrec.model.baselines.backends import AT, backend_of, is_wanted
from kernrec.model.baselines.epilogue import as_recorded, padded
from kernrec.op import Op, Problem
from kernrec.recommender.baselines import model_of, timed_on_host
from kernrec.recommender.estimate.physics import is_number
from kernrec.store.recorded import contents, recorded_baselines
from kernrec.util.human import Note

if TYPE_CHECKING:
    from kernrec.model.baselines.bound import BaselinePrediction
    from kernrec.model.baselines.model import GpuVendorModel
    from kernrec.recommender.context import GpuContext
    from kernrec.recommender.estimate.model_store import ModelStore

WORTH_PADDING = 0.10
"""Minimum fraction of time that padding must save for a note to recommend it."""


def baseline_notes(context: "GpuContext", problem: Problem, backends: Sequence[str] = ()) -> Iterator[str]:
    """Yield notes on backends that cannot run a problem, backends without data, and sizes that are worth padding."""
    from kernrec.model.baselines.physics import derived

    gpu = context.gpu
    by_physics = derived(problem, gpu) if len(backends) == 1 and context.conditions.inputs == RANDOM else None
    if (model := model_of(context, problem)) is None:
        there = [row.backend for row in recorded_baselines(as_recorded(problem), gpu)]
        there += [] if by_physics is None else [by_physics.backend]
        yield from (
            _no_baseline(backend, no_baselines(context, problem)) for backend in backends if backend not in there
        )
        return
    problem = as_recorded(problem)
    predictions = model.predict(problem)
    for each in predictions:
        if not is_number(each) and is_wanted(each.backend, backends):
            yield f"no {each.backend} baseline: the model's estimate is impossible ({each.latency_s.value:g} s)"
    for backend in timed_on_host(model, problem):
        if any(each.backend == backend and is_wanted(backend, backends) for each in predictions):
            yield f"{problem.dtype}: {backend} was recorded without CUDA graphs, so only its times include the host's"
    refusals = model.refusals(problem)
    yield from _refusal_texts(refusals, backends)
    if backends:
        versions = {row.backend: row.version for row in recorded_baselines(problem, gpu)}
        versions |= {each.backend: each.version or "" for each in predictions}
        old = [name for name in model.superseded(problem) if name.partition(AT)[0] in versions]
        for backend in backends:
            run = any(is_wanted(name, (backend,), version) for name, version in versions.items())
            run = run or (by_physics is not None and by_physics.backend == backend)
            if not run and backend not in (*old, *refusals):
                names = [f"{name}{AT}{version}" if version else name for name, version in versions.items()]
                names += sorted(old)
                if names:
                    yield Note(
                        f"no {backend} data for this problem; available: {', '.join(versions)}", ", ".join(names)
                    )
                else:
                    yield _no_baseline(backend, no_baselines(context, problem))
    yield from _padding_notes(model, problem, predictions, backends)


def _refusal_texts(refusals: Mapping[str, str], backends: Sequence[str]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for backend, reason in refusals.items():
        if is_wanted(backend, backends):
            by_reason.setdefault(reason, []).append(backend)
    for reason, names in by_reason.items():
        bases = [backend_of(name) for name in names]
        plain = [name for name, base in zip(names, bases, strict=True) if name == base or base not in names]
        yield f"{', '.join(plain)} {'does' if len(plain) == 1 else 'do'} not run it: {reason}"


def _no_baseline(backend: str, instead: str) -> Note:
    text = f"no {backend} data for this problem"
    return Note(f"{text}; {instead}") if len(instead) < 60 else Note(text, f"{instead[0].upper()}{instead[1:]}.")


def no_baselines(context: "GpuContext", problem: Problem) -> str:
    """Return a text for a problem without baselines. It names the backends and data types recorded for the op."""
    if (model := model_of(context, problem)) is None:
        if (shipped := contents().get(as_recorded(problem).op)) is not None:
            return f"backends were recorded only for single {problem.op} problems ({', '.join(shipped['dtypes'])})"
        return f"no backend was recorded for {problem.op}"
    recorded: dict[str, dict[str, None]] = {}
    for entry in model.sets:
        for backend in dict.fromkeys(name.partition(AT)[0] for name in entry.recorded.backends):
            recorded.setdefault(backend, {}).update(dict.fromkeys(entry.recorded.dtypes))
    listed = "; ".join(f"{backend}: {', '.join(dtypes)}" for backend, dtypes in recorded.items())
    return f"recordings of {problem.op}: {listed}"


def recorded_dtypes(models: "ModelStore", op: Op) -> list[str]:
    """Return the data types in which an op has baselines."""
    if (model := models.vendor_model("matmul" if op.name == "matvec" else op.name)) is None:
        return []
    recorded = {name for entry in model.sets for name in (*entry.recorded.dtypes, *entry.recorded.alike)}
    return [dtype for dtype in op.dtypes if dtype in recorded]


def without_baseline(
    reason: KernrecError, context: "GpuContext", problem: Problem, backends: Sequence[str]
) -> KernrecError:
    """Return the error for a problem that has neither a kernel nor a baseline. Its message begins with `reason`."""
    model = model_of(context, problem)
    refused = {} if model is None else model.refusals(as_recorded(problem))
    there = "; ".join(_refusal_texts(refused, backends))
    if not there:
        names = " or ".join(backends) or "any backend"
        there = f"and there is no baseline of {names} on the {context.gpu.title}; {no_baselines(context, problem)}"
    return type(reason)(f"{reason}; {there}")


def _padding_notes(
    model: "GpuVendorModel", problem: Problem, predictions: "Sequence[BaselinePrediction]", backends: Sequence[str]
) -> Iterator[str]:
    sizes = problem.dim
    if not (others := padded(problem)):
        return
    fastest: dict[str, tuple[float, Problem]] = {}
    model.time(others)  # Predict the times of all problems in one batch.
    for other in others:
        for backend, latency_s, _ in model.latencies(other):
            if is_wanted(backend, backends) and (backend not in fastest or latency_s <= fastest[backend][0]):
                fastest[backend] = latency_s, other
    plain = [(each.latency_s.value, each.backend) for each in predictions if each.backend in fastest]
    if plain:
        plain_s, backend = min(plain)
        padded_s, other = fastest[backend]
        if (saved := 1 - padded_s / plain_s) > WORTH_PADDING:
            changed = ", ".join(f"{name} = {size}" for name, size in other.dim.items() if size != sizes[name])
            yield f"{backend} would take {100 * saved:.0f} % less time with aligned rows: padded to {changed}"
