"""How well configs of Triton's matrix product are ranked: predicted against recorded times of TorchInductor's template.

Problems of which fewer than ten configs have profiles, and fewer than half of those that the kernel runs, are left out.
A choice is scored by its efficiency: the best recorded time of the problem over that of the choice.

    learned      the prior corrected by a model that saw neither it nor another of its dimensions (five folds)
    from OTHER   the prior corrected by a model of the other card's recording, nothing of this one
    5 measured   the same, after the five configs that it ranks first were measured; its error is that of the others
    prior        predicted, nothing trained
    nearest      the order of the nearest recorded problem of the same dtype and layout, by logarithms of m, n and k
    fixed        the one config that is best in the mean of the other folds' problems of the same dtype
    heuristics   nvidia-matmul-heuristics for Triton, where it is installed: the measured config nearest to each answer
    torch        the ranking that PyTorch ships for the card, where torch is installed
    inductor     the order of TorchInductor's list of configs, all of which it measures
    handler      that list in the order of `learned`, as `kernrec.triton.inductor_choices` leaves its first few
    list         the best of that list: all of it measured
    random       the expectation of a random choice

`nearest` and `fixed` know the problems of four folds of five; `torch` was made of the recording with these problems in
it; `prior` knows no recording. With the wheel of `heuristics` the process may crash as it ends, after the tables: that
is the wheel's library. Takes two minutes of processor time.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from front import DATA, Data, Table
from train_triton_model import SETTINGS

from evidence.recordings.files import AbsentError
from kernrec.model.learn.adaptation import adapt
from kernrec.model.learn.conformal import calibrate
from kernrec.model.learn.lower_bound import least_log_ratio
from kernrec.model.learn.model import Model
from kernrec.op import Problem, problem_from_key
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training import scores
from kernrec.training.boosting import HeadData, fold_of_rows, train_head
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.folds import group_folds
from kernrec.training.train_model import held_out_distance, train

from .triton_peers import heuristics_order, learned_order, listed_first, listed_order
from .triton_recordings import (
    FILES,
    KERNEL,
    Config,
    RecordedProblem,
    answered,
    config_of,
    read_problems,
    recorded_groups,
    rows_of,
)

MEASURED = 5


@dataclass
class Scored:
    """A way to choose, on the problems that it was asked about; a number each."""

    first: list[float] = field(default_factory=list)
    third: list[float] = field(default_factory=list)
    rho: list[float] = field(default_factory=list)
    errors: list[np.ndarray] = field(default_factory=list)
    """|predicted / recorded - 1| of each config."""
    inside: list[np.ndarray] = field(default_factory=list)
    """Whether each recorded time is in the stated interval."""

    def add(self, measured: np.ndarray, order: np.ndarray) -> None:
        """An order of the configs of a problem."""
        self.first.append(scores.efficiency_at(measured, order, 1))
        self.third.append(scores.efficiency_at(measured, order, 3))

    def add_predicted(self, measured: np.ndarray, predicted: np.ndarray) -> None:
        """Predicted times of the configs of a problem."""
        self.add(measured, scores.order_of(predicted))
        self.rho.append(scores.rank_correlation(predicted, measured))
        self.errors.append(np.abs(predicted / measured - 1))

    def cells(self, name: str) -> dict[str, object]:
        """The row of the table."""
        first, third = np.array(self.first), bool(self.third)
        return {
            "": name, "of": len(first), "first": f"{first.mean():.4f}",
            "median": f"{np.median(first):.4f}" if third else None,
            "best of 3": f"{np.mean(self.third):.4f}" if third else None,
            "within 5 %": f"{(first >= 1 / 1.05).mean():.3f}" if third else None,
            "rho": f"{np.mean(self.rho):.3f}" if self.rho else None,
            "error": f"{np.median(np.concatenate(self.errors)):.1%}" if self.rho else None,
            "coverage": f"{np.concatenate(self.inside).mean():.1%}" if self.inside else None,
        }  # fmt: skip


def run(data: Data = DATA, problems: int = 0) -> None:
    """Print the tables; `problems` of each card are drawn, all for 0."""
    cards: dict[str, list[RowGroup]] = {}
    for gpu, file in FILES.items():
        count, groups = recorded_groups(data, gpu)
        print_answered(gpu, read_problems(data, gpu))
        cards[gpu] = groups = drawn(groups, problems)
        if not groups:
            raise AbsentError("no profiles of matmul_triton")
        print(f"{file}: {len(groups)} of {count} problems, {sum(map(len, groups))} configs, as {gpu}", flush=True)
    tables: Tables = defaultdict(lambda: defaultdict(Scored))
    evaluate_problems_left_out([group for groups in cards.values() for group in groups], tables)
    for gpu, groups in cards.items():
        for other in cards.keys() - {gpu}:
            evaluate_card_left_out(groups, cards[other], tables)
        for group in groups:
            expected = scores.expected_random(group.latency_s, 1)[0]
            for scored in scored_of(tables, "random", group):
                scored.first.append(expected)
    for (gpu, dtype), ways in tables.items():
        table = Table(f"\n{gpu}, {dtype}")
        for name, scored in ways.items():
            table.row(scored.cells(name))


def print_answered(gpu: str, problems: Sequence[RecordedProblem]) -> None:
    """Print which share of a card's problems a query answers with the kernel, by kind of rows."""
    counts = answered(problems)
    table = Table(f"\n{gpu}: recorded problems with an answer of {KERNEL.name}")
    for kind in (*sorted({kind for kind, _ in counts}), "all"):
        yes, no = (
            sum(n for (rows, ok), n in counts.items() if kind in (rows, "all") and ok is wanted)
            for wanted in (True, False)
        )
        table.row({"": kind, "problems": yes + no, "answered": yes, "share": f"{yes / (yes + no):.1%}"})


