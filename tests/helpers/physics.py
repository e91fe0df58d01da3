"""Physical laws that every answer must obey, checked independently of kernrec's own plausibility checks.

    python -m tests.helpers.physics [--questions 500] [--seed 1]

The command asks random questions and prints each broken law and their number; the exit status is 1 if a law is broken.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.op import Problem, all_ops
from kernrec.op.dtype import math_dtype
from kernrec.op.registry import problem_from_key
from kernrec.recommender import Query, Recommender
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network

ROUNDING = 1.001
"""Values that break a law by less than this factor count as rounding errors."""
SAVED = ("conv2d",)
"""Ops that a backend may compute with fewer operations (Winograd's algorithm)."""


def broken_laws(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message with figures for each law that the answer for one problem breaks.

    Args:
        answer: `Recommendation.as_dict()`, or one layer of `NetworkAnswer.as_dict()`.
    """
    gpu, problem = find_gpu(answer["gpu"]), problem_of(answer)
    if problem is not None and (needed := sum(problem.tensor_bytes.values())) > gpu.memory_bytes:
        yield f"memory: {needed:.3g} bytes on a GPU with {gpu.memory_bytes:.3g}"
    for row in (*answer["recommendations"], *answer["beside"]):
        yield from _of_row(row, problem, gpu, row["clock_hz"])
        if problem is None or not _names_the_clock(answer, row, problem, gpu):
            yield f"published peak: {row['kernel']} exceeds it, and no note names the clock"
    for row in answer["baselines"]:
        yield from _of_row(row, problem, gpu, None)


def broken_laws_of_network(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each law that the answer for a network breaks.

    Args:
        answer: `NetworkAnswer.as_dict()`.
    """
    gpu = find_gpu(answer["gpu"])
    for layer in answer["layers"]:
        baseline = [] if layer["baseline"] is None else [layer["baseline"]]
        yield from broken_laws({**layer, "notes": answer["notes"], "baselines": [*layer["baselines"], *baseline]})
    weights = sum(layer["count"] * _weight_bytes(layer) for layer in answer["layers"])
    reading_s = max(weights - gpu.l2_bytes, 0) / gpu.memory_bandwidth
    for total in answer["totals"]:
        if total["latency_s"] * ROUNDING < reading_s:
            yield f"bytes: total {total['name']} takes {total['latency_s']:.3g} s, its weights need {reading_s:.3g}"
        if total["power_w"] > answer["power_limit_w"] * ROUNDING:
            yield f"watts: total {total['name']} draws {total['power_w']:.0f} W under {answer['power_limit_w']:.0f} W"


def _weight_bytes(layer: Mapping[str, Any]) -> float:
    """Return the bytes of a linear layer's weights, which the layer must read from DRAM; 0 for other ops."""
    problem = problem_of(layer)
    assert problem is not None
    names = {"matmul": "b", "matvec": "a"}
    return problem.tensor_bytes.get(names.get(problem.op, ""), 0.0)


def problem_of(answer: Mapping[str, Any]) -> Problem | None:
    """Return the problem of an answer, or None for a user's kernel."""
    return None if answer["layout"] == "any" else problem_from_key(answer["problem"])


def peak_at(gpu: GPU, dtype: str, clock_hz: float | None) -> float:
    """Return the dense peak in FLOP/s at `clock_hz`, or at the data sheet's clock if None."""
    peaks = []
    for name in (math_dtype(dtype), "f32"):
        for tensor in (True, False):
            sheet_hz = gpu.tensor_clock_hz if tensor else gpu.boost_clock_hz
            peaks.append(gpu.peak_flops(name, tensor) * (1.0 if clock_hz is None else clock_hz / sheet_hz))
    return max(peaks)


def _of_row(row: Mapping[str, Any], problem: Problem | None, gpu: GPU, clock_hz: float | None) -> Iterator[str]:
    name = row.get("kernel") or row.get("backend")
    figures = {key: row[key] for key in ("latency_s", "energy_j", "power_w") if row[key] is not None}
    for key in ("latency_interval_s", "energy_interval_j"):
        figures |= {f"{key}[{i}]": value for i, value in enumerate(row[key] or ())}
    for key, value in figures.items():
        if not (math.isfinite(value) and value > 0):
            yield f"finite: {name} {key} = {value}"
    seconds, limit_w = row["latency_s"], row["power_limit_w"]
    drawn_w = [figures.get("power_w", 0.0), figures.get("energy_j", 0.0) / seconds]
    if row["source"] != "measured" and max(drawn_w) > limit_w * ROUNDING:
        yield f"watts: {name} draws {max(drawn_w):.0f} W under {limit_w:.0f} W"
    if problem is None or not seconds > 0:
        return
    moved = max(problem.bytes - gpu.l2_bytes, 0)
    if moved / seconds > gpu.memory_bandwidth * ROUNDING:
        yield f"bytes: {name} moves {moved / seconds:.3g} B/s of {gpu.memory_bandwidth:.3g}"
    if clock_hz is None:
        from kernrec.model.analytical.power import PowerModel

        clock_hz = row["locked_clock_hz"] or PowerModel.for_gpu(gpu).running_hz
        if problem.op in SAVED:
            return
    if (rate := problem.flops / seconds) > peak_at(gpu, problem.dtype, clock_hz) * ROUNDING:
        yield f"peak: {name} reaches {rate:.3g} of {peak_at(gpu, problem.dtype, clock_hz):.3g} FLOP/s"


def _names_the_clock(answer: Mapping[str, Any], row: Mapping[str, Any], problem: Problem, gpu: GPU) -> bool:
    rate = problem.flops / row["latency_s"]
    if rate <= peak_at(gpu, problem.dtype, None) * ROUNDING:
        return True
    return any(note.startswith(f"{row['kernel']} is above the published peak: assumes") for note in answer["notes"])


NETWORKS = (
    "bert-base", "gpt2", "llama-3-8b-decode", "llama-3-8b-prefill", "mobilenetv2", "qwen3-30b-a3b-decode", "resnet50",
    "stable-diffusion-unet", "vgg16", "vit-l-16",
)  # fmt: skip
HUGE = {"softmax": {"rows": 10**9, "columns": 10**9}, "matmul": {"m": 200_000, "n": 200_000, "k": 200_000}}


def random_questions(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random questions with `gpu`, `query`, and either `network` and `batch` or `op`, `dtype` and `shape`."""
    draw = random.Random(seed)
    for _ in range(count):
        gpu = draw.choice(all_gpus())
        query: dict[str, Any] = {"objective": draw.choice(["latency", "energy", "edp", "pareto"])}
        if draw.random() < 0.4:
            share = draw.choice([0.0, draw.random(), 1.0])
            query["power_limit_w"] = gpu.power_min_w + share * (gpu.tdp_w - gpu.power_min_w)
        if draw.random() < 0.15:
            query["clock_hz"] = round(draw.uniform(0.2, 1.0) * gpu.boost_clock_hz / 15e6) * 15e6
        question: dict[str, Any] = {"gpu": gpu.name, "query": query}
        if draw.random() < 0.1:
            yield question | {"network": draw.choice(NETWORKS), "batch": draw.choice([1, 2, 8, 16, 32, 64])}
            continue
        op = draw.choice(["matmul"] * 5 + ["attention"] * 2 + [each.name for each in all_ops()])
        dtypes = {"matmul": ["f16", "bf16", "f32", "tf32", "f8e4m3", "i8"], "attention": ["f16", "bf16"]}
        dtype = draw.choice(dtypes.get(op, ["f32", "f16"]))
        yield question | {"op": op, "dtype": dtype, "shape": _random_shape(draw, op)}


def _random_shape(draw: random.Random, op: str) -> dict[str, int]:
    """Return a shape that is tiny, ordinary, large or too large for any GPU."""
    if draw.random() < 0.04 and op in HUGE:
        return HUGE[op]
    scale = draw.choice([1, 64, 1024, 4096, 8192])

    def size(most: int) -> int:
        return min(max(draw.choice([scale, 2 * scale, scale // 2, draw.randint(1, 2 * scale)]), 1), most)

    if op == "matmul":
        return {"m": size(2**15), "n": size(2**15), "k": size(2**15)}
    if op == "matvec":
        return {"m": size(2**17), "k": size(2**17), "n": draw.choice([1, 4, 16])}
    if op == "elementwise":
        return {"n": size(2**14) * size(2**14)}
    if op == "attention":
        return {"batch": draw.choice([1, 8, 64]), "heads": draw.choice([8, 32]), "queries": size(8192), "head_dim": 128}
    if op == "conv2d":
        side, channels = draw.choice([7, 14, 28, 56, 112]), draw.choice([3, 64, 256, 512])
        return {"n": draw.choice([1, 32, 128]), "c": channels, "h": side, "w": side, "k": 128, "r": 3, "s": 3,
                "padding": 1}  # fmt: skip
    if op == "moe":
        return {"tokens": size(2**14), "hidden": 4096, "intermediate": 1536, "experts": 64, "topk": 8}
    return {"rows": size(2**20), "columns": size(2**17)}


def answered(recommender: Recommender, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each answered question with the laws that its answer breaks."""
    for question in random_questions(count, seed):
        try:
            if "network" in question:
                query = Query(**question["query"] | {"objective": "latency"})
                wanted = NetworkRequest(question["network"], batch=question["batch"])
                laws = broken_laws_of_network(answer_network(recommender, question["gpu"], wanted, query).as_dict())
            else:
                query = Query(**question["query"])
                answer = recommender.recommend(
                    question["op"], question["gpu"], question["shape"], question["dtype"], None, query
                )
                laws = broken_laws(answer.as_dict())
        except KernrecError:
            continue
        yield str(question), list(laws)


def main() -> int:
    """Check the answers to random questions; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    answers = list(answered(Recommender([]), options.questions, options.seed))
    broken = [f"{question}: {law}" for question, laws in answers for law in laws]
    print(
        *broken, f"{len(answers)} of {options.questions} questions have an answer; {len(broken)} laws broken", sep="\n"
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
