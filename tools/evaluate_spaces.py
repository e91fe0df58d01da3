"""What the learner reaches on recorded spaces of real GPUs, beside what a prototype reached there.

    python tools/evaluate_spaces.py [--data ../shared/data] [--seeds 5]

Convolution, A100 and RTX A4000 (`tools/recorded_convolution.py`): the prior alone; trained on one GPU and asked about
the other, with no measurement there and after a few; 1 %, 2 % and 5 % of one GPU's space; what each part of the learner
brings. Each space is one problem, so nothing here is about shapes that nobody measured, and rows that were measured are
left out of every score. Exits 0 without the data, 1 when an aim is missed.
"""

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from recorded_convolution import FILE, Recorded, load

from kernrec.model import features, scores
from kernrec.model.adapt import adapt
from kernrec.model.dataset import Dataset, Group
from kernrec.model.learner import Model, Settings, train
from kernrec.model.prior import INTERVAL

Array = np.ndarray
OTHER = {"a100": "a4000", "a4000": "a100"}

# What the prototype reached (A100, A4000), from its notes; its transfer was trained on two other GPUs.
PROTOTYPE: dict[str, dict[str, tuple[float, float]]] = {
    "prior alone": {"rank": (0.87, 0.83), "top-1 %": (1.61, 1.24), "reduction": (0.876, 0.933)},
    "another GPU's ranking": {"rank": (0.85, 0.92), "top-10": (1.49, 1.00), "top-1 %": (1.47, 1.00)},
    "transfer": {"rank": (0.91, 0.91), "top-10": (1.49, 1.15), "top-1 %": (1.13, 1.00), "reduction": (0.934, 0.9967)},
    "5 measurements": {"error": (0.26, 0.10)},
    "1 % of the space": {"rank": (0.90, 0.88), "error": (0.094, 0.078)},
    "5 % of the space": {"rank": (0.96, 0.96), "error": (0.056, 0.034)},
}
AIMS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "prior alone": {"rank": (0.85, 0.85), "top-1 %": (1.25, 1.25)},
    "transfer": {"rank": (0.92, 0.92), "top-10": (None, 1.05), "top-1 %": (1.25, None), "reduction": (None, 0.99)},
    "1 % of the space": {"rank": (0.90, 0.90), "error": (0.08, 0.08)},
    "5 % of the space": {"rank": (0.96, 0.96), "error": (0.04, 0.04)},
}
COLUMNS = ("rank", "top-1", "top-10", "top-1 %", "reduction", "error", "coverage", "width")
HIGHER = {"rank", "reduction"}
ALONE = Settings(threads=1)  # small data: a second thread waits more than it works


@dataclass(frozen=True)
class Space:
    """A recording with its features; arrays over its valid configs."""

    name: str
    recorded: Recorded
    matrix: Array

    @property
    def time_s(self) -> Array:
        return self.recorded.time_s

    @property
    def prior_s(self) -> Array:
        return self.recorded.settled.latency_s

    def group(self) -> Group:
        facts = self.recorded.facts
        unknown = np.full(len(facts), np.nan)
        return Group(self.name, "recorded", "convolution", "kernel_tuner", "", facts, self.time_s, unknown)


def main() -> int:
    """Prints every table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=5, help="random samples of a space to average over")
    arguments = parser.parse_args()
    if not (arguments.data / "spaces" / FILE).is_file():
        print(f"no {arguments.data / 'spaces' / FILE}: nothing evaluated (--data names the folder of recorded data)")
        return 0
    start = time.perf_counter()
    recorded = load(arguments.data / "spaces")
    spaces = {name: Space(name, space, _matrix(space)) for name, space in recorded.items()}
    names = list(spaces)
    print(f"convolution, {' / '.join(f'{s.recorded.gpu.title}, {len(s.time_s)} configs' for s in spaces.values())}")
    print("top-k: best of the first k over the optimum; error: median; coverage and width of the 90 % interval")
    header()
    missed = []

    def show(label: str, found: dict[str, dict[str, float]]) -> None:
        for at, name in enumerate(names):
            missed.extend(line(label, name, at, found[name]))

    show("random", {name: random_scores(spaces[name]) for name in names})
    show("largest occupancy", {n: judge(spaces[n].time_s, -occupancy(spaces[n]), absolute=False) for n in names})
    show("prior alone", {name: prior_scores(spaces[name]) for name in names})
    show("another GPU's ranking", {n: judge(*shared(spaces[n], spaces[OTHER[n]]), absolute=False) for n in names})
    models = {name: train(Dataset((spaces[OTHER[name]].group(),)), ALONE) for name in names}
    show("transfer", {n: judge(spaces[n].time_s, expected(models[n], spaces[n])) for n in names})
    for count in (5, 20):
        show(f"{count} measurements", {n: few(spaces[n], count, arguments.seeds, models[n]) for n in names})
    for share in (0.01, 0.02, 0.05):
        label = f"{share:.0%} of the space".replace("%", " %")
        found = {n: few(spaces[n], round(share * len(spaces[n].time_s)), arguments.seeds) for n in names}
        show(label, found)
    print("\nwhat each part brings, trained on the other GPU")
    header()
    for label, predictions in ablation(spaces).items():
        show(label, {name: judge(spaces[name].time_s, predictions[name]) for name in names})
    show(
        "  + adaptation, 1 %",
        {n: few(spaces[n], len(spaces[n].time_s) // 100, arguments.seeds, models[n]) for n in names},
    )
    print(f"\n{time.perf_counter() - start:.0f} s; aims missed: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


def _matrix(space: Recorded) -> Array:
    return features.matrix(space.facts, features.names(tuple(sorted(space.facts.tunables)))).astype(np.float64)


def judge(measured: Array, predicted: Array, absolute: bool = True) -> dict[str, float]:
    """The scores of predicted times, or with `absolute` False of a ranking alone."""
    order = scores.order_of(predicted)
    found = {
        "rank": scores.rank_correlation(predicted, measured),
        "top-1": 1.0 / scores.efficiency_at(measured, order, 1),
        "top-10": 1.0 / scores.efficiency_at(measured, order, 10),
        "top-1 %": 1.0 / scores.efficiency_at(measured, order, len(order) // 100),
        "reduction": scores.reduction(measured, order),
    }
    return found | ({"error": scores.median_error(measured, predicted)} if absolute else {})


def prior_scores(space: Space) -> dict[str, float]:
    """The prior's scores, with its stated interval."""
    low, high = space.prior_s / INTERVAL, space.prior_s * INTERVAL
    stated = {"coverage": scores.coverage(space.time_s, low, high), "width": scores.mean_width(low, high)}
    return judge(space.time_s, space.prior_s) | stated


