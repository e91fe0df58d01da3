"""Measure the configs of a user's kernel on a GPU of this machine, and return the resulting recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernrec.errors import unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.measure.campaign.plan import check_memory
from kernrec.measure.campaign.results import EFFORTS
from kernrec.measure.device.nvml import card_of
from kernrec.measure.request import CollectRequest, CollectResult, WantedProblem
from kernrec.op import Problem
from kernrec.recommender import Answer, Query, Recommender

_SHOWN = ("config", "latency_s", "energy_j", "device")


@dataclass(frozen=True)
class KernelMeasurement:
    """A kernel and a problem to measure on a GPU."""

    kernel: Kernel
    problem: Problem
    gpu: GPU
    request: CollectRequest

    @classmethod
    def prepared(
        cls, kernel: Kernel, problem: Problem, gpu: GPU, database: Path, folder: Path, effort: str
    ) -> "KernelMeasurement":
        """Prepare a measurement, after checking that this machine can make it.

        Args:
            kernel: Kernel to measure.
            problem: Problem to measure it on.
            gpu: GPU to measure it on.
            database: Database for the rows.
            folder: Folder of the kernel's files.
            effort: `quick`, `normal` or `exhaustive`.

        Raises:
            KernrecError: Measuring is impossible here. This is raised before any long computation.
        """
        if effort not in EFFORTS:
            raise unknown("effort", effort, EFFORTS)
        card = card_of(gpu)
        check_memory(problem, gpu)
        problems = [WantedProblem(problem.key, problem)]
        request = CollectRequest(
            problems, database, gpu=card.uuid, effort=EFFORTS[effort], kernel=kernel, folder=folder
        )
        return cls(kernel, problem, gpu, request)

    def answer(self, query: Query) -> Answer:
        """Return the recommendation from the database, including the new measurements."""
        return Recommender([self.request.database]).answer_kernel(self.kernel, self.problem, self.gpu, query)

    def best(self, collected: CollectResult) -> Sequence[dict[str, Any]]:
        """Return the fastest and the lowest-energy config of each result, as plain values for JSON."""
        objects = []
        for result in collected.results:
            rows: dict[str, Any] = {"kernel": self.kernel.name, "problem": result.problem, "gpu": self.gpu.name}
            for name, measurement in (("fastest", result.best), ("lowest energy", result.lowest_energy)):
                columns = {} if measurement is None else measurement.columns()
                rows[name] = {key: columns[key] for key in _SHOWN} if columns else None
            objects.append(rows)
        return objects
