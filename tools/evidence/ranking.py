"""The rule by which rows of different certainty are ranked: the figures that fix it, and what it does on recordings.

Two deviations fix it (`kernrec.recommender.estimate.yardstick`), both root mean squares of the logarithm of a lead:
    among kernels   Triton's best over cuBLAS, both recorded: how much kernels of different hands differ
    whole           the prior's best CUDA kernel over the best recorded of the same problem: its error as well
As in a recommendation, recorded times are counted from an idle stream: the recorder's launch is taken off.

Then the recorded products of an A100 and an H100 with Triton's and cuBLAS's times are asked for. The choice among
Triton's configs is that of models that saw neither the problem nor another of its dimensions (five folds); a line of
cuBLAS is drawn: its recorded time with the error that the model of stacks has on problems left out. A row of a CUDA
kernel, which nobody ran, is scored by nothing.
    prior first   rows in the order of their expected costs, without a yardstick, as it was before
    the rule      leads over the yardstick shrunk; what nobody ran is first where it is faster with nine chances in ten
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log

import numpy as np
from front import DATA, Data, Table
from train_triton_model import SETTINGS

from evidence.recordings.files import AbsentError, parquet_dicts
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.model.prior.core import LAUNCH_S, START_S
from kernrec.op import Problem, find_op, problem_from_key
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.estimate.yardstick import AMONG_KERNELS, CERTAIN, Belief, Yardstick, fastest, whole_deviation
from kernrec.recommender.request import objective_named
from kernrec.training.boosting import HeadData, train_head
from kernrec.training.dataset import Dataset

from .triton_recordings import DTYPES, FILES, KERNEL, recorded_groups
from .vendor_recordings import OPS, recordings

LEAST_S = 20e-6
"""Shorter times are mostly launch."""
FEWEST = 8
WITHIN = 1.05
LINE_ERROR, TRITON_ERROR = 0.03, 0.035
"""Standard deviations of a learned line's and of Triton's predicted time on problems left out (`vendor-models`,
`triton`)."""


@dataclass(frozen=True)
class Recorded:
    """A problem on a card with the least recorded time of each kind of row."""

    gpu: str
    problem: Problem
    times: Mapping[str, float]

    @property
    def best_s(self) -> float:
        """The least of all."""
        return min(self.times.values())


def run(data: Data = DATA, problems: int = 120) -> None:
    """Print the tables; `problems` are drawn of each card and data type."""
    recommender = Recommender([], triton=False)
    both = list(beside_triton(data, 2 * problems))
    _print_among(both)
    _print_whole(recommender, [*both, *of_stacks(data, problems)])
    _print_ranked(recommender, data, both)
    _print_among_five(Recommender([]), both)


def beside_triton(data: Data, count: int) -> Iterator[Recorded]:
    """Products with Triton's best and cuBLAS's time; `count` of each card and data type."""
    for gpu, file in FILES.items():
        times: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
        for row in parquet_dicts(data / "triton" / file, "true ORDER BY ALL"):
            if row["failures"] or row["latency_s"] is None:
                continue
            sides = (row["m"], row["k"], row["a_stride_0"], row["a_stride_1"]), (
                row["k"], row["n"], row["b_stride_0"], row["b_stride_1"],
            )  # fmt: skip
            layout = "".join(_letter(*side) for side in sides)
            if len(layout) == 2:
                key = DTYPES[row["dtype"], bool(row["tf32"])], layout, row["m"], row["n"], row["k"]
                name = "triton" if row["implementation"] == "triton" else "cuBLAS"
                times[key][name] = min(times[key].get(name, np.inf), row["latency_s"])
        by_dtype = defaultdict(list)
        for (kind, letters, m, n, k), each in times.items():
            if len(each) == 2:
                problem = find_op("matmul").problem(str(kind), str(letters), m=m, n=n, k=k)
                by_dtype[str(kind)].append(Recorded(gpu, problem, each))
        for _, rows in sorted(by_dtype.items(), key=lambda pair: str(pair[0])):
            yield from drawn(rows, count)


def _letter(rows: int, columns: int, down: int, across: int) -> str:
    if (down, across) == (columns, 1):
        return "n"
    return "t" if (down, across) == (1, rows) else ""


def of_stacks(data: Data, count: int) -> Iterator[Recorded]:
    """The best of stacks of each problem, the recorder's launch taken off; `count` of each card and data type."""
    for op in OPS:
        try:
            sets = recordings(data, op)
        except AbsentError as error:
            print(f"skipped: {error}")
            continue
        best: dict[tuple[str, str], dict[Problem, float]] = defaultdict(dict)
        for rows in sets:
            if rows.recorded.name == "inductor":
                continue
            more = {"causal": 1} if rows.recorded.case == "prompt" else {}
            order = np.random.default_rng(0).permutation(len(rows.latency_s))[: 40 * count]
            for row in order.tolist():
                dims = {name: int(column[row]) for name, column in rows.dims.items()} | more
                gpu = find_gpu(str(rows.gpu[row]))
                launch_s = rows.recorded.timing.launch_clk / gpu.boost_clock_hz
                latency_s = max(rows.latency_s[row] - launch_s, 0.25 * rows.latency_s[row]) + LAUNCH_S + START_S
                try:
                    problem = find_op(op).problem(str(rows.dtype[row]), str(rows.layout[row]), **dims)
                except KernrecError:
                    continue
                of_card = best[gpu.name, problem.dtype]
                of_card[problem] = min(of_card.get(problem, np.inf), float(latency_s))
        for (gpu_name, _), of_card in sorted(best.items()):
            every = [Recorded(gpu_name, p, {"stacks": s}) for p, s in of_card.items() if s > LEAST_S]
            yield from drawn(every, count)


