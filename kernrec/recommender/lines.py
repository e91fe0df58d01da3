"""Baselines: the time and energy of what people run today for a problem, beside the choices or in their place.

A baseline is recorded (somebody measured this very problem), learned (from recordings of the GPU), transferred (from
recordings of other GPUs) or, if nobody recorded such problems, predicted (by physics). It holds at an operating point,
as a choice does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.prior.power import RANDOM
from kernrec.model.vendor.epilogue import as_recorded, has_epilogue
from kernrec.model.vendor.padding import padded
from kernrec.model.vendor.releases import released
from kernrec.model.vendor.stacks import AT, is_wanted
from kernrec.op import Op, Problem
from kernrec.recommender.choice_parts import Estimate
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import cold_seconds, is_number, refuse_too_large
from kernrec.recommender.recorded_lines import Recordings, recorded_predictions
from kernrec.store.recorded import RecordedLine, contents, recorded_lines
from kernrec.util.light_dataclass import dataclass
from kernrec.util.note import Note

if TYPE_CHECKING:
    from kernrec.model.vendor.model import VendorModel
    from kernrec.model.vendor.predicted import StackPrediction
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.model_store import ModelStore

NEARLY = 0.02
"""A smaller difference of latency counts as none."""
WORTH_PADDING = 0.10
"""Least share of the time that padded sizes must save to be worth a note: they have to be stored and zeroed."""

_WEIGHTED = ("matmul", "matvec", "conv2d", "moe")
PREDICTED = "predicted"
"""Source of a baseline that nobody recorded."""
_NAMED = 4
"""Cards that a transferred line names at most."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """The estimate of what a stack takes for a problem at an operating point; in SI units, with 90 % intervals."""

    stack: str
    version: str | None
    """Version of the stack, as it was recorded on this card, or the range of versions that were recorded on the cards
    of a transferred line; None if no version was stated."""
    source: str
    """`recorded`, `learned` (on this GPU), `transferred` (from other GPUs) or `predicted` (by physics)."""
    latency_s: Estimate
    power_w: float | None
    """Mean power; the power model's where nobody recorded it (`power_predicted`)."""
    power_interval_w: Interval | None
    energy_j: Estimate | None
    """None where nobody recorded power."""
    power_limit_w: float
    """The power limit that the costs hold under, the GPU's default included."""
    locked_clock_hz: float | None
    """None where the clock is not locked."""
    learned_on: tuple[str, ...]
    """Catalog names of the cards whose latency was recorded."""
    recorded_as: str | None
    """Data type and layout that were recorded, where they are not the problem's; the interval is wider then."""
    power_transferred: bool
    """Whether power was recorded on other cards only."""
    power_predicted: bool = False
    """Whether nobody recorded power, so that it is the GPU's power model's."""
    warm: str = ""
    """Name of the data in L2 when it was benchmarked, such as `weights`, if it is faster than DRAM can read its bytes;
    else empty."""
    provenance: Mapping[str, str] | None = None
    """Of a recorded line: `source`, `licence`, `recorded` (when and how) and the `kernel` that ran; else None."""
    released: str | None = None
    """When the version came out, as `2026-06-30`, or from when to when; None if that is not known."""
    slowdown: float | None = None
    """Latency over that of the first choice, less 1; None without a choice."""
    energy_saved: float | None = None
    """Fraction of the first choice's energy; None where either is not known."""
    beaten: bool | None = None
    """Whether the first choice is faster at the unfavorable ends of both intervals; None without a choice."""
    less_sure: bool | None = None
    """Whether this baseline's interval is wider than the first choice's, so that it is more likely wrong."""

    @property
    def latency_interval_s(self) -> Interval:
        """The ends of the 90 % interval."""
        return self.latency_s.low, self.latency_s.high

    @property
    def energy_interval_j(self) -> Interval | None:
        """The ends of the 90 % interval."""
        return None if self.energy_j is None else (self.energy_j.low, self.energy_j.high)

    @property
    def name(self) -> str:
        """The backend with its version, for people."""
        if self.source == PREDICTED:
            return self.stack
        return f"{self.stack} {self.version}" if self.version else f"{self.stack} (version unknown)"

    @property
    def dated_name(self) -> str:
        """The stack with its version and the month in which that came out, if it is known."""
        months = " to ".join(dict.fromkeys(date[:7] for date in (self.released or "").split(" to ")))
        return f"{self.name} ({months})" if months else self.name

    @property
    def faster(self) -> bool:
        """Whether the stack is expected to be faster than the first choice."""
        return self.slowdown is not None and self.slowdown < -NEARLY

    @property
    def advised(self) -> bool:
        """Whether to call it: even at the upper end of its interval it is faster than the first choice's estimate."""
        return self.faster and (1 + (self.slowdown or 0.0)) * self.latency_interval_s[1] / self.latency_s < 1

    @property
    def basis(self) -> str:
        """Where the costs come from, in words."""
        as_ = f", as benchmarked, {self.warm} in L2" if self.warm else ""
        if self.source == "published":
            return f"recorded on this card by {(self.provenance or {}).get('source', 'somebody')}{as_}"
        if self.source == PREDICTED:
            return "predicted from bytes, arithmetic and launch: nobody recorded such problems"
        as_ = as_ if self.recorded_as is None else f" ({self.recorded_as}){as_}"
        if self.source == "learned":
            return f"learned on this card{as_}"
        cards = list(dict.fromkeys(map(short_title, self.learned_on)))
        more = f" and {len(cards) - _NAMED} more" if len(cards) > _NAMED else ""
        return f"transferred from {', '.join(cards[:_NAMED])}{more}{as_}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, under the names of the attributes."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            quantity, _, unit = field.name.rpartition("_")
            if field.name in ("latency_s", "energy_j"):
                none = {field.name: None, f"{quantity}_interval_{unit}": None}
                values |= none if value is None else value.as_dict(quantity, unit)
            else:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        values["provenance"] = None if self.provenance is None else dict(self.provenance)
        return values | {"faster": self.faster, "advised": self.advised}


