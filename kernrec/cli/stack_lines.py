"""The lines of stacks, as `recommend` and `analyze` print it: in lines below the choices, or as the answer itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.cli.answer_table import SELDOM, USUALLY, Column, quantities
from kernrec.cli.quantity import percent
from kernrec.util.human import human
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernrec.gpu import GPU
    from kernrec.recommender import Estimate
    from kernrec.recommender.estimate.operating_point import OperatingPoint
    from kernrec.recommender.lines import Line


def line_texts(lines: "Sequence[Line]", gpu: "GPU") -> list[str]:
    """The fastest stack, the others against it, and whether to call it instead of the first choice."""
    if not lines:
        return []
    first, *others = lines
    text = f"{first.dated_name}: {_interval(first.latency_s, first.latency_interval_s, 's')}"
    if first.energy_j is not None and first.power_w is not None:
        of_others = first.power_transferred and first.source == "learned"
        basis = " predicted" if first.power_predicted else " transferred" * of_others
        power = f"{human(first.power_w, 'W')}{basis}"
        text += f", {human(first.energy_j, 'J')} ({power})"
    text += f"{_point(first, gpu)}, {first.basis}"
    against = ", ".join(f"{each.dated_name} {percent(each.latency_s / first.latency_s - 1)}" for each in others)
    texts = [f"{text}; {against}" if against else text]
    if first.slowdown is not None:
        from kernrec.recommender.lines import NEARLY

        saved = "" if first.energy_saved is None else f" and {percent(-first.energy_saved)} energy"
        advice = f": {first.stack} may be faster" if first.faster else ""
        advice = f": call {first.stack}" if first.advised else advice
        if first.slowdown > NEARLY and not first.beaten:
            advice = ": within the estimates' error"
        if advice and first.source == "transferred" and not first.advised:
            advice += f", and {'the baseline' if first.less_sure else 'the kernel'} is more likely wrong"
        texts.append(f"{percent(first.slowdown)} time{saved} against the first choice{advice}.")
    return texts


@dataclass(frozen=True)
class StackRow:
    """A line as a row among the choices; names as those of a choice."""

    line: "Line"
    gpu: "GPU"

    @property
    def kernel(self) -> str:
        """The stack."""
        return self.line.name

    @property
    def config(self) -> "Mapping[str, int]":
        """None: a stack chooses by itself."""
        return {}

    @property
    def point(self) -> "OperatingPoint":
        """The power limit and clock that the line holds at."""
        from kernrec.recommender.estimate.operating_point import OperatingPoint

        return OperatingPoint(self.line.power_limit_w, self.line.locked_clock_hz)

    @property
    def latency_s(self) -> "Estimate":
        """With the 90 % interval, as `energy_j`."""
        return self.line.latency_s

    @property
    def energy_j(self) -> "Estimate | None":
        """None where nobody recorded power."""
        return self.line.energy_j

    @property
    def power_w(self) -> float | None:
        """None where nobody recorded it."""
        return self.line.power_w

    @property
    def source(self) -> str:
        """`recorded`, `learned` or `transferred`."""
        return self.line.source


def _point(line: "Line", gpu: "GPU") -> str:
    """The operating point where it is not the GPU's default."""
    limit = "" if line.power_limit_w == gpu.tdp_w else f" at {human(line.power_limit_w, 'W')}"
    clock = "" if line.locked_clock_hz is None else f" at {human(line.locked_clock_hz, 'Hz')}"
    return limit + clock


def _interval(value: float, interval: tuple[float, float], unit: str) -> str:
    """Write a value with its interval, and the unit once if it is the same."""
    low, high = (human(end, unit) for end in interval)
    if low.split(" ")[1] == high.split(" ")[1]:
        low = low.split(" ")[0]
    return f"{human(value, unit)} ({low} to {high})"


def line_columns(lines: "Sequence[Line]") -> list[Column]:
    """The columns of an answer by lines alone, a row for each stack."""
    latencies = [line.latency_interval_s for line in lines]
    energies = [(line.energy_j, line.energy_interval_j) for line in lines]
    versus = ["-", *(percent(line.latency_s / lines[0].latency_s - 1) for line in lines[1:])]
    return [
        Column("stack", "left", [line.dated_name for line in lines]),
        quantities("latency", "s", [line.latency_s for line in lines], latencies),
        Column("vs first", "right", versus),
        quantities("energy", "J", [value for value, _ in energies], [interval for _, interval in energies], USUALLY),
        quantities("power", "W", [line.power_w for line in lines], importance=USUALLY),
        Column("source", "left", [line.source for line in lines], styles=[_STYLES[line.source] for line in lines]),
        Column(
            "recorded on",
            "left",
            [line.basis.removeprefix(f"{line.source} ").removeprefix("on ").removeprefix("from ") for line in lines],
            SELDOM,
        ),
    ]


_STYLES = {"recorded": "measured", "learned": "learned", "transferred": "prior"}
