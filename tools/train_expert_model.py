"""Train the shipped ranking of configs for the fused-experts kernel, from published near-best configs.

    python tools/train_expert_model.py --files FOLDER [--data ../shared/data]

`triton/moe_near_best_configs.parquet` contains all configs that are within 1 % of the best one, for 207 problems on
each of four GPUs (zksainx/pipeweave, Apache-2.0). FOLDER is `model_executor/layers/fused_moe/configs` of vLLM
(Apache-2.0): its files for 16-bit experts have the best config of more GPUs. Files that `tools/evidence expert-files`
ranks are left out. Trees classify whether a config of the search space is near the best
(`kernrec.recommender.serving.expert_ranking`). Before the training, the tool holds out each fifth of the problems on
all GPUs, then each GPU with vLLM's files for its variants. It prints for how many problems the top recommendation, and
at least one of the top three, is near the best. These figures are stored in the model's card. `--folds 0` skips this
step. The exit status is 2 if the data is missing.
"""

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from evidence.experiments.expert_files import FILES
from evidence.recordings.files import AbsentError, parquet_dicts
from front import DATA, ROOT

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.model.baselines.compact_trees import MOST_CUTS, compact
from kernrec.recommender.serving.engines import ProductShape
from kernrec.recommender.serving.expert_ranking import SPACE, configs_array, features, fits, formula, save
from kernrec.recommender.serving.tuned_files import experts_of
from kernrec.util.optional import import_optional

GPUS = {"a100": "a100-sxm4-80gb", "h20": "h20", "h800": "h800-sxm", "l40": "l40"}
VARIANTS = {"a100": ("A100", "A800"), "h20": ("H20",), "h800": ("H100", "H200"), "l40": ("L40S",)}
"""GPUs in the names of vLLM's files that are held out with a recorded GPU, because they have the same chip."""
FOLDS = 5
_FAR = 100
"""Number of configs per problem that are not near the best, drawn at random for training."""
_FAR_WEIGHT = 10.0
_FAR_OF_ENTRY = 60
"""Number of configs that are drawn at random for each entry of vLLM's files."""
_FILE_WEIGHT = 2.0
"""Weight of an entry of vLLM's files, relative to a recorded problem."""
_TREES, _LEVELS, _RATE = 150, 7, 0.12
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, labels and weights for training."""

Problem = tuple[str, int, int, int, int, int]
"""GPU, number of tokens, number of experts, experts per token, hidden size, and width of an expert."""


class Recorded:
    """Configs of a recorded problem, with their features and whether each is near the best."""

    def __init__(self, problem: Problem, near: Collection[tuple[int, ...]]) -> None:
        name, tokens, experts, top, hidden, width = problem
        gpu = find_gpu(GPUS[name])
        self.near = np.array([tuple(row) in near for row in SPACE.tolist()])
        self.tried = np.flatnonzero(fits(SPACE, gpu) | self.near)
        self.features = features(ProductShape(2 * width, hidden, experts, top), tokens, gpu, SPACE[self.tried])
        self.near = self.near[self.tried]

    def sample(self, random: np.random.Generator) -> Rows:
        """Return all near-best configs and a random sample of the others. The weight of a near-best config is lower if
        the problem has many."""
        return sampled(self.features, self.near, random, _FAR, 1.0)


def sampled(table: np.ndarray, near: np.ndarray, random: np.random.Generator, most: int, weight: float) -> Rows:
    """Return the near-best configs among the rows of a table of features, and a random sample of `most` others."""
    best, far = np.flatnonzero(near), np.flatnonzero(~near)
    far = random.choice(far, min(most, len(far)), replace=False)
    weights = np.full(len(best), weight * len(best) ** -0.5), np.full(len(far), weight * _FAR_WEIGHT / len(far))
    rows = np.concatenate([best, far])
    return table[rows], near[rows], np.concatenate(weights)


def tuned_entries(folder: Path) -> dict[str, list[Rows]]:
    """Return the rows of vLLM's tuned files for training, keyed by the GPU in a file's name."""
    random, ranked = np.random.default_rng(1), {(find_gpu(gpu).name, count, width) for gpu, count, width, *_ in FILES}
    rows: dict[str, list[Rows]] = {}
    for path in sorted(folder.glob("E=*.json")):
        file, _ = experts_of(path.name)
        device = path.stem.partition("device_name=")[2]
        try:
            gpu = find_gpu(device.replace("_", " "))
        except UsageError:
            continue
        if file is None or file.weights or (gpu.name, file.products[0].experts, file.products[1].depth) in ranked:
            continue
        for tokens, config in read_moe_configs(path.read_text(), path.name)[0].items():
            rows.setdefault(device, []).extend(entry_rows(file.products, tokens, gpu, config, random))
    return rows


def entry_rows(
    products: Sequence[ProductShape], tokens: int, gpu: GPU, config: Mapping[str, int], random: np.random.Generator
) -> list[Rows]:
    """Return the rows of an entry of a tuned file, for each of both matmuls."""
    tried = SPACE[fits(SPACE, gpu)]
    best = (tried == configs_array([config])).all(1)
    if not best.any():
        return []
    return [
        sampled(features(shape, tokens, gpu, tried), best, random, _FAR_OF_ENTRY, _FILE_WEIGHT) for shape in products
    ]


def near_best(data: Path) -> dict[Problem, list[tuple[tuple[int, ...], float]]]:
    """Return each problem's near-best configs, with times in seconds. Raises `AbsentError` if the file is missing."""
    names = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
    near: dict[Problem, list[tuple[tuple[int, ...], float]]] = {}
    for row in parquet_dicts(data / "triton" / "moe_near_best_configs.parquet"):
        problem = tuple(row[name] for name in ("gpu", "tokens", "experts", "top_k", "hidden", "intermediate"))
        config = tuple(row[name] for name in names)
        near.setdefault(problem, []).append((config, row["latency_s"]))
    return dict(sorted(near.items()))