def drawn(rows: list[Recorded], count: int) -> list[Recorded]:
    """At most `count` of them, at random."""
    chosen = np.random.default_rng(1).permutation(len(rows))[:count]
    return [rows[number] for number in sorted(chosen.tolist())]


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0


def _print_among(both: list[Recorded]) -> None:
    table = Table("\namong kernels: log(Triton / cuBLAS), both recorded")
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in both:
        if each.best_s > LEAST_S:
            groups[each.gpu, each.problem.dtype].append(log(each.times["triton"] / each.times["cuBLAS"]))
    for (gpu, dtype), values in groups.items():
        ratios = np.array(values)
        table.row({"": f"{gpu} {dtype}", "problems": len(ratios), "median": f"{np.exp(np.median(ratios)):.2f}",
                   "Triton leads": f"{(ratios < 0).mean():.0%}",
                   "rms of both sides, halved": f"{np.sqrt(2 * np.mean(np.minimum(ratios, 0) ** 2)):.3f}",
                   "a tenth leads by": f"{-np.quantile(ratios, 0.1):.3f}"})  # fmt: skip
    print(f"in use: {AMONG_KERNELS}")


def _print_whole(recommender: Recommender, recorded: list[Recorded]) -> None:
    table = Table("\nwhole: log(the prior's best CUDA kernel / best recorded)")
    groups: dict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    in_use = {}
    for each in recorded:
        if each.best_s <= LEAST_S or (own_s := best_cuda(recommender, each)) is None:
            continue
        key = each.problem.op, find_gpu(each.gpu).sm, each.gpu, each.problem.dtype
        groups[key].append(log(own_s / each.best_s))
        in_use[key] = whole_deviation(each.problem)
    for key in sorted(groups):
        ratios = np.array(groups[key])
        if len(ratios) >= FEWEST:
            op, sm, gpu, dtype = key
            table.row({"": f"{op} {dtype}, sm_{sm}, {gpu}", "problems": len(ratios),
                       "median": f"{np.exp(np.median(ratios)):.2f}", "leads": f"{(ratios < 0).mean():.0%}",
                       "rms of leads": f"{rms(ratios[ratios < 0]):.3f}", "in use": f"{in_use[key]:.2f}"})  # fmt: skip


def best_cuda(recommender: Recommender, each: Recorded) -> float | None:
    """Seconds of the best CUDA kernel by the prior alone; None where none runs the problem."""
    try:
        candidates = recommender.candidates(each.problem, find_gpu(each.gpu), (Query().point,))
    except KernrecError:
        return None
    return min(float(kernel.limited.latency_s[0].min()) for kernel in candidates.kernels)


