"""Find recorded baselines of a problem, which take precedence over predictions of a learned model.

A backend can pad a problem to more items, such as rows of a matmul or images (`engine/query/more_items.cpp`). So the
recorded time with more items is an upper bound for fewer items. A recording has the source `learned` instead of
`published` if it is adapted to an epilogue or to another operating point.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from kernrec.gpu import GPU
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.baselines.backends import AT, is_wanted
from kernrec.model.baselines.epilogue import as_recorded, with_epilogue
from kernrec.op import Problem
from kernrec.store.recorded import RecordedBaseline, recorded_baseline, rows_beside
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.baselines.bound import BaselinePrediction


Row = tuple[int, float, int]
"""Number of items, seconds, and index of a recorded row."""


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings of a problem on one GPU, and of problems with other numbers of items, such as images or rows."""

    problem: Problem
    gpu: GPU
    items: int
    rows: Mapping[tuple[str, str, str], Sequence[Row]]
    """Recorded rows, ascending in items, keyed by backend, version and variant."""

    @classmethod
    def of(cls, problem: Problem, gpu: GPU, superseded: Collection[str] = ()) -> "Recordings":
        """Return the recordings of a problem. Its bias and activation are ignored.

        `superseded` lists versions to leave out, in the form `backend@version`.
        """
        rows: dict[tuple[str, str, str], list[Row]] = {}
        items, beside = rows_beside(as_recorded(problem), gpu)
        for key, number, seconds, row in beside:
            if f"{key[0]}{AT}{key[1]}" not in superseded:
                rows.setdefault(key, []).append((number, seconds, row))
        return cls(problem, gpu, items, rows)

    def published(
        self, predictions: Sequence["BaselinePrediction"], backends: Sequence[str] = ()
    ) -> Iterator[tuple[RecordedBaseline, "BaselinePrediction"]]:
        """Yield recorded rows of the problem, each together with a `BaselinePrediction` of the recorded time and power.

        Yield at most one row of each backend, version and variant: the fastest row with at least as many items, such as
        images, as the problem. `predictions` supply values that were not recorded.
        """
        same = {key for key, rows in self.rows.items() if any(items == self.items for items, _, _ in rows)}
        shown = {each.backend: each.latency_s.value for each in predictions}
        shown |= {key[0]: self._at_least(self.rows[key]) for key in same if not key[2]}
        for key, rows in self.rows.items():
            backend, version, variant = key
            if not is_wanted(backend, backends, version):
                continue
            if key in same or (variant and backend in shown and self._at_least(rows) < shown[backend]):
                row = recorded_baseline(as_recorded(self.problem), _least(rows, self.items)[2], self.gpu)
                yield row, self._with_recorded(row, predictions)

    def _with_recorded(
        self, row: RecordedBaseline, predictions: Sequence["BaselinePrediction"]
    ) -> "BaselinePrediction":
        from kernrec.model.baselines.bound import BaselinePrediction

        latency = self.latency(row.latency_s, row.latency_interval_s)
        power = None
        if row.power_w is not None and row.power_interval_w is not None:
            power = Estimate(row.power_w, *row.power_interval_w, Source.LEARNED)
        near = next((each for each in predictions if each.backend == row.backend), next(iter(predictions), None))
        own = near is not None and near.backend == row.backend
        if near is None:
            near = BaselinePrediction(row.backend, None, latency, power, (), None, {})
        return replace(
            near, backend=row.backend, version=version_of(row), latency_s=latency, gpus=(self.gpu.name,),
            recorded_as=None, power_w=power if power is not None or not own else near.power_w,
        )  # fmt: skip

    def ordered(self, predictions: Sequence["BaselinePrediction"]) -> tuple["BaselinePrediction", ...]:
        """Limit predicted latencies to the range between recorded times of smaller problems and of larger problems."""
        if not self.rows:
            return tuple(predictions)
        return tuple([replace(each, latency_s=self._between(each)) for each in predictions])

    def latency(self, seconds: float, interval_s: tuple[float, float] | None = None) -> Estimate:
        """Add the time of the problem's bias and activation to a recorded time.

        Args:
            seconds: recorded time in seconds.
            interval_s: 90 % interval of `seconds`, or None if the recording has none.
        """
        low_s, high_s = interval_s or (seconds, seconds)
        return with_epilogue(Estimate(seconds, low_s, high_s, Source.LEARNED), self.problem, self.gpu)

    def _at_least(self, rows: Sequence[Row]) -> float:
        return self.latency(_least(rows, self.items)[1]).value if max(rows)[0] >= self.items else inf

    def _between(self, predicted: "BaselinePrediction") -> Estimate:
        latency, rows = predicted.latency_s, list[Row]()
        for (backend, version, variant), alike in self.rows.items():
            if backend == predicted.backend and (not variant or _version(version, variant) == predicted.version):
                rows += alike
        value, items = latency.value, [number for number, _, _ in rows]
        if fewer := [number for number in items if number < self.items]:
            value = max(value, self.latency(_least(rows, max(fewer))[1]).value)
        if rows:
            value = min(value, self._at_least(rows))
        if value == latency.value:
            return latency
        return replace(latency, value=value, low=min(latency.low, value), high=max(latency.high, value))


def _least(rows: Sequence[Row], items: int) -> Row:
    return min((row for row in rows if row[0] >= items), key=lambda row: row[1])


def version_of(row: RecordedBaseline) -> str:
    """Return the version and variant of a recording, such as `1.3.0rc20, static scales`."""
    return _version(row.version, row.variant)


def _version(version: str, variant: str) -> str:
    return f"{version}, {variant}" if variant else version
