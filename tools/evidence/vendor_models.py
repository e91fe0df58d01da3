"""How well the models of stacks predict what they were not trained on.

problems  five folds over problems; a problem is in one fold on all cards, in all data types, layouts and stacks
sizes     all problems of a fifth of the recorded sizes of each dimension of the grid left out together
card      the cards of one architecture left out, trees for any card trained on the others
stack     where two stacks were recorded and differ by a tenth or more: how often the faster one is named

Printed are median errors, the 90th percentile and the coverage of 90 % intervals, each calibrated on the other half of
the problems, or on the other architectures. `--set` names sets, `--folds` how many of the five folds are left out,
`--quick` leaves sizes out. Exits 1 when an aim is missed; aims are medians over the cards of a set.
"""

from typing import Annotated

import numpy as np
import typer
from front import DATA, ROOT, Data, Table

from kernrec.training import vendor_errors as errors_of
from kernrec.training import vendor_table

from .vendor_recordings import OPS, recordings

Array = np.ndarray

PROBLEMS_AIM = {
    "bf16": 0.025, "f8e4m3": 0.03, "f8block": 0.04, "nvfp4": 0.035, "w8a16": 0.04, "w4a16": 0.04, "single": 0.04,
    "prompt": 0.035, "token": 0.04, "experts": 0.06, "conv": 0.07,
}  # fmt: skip
"""Largest median errors of latency on problems left out, by set."""
CARD_AIM = {
    "bf16": 0.12,
    "f8e4m3": 0.15,
    "f8block": 0.2,
    "single": 0.1,
    "prompt": 0.2,
    "token": 0.15,
    "experts": 0.25,
    "conv": 0.13,
    "rows": 0.1,
}
"""The same on cards left out."""
POWER_AIM = {"problems": 0.03, "card": 0.12}
"""Largest median errors of power given the time."""
CARD_COVERAGE, COVERAGE, NAMED_AIM = 0.85, (0.88, 0.93), 0.9
"""Least coverage on cards left out; range of coverage on problems left out; share of faster stacks named right."""
_MOST_BYTES = 6_000_000
"""Of all models that ship."""


def run(
    data: Data = DATA,
    op: Annotated[list[str] | None, typer.Option()] = None,
    only: Annotated[list[str] | None, typer.Option("--set")] = None,
    folds: int = vendor_table.FOLDS,
    quick: bool = False,
) -> int:
    """Print the figures, of some ops or sets alone; 0 when all aims are met."""
    evaluation = _Evaluation(Table(), folds)
    for name in op or OPS:
        for recording in recordings(data, name):
            if only and recording.recorded.name not in only:
                continue
            table = vendor_table.Table.of(recording)
            if table.impossible:
                print(f"{recording.recorded.name}: {table.impossible} rows faster than the data sheet allows left out")
            for quantity in table.matrix:
                evaluation.on_cards(table, quantity, quick)
                evaluation.on_cards_left_out(table, quantity)
    shipped = sum(path.stat().st_size for path in (ROOT / "db/prebuilt/models").rglob("*") if path.is_file())
    print(f"models that ship: {shipped / 1e6:.2f} MB")
    if shipped > _MOST_BYTES:
        evaluation.missed.append(f"models that ship: {shipped / 1e6:.2f} MB, aim {_MOST_BYTES / 1e6:.0f} MB")
    for line in evaluation.missed:
        print(f"aim missed: {line}")
    return int(bool(evaluation.missed))


class _Evaluation:
    """Prints rows and collects the aims that are missed."""

    def __init__(self, printed: Table, folds: int) -> None:
        self._printed, self._folds = printed, folds
        self.missed: list[str] = []

    def on_cards(self, table: vendor_table.Table, quantity: str, quick: bool) -> None:
        """Problems, and sizes, left out of each card."""
        name, medians, together = table.recording.recorded.name, [], np.full(len(table.recording), np.nan)
        for gpu in table.gpus(quantity):
            errors = errors_of.left_out_errors(table, quantity, gpu, self._folds)
            together = np.where(np.isfinite(errors), errors, together)
            share = errors_of.coverage(errors, table.problem)
            self._row(name, quantity, gpu, "problems", errors, share)
            stacks = table.recording.stack[np.isfinite(errors)]
            for stack in sorted(set(stacks.tolist())) if len(set(stacks.tolist())) > 1 else ():
                self._row(name, quantity, gpu, f"  {stack}", errors[table.recording.stack == stack])
            medians.append(median(errors))
            if not COVERAGE[0] <= share <= COVERAGE[1]:
                self.missed.append(f"{name}, coverage of {quantity} on {gpu}: {share:.0%}")
            if table.recording.recorded.grid and not quick:
                errors = errors_of.between_errors(table, quantity, gpu)
                self._row(name, quantity, gpu, "sizes", errors, errors_of.coverage(errors, table.problem))
        aim = PROBLEMS_AIM.get(name, np.inf) if quantity == "latency" else POWER_AIM["problems"]
        self._against(f"{name}, {quantity}, problems left out", float(np.median(medians)), aim)
        if quantity == "latency":
            self._named(table, together)

    def on_cards_left_out(self, table: vendor_table.Table, quantity: str) -> None:
        """Each architecture left out."""
        name = table.recording.recorded.name
        errors = errors_of.card_left_out_errors(table, quantity, table.families(quantity))
        shares = errors_of.coverage_of_cards(errors)
        for arch, cards in table.families(quantity).items() if errors else ():
            for gpu in cards:
                self._row(name, quantity, gpu, "card", errors[gpu], shares[arch])
                self._row(name, quantity, gpu, "  the bound alone", table.target[quantity][table.on(gpu, quantity)])
            if shares[arch] < CARD_COVERAGE:
                self.missed.append(f"{name}, coverage of {quantity} on {arch} left out: {shares[arch]:.0%}")
            aim = CARD_AIM.get(name, np.inf) if quantity == "latency" else POWER_AIM["card"]
            error = median(np.concatenate([errors[gpu] for gpu in cards]))
            self._against(f"{name}, {quantity} on {arch} left out", error, aim)

    def _named(self, table: vendor_table.Table, errors: Array) -> None:
        """How often the fastest stack is named, of problems left out on which two differ."""
        right, count = errors_of.fastest_named(table, errors)
        if count:
            name = table.recording.recorded.name
            print(f"{name}: the fastest stack is named in {right / count:.1%} of {count} problems")
            if right / count < NAMED_AIM:
                self.missed.append(f"{name}, fastest stack named: {right / count:.0%}, aim {NAMED_AIM:.0%}")

    def _against(self, about: str, error: float, aim: float) -> None:
        if error > aim:
            self.missed.append(f"{about}: {error:.1%}, aim {aim:.1%}")

    def _row(self, name: str, quantity: str, gpu: str, out: str, errors: Array, share: float | None = None) -> None:
        """Print the figures of log(measured / predicted)."""
        finite = errors[np.isfinite(errors)]
        p90 = float(np.quantile(np.abs(np.expm1(-finite)), 0.9))
        figures = {"rows": len(finite), "error": f"{median(finite):.1%}", "p90": f"{p90:.1%}"}
        covered = None if share is None else f"{share:.1%}"
        self._printed.row({"left out": out, "set": name, "of": quantity, "card": gpu, **figures, "covered": covered})


def median(errors: Array) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.nanmedian(np.abs(np.expm1(-errors))))