Tables = dict[tuple[str, str], dict[str, Scored]]
"""By card and data type or kind of rows (`all` together), then by way to choose."""


def scored_of(tables: Tables, name: str, group: RowGroup) -> tuple[Scored, ...]:
    """The rows of the tables that a problem counts in."""
    problem = problem_of(group)
    return tuple(tables[group.gpu, kind][name] for kind in ("all", problem.dtype, rows_of(problem)))


def evaluate_problems_left_out(groups: Sequence[RowGroup], tables: Tables) -> None:
    """Scores the model with problems left out, the prior, and the ways that know other problems."""
    data = Dataset(tuple(groups))
    _, problems = data.held_out
    folds = fold_of_rows(problems, SETTINGS)
    head = train_head(HeadData.of(data, "latency", SETTINGS), problems, SETTINGS)
    predicted = data.prior["latency"] * np.exp(head.out_of_fold)
    inside = covered(data, np.log(data.latency_s / predicted), problems, held_out_distance(data, folds))
    starts = np.cumsum([0, *map(len, groups)])
    fold_of = dict(zip((group.problem for group in groups), folds[starts[:-1]].tolist(), strict=True))
    others_of: dict[tuple[str, str, int], list[RowGroup]] = defaultdict(list)
    for group in groups:
        for fold in range(int(folds.max()) + 1):
            if fold_of[group.problem] != fold:
                others_of[*kind_of(group), fold].append(group)
    means = {kind: mean_efficiency(others) for kind, others in others_of.items()}
    for group, start in zip(groups, starts.tolist(), strict=False):
        measured, rows = group.latency_s, slice(start, start + len(group))
        kind = *kind_of(group), fold_of[group.problem]
        for scored in scored_of(tables, "learned", group):
            scored.add_predicted(measured, predicted[rows])
            scored.inside.append(inside[rows])
        for scored in scored_of(tables, "prior", group):
            scored.add_predicted(measured, group.inputs.latency_s)
        for scored in scored_of(tables, "nearest", group):
            scored.add(measured, order_by(group, mean_efficiency(nearest(group, others_of[kind]))))
        for scored in scored_of(tables, "fixed", group):
            scored.add(measured, order_by(group, means.get(kind, {})))
        configs = [config_of(group, row) for row in range(len(group))]
        peers = {
            "heuristics": heuristics_order(group.gpu, problem_of(group), configs),
            "torch": learned_order(group.gpu, problem_of(group), configs),
            "inductor": listed_order(configs),
            "handler": listed_first(configs, predicted[rows]),
            "list": listed_first(configs, measured),
        }
        for name, order in peers.items():
            if order is not None:
                for scored in scored_of(tables, name, group):
                    scored.add(measured, order)