def short_title(name: str) -> str:
    """`A100` for a catalog name of an A100: data-center cards are known by the first word of their title."""
    title = find_gpu(name).title.removeprefix("NVIDIA ")
    first = title.split(" ")[0].split("-")[0]
    return first if any(c.isdigit() for c in first) else title


def lines_of(
    context: "Context", problem: Problem, gpu: GPU, point: OperatingPoint, stacks: Sequence[str] = ()
) -> tuple[Line, ...]:
    """Return the baselines of a problem on a GPU at an operating point, fastest first.

    If nobody recorded such problems, there is one by physics; there is none if the GPU lacks the arithmetic, or if
    backends are wanted that have no model.

    Args:
        context: whose models of stacks are asked; lines are of random inputs, with which stacks were recorded.
        problem: of an op.
        gpu: the card.
        point: its power limit and clock.
        stacks: the only ones wanted; all by default.

    Raises:
        UsageError: the card does not accept the power limit or clock.
        KernrecError: the GPU's memory does not hold the problem.
    """
    if context.inputs != RANDOM:
        return ()
    from kernrec.model.vendor.operating_point import at_point, recorded_within
    from kernrec.model.vendor.physics import derived

    default = point.is_default(gpu)
    refuse_too_large(problem, gpu)
    old = superseded(context, problem, gpu)
    recordings = Recordings.of(problem, gpu, old)
    predictions = recordings.ordered([each for each in _predictions(context, problem, gpu) if is_number(each)])
    recorded = list(recorded_predictions(recordings, predictions, stacks))
    exact = {row.stack for row, _ in recorded if default or predictions}
    wanted = [p for p in predictions if is_wanted(p.stack, stacks, p.version) and p.stack not in exact]
    if old and (versions := old.intersection(stacks)):
        others, rows = _of_versions(context, problem, gpu, versions, old - versions)
        wanted += others
        recorded += rows
    if default:
        lines = [_line(each, problem, gpu, point) for each in at_point(wanted, gpu, point, problem)]
        for row, each in recorded:
            row_of_problem = None if has_epilogue(problem) else row
            lines.append(_line(recorded_within(each, gpu, problem), problem, gpu, point, row_of_problem))
    else:
        # Stacks that are not wanted tell of the problem's energy, too: no line depends on which others are asked for.
        carried = [*wanted, *(each for _, each in recorded if predictions)]
        others = [each for each in predictions if each.stack not in {line.stack for line in carried}]
        every = at_point([*carried, *others], gpu, point, problem)
        lines = [_line(each, problem, gpu, point) for each in every[: len(carried)]]
    if not lines and (by_physics := derived(problem, gpu)) is not None and is_wanted(by_physics.stack, stacks):
        lines = [_line(each, problem, gpu, point) for each in at_point([by_physics], gpu, point, as_recorded(problem))]
    return tuple(sorted(lines, key=lambda line: line.latency_s))


