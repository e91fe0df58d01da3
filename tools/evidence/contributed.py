"""Models before and after ten minutes of contributed rows: five recorded cards, each left out of what was trained.

    a100, h100              Triton's matrix product, of which a model ships: it is trained again without the card
    rtx3090, rtx2080ti,     CLBlast's product and the 15x15 convolution, which are no kernels of the library: nothing is
    rtx2070-super           trained on them, the prior alone predicts; they need --sources (`tools/evidence prior`)

Half of what was recorded on a card is what its owner can measure: half of the problems, of the public kernels, which
have one problem, half of a sample of configs. `kernrec contribute` chooses among it, on a device that replays the
recording, as many configs as ten minutes on a card gave before the plan had a survey. The rows that it chose are
written as measurements, merged into a database, and `kernrec train` trains on that. Scored are the problems, or
configs, of the other half, which nobody measured, before and after: the median error, the same once the common factor
of a problem's times is removed, the rank, and the time of the best over that of the first choice. The clocks are not
stated to either: queries are at the catalog's.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from front import DATA, Data, Sources, Table
from train_triton_model import SETTINGS

from evidence.recordings.files import AbsentError
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel, config_text
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.request import CollectRequest, Strategy
from kernrec.model.learn.model_file import save
from kernrec.model.prior.prior_fingerprint import prior_fingerprint
from kernrec.op import Problem
from kernrec.recommender.candidate_set import candidate_set
from kernrec.recommender.contenders import Key, key_of
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.store import Database
from kernrec.store.intake import merge
from kernrec.store.measurement import Measurement
from kernrec.training import scores
from kernrec.training.dataset import Dataset
from kernrec.training.load_measurements import MeasurementRequest, provenance_of_rows
from kernrec.training.train_model import train
from kernrec.training.train_op_models import train_op_models

from .profiled import profiled_sample, profiles_file
from .recorded_sets import SETS
from .triton import problem_of
from .triton_recordings import COLUMNS, FILES, KERNEL, recorded_groups
from .triton_recordings import config_of as triton_config

PUBLIC = dict.fromkeys(("rtx3090", "rtx2080ti", "rtx2070-super"), ("gemm", "convolution"))
TEN_MINUTES = 404
"""Configs that ten minutes on a card gave before the plan had a survey: figures with and without it are of as many."""
FEWEST = 5
"""Configs of a problem that are put in an order."""


@dataclass(frozen=True)
class Recorded:
    """A kernel's configs on one problem, and what was recorded of them."""

    kernel: Kernel
    problem: Problem
    configs: Sequence[Config]
    latency_s: np.ndarray
    """(N,)."""

    def take(self, rows: Sequence[int]) -> "Recorded":
        """These configs alone."""
        return Recorded(self.kernel, self.problem, [self.configs[row] for row in rows], self.latency_s[list(rows)])


@dataclass(frozen=True)
class Card:
    """The rows that the owner of a card can measure, and those that are scored."""

    gpu: str
    offered: Sequence[Recorded]
    scored: Sequence[Recorded]
    profiles: Sequence[Path]
    """Databases of the kernels that are not of the library."""


def run(
    data: Data = DATA,
    sources: Sources = None,
    cards: str = ",".join((*FILES, *PUBLIC)),
    budget: int = TEN_MINUTES,
    problems: int = 150,
    configs: int = 120,
    seed: int = 0,
) -> None:
    """Print a row for each card and kernel, before and after.

    `problems`: of each half; `configs`: of a sample.
    """
    table = Table(f"{budget} configs contributed; left is what the plan did not see")
    for gpu in cards.split(","):
        try:
            card = _triton(data, gpu, problems) if gpu in FILES else _public(data, sources, gpu, configs)
        except AbsentError as error:
            print(f"skipped {gpu}: {error}")
            continue
        with TemporaryDirectory(prefix="kernrec-") as name:
            for row in _evaluated(card, data, Path(name), budget, seed):
                table.row(row)