def _print_ranked(recommender: Recommender, data: Data, both: list[Recorded]) -> None:
    wanted = {(each.gpu, each.problem.key): each for each in both}
    draw = np.random.default_rng(2)
    table = Table("\nfirst row of the recorded products of which the model knows at least ten configs, each left out")
    for gpu in FILES:
        _, groups = recorded_groups(data, gpu)
        dataset = Dataset(tuple(groups))
        _, numbers = dataset.held_out
        head = train_head(HeadData.of(dataset, "latency", SETTINGS), numbers, SETTINGS)
        predicted = dataset.prior["latency"] * np.exp(head.out_of_fold)
        starts = np.cumsum([0, *map(len, groups)]).tolist()
        scores = {name: Score() for name in ("prior first", "the rule")}
        for group, start in zip(groups, starts, strict=False):
            each = wanted.get((gpu, problem_from_key(group.problem).key))
            if each is None or (own_s := best_cuda(recommender, each)) is None:
                continue
            own = predicted[start : start + len(group)]
            first = int(own.argmin())
            line_s = each.times["cuBLAS"] * exp(LINE_ERROR * draw.standard_normal())
            rows = {
                "Triton": (float(own[first]), float(group.latency_s[first])),
                "line": (line_s, each.times["cuBLAS"]),
            }
            scores["prior first"].add(each, {**rows, "CUDA": (own_s, None)}, 1.0)
            learned = Yardstick("Triton", rows["Triton"][0], TRITON_ERROR, transferred=False)
            yardstick = fastest([learned, Yardstick("line", line_s, LINE_ERROR, transferred=False)])
            belief = Belief.of(each.problem, own_s, yardstick)
            raised = {**rows, "CUDA": (own_s * belief.slower, None)}
            scores["the rule"].add(each, raised, exp(CERTAIN * belief.deviation))
        for name, score in scores.items():
            table.row({"": f"{gpu}, {name}", **score.cells()})


def _print_among_five(recommender: Recommender, both: list[Recorded]) -> None:
    """How often answers have Triton's kernel; the model that ships has seen part of these problems, which changes the
    order of its configs and hardly that they are there."""
    table = Table("\nthe five rows of an answer")
    for gpu in FILES:
        first, among, shown, count = 0, 0, 0, 0
        for each in both:
            if each.gpu != gpu:
                continue
            problem = each.problem
            query = Query(objective_named("latency"), top=5)
            request = Request(gpu, problem.op, None, problem.dim, problem.dtype, problem.layout, query)
            try:
                answer = recommender.answer(request)
            except KernrecError:
                continue
            kernels = [choice.kernel.name == KERNEL.name for choice in answer.choices]
            count += 1
            first += kernels[0] if kernels else 0
            among += any(kernels)
            shown += any(kernels) or any(choice.kernel.name == KERNEL.name for choice in answer.beside)
        shares = {"first": first, "among five": among, "there or beside": shown}
        table.row({"": gpu, "problems": count, **{name: f"{part / count:.0%}" for name, part in shares.items()}})


class Score:
    """The first rows of answers, counted over problems."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.ratios: list[float | None] = []
        """Time of the first row over the best recorded; None for a kernel that nobody ran."""
        self.stated: list[float] = []
        """Its predicted time over the best recorded."""

    def add(self, each: Recorded, rows: Mapping[str, tuple[float, float | None]], caution: float) -> None:
        """A problem with its rows: (predicted, recorded) seconds; what nobody ran counts `caution` times as long."""
        kind = min(rows, key=lambda name: rows[name][0] * (caution if rows[name][1] is None else 1.0))
        seconds, true_s = rows[kind]
        self.kinds.append(kind)
        self.ratios.append(None if true_s is None else true_s / each.best_s)
        self.stated.append(seconds / each.best_s)

    def cells(self) -> dict[str, object]:
        """The cells of the table."""
        count = len(self.kinds)
        near = sum(ratio is not None and ratio <= WITHIN for ratio in self.ratios)
        shares = {name: f"{self.kinds.count(name) / count:.0%}" for name in ("CUDA", "Triton", "line")}
        return {"of": count, "within 5 %": f"{near / count:.0%}", **shares,
                "stated over best": f"{np.median(self.stated):.3f}"}  # fmt: skip