def superseded(context: "Context", problem: Problem, gpu: GPU) -> frozenset[str]:
    """Return the stacks, with `@` and a version, that answer only if that version is wanted."""
    model = _model(context, problem)
    return frozenset() if model is None else model.superseded(as_recorded(problem), gpu)


def _of_versions(
    context: "Context", problem: Problem, gpu: GPU, versions: Collection[str], others: Collection[str]
) -> "tuple[list[StackPrediction], list[tuple[RecordedLine, StackPrediction]]]":
    """(Predictions, recordings) of superseded versions of backends; `others` are not wanted."""
    recordings = Recordings.of(problem, gpu, others)
    recorded = list(recorded_predictions(recordings, (), tuple(versions)))
    there = {f"{row.stack}{AT}{row.version}" for row, _ in recorded}
    model = _model(context, problem)
    names = [name for name in versions if name not in there and model is not None]
    predictions = [model.predict_version(problem, gpu, name) for name in names if model is not None]
    return [each for each in predictions if each is not None], recorded


def cold_lines(
    context: "Context", problem: Problem, gpu: GPU, point: OperatingPoint, stacks: Sequence[str] = ()
) -> "list[Line]":
    """Return the baselines of a layer of a network, fastest first; arguments and errors as of `lines_of`."""
    lines = [read_cold(line, problem, gpu) for line in lines_of(context, problem, gpu, point, stacks)]
    return sorted(lines, key=lambda line: line.latency_s)


def read_cold(line: Line, problem: Problem, gpu: GPU) -> Line:
    """Return a baseline as a network runs it, in which no layer finds its weights in L2: its time is at least that of
    its compulsory bytes at the DRAM bandwidth that kernels achieve. Its power stays, so energy grows with time.

    Args:
        line: of the problem, perhaps benchmarked with weights in L2.
        problem: the layer.
        gpu: the GPU.
    """
    latency, energy = cold_costs(line.latency_s, line.energy_j or line.latency_s, problem, gpu)
    if latency is line.latency_s:
        return line
    return replace(line, latency_s=latency, energy_j=energy if line.energy_j is not None else None, warm="")


def cold_costs(latency: Estimate, energy: Estimate, problem: Problem, gpu: GPU) -> tuple[Estimate, Estimate]:
    """Return the costs of a layer of a network, whose weights are not in L2: at least `cold_seconds`, at its power."""
    least_s = cold_seconds(problem, gpu)
    if latency.value >= least_s:
        return latency, energy
    longer = least_s / latency.value
    latency = replace(latency, value=least_s, low=max(latency.low, least_s), high=max(latency.high * longer, least_s))
    return latency, replace(energy, value=energy.value * longer, low=energy.low * longer, high=energy.high * longer)


