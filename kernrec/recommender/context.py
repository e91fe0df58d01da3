"""The context of requests, opened once: databases, models and calibrations, and the static tables made from them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernrec import paths
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, able_kernels, find_kernel, kernel_names
from kernrec.kernel.library import triton_kernels
from kernrec.kernel.spec_reader import kernel_from
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Database, Evidence, ProfileTable, Stack


class Context:
    """Databases, the models and calibrations beside them, and static tables, each of which is made once.

    Args:
        databases: files that are asked before the shipped database; None for the user's own, if there is one.
        calibrated: whether the prior takes the coefficients that were fitted to measurements, where there are some.
        models: trained models; None for those beside the first database.
        keep_open: the database files stay open, for a program that asks once and ends.
        inputs: the kernels' input data, one of `kernrec.model.prior.power.INPUTS`.
    """

    def __init__(
        self,
        databases: Sequence[Path | str] | None = None,
        calibrated: bool = True,
        models: ModelStore | None = None,
        keep_open: bool = False,
        inputs: str = RANDOM,
    ) -> None:
        self.inputs = inputs
        self.triton = True
        """Whether the library's kernels in Triton are among an op's."""
        self.stack = Stack(databases, keep_open)
        self.models = models or ModelStore.beside(databases, self.stack, calibrated)
        self._databases = databases
        self._tables: dict[tuple[str, str, str, str], StaticTable] = {}
        self._of_op: dict[tuple[str, str, str, str], tuple[StaticTable, ...]] = {}

    def for_inputs(self, inputs: str) -> "Context":
        """The same databases and models for other inputs."""
        if inputs == self.inputs:
            return self
        other = copy(self)
        other.inputs, other._tables, other._of_op = inputs, {}, {}
        return other

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name: the newest in the user's databases, else one of the library.

        Args:
            name: with file or module in front, `rows.py:kernel` or `package.rows:kernel`, where functions of several
                have the name.

        Raises:
            UsageError: there is none, or the user analyzed functions of several files that have it.
        """
        stored = list(self._stored_kernels())
        if named := _named(stored, name):
            return kernel_from(json.loads(named[0][1]), named[0][0], named[0][2])
        try:
            return find_kernel(name)
        except UsageError:
            if stored:
                raise unknown("kernel", name, dict.fromkeys(stored_name for stored_name, _, _ in stored)) from None
            raise

    def calls(self, name: str) -> list[Kernel]:
        """The kernels of this name in the user's databases whose source is that of the newest: each is a call of it."""
        kernels: dict[str, Kernel] = {}
        for stored_name, spec, source in _named(list(self._stored_kernels()), name):
            kernel = kernel_from(json.loads(spec), stored_name, source)
            kernels.setdefault(kernel.hash, kernel)
        newest = next(iter(kernels.values()), None)
        return [kernel for kernel in kernels.values() if newest is not None and kernel.source == newest.source]

    def newest_by_file(self, name: str) -> list[Kernel]:
        """Of each file with a kernel of this name the newest in the user's databases, else that of the library."""
        newest: dict[str, tuple[str, str, str]] = {}
        for stored in self._stored_kernels():
            if stored[0] == name:
                newest.setdefault(_file(stored[1]), stored)
        kernels = []
        for _, spec, source in newest.values():
            with suppress(KernrecError):
                kernels.append(kernel_from(json.loads(spec), name, source))
        with suppress(KernrecError):
            return kernels or [find_kernel(name)]
        return []

    def own_kernels(self) -> list[str]:
        """The names of the kernels in the user's databases as `kernel` takes them, ascending."""
        files: dict[str, set[str]] = {}
        for name, spec, _ in self._stored_kernels():
            files.setdefault(name, set()).add(_file(spec))
        return sorted(
            name if len(sources) == 1 else f"{source}:{name}" for name, sources in files.items() for source in sources
        )

    def _stored_kernels(self) -> Iterator[tuple[str, str, str]]:
        """Name, spec and source of each kernel in the user's databases, the newest of a database first."""
        for path in own_databases(self._databases):
            with Database.open(path) as database:
                yield from database.kernels()

    def evidence(self, problem: Problem, gpu: GPU, kernels: Sequence[Kernel]) -> Evidence:
        """The rows of the databases about a problem on a GPU; measurements, with random inputs, tell of no others."""
        evidence = self.stack.evidence(gpu.name, problem.op, [kernel.name for kernel in kernels], problem.key)
        return evidence if self.inputs == RANDOM else Evidence(failed=evidence.failed)

    def tables_and_evidence(
        self, problem: Problem, gpu: GPU, kernel: Kernel | None = None
    ) -> tuple[tuple[StaticTable, ...], Evidence]:
        """The static tables of a kernel, or of every one of the library, and the rows of the databases about them."""
        tables = self.tables(problem, gpu) if kernel is None else (self.kernel_table(kernel, problem, gpu),)
        return tables, self.evidence(problem, gpu, [table.kernel for table in tables])

    def tables(self, problem: Problem, gpu: GPU) -> tuple[StaticTable, ...]:
        """The static tables of every kernel of the library that implements a problem on a GPU.

        Raises:
            KernrecError: no database holds profiles of one of them.
        """
        key = problem.op, gpu.name, problem.dtype, problem.layout
        if (joint := self._of_op.get(key)) is None:
            triton = self._triton_tables(problem, gpu) if self.triton else []
            try:
                kernels = able_kernels(problem.op, problem.dtype, problem.layout, gpu.sm)
            except UsageError:
                if not triton:
                    raise
                kernels = ()
            tables = [self.kernel_table(kernel, problem, gpu) for kernel in kernels]
            joint = self._of_op[key] = (*tables, *triton)
        return joint

    def _triton_tables(self, problem: Problem, gpu: GPU) -> list[StaticTable]:
        """The static tables of the library's Triton kernels, as far as there are profiles."""
        kernels = triton_kernels(problem.op, problem.dtype, problem.layout, gpu.sm)
        tables = [self.kernel_table(k, problem, gpu) for k in kernels if self.find_profiles(k, problem, gpu)]
        return [table for table in tables if table.coverage.unprofiled < len(table.space.variants.keys)]

    def kernel_table(self, kernel: Kernel, problem: Problem, gpu: GPU) -> StaticTable:
        """The static table of one kernel, a user's or the library's.

        Raises:
            KernrecError: there are no profiles for the GPU's architecture, or for the problem; the message says which
                command makes them.
        """
        key = f"{kernel.name} {kernel.hash}", gpu.name, problem.dtype, problem.layout
        if (cached := self._tables.get(key)) is not None:
            return cached
        profiles = self.find_profiles(kernel, problem, gpu)
        if not profiles and kernel.name not in kernel_names():
            raise self._not_analyzed(kernel, problem, gpu)
        table = StaticTable.of(kernel, problem, gpu, profiles, self.models.calibration(gpu), self.inputs)
        if not kernel.sampled:  # profiles of sampled blocks hold on one problem, and a program may ask about many
            self._tables[key] = table
        return table

    def find_profiles(self, kernel: Kernel, problem: Problem, gpu: GPU) -> dict[int, ProfileTable]:
        """The profiles of a kernel that hold on a problem, by launch; empty where there are none.

        Profiles of a kernel that is profiled by a sample of blocks hold on the problem that was sampled.
        """
        profiles = self.stack.profiles(kernel.name, kernel.hash, gpu.sm)
        if not kernel.sampled or not profiles:
            return profiles
        keys = set(Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout).configs_on(problem).keys)
        of_problem = {index: _restricted(table, keys) for index, table in profiles.items()}
        return of_problem if any(table.variant_keys for table in of_problem.values()) else {}

    def _not_analyzed(self, kernel: Kernel, problem: Problem, gpu: GPU) -> KernrecError:
        """Why a user's kernel has no profiles, with the command that makes them."""
        again = f"`kernrec analyze {kernel.source_name} --spec ... --gpu {gpu.name}"
        if not self.stack.profiles(kernel.name, kernel.hash, gpu.sm):
            return KernrecError(f"kernel {kernel.name} was not analyzed for {gpu.arch}: run {again}`")
        dims = ",".join(f"{name}={value}" for name, value in problem.dims)
        return KernrecError(
            f"kernel {kernel.name} was not analyzed on {problem.key} for {gpu.arch}: run {again} --shape {dims}`"
        )


