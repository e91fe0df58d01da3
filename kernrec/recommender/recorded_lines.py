"""Lines of problems that somebody recorded exactly: they go before what is learned of the same stack.

A recording holds at the card's default power limit and clock. Carried to others, as predictions are, it is no recording
any more: such a line is `learned`, on this card.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernrec.gpu import GPU
from kernrec.model.vendor.epilogue import as_recorded, with_epilogue
from kernrec.model.vendor.stacks import is_wanted
from kernrec.op import Problem
from kernrec.store.recorded import RecordedLine, recorded_lines

if TYPE_CHECKING:
    from kernrec.model.vendor.predicted import StackPrediction


def recorded_predictions(
    problem: Problem, gpu: GPU, predictions: Sequence["StackPrediction"], stacks: Sequence[str] = ()
) -> Iterator[tuple[RecordedLine, "StackPrediction"]]:
    """The recorded rows of a problem, each with a prediction: the stack's own, with the recorded time and power.

    Without a prediction of a stack the first one says in what proportion the parts of the card are busy.

    stacks: the only ones wanted; all by default.
    """
    rows = [row for row in recorded_lines(as_recorded(problem), gpu) if is_wanted(row.stack, stacks)]
    if not rows:
        return
    from kernrec.model.vendor.predicted import Predicted, StackPrediction

    for row in rows:
        latency = with_epilogue(Predicted(row.latency_s, row.latency_s, row.latency_s, False), problem, gpu)
        power = None if row.power_w is None else Predicted(row.power_w, row.power_w, row.power_w, False)
        near = next((each for each in predictions if each.stack == row.stack), next(iter(predictions), None))
        own = near is not None and near.stack == row.stack
        if near is None:
            near = StackPrediction(row.stack, None, latency, power, (), None, {})
        yield row, replace(
            near, stack=row.stack, version=version_of(row), latency_s=latency, gpus=(gpu.name,), recorded_as=None,
            power_w=power if power is not None or not own else near.power_w,
        )  # fmt: skip


def version_of(row: RecordedLine) -> str:
    """The version of the stack, with what distinguishes the call: `1.3.0rc20, static scales`."""
    return f"{row.version}, {row.variant}" if row.variant else row.version