def _half(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[-1] % 2 == 0


def _triton(data: Path, gpu: str, problems: int) -> Card:
    halves: tuple[list[Recorded], list[Recorded]] = [], []
    _, groups = recorded_groups(data, gpu)
    if not groups:
        raise AbsentError("no profiles of matmul_triton")
    for group in sorted(groups, key=lambda each: hashlib.sha256(each.problem.encode()).digest()):
        # Problems of the same dimensions cost nearly the same: they are all in one half.
        half = halves[_half(group.dims)]
        if len(half) < problems:
            rows = range(len(group))
            named = [dict(zip(COLUMNS, triton_config(group, row), strict=True)) for row in rows]
            whole = [{name: int(group.inputs.tunables[name][row]) for name in group.inputs.tunables} for row in rows]
            assert all(a.items() <= b.items() for a, b in zip(named, whole, strict=True))
            half.append(Recorded(KERNEL, problem_of(group), whole, group.latency_s))
    return Card(gpu, halves[1], halves[0], ())


def _public(data: Path, sources: Path | None, gpu: str, configs: int) -> Card:
    offered: list[Recorded] = []
    scored: list[Recorded] = []
    profiles = []
    for name in PUBLIC[gpu]:
        (recording,) = [each for each in SETS[name].recordings if each.card == gpu]
        sample, _, _ = profiled_sample(SETS[name], recording, (sources, data), configs)
        runs = np.flatnonzero(sample.predictions().position >= 0).tolist()
        whole = Recorded(sample.kernel, sample.kernel.definition.problem(), sample.configs, sample.latency_s)
        for half, value in ((offered, True), (scored, False)):
            half.append(whole.take([row for row in runs if _half(config_text(sample.configs[row])) is value]))
        profiles.append(profiles_file(sample.kernel, sample.gpu))
    return Card(gpu, offered, scored, profiles)


def _evaluated(card: Card, data: Path, folder: Path, budget: int, seed: int) -> list[dict[str, object]]:
    own, recording, after = (folder / name / "all.duckdb" for name in ("own", "recording", "after"))
    for path in (own, recording, after):
        path.parent.mkdir()
        with Database.open(path, read_only=False, create=True) as database:
            for profiles in card.profiles:
                merge(database, profiles)
    if card.gpu in FILES:
        _model_without(data, card.gpu, own.parent / "models")
        _model_without(data, card.gpu, after.parent / "models")
    _add(recording, card.gpu, card.offered)
    request = CollectRequest(
        problems=None,
        database=own,
        gpu=card.gpu,
        recording=recording,
        strategy=Strategy.PLAN,
        budget=CampaignBudget(None, budget),
        seed=seed,
    )
    collect(request)
    chosen = _chosen(own)
    contributed = [
        each.take(
            [
                row
                for row, config in enumerate(each.configs)
                if (each.problem.key, key_of(each.kernel.name, config)) in chosen
            ]
        )
        for each in card.offered
    ]
    sent = folder / "contributed.duckdb"
    _add(sent, card.gpu, contributed)
    with Database.open(after, read_only=False) as database:
        merge(database, sent)
    before = _scores(card, Context([own]), folder / "own")
    train_op_models(MeasurementRequest(databases=(after,), gpu=card.gpu))
    trained = _scores(card, Context([after]), folder / "after")
    measured: dict[str, list[int]] = defaultdict(list)
    for each in contributed:
        if len(each.configs):
            measured[each.kernel.name].append(len(each.configs))
    rows = []
    for kernel, scored in trained.items():
        about = {"card": card.gpu, "kernel": kernel, "rows": sum(measured[kernel]), "problems": len(measured[kernel])}
        figures = zip(before[kernel].items(), scored.values(), strict=True)
        rows.append(about | {name: f"{old:{_FORM[name]}} -> {new:{_FORM[name]}}" for (name, old), new in figures})
    return rows


_FORM = {"error": ".1%", "about the level": ".1%", "rank": ".3f", "first": ".3f", "worst tenth": ".3f"}


def _model_without(data: Path, gpu: str, folder: Path) -> None:
    """The model that ships, trained without a card."""
    rows = Dataset(tuple(group for other in FILES if other != gpu for group in recorded_groups(data, other)[1]))
    about = {"measurements": 0, "mark": "", "prior": {"probe": prior_fingerprint(), "calibrations": {}}}
    save(train(rows, SETTINGS), folder, KERNEL.name, provenance_of_rows(rows) | about)


def _add(path: Path, gpu: str, recorded: Sequence[Recorded]) -> None:
    """Write rows as somebody's measurements."""
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(
            Measurement.from_columns(
                {
                    "gpu": gpu,
                    "kernel": each.kernel.name,
                    "kernel_hash": each.kernel.hash,
                    "config": config,
                    "problem": each.problem,
                    "protocol_version": 1,
                    "tier": "final",
                    "session": "recorded",
                    "measured_at": "2026-03-01T12:00:00",
                    "outcome": "ok",
                    "latency_s": latency_s,
                }
            )
            for each in recorded
            for config, latency_s in zip(each.configs, each.latency_s.tolist(), strict=True)
        )


def _chosen(own: Path) -> set[tuple[str, Key]]:
    """Problem, and kernel and config, of each that was measured."""
    with Database.open(own) as database:
        identities = [each.identity for each in database.measurements()]
    return {(each.problem.key, key_of(each.kernel, each.config)) for each in identities}


def _scores(card: Card, context: Context, folder: Path) -> Mapping[str, dict[str, float]]:
    """By kernel, the scores of what a query predicts of the configs that nobody measured."""
    figures: dict[str, list[tuple[np.ndarray, float, float, float]]] = defaultdict(list)
    gpu = find_gpu(card.gpu)
    for each in card.scored:
        table = context.kernel_table(each.kernel, each.problem, gpu)
        evidence = context.evidence(each.problem, gpu, [each.kernel])
        candidates = candidate_set([table], each.problem, [DEFAULT_POINT], evidence, context.models, whole_space=True)
        (of_kernel,) = candidates.kernels
        place = np.full(len(table.space), -1)
        place[of_kernel.rows] = np.arange(len(of_kernel.rows))
        position = place[table.space.find(list(each.configs))]
        assert (position >= 0).all(), each.problem.key
        predicted = candidates.latency_s[0][position]
        ratio = np.log(each.latency_s / predicted)
        level = np.expm1(np.abs(ratio - np.median(ratio)))
        error = np.abs(predicted / each.latency_s - 1.0)
        ranked = len(ratio) >= FEWEST
        first = scores.efficiency_at(each.latency_s, scores.order_of(predicted), 1)
        rank = scores.rank_correlation(predicted, each.latency_s) if ranked else np.nan
        figures[each.kernel.name].append((np.stack([error, level]), rank, first, len(ratio)))
    for line in context.models.warnings():
        print(f"{folder.name}: {line}")
    result = {}
    for kernel, rows in figures.items():
        error, level = np.concatenate([each[0] for each in rows], axis=1)
        firsts = np.array([each[2] for each in rows])
        result[kernel] = {
            "error": float(np.median(error)),
            "about the level": float(np.median(level)),
            "rank": float(np.nanmean([each[1] for each in rows])),
            "first": float(firsts.mean()),
            "worst tenth": float(np.quantile(firsts, 0.1)),
        }
    return result
