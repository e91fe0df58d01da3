"""Train the shipped ranking of configs for the fused-experts kernel, from published near-best configs.

`triton/moe_near_best_configs.parquet` contains all configs that are within 1 % of the best one, for 207 problems on
each of four GPUs (zksainx/pipeweave, Apache-2.0). Trees classify whether a config of the search space is near the best
(`kernrec.recommender.serving.expert_ranking`). Before the training, the tool holds out each fifth of the problems on
all GPUs, then each GPU. It prints the fraction of problems whose top recommendation is near the best, and the fraction
of problems with a near-best config among the top three. The model's card stores the fractions. `--folds 0` skips this
step.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from evidence.recordings.files import recorded_dicts
from front import DATA, ROOT, Data, script

from kernrec.gpu import find_gpu
from kernrec.model.baselines.compact_trees import MOST_CUTS, compact
from kernrec.recommender.serving.engines import ProductShape
from kernrec.recommender.serving.expert_ranking import SPACE, first_of_tiles, fits, formula, save
from kernrec.util.optional import import_optional

GPUS = {"a100": "a100-sxm4-80gb", "h20": "h20", "h800": "h800-sxm", "l40": "l40"}
FOLDS = 5
_FAR = 200
"""Number of training configs per problem that are not near the best, drawn at random."""
_FAR_WEIGHT = 10.0
_TREES, _LEVELS, _RATE = 200, 7, 0.12
_TUNABLES = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")

Problem = tuple[str, int, int, int, int, int]
"""GPU, number of tokens, number of experts, experts per token, hidden size, and width of an expert."""


class Recorded:
    """Configs of a recorded problem, with their features and whether each is near the best."""

    def __init__(self, problem: Problem, near: Mapping[tuple[int, ...], float]) -> None:
        name, tokens, experts, top, hidden, width = problem
        gpu, shape = find_gpu(GPUS[name]), ProductShape(2 * width, hidden, experts, top)
        self.near = np.array([tuple(row) in near for row in SPACE.tolist()])
        self.tried = np.flatnonzero(fits(SPACE, gpu) | self.near)
        _, self.features = formula(shape, tokens, gpu, SPACE[self.tried])
        self.near = self.near[self.tried]
        best = min(near, key=near.__getitem__)
        predicted_s = formula(shape, tokens, gpu, np.array([best]))[0][0]
        self.level = np.log(near[best] / predicted_s)
        """Logarithm of (recorded time / predicted time) of the config that is fastest in the recording."""
        self.loss = np.log(predicted_s / formula(shape, tokens, gpu, SPACE[fits(SPACE, gpu)])[0].min())
        """Logarithm of (predicted time of the config / lowest predicted time)."""

    def sample(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return features, labels and weights for training. All near-best configs and a random sample of the others are
        included. The weight of a near-best config is lower if the problem has many."""
        near, far = np.flatnonzero(self.near), np.flatnonzero(~self.near)
        far = random.choice(far, min(_FAR, len(far)), replace=False)
        weights = np.full(len(near), len(near) ** -0.5), np.full(len(far), _FAR_WEIGHT / len(far))
        rows = np.concatenate([near, far])
        return self.features[rows], self.near[rows], np.concatenate(weights)

    def ranked(self, trees: Any, is_recorded: bool) -> np.ndarray:
        """Return for each of the top three recommendations whether it is near the best."""
        order = np.argsort(-trees.inplace_predict(self.features), kind="stable")
        if not is_recorded:
            order = order[first_of_tiles(SPACE[self.tried[order]])]
        return np.asarray(self.near[order[:3]])