def errors(problems: Mapping[Problem, Sequence[tuple[tuple[int, ...], float]]]) -> dict[str, float]:
    """Return the errors of the formula for times, as an `ExpertRanking` stores them."""
    levels, losses = [], []
    for (name, tokens, experts, top, hidden, width), near in problems.items():
        gpu, shape = find_gpu(GPUS[name]), ProductShape(2 * width, hidden, experts, top)
        best, latency_s = min(near, key=itemgetter(1))
        predicted_s = formula(shape, tokens, gpu, np.array([best]))[0][0]
        levels.append(np.log(latency_s / predicted_s))
        losses.append(np.log(predicted_s / formula(shape, tokens, gpu, SPACE[fits(SPACE, gpu)])[0].min()))
    level = np.median(levels)
    made = {
        "level": np.exp(level),
        "factor": np.exp(np.quantile(np.abs(levels - level), 0.9)),
        "pair_spread": np.sqrt(np.mean(np.square(losses))),
        "median predicted loss of the recorded best": np.expm1(np.median(losses)),
    }
    return {quantity: round(float(value), 4) for quantity, value in made.items()}


def train(problems: Sequence[Recorded], entries: Sequence[Rows]) -> Any:
    """Train trees that classify whether a config is near the best."""
    xgboost, random = import_optional("xgboost", "training a model", "train"), np.random.default_rng(0)
    parts = [*(problem.sample(random) for problem in problems), *entries]
    matrix, near, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    settings = {
        "tree_method": "hist", "objective": "binary:logistic", "base_score": 0.5, "max_depth": _LEVELS, "eta": _RATE,
        "subsample": 0.8, "colsample_bytree": 0.5, "nthread": 1, "seed": 0, "max_bin": MOST_CUTS - 1,
    }  # fmt: skip
    rows = xgboost.QuantileDMatrix(matrix, near, weight=weight, max_bin=MOST_CUTS - 1, nthread=1)
    return xgboost.train(settings, rows, _TREES)


