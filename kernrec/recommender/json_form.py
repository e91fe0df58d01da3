"""Convert answers to JSON. Each JSON key is also the name of an attribute in Python."""

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical.spread import Estimate
from kernrec.op import Problem
from kernrec.op.workload import Workload
from kernrec.store import MeasuredAnswer

_Value = TypeVar("_Value")


_FORMER_NAMES = {
    "choices": "recommendations", "choice": "recommendation", "lines": "baselines", "line": "baseline",
    "leading_line": "leading_baseline", "ranked_lines": "ranked_baselines", "stack": "backend", "stacks": "backends",
    "leading_stack": "leading_backend", "pays": "worth_it", "may_pay": "may_be_worth_it",
    "versus_occupancy": "versus_occupancy_heuristic", "recommendation": "answer", "failures": "failed",
    "seconds": "analysis_s",
}  # fmt: skip
"""Present names of attributes and JSON keys, keyed by their names in version 0.1."""


class FormerNames:
    """Base class whose `AttributeError` suggests the new name of an attribute, or `best.latency_s` for `latency_s`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            new = _FORMER_NAMES.get(name, "")
            exists = hasattr(type(self), new) or new in getattr(type(self), "__match_args__", ())
            hint = f"; it is called {new}" if exists else ""
            if name in ("latency_s", "energy_j", "power_w"):
                hint = "".join(f"; use {part}.{name}" for part in ("headline", "best") if hasattr(type(self), part))
            raise AttributeError(f"{type(self).__name__} has no attribute {name}{hint}")


class JsonForm(FormerNames):
    """Base class for records that convert some of their attributes to JSON."""

    JSON = ""
    """Names of the attributes in the JSON form, separated by spaces. Empty means all fields.

    `engine=served.engine` stores the attribute `served.engine` as `engine`.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON. Keys contain units."""
        values: dict[str, Any] = {}
        for item in self.JSON.split() or getattr(self, "__match_args__"):  # noqa: B009 - a decorator adds it
            name, _, path = item.partition("=")
            value = attrgetter(path)(self) if path else getattr(self, name)
            quantity, _, unit = name.rpartition("_")
            if isinstance(value, Estimate):
                values |= value.as_dict(quantity, unit)
            elif name == "energy_j":  # The energy is not known.
                values |= {name: None, f"{quantity}_interval_{unit}": None}
            else:
                values[name] = plain(value)
        return values


def plain(value: Any) -> Any:
    """Convert a value to plain JSON values. A GPU or kernel becomes its name, and a problem becomes its key."""
    if isinstance(value, Problem):
        return value.key
    if isinstance(value, Workload):
        return value.title
    if isinstance(value, GPU | Kernel):
        return value.name
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class Alias(Generic[_Value]):
    """Descriptor that reads another attribute of the instance.

    Args:
        paths: path to the attribute, such as `place.number`. Several paths give a tuple.
    """

    def __init__(self, doc: str, *paths: str) -> None:
        self.__doc__, self._read = doc, attrgetter(*paths)

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        return cast("_Value", self if instance is None else self._read(instance))


class OfPart(Alias[_Value]):
    """Read-only attribute that returns, for instance, `measurement.sessions`, or `otherwise` without `measurement`."""

    def __init__(self, doc: str, path: str, otherwise: _Value) -> None:
        super().__init__(doc, path)
        self._part, self._otherwise = path.partition(".")[0], otherwise

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is not None and getattr(instance, self._part) is None:
            return self._otherwise
        return super().__get__(instance, owner)


_Interval = tuple[float, float]


class IntervalNames:
    """Mixin that names attributes as the JSON form does, such as `latency_interval_s`."""

    latency_interval_s = Alias[_Interval]("Ends of the 90 % interval of latency.", "latency_s.low", "latency_s.high")
    energy_interval_j = Alias[_Interval]("Ends of the 90 % interval of energy.", "energy_j.low", "energy_j.high")
    latency_own_interval_s = Alias[_Interval](
        "Interval of the latency error of this config only, for comparisons within the kernel.",
        "latency_s.own_interval",
    )
    energy_own_interval_j = Alias[_Interval](
        "Interval of the energy error of this config only, for comparisons within the kernel.", "energy_j.own_interval"
    )
    energy_source = Alias[str]("Source of the energy.", "energy_j.source")


class MeasuredNames:
    """Mixin with attributes that describe the measurement of a config, for the JSON form."""

    if TYPE_CHECKING:
        measurement: MeasuredAnswer | None

    locked_clock_hz = Alias[float | None]("Locked core clock in Hz; None if it is not locked.", "point.clock_hz")
    sessions = OfPart[int]("Number of sessions that measured the config.", "measurement.sessions", 0)
    device = OfPart[str | None]("Name of the GPU according to its driver.", "measurement.device", None)

    @property
    def measured_at(self) -> str | None:
        """Time of the latest measurement in UTC, as an ISO 8601 string."""
        return None if self.measurement is None else f"{self.measurement.measured_at.isoformat()}Z"

    @property
    def signed_by(self) -> list[dict[str, str | None]]:
        """Public key and name of each person who shared the measurement, or empty if made locally."""
        if self.measurement is None or not self.measurement.signers:
            return []
        from kernrec.store.keys import signer_name

        return [{"name": signer_name(key), "key": key or None} for key in self.measurement.signers]

    @property
    def contributors_latency_s(self) -> list[float] | None:
        """Lowest and highest latency in seconds that any contributor measured, or None for a single contributor."""
        row = self.measurement
        if row is None or row.contributors == 1 or row.spread_low_s is None or row.spread_high_s is None:
            return None
        return [row.spread_low_s, row.spread_high_s]
