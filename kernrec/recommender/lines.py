"""Lines: the time and energy of what people run today (stacks) for a problem, beside the choices or in their place.

A line is recorded (somebody measured this very problem), learned (from recordings of the card) or transferred (from
recordings of other cards), and holds at an operating point, as a choice does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.prior.power import RANDOM
from kernrec.model.vendor.epilogue import as_recorded, has_epilogue
from kernrec.model.vendor.padding import padded
from kernrec.model.vendor.stacks import is_wanted
from kernrec.op import Op, Problem
from kernrec.recommender.choice_parts import Estimate
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.recorded_lines import Recordings, recorded_predictions
from kernrec.store.recorded import RecordedLine, contents, recorded_lines
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.vendor.model import VendorModel
    from kernrec.model.vendor.predicted import StackPrediction
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.model_store import ModelStore

NEARLY = 0.02
"""A smaller difference of latency counts as none."""
WORTH_PADDING = 0.10
"""Least share of the time that padded sizes must save to be worth a note: they have to be stored and zeroed."""

_NAMED = 4
"""Cards that a transferred line names at most."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """The estimate of what a stack takes for a problem at an operating point; in SI units, with 90 % intervals."""

    stack: str
    version: str | None
    """Of the stack, as it was recorded; None where it was not stated, or not recorded on this card."""
    source: str
    """`recorded`, `learned` (on this card) or `transferred` (from other cards)."""
    latency_s: Estimate
    power_w: float | None
    """Mean power; None where nobody recorded it."""
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
    provenance: Mapping[str, str] | None = None
    """Of a recorded line: `source`, `licence`, `recorded` (when and how) and the `kernel` that ran; else None."""
    slowdown: float | None = None
    """Latency over that of the first choice, less 1; None without a choice."""
    energy_saved: float | None = None
    """Fraction of the first choice's energy; None where either is not known."""

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
        """The stack with its version, for people."""
        return f"{self.stack} {self.version}" if self.version else self.stack

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
        if self.source == "recorded":
            return f"recorded on this card by {(self.provenance or {}).get('source', 'somebody')}"
        as_ = "" if self.recorded_as is None else f" ({self.recorded_as})"
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
    """The lines of a problem on a GPU at an operating point, fastest first; none where nobody recorded such problems.

    Args:
        context: whose models of stacks are asked; lines are of random inputs, with which stacks were recorded.
        problem: of an op.
        gpu: the card.
        point: its power limit and clock.
        stacks: the only ones wanted; all by default.

    Raises:
        UsageError: the card does not accept the power limit or clock.
    """
    if context.inputs != RANDOM:
        return ()
    from kernrec.model.vendor.operating_point import at_point

    default = point.is_default(gpu)
    model = _model(context, problem)
    recordings = Recordings.of(problem, gpu)
    predictions = recordings.ordered(() if model is None else model.predict(problem, gpu))
    recorded = list(recorded_predictions(recordings, predictions, stacks))
    exact = {row.stack for row, _ in recorded if default or predictions}
    wanted = [each for each in predictions if is_wanted(each.stack, stacks) and each.stack not in exact]
    if default:
        lines = [_line(each, gpu, point) for each in at_point(wanted, gpu, point, problem)]
        lines += [_line(each, gpu, point, None if has_epilogue(problem) else row) for row, each in recorded]
    else:
        # Stacks that are not wanted tell of the problem's energy, too: no line depends on which others are asked for.
        carried = [*wanted, *(each for _, each in recorded if predictions)]
        others = [each for each in predictions if each.stack not in {line.stack for line in carried}]
        lines = [_line(each, gpu, point) for each in at_point([*carried, *others], gpu, point, problem)[: len(carried)]]
    return tuple(sorted(lines, key=lambda line: line.latency_s))


def beside(lines: Iterable[Line], latency_s: float, energy_j: float) -> tuple[Line, ...]:
    """The lines compared with the first choice's latency and energy."""
    return tuple(
        replace(
            line,
            slowdown=line.latency_s / latency_s - 1,
            energy_saved=None if line.energy_j is None else 1 - line.energy_j / energy_j,
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
    if (model := _model(context, problem)) is None:
        there = [row.stack for row in recorded_lines(as_recorded(problem), gpu)]
        yield from (f"{stack} has no line: {no_lines(context, problem)}" for stack in stacks if stack not in there)
        return
    problem = as_recorded(problem)
    if not stacks and (recorded := model.outside(problem)) is not None and not recorded_lines(problem, gpu):
        yield f"no line of a stack beside it: of {problem.op} in {problem.dtype} only {recorded} were recorded"
    refusals = model.refusals(problem, gpu)
    for stack, reason in refusals.items():
        if is_wanted(stack, stacks):
            yield f"{stack} does not run it: {reason}"
    if stacks:
        there = [row.stack for row in recorded_lines(problem, gpu)]
        there += [each.stack for each in model.predict(problem, gpu) if each.stack not in there]
        for stack in stacks:
            if not any(is_wanted(other, (stack,)) for other in (*there, *refusals)):
                others = f"lines of it have {', '.join(there)}" if there else no_lines(context, problem)
                yield f"{stack} has no line for this problem; {others}"
    yield from _padding(model, problem, gpu, stacks)


def no_lines(context: "Context", problem: Problem) -> str:
    """The kinds of problems that have lines, where this one has none."""
    if (model := _model(context, problem)) is None:
        if (shipped := contents().get(as_recorded(problem).op)) is not None:
            return f"single problems of {problem.op} were recorded, in {', '.join(shipped['dtypes'])}, not this one"
        return f"no stack was recorded for {problem.op}"
    recorded: dict[str, dict[str, None]] = {}
    for entry in model.sets:
        for stack in entry.recorded.stacks:
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
        there = f"nor is there a line of {' or '.join(stacks) or 'a stack'} ({no_lines(context, problem)})"
    return type(reason)(f"{reason}; {there}")


def _model(context: "Context", problem: Problem) -> "VendorModel | None":
    return context.models.vendor_model(as_recorded(problem).op) if context.inputs == RANDOM else None


def _line(predicted: "StackPrediction", gpu: GPU, point: OperatingPoint, recorded: RecordedLine | None = None) -> Line:
    latency, power = predicted.latency_s, predicted.power_w
    source = "transferred" if latency.transferred else "learned" if recorded is None else "recorded"
    energy = None
    if power is not None:
        energy_source = "transferred" if power.transferred else source
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
        provenance=None if recorded is None else recorded.provenance,
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
            yield f"rows are not aligned: padded to {changed}, {stack} would take {100 * saved:.0f} % less time"