def run(
    data: Data = DATA, out: Path = ROOT / "db/prebuilt/models/serving/fused_experts.json",
    folds: Annotated[int, typer.Option(min=0, max=FOLDS)] = FOLDS,
) -> None:  # fmt: skip
    """Train and write the model."""
    near: dict[Problem, dict[tuple[int, ...], float]] = {}
    for row in recorded_dicts(data / "triton" / "moe_near_best_configs.parquet"):
        problem = tuple(row[name] for name in ("gpu", "tokens", "experts", "top_k", "hidden", "intermediate"))
        near.setdefault(problem, {})[tuple(row[name] for name in _TUNABLES)] = row["latency_s"]
    problems = {problem: Recorded(problem, near[problem]) for problem in sorted(near)}
    levels, losses = np.array([(each.level, each.loss) for each in problems.values()]).T
    errors = {
        "level": np.exp(np.median(levels)),
        "factor": np.exp(np.quantile(np.abs(levels - np.median(levels)), 0.9)),
        "pair_spread": np.sqrt(np.mean(np.square(losses))),
        "median predicted loss of the recorded best": np.expm1(np.median(losses)),
    }
    about = {
        "gpus": list(GPUS.values()),
        "problems": len(problems),
        "near the best (top recommendation, one of three)": scores(problems, folds),
        **{quantity: round(float(value), 4) for quantity, value in errors.items()},
        "source": "zksainx/pipeweave (Apache-2.0): fused experts in 16 bits, first matmul, random routing",
    }
    trees = json.loads(train(list(problems.values())).save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    save(out, compact(trees, next(iter(problems.values())).features.shape[1], 0.0), about)
    print(f"{out}: {out.with_suffix('.trees').stat().st_size / 1e6:.2f} MB")


def train(problems: Sequence[Recorded]) -> Any:
    """Train trees that classify whether a config is near the best."""
    xgboost, random = import_optional("xgboost", "training a model", "train"), np.random.default_rng(0)
    matrix, near, weight = (np.concatenate(part) for part in zip(*(p.sample(random) for p in problems), strict=True))
    settings = {
        "tree_method": "hist", "objective": "binary:logistic", "base_score": 0.5, "max_depth": _LEVELS, "eta": _RATE,
        "subsample": 0.8, "colsample_bytree": 0.5, "nthread": 1, "seed": 0, "max_bin": MOST_CUTS - 1,
    }  # fmt: skip
    rows = xgboost.QuantileDMatrix(matrix, near, weight=weight, max_bin=MOST_CUTS - 1, nthread=1)
    return xgboost.train(settings, rows, _TREES)


def scores(problems: dict[Problem, Recorded], folds: int) -> dict[str, Any]:
    """Hold out each fifth of the problems on all GPUs, then each GPU. Print and return the fractions of problems with a
    near-best config as top recommendation, and among the top three."""
    shapes = sorted({problem[1:] for problem in problems})
    fold = dict(zip(shapes, np.random.default_rng(0).permutation(len(shapes)) % FOLDS, strict=True))
    parts = {f"problems {part}": {p for p in problems if fold[p[1:]] == part} for part in range(folds)}
    parts |= {gpu: {p for p in problems if p[0] == gpu} for gpu in GPUS if folds}
    shares: dict[str, dict[str, list[list[float]]]] = {}
    for name, part in parts.items():
        trees = train([r for problem, r in problems.items() if problem not in part])
        by_gpu = shares.setdefault("GPU held out" if name in GPUS else "problems held out", {})
        for gpu in GPUS:
            if ranked := [problems[p].ranked(trees, name not in GPUS) for p in part if p[0] == gpu]:
                hits = [np.mean([near[0] for near in ranked]), np.mean([near.any() for near in ranked])]
                by_gpu.setdefault(gpu, []).append(list(map(float, hits)))
    means = {kind: {gpu: np.mean(v, 0).round(3).tolist() for gpu, v in by.items()} for kind, by in shares.items()}
    for kind, by in means.items():
        top, three = np.mean(list(by.values()), axis=0)
        print(f"{kind}: near the best in {top:.1%}, one of three in {three:.1%}; {by}", flush=True)
    return means


if __name__ == "__main__":
    script(run)
