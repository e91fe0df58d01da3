"""Accuracy of the prior, of trained models and of adaptation on recorded spaces of real GPUs.

Convolution on the A100 and the RTX A4000 (`tools/evidence/recordings/convolution.py`): the prior alone; a model trained
on one GPU and applied to the other, without measurements there and after a few; 1 %, 2 % and 5 % of one GPU's space
measured; and an ablation of the model's features and weights. Then the same on the configs of the A100 that ran at one
clock: a sixth of that recording, including its 37 fastest configs, ran at a clock of up to 1.84 times that of the
others (`tools/evidence clock`), which no property of a config explains. Such rows are never trained on when another GPU
is predicted, as `kernrec train` leaves out rows measured at another clock. Finally a matrix product on an RTX 3090 of
which only the tunables are known.

Each space is one problem, so nothing here is about unmeasured shapes. Rows that were measured are left out of every
score. Exits 1 when an aim is missed.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.clock import FILE, config_key, raised_configs
from evidence.recordings.convolution import TUNABLES, load
from evidence.recordings.files import present
from kernrec.gpu import find_gpu
from kernrec.model.learn import features
from kernrec.model.learn.adaptation import adapt
from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.model import Model
from kernrec.model.prior.spread import INTERVAL
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train

Array = np.ndarray
PRODUCT = "gemm-rtx3090.kernel_tuner.json.gz"
OTHER = {"a100": "a4000", "a4000": "a100"}

AIMS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "prior alone": {"rank": (0.85, 0.85), "top-1 %": (1.25, 1.25)},
    "transfer": {"rank": (0.92, 0.92), "top-10": (None, 1.05), "top-1 %": (1.25, None), "reduction": (None, 0.99)},
    "1 % of the space": {"rank": (0.90, 0.90), "error": (0.08, 0.08)},
    "5 % of the space": {"rank": (0.96, 0.96), "error": (0.04, 0.04)},
}
COLUMNS = ("rank", "top-1", "top-10", "top-1 %", "reduction", "error", "coverage", "width")
HIGHER = {"rank", "reduction"}
Draw = Callable[[Array, int, np.random.Generator], Array]
"""Chooses which configs to measure: (features, how many, random numbers) -> rows."""
ONE_THREAD = TrainingSettings(threads=1)  # the data are so small that a second thread would mostly wait


@dataclass(frozen=True)
class Space:
    """A recorded space: the C configs that ran."""

    name: str
    """Short name of the GPU."""
    inputs: ModelInputs
    time_s: Array
    """Measured time, (C,)."""

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def prior_s(self) -> Array:
        """Predicted time of the prior, (C,)."""
        return self.inputs.latency_s

    @cached_property
    def matrix(self) -> Array:
        """Features, (C, F)."""
        columns = features.names(tuple(sorted(self.inputs.tunables)))
        return features.matrix(self.inputs, columns).astype(np.float64)

    @property
    def configs(self) -> list[tuple[float, ...]]:
        """The values of the tunables of each config."""
        return list(zip(*(self.inputs.tunables[name].tolist() for name in TUNABLES), strict=True))

    @property
    def group(self) -> RowGroup:
        """The space as training data."""
        unknown = np.full(len(self), np.nan)
        return RowGroup(self.name, "recorded", "convolution", "kernel_tuner", "", self.inputs, self.time_s, unknown)

    def take(self, rows: Array) -> "Space":
        """The space of these configs only."""

        def cut(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: values[rows] for name, values in value.items()}
            return value[..., rows] if isinstance(value, np.ndarray) else value

        inputs = ModelInputs(**{name: cut(value) for name, value in vars(self.inputs).items()})
        return Space(self.name, inputs, self.time_s[rows])


def run(data: Data = DATA, seeds: int = 5) -> int:
    """Print every table; `seeds` random samples of a space are averaged over."""
    folder = data / "spaces"
    recorded = load(folder)
    spaces = {name: Space(name, space.inputs, space.time_s) for name, space in recorded.items()}
    steady = spaces | {"a100": spaces["a100"].take(np.flatnonzero(at_one_clock(spaces["a100"], folder)))}
    models = {name: train(Dataset((steady[OTHER[name]].group,)), ONE_THREAD) for name in spaces}
    print(f"convolution, {' / '.join(f'{recorded[n].gpu.title}, {len(s)} configs' for n, s in spaces.items())}")
    print("top-k: best of the first k over the optimum; error: median; coverage and width of the 90 % interval")
    shown = Shown()
    shown.add("random", {name: random_scores(space) for name, space in spaces.items()})
    shown.add("largest occupancy", {n: judge(s.time_s, -occupancy(s), absolute=False) for n, s in spaces.items()})
    shown.add_all(spaces, spaces, models, seeds)
    shown.begin("\nablation of features and weights, trained on the other GPU")
    for label, predictions in ablation(spaces, steady).items():
        shown.add(label, {n: judge(s.time_s, predictions[n]) for n, s in spaces.items()})
    shown.add("  + adaptation, 1 %", {n: few(s, len(s) // 100, seeds, models[n]) for n, s in spaces.items()})
    left = 1.0 - len(steady["a100"]) / len(spaces["a100"])
    shown.begin(f"\nthe same on the {len(steady['a100'])} configs of the A100 at one clock ({left:.0%} left out)")
    shown.add_all({"a100": steady["a100"]}, steady, models, seeds, ", one clock")
    product = read_product(folder / PRODUCT)
    shown.begin(f"\nmatrix product, RTX 3090, {len(product)} configs of which only the tunables are known")
    for share in (0.01, 0.02):
        shown.add(of_space(share), {product.name: few(product, round(share * len(product)), seeds)})
    print(f"\naims missed: {'; '.join(shown.missed) or 'none'}")
    return int(bool(shown.missed))


class Shown:
    """The tables, with a mark where an aim is missed."""

    def __init__(self) -> None:
        self._table = Table()
        self.missed: list[str] = []

    def begin(self, title: str) -> None:
        """Begin another table."""
        self._table = Table(title)

    def add_all(
        self, spaces: dict[str, Space], trained: dict[str, Space], models: dict[str, Model], seeds: int,
        suffix: str = "",
    ) -> None:  # fmt: skip
        """Add the results on `spaces` without and with measurements there."""
        others = {n: shared(s, trained[OTHER[n]]) for n, s in spaces.items()}
        self.add("prior alone", {n: prior_scores(s) for n, s in spaces.items()}, suffix)
        self.add("another GPU's ranking", {n: judge(*both, absolute=False) for n, both in others.items()}, suffix)
        self.add("transfer", {n: transferred(models[n], s) for n, s in spaces.items()}, suffix)
        for count in (5, 20):
            self.add(f"{count} measurements", {n: few(s, count, seeds, models[n]) for n, s in spaces.items()}, suffix)
        for share in (0.01, 0.02, 0.05):
            results = {n: few(s, round(share * len(s)), seeds) for n, s in spaces.items()}
            self.add(of_space(share), results, suffix)
        five = {n: round(0.05 * len(s)) for n, s in spaces.items()}
        self.add("  5 %, spread out", {n: few(s, five[n], seeds, draw=spread_out) for n, s in spaces.items()}, suffix)
        self.add("  transfer, then 5 %", {n: few(s, five[n], seeds, models[n]) for n, s in spaces.items()}, suffix)

    def add(self, label: str, results: dict[str, dict[str, float]], suffix: str = "") -> None:
        """Add a row for each GPU; `suffix` stands behind its name where an aim is missed."""
        for name, result in results.items():
            cells: dict[str, object] = {"": label, "GPU": name}
            position = list(OTHER).index(name) if name in OTHER else None
            for column in COLUMNS:
                value = result.get(column)
                text = "-" if value is None else f"{value:.4f}" if column == "reduction" else f"{value:.3f}"
                if position is not None:
                    aim = AIMS.get(label, {}).get(column, (None, None))[position]
                    if value is not None and aim is not None and (value < aim if column in HIGHER else value > aim):
                        self.missed.append(f"{label}, {name}{suffix}: {column} {text}, aim {aim}")
                        text += "!"
                cells[column] = text
            self._table.row(cells)


def of_space(share: float) -> str:
    """The label of a share of a space."""
    return f"{share * 100:.0f} % of the space"


def at_one_clock(space: Space, folder: Path) -> Array:
    """Which configs of the recorded A100 ran at its base clock from the first launch to the last, (C,)."""
    raised = raised_configs(folder / FILE, TUNABLES)
    return np.array(
        [
            config_key({name: int(value) for name, value in zip(TUNABLES, config, strict=True)}) not in raised
            for config in space.configs
        ]
    )


def read_product(path: Path) -> Space:
    """The recorded matrix product: a kernel without a profile, with the roofline's time as the prior."""
    with gzip.open(present(path)) as file:
        content = json.load(file)
    rows = [row for row in content["cache"].values() if isinstance(row["time"], int | float)]
    names = [name for name in content["tune_params_keys"] if len({row[name] for row in rows}) > 1]
    gpu, size = find_gpu("rtx3090"), 4096
    flops, moved = 2.0 * size**3, 12.0 * size**2
    inputs = ModelInputs(
        gpu=gpu,
        flops=flops,
        bytes=moved,
        tunables={name: np.array([row[name] for row in rows], dtype=np.float64) for name in names},
        latency_s=np.full(len(rows), max(flops / gpu.peak_flops("f32"), moved / gpu.memory_bandwidth)),
        power_w=np.full(len(rows), gpu.tdp_w),
    )
    return Space("rtx3090", inputs, np.array([row["time"] for row in rows]) / 1e3)