def _restricted(table: ProfileTable, keys: set[str]) -> ProfileTable:
    """The rows of a table whose variants are among `keys`."""
    rows = np.array([row for row, key in enumerate(table.variant_keys) if key in keys], dtype=np.int64)
    return replace(
        table,
        variant_keys=tuple(table.variant_keys[row] for row in rows.tolist()),
        registers=table.registers[rows],
        spill_bytes=table.spill_bytes[rows],
        stack_bytes=table.stack_bytes[rows],
        static_smem_bytes=table.static_smem_bytes[rows],
        counts=table.counts[rows],
    )


def answering_with(database: Path) -> list[Path] | None:
    """The databases that answer with one that a command was given: beside the user's own, what was pulled (None)."""
    return None if database.absolute() == paths.user_database().absolute() else [database]


def own_databases(databases: Sequence[Path | str] | None) -> list[Path]:
    """The databases given, which may be none; None: the user's own if there is one."""
    if databases is not None:
        return [Path(path) for path in databases]
    own = paths.user_database()
    return [own] if own.exists() else []


def _named(stored: Sequence[tuple[str, str, str]], name: str) -> list[tuple[str, str, str]]:
    """The stored kernels of a name, which may have the file in front; `UsageError` where files are several."""
    file, _, bare = name.rpartition(":")
    by_file: dict[str, list[tuple[str, str, str]]] = {}
    for kernel in stored:
        if kernel[0] == bare:
            by_file.setdefault(_file(kernel[1]), []).append(kernel)
    if file:
        return by_file.get(file, [])
    if len(by_file) > 1:
        choices = ", ".join(f"{source}:{bare}" for source in by_file)
        raise UsageError(f"kernel {bare} is in several files that were analyzed; name one of {choices}")
    return next(iter(by_file.values()), [])


def _file(spec: str) -> str:
    """The name of the file that has a stored kernel's source, or of the module by which it is imported."""
    data = json.loads(spec)
    return str((data.get("triton") or {}).get("module") or data.get("source", ""))
