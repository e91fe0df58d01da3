"""Evaluate the ranking of Triton's matmul configs with recorded times of TorchInductor's template.

A problem is excluded if fewer than ten of its configs, and fewer than half of the configs that the kernel can run, have
profiles. The rows of the tables compare these ways to predict:

    learned      the analytical model, corrected by a model that was trained without the problem and without other
                 problems of the same sizes
    from OTHER   the analytical model, corrected by a model that was trained only on the recording of the other GPU
    5 measured   like `from OTHER`, but adapted to measurements of the five top-ranked configs of the problem
    predicted    the analytical model, without training

`tools/train_triton_model.py` trains the shipped model. This experiment takes two minutes of processor time.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from front import DATA, Data
from train_triton_model import FILES, SETTINGS, recorded_groups, rows_of

from evidence.cases import Array, Cases, agreement, coverage, joined, recommendations, report
from evidence.recordings.files import AbsentError
from kernrec.model.learn.adaptation import adapt
from kernrec.model.learn.conformal import calibrate
from kernrec.model.learn.features import matrix
from kernrec.op import problem_from_key
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training import scores
from kernrec.training.boosting import HeadData, fold_of_rows, train_head
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.scores import group_folds
from kernrec.training.train_model import held_out_distance, train

MEASURED = 5
_TENTHS = 10


def run(data: Data = DATA, problems: int = 0) -> None:
    """Print the tables for `problems` random problems of each GPU, or for all problems if it is 0."""
    groups: dict[str, list[RowGroup]] = {}
    for gpu, file in FILES.items():
        count, every = recorded_groups(data, gpu)
        drawn = np.random.default_rng(0).permutation(len(every))[: problems or None]
        groups[gpu] = [every[number] for number in sorted(drawn.tolist())]
        if not groups[gpu]:
            raise AbsentError("no profiles of matmul_triton")
        print(f"{file}: {len(groups[gpu])} of {count} problems, {sum(map(len, groups[gpu]))} configs, as {gpu}")
    ways = learned([group for each in groups.values() for group in each])
    parts = [ways]
    for gpu, own in groups.items():
        parts += [from_other(own, groups[other]) for other in groups if other != gpu]
    cases = joined([part for each in parts for part in each])
    for by in (("gpu", "way"), ("gpu", "dtype", "way"), ("gpu", "row kind", "way")):
        report(f"\nby {', '.join(by)}", cases, by, recommendations, agreement, coverage)


def _cases(way: str, group: RowGroup, predicted: Array, low: Array, high: Array) -> Cases:
    problem = problem_from_key(group.problem)
    names = {"kernel": group.kernel, "gpu": group.gpu, "problem": group.problem, "way": way, "dtype": problem.dtype}
    times = {"recorded": group.latency_s, "predicted": predicted, "low_s": low, "high_s": high}
    return Cases.of(**names, **{"row kind": rows_of(problem)}, **times)


def learned(groups: Sequence[RowGroup]) -> list[Cases]:
    """Return the held-out predictions of the learned model, and the predictions of the analytical model."""
    data = Dataset(tuple(groups))
    _, problems = data.held_out
    head = train_head(HeadData.of(data, "latency", SETTINGS), problems, SETTINGS)
    predicted = data.analytical["latency"] * np.exp(head.out_of_fold)
    distance = held_out_distance(data, fold_of_rows(problems, SETTINGS))
    error, low, high = np.log(data.latency_s / predicted), predicted.copy(), predicted.copy()
    # For each kind of problem, calibrate the intervals of a tenth of the problems on the other nine tenths.
    tenth, kind = group_folds(problems, _TENTHS), data.numbers("gpu", "dtype", "row_kind")
    for number in np.unique(kind):
        for part in np.unique(tenth[kind == number]):
            own, others = (kind == number) & (tenth == part), (kind == number) & (tenth != part)
            interval = calibrate(error[others], problems[others], "problem", distance[others])
            low[own], high[own] = interval.around(predicted[own], distance[own])
    result, start = [], 0
    for group in groups:
        rows = slice(start, start + len(group))
        start += len(group)
        result.append(_cases("learned", group, predicted[rows], low[rows], high[rows]))
        unknown = np.full(len(group), np.nan)
        result.append(_cases("predicted", group, group.inputs.latency_s, unknown, unknown))
    return result


def from_other(groups: Sequence[RowGroup], others: Sequence[RowGroup]) -> list[Cases]:
    """Return the predictions of a model of another GPU, before and after measuring five configs of each problem."""
    # Train only one tree for the recorded GPU, because this test uses only the model's trees for other GPUs.
    model = train(Dataset(tuple(others)), replace(SETTINGS, rounds=1))
    result = []
    for group in groups:
        features, measured = matrix(group.inputs, model.columns), group.latency_s
        ratios, distance = model.log_ratio(group.inputs, group.gpu in model.gpus)
        predicted = group.inputs.latency_s * np.exp(ratios["latency"])
        interval = interval_of(model, "latency", None, group.dtype, True, group.row_kind)
        low, high = interval.around(predicted, distance)
        result.append(_cases(f"from {others[0].gpu.partition('-')[0]}", group, predicted, low, high))
        first = scores.order_of(predicted)[:MEASURED]
        correction = adapt(features[first], np.log(measured[first] / predicted[first]))
        adapted = predicted * np.exp(correction.correction(features))
        low, high = correction.interval.around(adapted)
        adapted[first] = low[first] = high[first] = measured[first]
        result.append(_cases(f"{MEASURED} measured", group, adapted, low, high))
    return result