def held_out(trees: Any, problems: Sequence[Recorded]) -> np.ndarray:
    """Return the fractions of problems with a near-best top recommendation, and with one in the top three."""
    ranked = [p.near[np.argsort(-trees.inplace_predict(p.features), kind="stable")[:3]] for p in problems]
    return np.array([np.mean([near[0] for near in ranked]), np.mean([near.any() for near in ranked])])


def scores(problems: dict[Problem, Recorded], entries: Mapping[str, list[Rows]], folds: int) -> dict[str, Any]:
    """Hold out each fifth of the problems on all GPUs, then each GPU. Print and return the fractions."""
    shapes = sorted({problem[1:] for problem in problems})
    fold = dict(zip(shapes, np.random.default_rng(0).permutation(len(shapes)) % FOLDS, strict=True))
    parts = {f"problems {part}": {p for p in problems if fold[p[1:]] == part} for part in range(folds)}
    parts |= {gpu: {p for p in problems if p[0] == gpu} for gpu in GPUS if folds}
    shares: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, part in parts.items():
        held = VARIANTS.get(name, ())
        others = [rows for device, of_gpu in entries.items() if not is_one_of(device, held) for rows in of_gpu]
        trees = train([r for problem, r in problems.items() if problem not in part], others)
        by_gpu = shares.setdefault("GPU held out" if name in GPUS else "problems held out", {})
        for gpu in GPUS:
            if tested := [problems[problem] for problem in part if problem[0] == gpu]:
                by_gpu.setdefault(gpu, []).append(held_out(trees, tested))
    means = {kind: {gpu: np.mean(v, 0).round(3).tolist() for gpu, v in by.items()} for kind, by in shares.items()}
    for kind, by in means.items():
        top, three = np.mean(list(by.values()), axis=0)
        print(f"{kind}: near the best in {top:.1%}, one of three in {three:.1%}; {by}", flush=True)
    return means


def is_one_of(device: str, chips: Collection[str]) -> bool:
    """Return whether the device name in a file's name, such as `NVIDIA_H20-3e`, is that of one of the chips."""
    return device.removeprefix("NVIDIA_").replace("_", "-").partition("-")[0] in chips


def main() -> int:
    """Train and write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--files", type=Path, required=True, help="vLLM's folder fused_moe/configs")
    parser.add_argument("--out", type=Path, default=ROOT / "db/prebuilt/models/serving/fused_experts.json")
    parser.add_argument("--folds", type=int, choices=range(FOLDS + 1), default=FOLDS)
    arguments = parser.parse_args()
    try:
        near = near_best(arguments.data)
    except AbsentError as error:
        print(error, file=sys.stderr)
        return 2
    problems = {problem: Recorded(problem, {config for config, _ in rows}) for problem, rows in near.items()}
    entries = tuned_entries(arguments.files)
    rows = [each for of_gpu in entries.values() for each in of_gpu]
    about = {
        "gpus": list(GPUS.values()),
        "problems": len(problems),
        "entries of vLLM's files": {device: len(of_gpu) // 2 for device, of_gpu in sorted(entries.items())},
        "near the best (top recommendation, one of three)": scores(problems, entries, arguments.folds),
        **errors(near),
        "source": "zksainx/pipeweave (Apache-2.0): fused experts in 16 bits, first matmul, random routing; vLLM"
        " (Apache-2.0): tuned files of 16-bit experts",
    }
    trees = json.loads(train(list(problems.values()), rows).save_raw("json"))["learner"]["gradient_booster"]["model"][
        "trees"
    ]
    save(arguments.out, compact(trees, next(iter(problems.values())).features.shape[1], 0.0), about)
    print(f"{arguments.out}: {arguments.out.with_suffix('.trees').stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