def beside(
    lines: Iterable[Line], latency_s: float, energy_j: float, interval_s: Interval | None = None
) -> tuple[Line, ...]:
    """Return the baselines compared with the first choice.

    Args:
        lines: of the choice's problem.
        latency_s: the choice's.
        energy_j: the choice's.
        interval_s: the 90 % interval of its latency; without width if it is None.
    """
    low_s, high_s = interval_s or (latency_s, latency_s)
    return tuple(
        replace(
            line,
            slowdown=line.latency_s / latency_s - 1,
            energy_saved=None if line.energy_j is None else 1 - line.energy_j / energy_j,
            beaten=high_s < line.latency_interval_s[0],
            less_sure=line.latency_interval_s[1] / line.latency_interval_s[0] > high_s / low_s,
        )
        for line in lines
    )


def predict_lines(context: "Context", problems: Iterable[Problem], gpu: GPU) -> None:
    """Predicts the lines of many problems for `lines_of` to tell: one by one takes far longer."""
    together: dict[str, list[Problem]] = {}
    for problem in map(as_recorded, problems):
        together.setdefault(problem.op, []).append(problem)
    for alike in together.values():
        if (model := _model(context, alike[0])) is not None:
            model.predict_many(alike, gpu)


def line_notes(context: "Context", problem: Problem, gpu: GPU, stacks: Sequence[str] = ()) -> Iterator[str]:
    """Lines about stacks that refuse a problem, that were asked for and have none, and about padded sizes."""
    from kernrec.model.vendor.physics import derived

    by_physics = derived(problem, gpu) if len(stacks) == 1 and context.inputs == RANDOM else None
    if (model := _model(context, problem)) is None:
        there = [row.stack for row in recorded_lines(as_recorded(problem), gpu)]
        there += [] if by_physics is None else [by_physics.stack]
        yield from (_no_baseline(stack, no_lines(context, problem)) for stack in stacks if stack not in there)
        return
    problem = as_recorded(problem)
    for each in model.predict(problem, gpu):
        if not is_number(each) and is_wanted(each.stack, stacks):
            yield f"no baseline of {each.stack}: its model's estimate is impossible ({each.latency_s.value:g} s)"
    refusals = model.refusals(problem, gpu)
    for stack, reason in refusals.items():
        if is_wanted(stack, stacks):
            yield f"{stack} does not run it: {reason}"
    if stacks:
        versions = {row.stack: row.version for row in recorded_lines(problem, gpu)}
        versions |= {each.stack: each.version or "" for each in model.predict(problem, gpu)}
        old = [name for name in superseded(context, problem, gpu) if name.partition(AT)[0] in versions]
        for stack in stacks:
            run = any(is_wanted(name, (stack,), version) for name, version in versions.items())
            run = run or (by_physics is not None and by_physics.stack == stack)
            if not run and stack not in (*old, *refusals):
                names = [f"{name}{AT}{version}" if version else name for name, version in versions.items()]
                names += sorted(old)
                if names:
                    yield Note(f"no {stack} data for this problem; available: {', '.join(versions)}", ", ".join(names))
                else:
                    yield _no_baseline(stack, no_lines(context, problem))
    yield from _padding(model, problem, gpu, stacks)


def _no_baseline(stack: str, instead: str) -> Note:
    text = f"no {stack} data for this problem"
    return Note(f"{text}; {instead}") if len(instead) < 60 else Note(text, f"{instead[0].upper()}{instead[1:]}.")


def no_lines(context: "Context", problem: Problem) -> str:
    """Return the kinds of problems that have baselines, for a problem that has none."""
    if (model := _model(context, problem)) is None:
        if (shipped := contents().get(as_recorded(problem).op)) is not None:
            return f"single problems of {problem.op} were recorded, in {', '.join(shipped['dtypes'])}, not this one"
        return f"no backend was recorded for {problem.op}"
    recorded: dict[str, dict[str, None]] = {}
    for entry in model.sets:
        for stack in dict.fromkeys(name.partition(AT)[0] for name in entry.recorded.stacks):
            recorded.setdefault(stack, {}).update(dict.fromkeys(entry.recorded.dtypes))
    listed = "; ".join(f"{stack}: {', '.join(dtypes)}" for stack, dtypes in recorded.items())
    return f"recorded for {problem.op} are {listed}"