def random_scores(space: Space) -> dict[str, float]:
    """A random order's expected scores."""
    count = len(space.time_s)
    tops = {"top-1": 1, "top-10": 10, "top-1 %": count // 100}
    found = {name: 1.0 / scores.expected_random(space.time_s, k)[0] for name, k in tops.items()}
    return {"rank": 0.0, **found, "reduction": scores.expected_random(space.time_s, 1)[1]}


def occupancy(space: Space) -> Array:
    """Resident warps, of equals the larger block."""
    walk = space.recorded.walk
    return walk.concurrent * walk.warps * 4096.0 + walk.warps


def shared(space: Space, other: Space) -> tuple[Array, Array]:
    """(times here, times there) of the configs that ran on both."""
    keys = {tuple(row): at for at, row in enumerate(_configs(other))}
    both = [(at, keys[tuple(row)]) for at, row in enumerate(_configs(space)) if tuple(row) in keys]
    here, there = np.array(both).T
    return space.time_s[here], other.time_s[there]


def _configs(space: Space) -> list[list[float]]:
    return np.stack(list(space.recorded.facts.tunables.values()), axis=1).tolist()


def expected(model: Model, space: Space) -> Array:
    """Latency that a model trained elsewhere expects."""
    ratios, _ = model.log_ratio(model.rows(space.recorded.facts))
    return space.prior_s * np.exp(ratios["latency"])


def few(space: Space, count: int, seeds: int, model: Model | None = None) -> dict[str, float]:
    """Scores on the rest of a space after `count` random configs of it were measured, the mean over seeds."""
    base = space.prior_s if model is None else expected(model, space)
    found = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(base))
        seen, rest = chosen[:count], np.sort(chosen[count:])
        correction = adapt(space.matrix[seen], np.log(space.time_s[seen] / base[seen]))
        predicted = base[rest] * np.exp(correction.correction(space.matrix[rest]))
        low, high = correction.interval.around(predicted)
        found.append(
            judge(space.time_s[rest], predicted)
            | {"coverage": scores.coverage(space.time_s[rest], low, high), "width": scores.mean_width(low, high)}
        )
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def ablation(spaces: dict[str, Space]) -> dict[str, dict[str, Array]]:
    """Predictions for each GPU by models that know more and more."""
    found: dict[str, dict[str, Array]] = {}
    plain = replace(ALONE, sharpness=0.0)
    for label, parts, with_prior, settings in (
        ("schedule", ("schedule",), False, plain),
        ("  + static", ("schedule", "static"), False, plain),
        ("  + prior", features.GROUPS, True, plain),
        ("  + weights", features.GROUPS, True, ALONE),
    ):
        found[label] = {}
        for name, space in spaces.items():
            groups = [spaces[OTHER[name]].group(), space.group()]
            if not with_prior:
                # Without the prior what is learned is the time itself, over the roofline's.
                groups = [replace(g, facts=replace(g.facts, latency_s=np.full(len(g), _roofline_s(g)))) for g in groups]
            model = train(Dataset((groups[0],), parts), settings)
            ratios, _ = model.log_ratio(model.rows(groups[1].facts))
            found[label][name] = groups[1].facts.latency_s * np.exp(ratios["latency"])
    return found


def _roofline_s(group: Group) -> float:
    gpu = group.facts.gpu
    return max(group.facts.flops / gpu.peak_flops("f32"), group.facts.bytes / gpu.memory_bandwidth)


def header() -> None:
    """The head of a table."""
    print(f"  {'':24}{'GPU':7}" + "".join(f"{name:>17}" for name in COLUMNS))


def line(label: str, name: str, at: int, found: dict[str, float]) -> list[str]:
    """Prints one line, the prototype's figure in brackets; gives the aims that were missed."""
    cells, missed = "", []
    for column in COLUMNS:
        value = found.get(column)
        theirs = PROTOTYPE.get(label, {}).get(column)
        aim = AIMS.get(label, {}).get(column, (None, None))[at]
        text = "" if value is None else f"{value:.4f}" if column == "reduction" else f"{value:.3f}"
        bad = value is not None and aim is not None and (value < aim if column in HIGHER else value > aim)
        if bad:
            missed.append(f"{label}, {name}: {column} {text}, aim {aim}")
        cells += f"{text + ('!' if bad else '') + (f' [{theirs[at]:g}]' if theirs else ''):>17}"
    print(f"  {label:24}{name:7}{cells}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
