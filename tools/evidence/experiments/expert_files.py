"""Rank the configs in vLLM's tuned files for experts among the candidates of an audit, by predicted time.

vLLM's tuner measured hundreds of configs on the GPU, with older releases of Triton and of the kernel. The files contain
the best configs, but no times. This experiment reads eight files without quantization, four for an A100 and four for an
H100, from vLLM's folder `model_executor/layers/fused_moe/configs`. Like vLLM, it uses the entries for the numbers of
tokens nearest to 16 and 1,024.

    rank      rank of the file's config, among the candidates and vLLM's default config, by predicted time
    file      predicted time of the file's config over the predicted time of the top config
    default   predicted time of the config that vLLM uses without a file over the predicted time of the top config

A last line covers the fp8 files whose sizes are those of a known model, at 16, 128 and 1,024 tokens. It compares the
file's config with all configs of the search space.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.model_config import ModelConfig
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.recommender.serving.compared import candidates, distinct, ranked_by_formula
from kernrec.recommender.serving.engine_defaults import default_config, entry_for, launched
from kernrec.recommender.serving.engines import Deployment, tuned_files
from kernrec.recommender.serving.expert_ranking import configs_array, ranks, shipped_ranking, space
from kernrec.recommender.serving.tuned_files import experts_of

FILES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOKENS = (16, 1024)
_TILES = (*(f"BLOCK_SIZE_{axis}" for axis in "MNK"), "GROUP_SIZE_M", "num_warps", "num_stages")


def run(files: Annotated[Path, typer.Option("--files", help="vLLM's folder fused_moe/configs")]) -> None:
    table, ranks, ratios = Table(), list[int](), list[float]()
    for tokens, (gpu, experts, width, hidden, top) in itertools.product(TOKENS, FILES["files"]):
        served = Deployment("vllm", find_gpu(gpu))
        sizes = {"num_experts": experts, "num_experts_per_tok": top, "moe_intermediate_size": width}
        model = ModelConfig({"hidden_size": hidden, **sizes}, "", "")
        file = tuned_files(model, served)[0]
        entries, _ = read_moe_configs((files / file.name).read_text(), file.name)
        tuned, default = entries[entry_for(entries, tokens)], default_config("vllm", file, tokens, served.gpu)
        tried = [tuned, default, *candidates(file, tokens, served.gpu)]
        costs = ranked_by_formula(file, tokens, served.gpu, list(distinct("vllm", file, tried).values()))
        ranked = [(launched("vllm", file, config), cost) for config, cost in costs]
        keys, times = [config for config, _ in ranked], [cost / ranked[0][1] for _, cost in ranked]
        rank = keys.index(launched("vllm", file, tuned))
        ranks.append(rank + 1)
        ratios.append(times[rank])
        name = file.name.removesuffix(".json").replace("device_name=NVIDIA_", "")
        cells = {"file": name, "tokens": tokens, "config": "-".join(str(tuned[key]) for key in _TILES)}
        cells |= {"rank": f"{rank + 1} of {len(ranked)}", "file / first": f"{times[rank]:.3f}"}
        table.row(cells | {"default / first": f"{times[keys.index(launched('vllm', file, default))]:.3f}"})
    print(f"in the first three: {sum(rank <= 3 for rank in ranks)} of {len(ranks)}")
    print(f"file / first: median {np.median(ratios):.3f}, largest {max(ratios):.3f}")
    for tokens, logs in zip(TOKENS, np.log(ratios).reshape(len(TOKENS), -1), strict=True):
        print(f"root mean square of its logarithm with {tokens} tokens: {np.sqrt(np.mean(logs**2)):.2f}")
    ranked_fp8 = np.array([each for path in sorted(files.glob("E=*fp8_w8a8*.json")) for each in in_space(path)])
    print(
        f"fp8: {len(ranked_fp8)} configs, median rank {np.median(ranked_fp8[:, 0]):.0f}, in the first three"
        f" {np.mean(ranked_fp8[:, 0] <= 3):.0%}, root mean square of the logarithm of file / best"
        f" {np.sqrt(np.mean(ranked_fp8[:, 1] ** 2)):.2f}"
    )


def in_space(path: Path) -> Iterator[tuple[int, float]]:
    """Yield (rank in the whole search space, log(predicted time / lowest predicted time)) of a file's configs."""
    file, _ = experts_of(path.name)
    try:
        gpu = find_gpu(re.split(r"device_name=|,dtype=", path.name)[1].replace("_", " "))
    except UsageError:
        return
    if file is None or not ranks(file, gpu):
        return
    entries, _ = read_moe_configs(path.read_text(), path.name)
    ranking = shipped_ranking()
    for tokens in sorted({16, 128, 1024} & entries.keys()):
        configs = np.concatenate([configs_array([entries[tokens]]), space(file, gpu)])
        scores = ranking.scores(file, tokens, gpu, configs)
        yield int((scores[1:] > scores[0]).sum()) + 1, math.log(ranking.over_best(file, tokens, gpu, entries[tokens]))