def recorded_dtypes(models: "ModelStore", op: Op) -> list[str]:
    """The data types of an op in which stacks were recorded, or take about as long as in one that was."""
    if (model := models.vendor_model("matmul" if op.name == "matvec" else op.name)) is None:
        return []
    recorded = {name for entry in model.sets for name in (*entry.recorded.dtypes, *entry.recorded.alike)}
    return [dtype for dtype in op.dtypes if dtype in recorded]


def without_line(
    reason: KernrecError, context: "Context", problem: Problem, gpu: GPU, stacks: Sequence[str]
) -> KernrecError:
    """The error where neither a kernel nor a stack answers, of the kind of the kernels' `reason`."""
    model = _model(context, problem)
    refused = {} if model is None else model.refusals(as_recorded(problem), gpu)
    if stacks:
        refused = {stack: why for stack, why in refused.items() if is_wanted(stack, stacks)}
    there = "; ".join(f"{stack} does not run it: {why}" for stack, why in refused.items())
    if not there:
        there = f"nor is there a baseline of {' or '.join(stacks) or 'any backend'} ({no_lines(context, problem)})"
    return type(reason)(f"{reason}; {there}")


def _model(context: "Context", problem: Problem) -> "VendorModel | None":
    return context.models.vendor_model(as_recorded(problem).op) if context.inputs == RANDOM else None


def _predictions(context: "Context", problem: Problem, gpu: GPU) -> "Sequence[StackPrediction]":
    model = _model(context, problem)
    return () if model is None else model.predict(problem, gpu)


def _line(
    predicted: "StackPrediction",
    problem: Problem,
    gpu: GPU,
    point: OperatingPoint,
    recorded: RecordedLine | None = None,
) -> Line:
    latency, power = predicted.latency_s, predicted.power_w
    source = "transferred" if latency.transferred else "learned" if recorded is None else "published"
    source = PREDICTED if predicted.derived else source
    energy = None
    if power is not None:
        energy_source = "predicted" if predicted.power_predicted else "transferred" if power.transferred else source
        ends = latency.low * power.low, latency.high * power.high
        energy = Estimate(latency.value * power.value, *ends, energy_source)
    return Line(
        stack=predicted.stack,
        version=predicted.version,
        source=source,
        latency_s=Estimate(latency.value, latency.low, latency.high, source),
        power_w=None if power is None else power.value,
        power_interval_w=None if power is None else (power.low, power.high),
        energy_j=energy,
        power_limit_w=point.limit_w(gpu),
        locked_clock_hz=point.clock_hz,
        learned_on=predicted.gpus,
        recorded_as=predicted.recorded_as,
        power_transferred=power is not None and power.transferred,
        power_predicted=predicted.power_predicted,
        warm=("weights" if problem.op in _WEIGHTED else "data") * (latency.value < cold_seconds(problem, gpu)),
        provenance=None if recorded is None else recorded.provenance,
        released=released(predicted.stack, predicted.version),
    )


def _padding(model: "VendorModel", problem: Problem, gpu: GPU, stacks: Sequence[str]) -> Iterator[str]:
    """A note where the fastest stack takes clearly less for padded sizes: rows of a product that are not aligned."""
    sizes = problem.dim
    if not (others := padded(problem)):
        return
    fastest: dict[str, tuple[float, Problem]] = {}
    for other in others:
        for stack, latency, _ in model.latencies(other, gpu, others):
            if is_wanted(stack, stacks) and (stack not in fastest or latency.value <= fastest[stack][0]):
                fastest[stack] = latency.value, other
    plain = [(latency.value, stack) for stack, latency, _ in model.latencies(problem, gpu) if stack in fastest]
    if plain:
        plain_s, stack = min(plain)
        latency_s, other = fastest[stack]
        if (saved := 1 - latency_s / plain_s) > WORTH_PADDING:
            changed = ", ".join(f"{name} = {size}" for name, size in other.dim.items() if size != sizes[name])
            yield f"{stack} would take {100 * saved:.0f} % less time with aligned rows: padded to {changed}"
