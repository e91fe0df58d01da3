"""How good the kernels of the library are, on the GPU of this machine.

time: of the first 40 configs that kernrec recommends for a problem, and 10 random ones, the best, against the library
of the vendor (cuBLAS, cuDNN, PyTorch's fused attention) or, for what memory bounds, against the bandwidth of a copy.
check: every config of a random tenth of each space, against the float64 reference. sanitize: a few of them under
compute-sanitizer. count: instructions as the emulator counts them, against Nsight Compute's.

Everything that is done goes into the JSON file at once; what it holds for this card and these kernels is not done
again, so that a run that was stopped, or that `--minutes` ended, goes on where it was. Exit status 1: no GPU, or a
wrong result.
"""

import json
import os
import random
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from on_gpu import Card, Code, NoGPUError, Prepared, Timer, find_card, to_device

from kernrec.compile import CompileError, CompileJob, compile_many, compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, all_kernels
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, reference
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import parse
from kernrec.recommender import Objective, Query, Recommender

from .profilers import counted_on_card, sanitized
from .vendor_calls import baseline

STEPS = ("time", "check", "sanitize", "count")
RECOMMENDED, AT_RANDOM = 40, 10
SHARE = 0.1
SANITIZED = 3

Config = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A problem to be fast on. aim: the share of the yardstick's speed that is aimed at on an H200."""

    op: str
    dtype: str
    layout: str
    dims: dict[str, int]
    aim: float

    @property
    def problem(self) -> Problem:
        return find_op(self.op).problem(self.dtype, self.layout, **self.dims)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CASES = tuple(Case(**case) for case in _TABLES["cases"])
CHECKED: dict[str, list[dict[str, int]]] = _TABLES["checked"]
COMPUTE_BOUND = ("matmul", "conv2d", "attention")
_ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}


class Results:
    """The JSON file: {card: {step: {subject: finding}}}, written whole after every finding."""

    def __init__(self, path: Path, card: Card) -> None:
        self.path = path
        try:
            self.all: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is not a file of results: {error}") from None
        self.findings: dict[str, dict[str, Any]] = self.all.setdefault(card.name, {})

    def get(self, step: str, subject: str) -> Any:
        return self.findings.get(step, {}).get(subject)

    def put(self, step: str, subject: str, finding: Any) -> None:
        self.findings.setdefault(step, {})[subject] = finding
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.all, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path)


