"""Define the answer for a whole network: its layers, baselines and totals."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kernrec.gpu import GPU
from kernrec.op.workload import Layer, Workload
from kernrec.recommender import tabular
from kernrec.recommender.baselines import cold_costs
from kernrec.recommender.json_form import Alias, FormerNames, JsonForm
from kernrec.recommender.networks.exchange import Exchange
from kernrec.recommender.networks.memory import Memory, memory_json
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
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Answer, Recommendation
from kernrec.util.human import counted, human, short_config
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.baselines import Baseline
    from kernrec.recommender.recommender import Recommender

WORTH_IT = 0.05
"""Minimum fraction of a layer's baseline cost that a custom kernel must save to justify its development and upkeep."""


@dataclass(frozen=True)
class LayerAnswer(FormerNames):
    layer: Layer
    answer: Answer
    """Answer for the layer's problem. Without recommendations, only backends can run the layer."""
    baseline: "Baseline | None" = None
    """Baseline of the network's backend, or None if the backend has no baseline for the layer."""
    objective: Objective = Objective.LATENCY
    of_kernrec: bool = False
    """Whether the network's headline total uses kernrec's kernels wherever they exist."""
    alternatives: Mapping[str, Costs] = field(default_factory=dict)
    """Costs of configs that were not recommended, keyed by the name of a total, such as `FASTEST`."""

    def __repr__(self) -> str:
        return f"<LayerAnswer {self.name}, {self.count} times: {self.answer!r}>"

    name = Alias[str]("Name of the layer.", "layer.name")
    count = Alias[int]("Number of occurrences in one pass through the network.", "layer.count")

    @property
    def best(self) -> Recommendation | None:
        """Top recommendation, or None if only backends can run the layer."""
        return self.answer.recommendations[0] if self.answer.recommendations else None

    @cached_property
    def costs(self) -> Costs:
        """Latency and energy of the top recommendation, or of the baseline if only backends can run the layer."""
        if (best := self.best) is None:
            assert self.baseline_costs is not None, "a layer has a recommendation or a baseline"
            return self.baseline_costs
        costs = best.latency_s, best.energy_j
        return costs if self.layer.alone else cold_costs(*costs, best.problem, best.gpu)

    @cached_property
    def baseline_costs(self) -> Costs | None:
        return None if self.baseline is None else costs_of(self.baseline)

    @property
    def saved(self) -> float | None:
        """Fraction of the baseline's cost that the recommendation saves. None without recommendation or baseline."""
        if self.best is None or (backend := self.baseline_costs) is None:
            return None
        value = self.objective.scalar.value_of
        return 1.0 - value(*self.costs) / value(*backend)

    @property
    def worth_it(self) -> bool | None:
        """Whether a custom kernel is worth it for this layer. None without a baseline."""
        if self.best is None:
            return False
        return None if self.saved is None else self.may_be_worth_it and self.certain

    @property
    def may_be_worth_it(self) -> bool:
        """Whether the recommendation is expected to save at least the fraction `WORTH_IT` of the baseline's cost."""
        return self.saved is not None and self.saved >= WORTH_IT

    @property
    def certain(self) -> bool:
        """Whether the recommendation costs less than the baseline even at the unfavorable ends of both intervals."""
        assert self.baseline_costs is not None
        value = self.objective.scalar.value_of
        return value(*(each.high for each in self.costs)) < value(*(each.low for each in self.baseline_costs))

    @property
    def runs_backend(self) -> bool:
        """Whether the backend should run the layer, because a kernel of kernrec is not worth it."""
        return self.baseline is not None and self.worth_it is False and not (self.of_kernrec and self.best is not None)

    @cached_property
    def run_costs(self) -> Costs:
        """Latency and energy of the layer with the backend or kernel that should run it."""
        return (self.runs_backend and self.baseline_costs) or self.costs

    @property
    def program(self) -> tuple[str, str]:
        """Name and config of the backend or kernel that should run the layer. The config of a backend is empty."""
        if (best := self.best) is not None and not self.runs_backend:
            return best.kernel.name, short_config(best.config)
        return (self.baseline.name if self.baseline is not None else ""), ""

    @property
    def source(self) -> str:
        if self.best is not None and not self.runs_backend:
            return self.best.source
        return self.baseline.source if self.baseline is not None else ""

    @property
    def latency_s(self) -> float:
        """Seconds of all occurrences of the layer, with the backend or kernel that should run it."""
        return self.count * self.run_costs[0].value

    @property
    def energy_j(self) -> float:
        """Joules of all occurrences of the layer, with the backend or kernel that should run it."""
        return self.count * self.run_costs[1].value

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "count": self.count,
            **self.answer.as_dict(),
            "baseline": None if self.baseline is None else self.baseline.as_dict(),
            "saved": self.saved,
            "worth_it": self.worth_it,
            "run": self.program[0],
        }