def judge(measured: Array, predicted: Array, absolute: bool = True) -> dict[str, float]:
    """The scores of predicted times; with `absolute` False, of their ranking only."""
    order = scores.order_of(predicted)
    ranking = {
        "rank": scores.rank_correlation(predicted, measured),
        "top-1": 1.0 / scores.efficiency_at(measured, order, 1),
        "top-10": 1.0 / scores.efficiency_at(measured, order, 10),
        "top-1 %": 1.0 / scores.efficiency_at(measured, order, len(order) // 100),
        "reduction": scores.reduction(measured, order),
    }
    return ranking | ({"error": scores.median_error(measured, predicted)} if absolute else {})


def prior_scores(space: Space) -> dict[str, float]:
    """The prior's scores, with its interval."""
    low, high = space.prior_s / INTERVAL, space.prior_s * INTERVAL
    stated = {"coverage": scores.coverage(space.time_s, low, high), "width": scores.mean_width(low, high)}
    return judge(space.time_s, space.prior_s) | stated


def random_scores(space: Space) -> dict[str, float]:
    """The expected scores of a random order."""
    count = len(space.time_s)
    tops = {"top-1": 1, "top-10": 10, "top-1 %": count // 100}
    best = {name: 1.0 / scores.expected_random(space.time_s, k)[0] for name, k in tops.items()}
    return {"rank": 0.0, **best, "reduction": scores.expected_random(space.time_s, 1)[1]}


def occupancy(space: Space) -> Array:
    """A score that is largest where most warps are resident; of equals where the block is larger."""
    assert space.inputs.resident is not None
    assert space.inputs.threads is not None
    warps = np.ceil(space.inputs.threads / 32)
    return space.inputs.resident * warps * 4096.0 + warps


def shared(space: Space, other: Space) -> tuple[Array, Array]:
    """(times in `space`, times in `other`) of the configs that ran in both."""
    keys = {config: row for row, config in enumerate(other.configs)}
    both = [(row, keys[config]) for row, config in enumerate(space.configs) if config in keys]
    here, there = np.array(both).T
    return space.time_s[here], other.time_s[there]


def expected(model: Model, space: Space) -> Array:
    """The latency that a model predicts."""
    ratios, _ = model.log_ratio(model.rows(space.inputs))
    return np.asarray(space.prior_s * np.exp(ratios["latency"]))


def transferred(model: Model, space: Space) -> dict[str, float]:
    """Scores of a model trained on another GPU, with the interval that a query states for a new GPU."""
    predicted = expected(model, space)
    distance = model.extent.distance(model.rows(space.inputs))
    low, high = interval_of(model, "latency", None, "", kernel_known=True).around(predicted, distance)
    stated = {"coverage": scores.coverage(space.time_s, low, high), "width": scores.mean_width(low, high)}
    return judge(space.time_s, predicted) | stated


def at_random(matrix: Array, count: int, draw: np.random.Generator) -> Array:
    """`count` random rows of a matrix, all with the same probability."""
    return draw.permutation(len(matrix))[:count]


def spread_out(matrix: Array, count: int, draw: np.random.Generator) -> Array:
    """`count` random rows far from one another, without looking at measurements.

    The probability of a row is proportional to its squared distance from the rows drawn so far, as in the
    initialization of k-means++ (Arthur and Vassilvitskii, 2007).
    """
    spread = matrix.std(axis=0)
    rows = ((matrix - matrix.mean(axis=0)) / np.where(spread > 1e-6, spread, np.inf)).astype(np.float32)
    chosen, nearest = [int(draw.integers(len(rows)))], np.full(len(rows), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, np.square(rows - rows[chosen[-1]]).sum(axis=1))
        chosen.append(int(draw.choice(len(rows), p=nearest / nearest.sum())))
    return np.array(chosen)


def few(space: Space, count: int, seeds: int, model: Model | None = None, draw: Draw = at_random) -> dict[str, float]:
    """Scores on the rest of a space after `count` configs, chosen by `draw`, were measured; the mean over seeds."""
    base = space.prior_s if model is None else expected(model, space)
    results = []
    for seed in range(seeds):
        seen = draw(space.matrix, count, np.random.default_rng(seed))
        rest = np.setdiff1d(np.arange(len(base)), seen)
        correction = adapt(space.matrix[seen], np.log(space.time_s[seen] / base[seen]))
        predicted = base[rest] * np.exp(correction.correction(space.matrix[rest]))
        low, high = correction.interval.around(predicted)
        results.append(
            judge(space.time_s[rest], predicted)
            | {"coverage": scores.coverage(space.time_s[rest], low, high), "width": scores.mean_width(low, high)}
        )
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def ablation(spaces: dict[str, Space], trained: dict[str, Space]) -> dict[str, dict[str, Array]]:
    """Predictions for each GPU by models with more and more features, and with other loss weights."""
    predictions: dict[str, dict[str, Array]] = {}
    for label, parts, sharpness in (
        ("schedule", ("schedule",), 0.0),
        ("  + static", ("schedule", "static"), 0.0),
        ("  + prior, unweighted", features.GROUPS, 0.0),
        ("  weights, exponent 0.5", features.GROUPS, 0.5),
        ("  + weights, exponent 1", features.GROUPS, 1.0),
        ("  weights, exponent 2", features.GROUPS, 2.0),
    ):
        predictions[label] = {}
        for name, space in spaces.items():
            groups = [trained[OTHER[name]].group, space.group]
            if parts != features.GROUPS:
                # Without the prior, the model learns the time over the roofline's time.
                groups = [
                    replace(g, inputs=replace(g.inputs, latency_s=np.full(len(g), _roofline_s(g)))) for g in groups
                ]
            model = train(Dataset((groups[0],), parts), replace(ONE_THREAD, sharpness=sharpness))
            ratios, _ = model.log_ratio(model.rows(groups[1].inputs))
            predictions[label][name] = groups[1].inputs.latency_s * np.exp(ratios["latency"])
    return predictions


def _roofline_s(group: RowGroup) -> float:
    inputs = group.inputs  # of one problem
    return float(np.maximum(inputs.flops / inputs.gpu.peak_flops("f32"), inputs.bytes / inputs.gpu.memory_bandwidth))
