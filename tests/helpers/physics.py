"""Physical laws that every answer must obey, checked independently of kernrec's own plausibility checks.

Run `PYTHONPATH=tools python -m tests.helpers.physics [--questions 500] [--seed 1]`. Status 1 means a broken law.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from random_queries import random_queries

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.op.registry import problem_from_key
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network

ROUNDING = 1.001
"""Values that break a law by less than this factor count as rounding errors."""
LONG_RUN = 1.5
"""Maximum energy ratio between long and short runs of tensor cores."""
SAVED = ("conv2d",)
"""Ops that a backend may compute with fewer operations (Winograd's algorithm)."""


def broken_laws(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each law that an answer for one problem (`as_dict()` of a recommendation or layer) breaks."""
    gpu, problem = find_gpu(answer["gpu"]), problem_of(answer)
    if problem is not None and (needed := sum(problem.tensor_bytes.values())) > gpu.usable_bytes:
        yield f"memory: {needed:.3g} bytes on a GPU with {gpu.usable_bytes:.3g}"
    for row in (*answer["recommendations"], *answer["beside"]):
        yield from _of_row(row, problem, gpu, row["clock_hz"])
        if problem is None or not _names_the_clock(answer, row, problem, gpu):
            yield f"published peak: {row['kernel']} exceeds it, and no note names the clock"
    for row in answer["baselines"]:
        yield from _of_row(row, problem, gpu, None)


def broken_laws_of_network(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each law that the answer for a network (`NetworkAnswer.as_dict()`) breaks."""
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
    """Return the bytes of a linear layer's weights, which the layer must read from DRAM, or 0 for other ops."""
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
    long_s = row.get("long_run_latency_s")
    if long_s is not None and not seconds <= long_s <= seconds * LONG_RUN * ROUNDING:
        yield f"long run: {name} takes {long_s:.3g} s in a long run and {seconds:.3g} in a short one"
    if problem is None or not seconds > 0:
        return
    moved, shortest_s = max(problem.bytes - gpu.l2_bytes, 0), min(row["latency_interval_s"] or [seconds])
    if moved / shortest_s > gpu.memory_bandwidth * ROUNDING:
        yield f"bytes: {name} moves {moved / shortest_s:.3g} B/s of {gpu.memory_bandwidth:.3g}"
    highest_hz = row["locked_clock_hz"] or PowerModel.for_gpu(gpu).running_hz
    if problem.op not in SAVED and problem.flops / shortest_s > peak_at(gpu, problem.dtype, highest_hz) * ROUNDING:
        yield f"interval: {name} reaches {problem.flops / shortest_s:.3g} FLOP/s at its lower end"
    if clock_hz is None:
        clock_hz = highest_hz
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


def random_questions(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random questions about networks with a batch size, or about problems with a single shape."""
    draw = random.Random(seed)
    for question in chain.from_iterable(random_queries(count, seed)):
        if draw.random() < 0.1:
            network = {"network": draw.choice(NETWORKS), "batch": draw.choice([1, 2, 8, 16, 32, 64])}
            query = {
                name: question["query"][name] for name in ("power_limit_w", "clock_hz") if name in question["query"]
            }
            yield {"gpu": question["gpu"], "query": query, **network}
        elif "shapes" in question:
            columns = question["shapes"]
            for sizes in zip(*columns.values(), strict=True):
                yield {**question, "shape": dict(zip(columns, sizes, strict=True))}
        else:
            yield question


def answered(recommender: Recommender, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each answered question with the laws that its answer breaks."""
    for question in random_questions(count, seed):
        try:
            if "network" in question:
                query = Query(**question["query"] | {"objective": "latency"})
                wanted = NetworkRequest(question["network"], batch=question["batch"])
                laws = broken_laws_of_network(answer_network(recommender, question["gpu"], wanted, query).as_dict())
            else:
                subject = question.get("op"), question.get("kernel"), question["shape"]
                query = Query(**question["query"])
                request = Request(question["gpu"], *subject, question["dtype"], question["layout"], query)
                laws = broken_laws(recommender.answer(request).as_dict())
        except KernrecError:
            continue
        yield str(question), list(laws)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    answers = list(answered(Recommender([]), options.questions, options.seed))
    broken = [f"{question}: {law}" for question, laws in answers for law in laws]
    print(*broken, f"{len(answers)} questions have an answer; {len(broken)} laws broken", sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
