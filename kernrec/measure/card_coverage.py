"""Coverage of cards: how much of what people ask for was measured there, and which measurements would help most.

People ask for the layers of the standard workloads, as in the plan of a card (card_plan.py). A layer counts as
measured on a card where a database holds a row of it, replayed ones aside, and as recorded where shipped rows of stacks
are of exactly that layer on that card.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.measure.problems import select_layers
from kernrec.op import Problem
from kernrec.store import Stack
from kernrec.store.coverage import MeasuredProblem, measured_problems
from kernrec.store.recorded import contents, recorded_lines


@dataclass
class OpCoverage:
    """Of an op on a card, or on the cards of an architecture."""

    layers: int
    """That people ask for."""
    measured: int = 0
    """Of these."""
    recorded: int = 0
    """Of these, by stacks."""
    configs: int = 0
    """Measured, of any problem of the op, counted once a problem and operating point."""
    energies: int = 0
    """Of these."""


@dataclass(frozen=True)
class CardCoverage:
    """Of a card that somebody measured or recorded."""

    gpu: str
    arch: str
    """Empty for a card that the catalog does not have."""
    ops: Mapping[str, OpCoverage]
    """By op that people ask for, in their order, and others that were measured, without layers."""
    last_measured: str
    """Day; empty where nothing was measured."""


@dataclass(frozen=True)
class Gap:
    """An op with unmeasured layers on all cards of an architecture."""

    arch: str
    op: str
    layers: int
    measured: int
    """On any of the cards."""
    gpus: tuple[str, ...]
    """The cards of the architecture in the catalog."""


@dataclass
class _Layers:
    """The problems that people ask for, by op; a layer in bf16 is the same in f16, where no kernel computes it else."""

    by_op: dict[str, list[tuple[Problem, ...]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def standard(cls) -> "_Layers":
        layers = cls()
        keys = set()
        for problem in (layer.problem for layer in select_layers("all", None, None, None, None) or ()):
            key = problem.key.replace("]bf16,", "]f16,")
            if key not in keys:
                keys.add(key)
                dtypes = ("f16", "bf16") if problem.dtype in ("f16", "bf16") else (problem.dtype,)
                same = [
                    problem.definition.problem(dtype, problem.layout, **problem.dim)
                    for dtype in dtypes
                    if dtype in problem.definition.dtypes
                ]
                layers.by_op[problem.op].append(tuple(same))
        return layers


def cards_coverage(stack: Stack) -> list[CardCoverage]:
    """Of each card that somebody measured or recorded: those with the most measured layers first.

    Raises:
        UsageError: a database cannot be read.
    """
    layers = _Layers.standard()
    rows: dict[str, list[MeasuredProblem]] = defaultdict(list)
    for row in measured_problems(stack):
        rows[row.gpu].append(row)
    recorded = {gpu for about in contents().values() for gpu in about["gpus"]}
    cards = [_card(gpu, rows.get(gpu, ()), layers) for gpu in sorted({*rows, *recorded})]
    return sorted(cards, key=lambda card: (-sum(op.measured for op in card.ops.values()), card.gpu))


def _card(name: str, rows: Sequence[MeasuredProblem], layers: _Layers) -> CardCoverage:
    measured = {row.problem for row in rows}
    gpu = _catalog(name)
    ops = {}
    for op, problems in layers.by_op.items():
        there = gpu is not None and name in contents().get(op, {}).get("gpus", ())
        ops[op] = OpCoverage(
            len(problems),
            sum(any(each.key in measured for each in same) for same in problems),
            sum(any(recorded_lines(each, gpu) for each in same) for same in problems) if there and gpu else 0,
        )
    for row in rows:
        of_op = ops.setdefault(row.op, OpCoverage(0))
        of_op.configs += row.configs
        of_op.energies += row.energies
    last = max((row.last_measured for row in rows), default="")
    return CardCoverage(name, gpu.arch if gpu else "", ops, last)


def _catalog(name: str) -> GPU | None:
    try:
        return find_gpu(name)
    except UnknownGPU:
        return None


def gaps(stack: Stack) -> list[Gap]:
    """Ops by architecture that kernels are predicted on, those with the most unmeasured layers first.

    A layer that was measured on one card of an architecture teaches the models of its others.
    """
    layers = _Layers.standard()
    measured: dict[str, set[str]] = defaultdict(set)
    for row in measured_problems(stack):
        if (gpu := _catalog(row.gpu)) is not None:
            measured[gpu.arch].add(row.problem)
    by_arch: dict[str, list[GPU]] = defaultdict(list)
    for gpu in all_gpus():
        if not gpu.lines_only:
            by_arch[gpu.arch].append(gpu)
    every = [
        Gap(
            arch,
            op,
            len(problems),
            sum(any(each.key in measured[arch] for each in same) for same in problems),
            tuple(gpu.name for gpu in gpus),
        )
        for arch, gpus in by_arch.items()
        for op, problems in layers.by_op.items()
    ]
    open_gaps = [gap for gap in every if gap.measured < gap.layers]
    return sorted(open_gaps, key=lambda gap: (-(gap.layers - gap.measured) * len(gap.gpus), gap.arch, gap.op))
