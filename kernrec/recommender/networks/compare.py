"""Compare GPUs and batch sizes on one network: memory, time, energy and power limit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.recommender.json_form import Alias
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.memory import DoesNotFitError, memory_json
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.networks.result import NetworkAnswer, Total
from kernrec.recommender.networks.sweep import NetworkSweep, Swept, sweep_network
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.recommender.result import Estimate
from kernrec.util.human import Note
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class ComparedGpu:
    """Costs of a network on one GPU model at one batch size, per GPU unless stated otherwise."""

    answer: NetworkAnswer
    sweep: NetworkSweep | None = None
    """Sweep of the network over power limits; None if not requested."""

    gpu = Alias[GPU]("The GPU.", "answer.gpu")
    batch = Alias[int]("Items per pass.", "answer.batch")
    total = Alias[Total]("Total that the comparison shows: the headline total of the answer.", "answer.headline")

    @property
    def rate(self) -> float:
        """Calls per second, or tokens per second for a language model."""
        return self.answer.work / self.total.latency_s.value

    @property
    def energy(self) -> Estimate:
        """Energy in joules per call or token, of all GPUs that share the network."""
        return self.total.energy_j.scaled(self.answer.tp / self.answer.work)

    @property
    def rate_per_watt(self) -> float:
        return self.rate / (self.answer.tp * self.total.power_w)

    @property
    def best_limit_w(self) -> float | None:
        """Recommended power limit in watts; None if power limits were not compared."""
        return None if self.sweep is None else self.sweep.rows[self.sweep.best].point.limit_w(self.gpu)

    def as_dict(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "gpu": answer.gpu.name,
            "batch": answer.batch,
            "tp": answer.tp,
            **({} if answer.memory is None else memory_json(answer.memory, answer.gpu)),
            "power_limit_w": answer.query.point.limit_w(answer.gpu),
            **self.total.as_dict(),
            "inputs": answer.query.inputs,
            "dtypes": list(answer.dtypes),
            "per": answer.unit,
            "rate_per_s": self.rate,
            "energy_per_unit_j": self.energy.value,
            "rate_per_watt": self.rate_per_watt,
            "best_power_limit_w": self.best_limit_w,
            "dominant_layers": [{"layer": name, "share": share} for name, share in answer.dominant()],
            "left_out": list(answer.left_out),
        }


@dataclass(frozen=True)
class Unfit:
    """Result for a GPU and batch size at which the network exceeds the GPU's memory."""

    gpu: GPU
    batch: int
    error: DoesNotFitError

    @property
    def note(self) -> Note:
        """Note on how much memory is required. The table's row has only a short reason."""
        return Note(f"batch {self.batch} does not fit the {self.gpu.title}", f"{self.error}.")

    def as_dict(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu.name,
            "batch": self.batch,
            **memory_json(self.error.memory, self.gpu),
            "reason": str(self.error),
        }


def compare_gpus(
    recommender: Recommender,
    gpus: Sequence[GPU],
    wanted: NetworkRequest,
    query: Query,
    batches: Sequence[int | None] = (None,),
    swept: Swept | None = None,
) -> tuple[list[ComparedGpu | Unfit], list[str]]:
    """Compare GPUs and batch sizes on one network.

    Args:
        batches: batch sizes (items per pass); None for the batch size of the request.
        swept: whether to sweep power limits or clocks for each row; None for no sweep.

    Returns:
        (rows, messages): a row for each GPU and batch size, and a message for each GPU with no rows or an incomplete
            total. In a comparison of several GPUs, a GPU has no rows if no kernel runs on it and a baseline is missing.

    Raises:
        UsageError: a name is unknown, or a value is impossible for all GPUs.
        KernrecError: no GPU can run any layer, or no GPU has enough memory.
    """
    rows: list[ComparedGpu | Unfit] = []
    missing: list[str] = []
    error: KernrecError | None = None
    for gpu in gpus:
        for batch in batches:
            request = wanted if batch is None else replace(wanted, batch=batch)
            try:
                answer = answer_network(recommender, gpu, request, query)
            except DoesNotFitError as problem:
                error = error or problem
                rows.append(Unfit(gpu, batch or wanted.batch or 1, problem))
                continue
            except KernrecError as problem:
                error = error or problem
                missing.append(f"{gpu.name} is left out: {problem}")
                break
            if len(gpus) > 1 and answer.left_out and not any(layer.best for layer in answer.layers):
                missing.append(
                    f"{gpu.name} is left out: {len(answer.left_out)} layers have neither a kernel nor a baseline there"
                )
                error = error or KernrecError(f"{gpu.name}: {answer.left_out[0]}")
                break
            sweep = sweep_network(recommender, answer, swept, query.power_limit_w) if swept else None
            rows.append(ComparedGpu(answer, sweep))
    fitting = [row for row in rows if isinstance(row, ComparedGpu)]
    if not fitting:
        assert error is not None
        raise error
    if len({row.answer.left_out for row in fitting}) > 1:
        for row in fitting:
            if row.answer.left_out:
                missing.append(f"{row.answer.gpu.name}: its total lacks {'; '.join(row.answer.left_out)}")
    return rows, missing


_FACTOR = 1.5
"""Ratio of times from which a slowdown is a factor ("1.5 times as long") instead of a percentage."""


def verdict(rows: Sequence[ComparedGpu]) -> str:
    """Return a sentence that names the fastest GPU and the GPU with the lowest energy."""
    fastest, lowest_energy = max(rows, key=lambda row: row.rate), min(rows, key=lambda row: row.energy.value)
    if fastest is lowest_energy:
        return f"{fastest.gpu.title} is expected to be the fastest and to take the least energy."
    slower, less = fastest.rate / lowest_energy.rate - 1.0, 1.0 - lowest_energy.energy.value / fastest.energy.value
    longer = f"{1.0 + slower:.2g} times as long" if slower >= _FACTOR - 1.0 else f"{slower * 100:.2g} % longer"
    return (
        f"{fastest.gpu.title} is expected to be the fastest;"
        f" {lowest_energy.gpu.title} to take {less * 100:.2g} % less energy"
        f" and {longer}."
    )