MOST_OF_THE_TIME, MOST_SHOWN = 0.8, 10
"""Fraction of the network's time that the longest layers must cover, and maximum number of these layers."""


_PREFERRED = {RECOMMENDED: 1, MIXTURE: 2, FASTEST: 3, LOWEST_ENERGY: 4, HEURISTIC: 5}
"""Rank of each total. If totals have equal costs, only the total with the lowest rank is shown."""


@dataclass(frozen=True)
class NetworkAnswer(JsonForm):
    """Answer for a network on a GPU: a recommendation for each layer, and totals."""

    JSON = (
        "workload batch tp gpu objective power_limit_w locked_clock_hz inputs backends backend headline fits memory"
        " exchange dtypes layouts_chosen layers left_out totals notes"
    )

    workload: Workload
    gpu: GPU
    query: Query
    layers: tuple[LayerAnswer, ...]
    left_out: tuple[str, ...]
    """One line for each layer that the totals exclude, with the reason."""
    totals: tuple[Total, ...]
    """Totals of the network in the order of the query's objective, best first."""
    exchange: Exchange | None
    """All-reduces between tensor-parallel GPUs, or None for one GPU."""
    memory: Memory
    adjusted: tuple[str, ...] = ()
    """Notes on how the answer differs from the request, such as another data type."""
    layouts_chosen: Mapping[str, str] = field(default_factory=dict)
    """Layouts that kernrec chose instead of the op's default, keyed by op."""
    backend: str = ""
    """Backend with which the network is compared, or empty if no backend has a total."""
    headline_name: str = RECOMMENDED
    """Name of the total that represents the network."""
    faster: str = ""
    """Sentence on another backend that takes or may take clearly less time than `backend`. Empty if there is none."""

    batch = Alias[int]("Batch size of the layers.", "workload.batch")
    tp = Alias[int]("Number of GPUs that the layers are split over.", "workload.tp")
    objective = Alias[Objective]("Objective of each layer.", "query.objective")
    locked_clock_hz = Alias[float | None]("Requested clock in Hz; None if it is not locked.", "query.clock_hz")
    inputs = Alias[str]("Input data, `random` or `zeros`.", "query.inputs")
    backends = Alias[tuple[str, ...]]("Requested backends; empty for all.", "query.backends")

    @property
    def power_limit_w(self) -> float:
        """Power limit in watts for all layers."""
        return self.query.point.limit_w(self.gpu)

    def __repr__(self) -> str:
        chosen = self.headline
        cost = f"{human(chosen.latency_s.value, 's')}, {human(chosen.energy_j.value, 'J')} {chosen.source}"
        kind = ", ".join(self.dtypes)
        return f"<NetworkAnswer {self.workload.name} {kind} on {self.gpu.name}: {len(self.layers)} layers, {cost}>"

    def __str__(self) -> str:
        return tabular.text(tabular.title(self, self.workload), tabular.totals(self), tabular.layers(self))

    def _repr_html_(self) -> str:
        title = tabular.title(self, self.workload)
        return tabular.html(title, self.notes, tabular.totals(self), tabular.layers(self))

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table` with a row for each layer. Layers without a recommendation have a baseline's costs.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        rows = [(layer, row) for layer in self.layers for row in tabular.plain_rows(layer.answer)[:1]]
        return tabular.arrow_table([{"layer": layer.name, "count": layer.count} | row for layer, row in rows])

    @property
    def recommendation(self) -> Total:
        """Total of kernrec's recommendations."""
        return self.total(RECOMMENDED)

    @property
    def headline(self) -> Total:
        """Total that represents the network."""
        return self.total(self.headline_name)

    @property
    def today(self) -> Total | None:
        """Total of `backend`, with which kernrec's kernels are compared, or None if `backend` is empty."""
        return self.total(today_name(self.backend)) if self.backend else None

    @property
    def fits(self) -> bool:
        """Whether the network fits into the GPU's memory."""
        return self.memory.fits(self.gpu)

    @property
    def scope(self) -> str:
        """Layers that the totals include, and layers that they exclude, for display."""
        noun = "shape" if self.layers[0].layer.alone else "layer"
        count = counted(sum(layer.count for layer in self.layers), noun)
        if not self.left_out:
            return count
        first, *others = (line.partition(":")[0] for line in self.left_out)
        return f"{count}, without {first}" + f" and {len(others)} more" * bool(others)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(layer.answer.problem.dtype for layer in self.layers))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(layer.source) for layer in self.layers))

    def dominant(self, most: int = 3) -> list[tuple[str, float]]:
        """Return the longest layers with their fractions of the network's time. All-reduces count as a layer."""
        parts = {layer.name: layer.latency_s for layer in self.longest(len(self.layers))}
        if self.exchange is not None:
            parts["all-reduces"] = self.exchange.latency_s.value
        whole = sum(parts.values())
        return [(name, parts[name] / whole) for name in sorted(parts, key=lambda name: -parts[name])[:most]]

    def longest(self, most: int | None = None) -> tuple[LayerAnswer, ...]:
        """Return the `most` longest layers, longest first. By default, return the layers that take most of the time."""
        layers = sorted(self.layers, key=lambda layer: -layer.latency_s)
        if most is None:
            seconds = list(accumulate(layer.latency_s for layer in layers))
            most = min(bisect_left(seconds, MOST_OF_THE_TIME * seconds[-1]) + 1, MOST_SHOWN)
        return tuple(layers[:most])

    @property
    def paying(self) -> tuple[LayerAnswer, ...]:
        """Layers in which a custom kernel is worth it."""
        return tuple(layer for layer in self.layers if layer.worth_it)

    @property
    def advice(self) -> str:
        """Sentence on how many layers are worth a custom kernel, or empty if no backend has a total."""
        if (backend := self.today) is None:
            return ""
        with_baseline, count = [layer.baseline for layer in self.layers if layer.baseline is not None], len(self.layers)
        counts = Counter(baseline.backend for baseline in with_baseline)
        names = " and ".join(f"{name} in {number}" for name, number in counts.items())
        rest = f"of {count} layer types" + " and kernrec's kernels in the others" * (len(with_baseline) < count)
        whole = f"{backend.name}: {names} {rest}."
        more = sure = ""
        if unsure := sum(layer.may_be_worth_it and not layer.worth_it for layer in self.layers):
            more = f" In {counted(unsure, 'layer type')} a custom kernel may be worth it, within the error: measure it."
            sure = " for certain"
        if not self.paying:
            keep = "" if self.faster else " Keep your backend."
            least = f"{100 * WORTH_IT:.0f} %{sure}"
            return f"{whole} Custom kernels would not save {least} in any layer.{keep}{more}"
        mixture = self.total(MIXTURE).versus(backend)
        changes = {"time": mixture.slowdown, "energy": -mixture.energy_saved}.items()
        changed = (f"{abs(change) * 100:.2g} % {'less' if change < 0 else 'more'} {name}" for name, change in changes)
        judged = sum(layer.worth_it is not None for layer in self.layers)
        return (
            f"{whole} Custom kernels are worth it in {len(self.paying)} of these {judged} layer types:"
            f" {' and '.join(changed)} overall.{more}"
        )

    @property
    def distinct_totals(self) -> tuple[Total, ...]:
        """Totals with different costs. If totals have equal costs, only the preferred total is included."""
        distinct: dict[Any, Total] = {}
        for total in sorted(self.totals, key=lambda total: _PREFERRED.get(total.name, 0)):
            distinct.setdefault((total.latency_s, total.energy_j), total)
        return tuple(total for total in self.totals if any(total is each for each in distinct.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the request, on layers outside the totals, and on each layer."""
        lines = (note for layer in self.layers for note in layer.answer.notes)
        excluded = (f"not in the totals: {line}" for line in self.left_out)
        return tuple(dict.fromkeys([*filter(None, [self.faster]), *self.adjusted, *excluded, *lines]))

    def total(self, name: str) -> Total:
        return next(total for total in self.totals if total.name == name)

    def as_dict(self) -> dict[str, Any]:
        named = {"backend": self.backend or None, "headline": self.headline_name}
        return super().as_dict() | named | memory_json(self.memory, self.gpu)

    @property
    def unit(self) -> str:
        """Unit of work for rates: `token` for a language model, `call` for other networks."""
        return "token" if self.workload.one_network and self.workload.tokens else "call"

    @property
    def work(self) -> int:
        """Number of tokens or calls per pass through the network."""
        return self.workload.tokens * self.batch if self.unit == "token" else 1

    def as_dict_with_regrets(self, recommender: "Recommender") -> dict[str, Any]:
        """Return plain values for JSON with the expected losses (regrets), keyed by objective.

        A layer's regret is the expected loss from running the recommended config instead of the best config. The
        network's regret is the sum over all layers, as a fraction of the network's cost.
        """
        document = self.as_dict()
        lost, spent = defaultdict[str, float](float), defaultdict[str, float](float)
        for layer, values in zip(self.layers, document["layers"], strict=True):
            values["regret"] = {}
            for regret in recommender.regrets(layer.answer):
                name, (_, cost, _) = str(regret.objective), regret.contenders[0]
                values["regret"][name] = regret.as_dict()
                lost[name] += layer.count * cost * regret.expected
                spent[name] += layer.count * cost
        return document | {"regret": {name: {"expected": lost[name] / spent[name]} for name in lost}}