def covered(data: Dataset, error: np.ndarray, problems: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Whether each error is inside the interval that the problems of its kind in nine other tenths calibrate."""
    tenth, kind = group_folds(problems, 10), data.numbers("gpu", "dtype", "row_kind")
    inside = np.zeros(len(data), dtype=bool)
    for number in np.unique(kind):
        for part in np.unique(tenth[kind == number]):
            mine, others = (kind == number) & (tenth == part), (kind == number) & (tenth != part)
            interval = calibrate(error[others], problems[others], "problem", distance[others])
            low, high = interval.around(np.ones(mine.sum()), distance[mine])
            inside[mine] = (low <= np.exp(error[mine])) & (np.exp(error[mine]) <= high)
    return inside


def evaluate_card_left_out(groups: Sequence[RowGroup], others: Sequence[RowGroup], tables: Tables) -> None:
    """Scores a model of another card's rows, as it is and after five configs of each problem were measured."""
    # The trees for the recorded card itself are not asked: one is enough.
    model = train(Dataset(tuple(others)), replace(SETTINGS, rounds=1))
    for group in groups:
        measured = group.latency_s
        predicted, low, high = learned(model, group)
        for scored in scored_of(tables, f"from {others[0].gpu.partition('-')[0]}", group):
            scored.add_predicted(measured, predicted)
            scored.inside.append((measured >= low) & (measured <= high))
        first = scores.order_of(predicted)[:MEASURED]
        features = model.rows(group.inputs)
        correction = adapt(features[first], np.log(measured[first] / predicted[first])).correction(features)
        adapted = predicted * np.exp(correction)
        adapted[first] = measured[first]
        rest = np.setdiff1d(np.arange(len(measured)), first)
        for scored in scored_of(tables, f"{MEASURED} measured", group):
            scored.add_predicted(measured, adapted)
            scored.errors[-1] = scored.errors[-1][rest]


def learned(model: Model, group: RowGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(predicted, low, high) times of the configs of a problem, as a query states them."""
    least = least_log_ratio(group.inputs)
    ratios, distance = model.log_ratio(model.rows(group.inputs), group.gpu in model.gpus, least)
    predicted = group.inputs.latency_s * np.exp(ratios["latency"])
    gpu = group.gpu if group.gpu in model.gpus else None
    interval = interval_of(model, "latency", gpu, group.dtype, True, group.row_kind)
    return predicted, *interval.around(predicted, distance)


def drawn(groups: list[RowGroup], count: int) -> list[RowGroup]:
    """`count` of the problems, at random; all for 0."""
    chosen = np.random.default_rng(0).permutation(len(groups))[: count or None]
    return [groups[number] for number in sorted(chosen.tolist())]


@cache
def _problem(key: str) -> Problem:
    return problem_from_key(key)


def problem_of(group: RowGroup) -> Problem:
    """The problem of a group's rows."""
    return _problem(group.problem)


def kind_of(group: RowGroup) -> tuple[str, str]:
    """Card and data type."""
    return group.gpu, problem_of(group).dtype


def nearest(group: RowGroup, others: Sequence[RowGroup]) -> list[RowGroup]:
    """The problem of the same layout that is nearest by logarithms of m, n and k, of others of its kind."""
    place, layout = sizes(group), problem_of(group).layout
    alike = [other for other in others if problem_of(other).layout == layout]
    return [min(alike, key=lambda other: float(np.abs(sizes(other) - place).sum()))] if alike else []


def sizes(group: RowGroup) -> np.ndarray:
    """Logarithms of the dimensions."""
    dims = problem_of(group).sizes
    return np.log([dims[name] for name in "mnk"])


def mean_efficiency(groups: Sequence[RowGroup]) -> dict[Config, float]:
    """Of each config that half of these problems have: its mean efficiency."""
    values: dict[Config, list[float]] = defaultdict(list)
    for group in groups:
        for row, efficiency in enumerate((group.latency_s.min() / group.latency_s).tolist()):
            values[config_of(group, row)].append(efficiency)
    return {config: float(np.mean(each)) for config, each in values.items() if len(each) * 2 >= len(groups)}


def order_by(group: RowGroup, mean: dict[Config, float]) -> np.ndarray:
    """The configs of a problem by their mean efficiency elsewhere, best first; unknown ones last."""
    return np.argsort([-mean.get(config_of(group, row), 0.0) for row in range(len(group))], kind="stable")