class Bench:
    """The steps, on one card."""

    def __init__(
        self, card: Card, results: Results, deadline: float, sample: int | None = None, only: str | None = None
    ) -> None:
        self.card, self.results, self.deadline, self.sample, self.only = card, results, deadline, sample, only
        self.recommender = Recommender([])
        self.timer: Timer | None = None
        self.wrong = False

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def time(self, ops: list[str]) -> None:
        """Times the cases of these ops, and prints a line for each."""
        self.timer = self.timer or Timer(self.card)
        bandwidth = self.results.get("time", "copy") or self.timer.copy_bandwidth()
        self.results.put("time", "copy", bandwidth)
        say(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s, read and written")
        say(f"{'problem':58} {'kernel':26} {'ours':>9} {'yardstick':>28}  share   aim")
        for case in [case for case in CASES if case.op in ops]:
            kernels = [k for k in all_kernels() if k.op == case.op and k.runs_on(case.dtype, self.card.sm)]
            kernels = [k for k in kernels if case.dtype in k.dtypes and case.layout in k.layouts]
            if not kernels:
                say(f"{case.problem.key:58} no kernel of the library computes this here")
                continue
            subject = f"{case.problem.key} {' '.join(k.hash for k in kernels)}"
            if self.results.get("time", subject) is None:
                if self.late:
                    return
                self.results.put("time", subject, self._case(case, kernels, bandwidth))
            say(line(case, self.results.get("time", subject)))

    def _case(self, case: Case, kernels: list[Kernel], bandwidth: float) -> dict[str, Any]:
        assert self.timer is not None
        problem = case.problem
        tensors = to_device(inputs(problem))
        times = []
        for kernel, config, rank in self._contenders(problem, kernels):
            try:
                compiled = compile_source(kernel.source, self.card.sm, kernel.defines(config, case.dtype, case.layout))
            except CompileError as error:
                say(f"note: {kernel.name} {config}: {error}")
                continue
            prepared = Prepared(kernel, config, problem, self.card.sm, Code(compiled), tensors)
            times.append((self.timer.seconds(prepared.launch), kernel.name, config, rank))
        if not times:
            raise KernrecError(f"no config that was tried for {problem.key} could be compiled")
        seconds, name, config, rank = min(times, key=lambda timing: timing[0])
        finding: dict[str, Any] = {"kernel": name, "config": config, "rank": rank, "seconds": seconds}
        finding |= {"timed": len(times), "aim": case.aim}
        if case.op not in COMPUTE_BOUND:
            return finding | {"yardstick": "copy bandwidth", "share": problem.bytes / seconds / bandwidth}
        works, missing = baseline(problem)
        if not works:
            return finding | {"yardstick": missing or "none", "share": None}
        library, fastest = min(
            ((n, self.timer.seconds(work)) for n, work in works.items()), key=lambda timing: timing[1]
        )
        return finding | {"yardstick": library, "yardstick_seconds": fastest, "share": fastest / seconds}

    def _contenders(self, problem: Problem, kernels: list[Kernel]) -> list[tuple[Kernel, Config, int | None]]:
        """The configs to time, with their rank among the recommended ones (None: taken at random)."""
        contenders: list[tuple[Kernel, Config, int | None]] = []
        try:
            answer = self.recommender.recommend(
                problem.op,
                self.card.name,
                problem.dim,
                problem.dtype,
                problem.layout,
                Query(Objective.LATENCY, top=RECOMMENDED),
            )
            contenders = [(c.kernel, dict(c.config), rank) for rank, c in enumerate(answer.choices)]
        except KernrecError as error:
            say(f"note: nothing is recommended for {problem.key} on {self.card.name}: {error}")
        draw = random.Random(problem.key)
        able = []
        for kernel in kernels:
            space = Space(kernel, self.card.sm, limits(self.card.sm), problem.dtype, problem.layout)
            able += [(kernel, space, int(row)) for row in space.at(problem).rows]
        for kernel, space, row in draw.sample(able, min(AT_RANDOM, len(able))):
            contenders.append((kernel, space.config(row), None))
        return contenders

    def check(self, ops: list[str]) -> None:
        """Holds a random tenth of each space against the reference."""
        for kernel, dtype, layout in variants(ops, self.card.sm, self.only):
            subject = f"{kernel.name} {dtype} {layout} {kernel.hash}"
            done = self.results.get("check", subject) or {"checked": 0, "wrong": []}
            rows = sampled(kernel, dtype, layout, self.card.sm, self.sample)
            while done["checked"] < len(rows) and not self.late:
                chunk = rows[done["checked"] : done["checked"] + 64]
                done["wrong"] += self._wrong(kernel, dtype, layout, chunk)
                done["checked"] += len(chunk)
                self.results.put("check", subject, done)
            state = "right" if not done["wrong"] else f"WRONG: {done['wrong'][:3]}"
            say(f"check {subject}: {done['checked']} of {len(rows)} configs, {state}")
            self.wrong = self.wrong or bool(done["wrong"])

    def _wrong(self, kernel: Kernel, dtype: str, layout: str, configs: list[Config]) -> list[str]:
        problems = checked_problems(kernel, dtype, layout)
        tensors_of = [inputs(problem, seed=1) for problem in problems]
        expected = [reference(problem, tensors) for problem, tensors in zip(problems, tensors_of, strict=True)]
        of_code: dict[str, list[Config]] = {}
        for config in configs:
            of_code.setdefault(kernel.variant_key(config, dtype, layout), []).append(config)
        jobs = {
            CompileJob(kernel.source, self.card.sm, kernel.defines(same[0], dtype, layout)): same
            for same in of_code.values()
        }
        wrong = []
        for job, result in compile_many(jobs):
            if isinstance(result, Exception):
                wrong.append(f"{jobs[job][0]}: {result}")
                continue
            code = Code(result)
            for config in jobs[job]:
                for problem, tensors, right in zip(problems, tensors_of, expected, strict=True):
                    if kernel.fits(config, problem, limits(self.card.sm)):
                        prepared = Prepared(kernel, config, problem, self.card.sm, code, tensors)
                        prepared.launch()
                        if error := difference(problem, prepared.outputs(), right):
                            wrong.append(f"{config} on {problem.key}: {error}")
        return wrong

    def sanitize(self, ops: list[str]) -> None:
        """Runs the check of a few configs under compute-sanitizer, where it is installed."""
        for op in ops:
            subject = f"{op} {' '.join(kernel.hash for kernel in all_kernels() if kernel.op == op)}"
            for tool in ("memcheck", "racecheck"):
                if self.late:
                    return
                if (verdict := self.results.get("sanitize", f"{tool} {subject}")) is None:
                    verdict = sanitized(tool, op, SANITIZED)
                    self.results.put("sanitize", f"{tool} {subject}", verdict)
                say(f"{tool} {op}: {verdict}")
                self.wrong = self.wrong or verdict.startswith("ERRORS")

    def count(self, ops: list[str]) -> None:
        """Holds emulated instruction counts of one config of each kernel against Nsight Compute's."""
        for kernel, dtype, layout in variants(ops, self.card.sm, self.only):
            subject = f"{kernel.name} {dtype} {layout} {kernel.hash}"
            if self.late:
                return
            if (counted := self.results.get("count", subject)) is None:
                on_card = counted_on_card(kernel, dtype, layout)
                counted = (
                    on_card
                    if isinstance(on_card, str)
                    else [emulated_counts(kernel, dtype, layout, self.card), on_card]
                )
                self.results.put("count", subject, counted)
            if isinstance(counted, str):
                say(f"count {subject}: {counted}")
                continue
            for entry, emulated in counted[0].items():
                real = counted[1].get(entry)
                ratio = f"{emulated / real:.3f} of the card's {real}" if real else "and the card reports none"
                say(f"count {kernel.name} {dtype} {layout}, {entry}: emulated {emulated} warp instructions, {ratio}")

    def once(self, ops: list[str]) -> None:
        """Launches one config of each kernel once: what Nsight Compute is given to count."""
        for kernel, dtype, layout in variants(ops, self.card.sm, self.only):
            config, problem = one_run(kernel, dtype, layout, self.card.sm)
            compiled = compile_source(kernel.source, self.card.sm, kernel.defines(config, dtype, layout))
            prepared = Prepared(kernel, config, problem, self.card.sm, Code(compiled), inputs(problem))
            prepared.launch()
            prepared.outputs()


def say(text: str) -> None:
    print(text, flush=True)


def line(case: Case, result: dict[str, Any]) -> str:
    """One line of the table of times."""
    share = "   -  " if result["share"] is None else f"{result['share']:6.1%}"
    verdict = "" if result["share"] is None else ("met" if result["share"] >= case.aim else "MISSED")
    against = result["yardstick"]
    if "yardstick_seconds" in result:
        against += f" {result['yardstick_seconds'] * 1e6:.1f} us"
    head = f"{case.problem.key:58} {result['kernel']:26} {result['seconds'] * 1e6:7.1f} us {against:>28}"
    return f"{head} {share} {case.aim:5.0%} {verdict}"


def variants(ops: list[str], sm: int, only: str | None = None) -> list[tuple[Kernel, str, str]]:
    """Kernel, dtype and layout of all that runs on an architecture, of these ops (only: of one such)."""
    kernels = [kernel for kernel in all_kernels() if kernel.op in ops]
    runnable = [(k, dtype, layout) for k in kernels for dtype in k.dtypes for layout in k.layouts]
    runnable = [(kernel, dtype, layout) for kernel, dtype, layout in runnable if kernel.runs_on(dtype, sm)]
    return [variant for variant in runnable if only in (None, f"{variant[0].name},{variant[1]},{variant[2]}")]


def checked_problems(kernel: Kernel, dtype: str, layout: str) -> list[Problem]:
    return [find_op(kernel.op).problem(dtype, layout, **dims) for dims in CHECKED[kernel.op]]


def sampled(kernel: Kernel, dtype: str, layout: str, sm: int, count: int | None = None) -> list[Config]:
    """A random tenth of the configs that can run a checked problem (or `count` of them), the same every time."""
    space = Space(kernel, sm, limits(sm), dtype, layout)
    able = np.flatnonzero(np.logical_or.reduce([space.valid(p) for p in checked_problems(kernel, dtype, layout)]))
    size = min(len(able), count if count is not None else max(8, round(SHARE * len(able))))
    return [space.config(row) for row in random.Random(f"{kernel.name} {dtype} {layout}").sample(able.tolist(), size)]


def one_run(kernel: Kernel, dtype: str, layout: str, sm: int) -> tuple[Config, Problem]:
    """A config and a problem that it runs, the same every time."""
    config = sampled(kernel, dtype, layout, sm)[0]
    return config, next(p for p in checked_problems(kernel, dtype, layout) if kernel.fits(config, p, limits(sm)))


def emulated_counts(kernel: Kernel, dtype: str, layout: str, card: Card) -> dict[str, int]:
    """Warp instructions by entry, as the emulator estimates them."""
    config, problem = one_run(kernel, dtype, layout, card.sm)
    compiled = compile_source(kernel.source, card.sm, kernel.defines(config, dtype, layout))
    outputs = {n: encode_elements(np.zeros(t.shape), t.dtype) for n, t in problem.tensors.items() if t.role == "output"}
    counts: dict[str, int] = {}
    launches = emulate_config(kernel, config, problem, card.sm, parse(compiled.ptx), {**inputs(problem), **outputs})
    for launch, counted in launches:
        counts[launch.entry] = counts.get(launch.entry, 0) + counted["issue"]
    return counts


def difference(problem: Problem, outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    """How results are further from the reference than rounding explains; None where they are not.

    Results are of order 1 (`kernrec.op.inputs`): one f32 rounding for each operation on the way to a result, and one
    to the dtype.
    """
    for name, got in outputs.items():
        right, dtype = expected[name], problem.tensors[name].dtype
        bound = (problem.flops / right.size + 16) * 2.0**-24 * (1 + np.abs(right))
        bound += _ROUNDING[dtype] * (np.abs(right) + bound) + 2.0**-24
        wrong = ~(np.abs(decode_elements(got, dtype) - right) <= bound)
        if wrong.any():
            return f"{int(wrong.sum())} of {wrong.size} values of {name} are wrong"
    return None


def run(
    op: str = "all", steps: str = ",".join(STEPS), minutes: float = 9.0, sample: int | None = None,
    only: str | None = None, out: Path = Path("build/bench_kernels.json"),
) -> int:  # fmt: skip
    """Run the steps.

    Args:
        op: one op, several with commas, or all.
        steps: of time, check, sanitize and count.
        minutes: nothing new begins after this time.
        sample: configs to check per kernel, dtype and layout, not a tenth.
        only: kernel,dtype,layout: nothing but these (steps check, count and once).
        out: file of results.
    """
    with_kernels = list(dict.fromkeys(kernel.op for kernel in all_kernels()))
    ops = with_kernels if op == "all" else [find_op(name).name for name in op.split(",")]
    try:
        card = find_card()
    except NoGPUError as error:
        raise NoGPUError(f"{error}; the aims are not verified") from None
    bench = Bench(card, Results(out, card), time.monotonic() + 60 * minutes, sample, only)
    for step in steps.split(","):
        if step not in (*STEPS, "once"):
            raise UsageError(f"step {step!r}: expected some of {', '.join(STEPS)}")
        getattr(bench, step)([name for name in ops if name in with_kernels])
    if bench.late:
        say("the time is up: run the same command again for the rest")
    return 1 if bench.wrong else 0
