"""Open databases, trained models, calibrations and static tables once for all requests."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError, NoSuchKernelError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, find_kernel, kernel_names, kernels_of
from kernrec.kernel import Space as ConfigSpace
from kernrec.kernel.library import triton_kernels
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.op.equivalent import equivalents
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import MEASURED_CONDITIONS, Conditions
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, ProfileTable, Stack
from kernrec.store.keys import signer_name
from kernrec.store.measurement_log import NO_EVIDENCE
from kernrec.util.light_dataclass import dataclass

Kind = tuple[tuple[str, str, str], ...]
"""Op, data type and layout of each equivalent form of a problem. For example, a matvec is also a matmul."""
_KIND_OF_FORM = attrgetter("op", "dtype", "layout")


def kind_of(problem: Problem) -> Kind:
    """Return a key that is equal for two problems if the same kernels can compute both."""
    return tuple(map(_KIND_OF_FORM, equivalents(problem)))


class Context:
    """Open databases and trained models that all requests share.

    Args:
        databases: database files to search before the shipped database. None means the user's database, if any.
        calibrated: whether to use fitted coefficients of the analytical model, if any.
        models: trained models, or None to load the models next to the first database.
        triton: whether requests about an op include the library's Triton kernels.
    """

    def __init__(
        self,
        databases: Sequence[Path | str] | None = None,
        calibrated: bool = True,
        models: ModelStore | None = None,
        triton: bool = True,
    ) -> None:
        self.triton, self.stack = triton, Stack(databases)
        self.models = models or ModelStore.beside(databases, self.stack, calibrated)
        self._on: dict[tuple[GPU, Conditions], GpuContext] = {}

    def without_triton(self) -> "Context":
        """Return this context without the library's Triton kernels, for requests about an op."""
        other = copy(self)
        other.triton, other._on = False, {}
        return other

    def on(self, gpu: GPU, conditions: Conditions = MEASURED_CONDITIONS) -> "GpuContext":
        """Return the databases and models for one GPU and for certain input data and L2 state."""
        if (bound := self._on.get(key := (gpu, conditions))) is None:
            bound = self._on[key] = GpuContext(self, gpu, conditions)
        return bound

    def kernel(self, name: str) -> Kernel:
        """Return the kernel with this name from the library, the user's kernels or shared kernels, in this order.

        A file or module may precede the name (`rows.py:kernel`, `package.rows:kernel`).

        Raises:
            UsageError: no kernel has this name, or several of the user's files have a kernel of this name.
        """
        if name in kernel_names():
            return find_kernel(name)
        stored = list(self._stored_kernels())
        if named := _named(stored, name):
            return named[0].kernel()
        if stored:
            raise unknown("kernel", name, [*dict.fromkeys(each.name for each in stored), *kernel_names()])
        return find_kernel(name)

    def calls(self, name: str) -> list[Kernel]:
        """Return the newest version of a user's kernel, then all other versions with the same source.

        For example, kernrec stores each captured call of a Triton function as a version.
        """
        if name in kernel_names():
            return []
        kernels: dict[str, Kernel] = {}
        for each in _named(list(self._stored_kernels()), name):
            kernel = each.kernel()
            kernels.setdefault(kernel.hash, kernel)
        newest = next(iter(kernels.values()), None)
        return [kernel for kernel in kernels.values() if newest is not None and kernel.source == newest.source]

    def newest_by_file(self, name: str) -> list[Kernel]:
        """Return all kernels with this name: the newest from each of the user's source files, then the library's."""
        newest: dict[tuple[str, str | None], _StoredKernel] = {}
        for stored in self._stored_kernels():
            if stored.name == name:
                newest.setdefault((stored.file, stored.owner), stored)
        kernels = []
        for stored in newest.values():
            with suppress(KernrecError):
                kernels.append(stored.kernel())
        with suppress(KernrecError):
            kernels.append(find_kernel(name))
        return kernels

    def own_kernels(self) -> list[str]:
        """Return the sorted names of the kernels in the user's databases, in the form that `kernel` accepts."""
        stored, library = list(self._stored_kernels()), kernel_names()
        names = set()
        for each in stored:
            files = {other.file for other in _of_name(stored, each.name)}
            if each.file in files:
                names.add(each.name if len(files) == 1 and each.name not in library else f"{each.file}:{each.name}")
        return sorted(names)

    def _stored_kernels(self) -> "Iterator[_StoredKernel]":
        for path, (name, spec, source, signer) in self.stack.kernels():
            yield _StoredKernel(name, spec, source, None if signer is None else f"{signer_name(signer)}, in {path}")


class GpuContext:
    """Databases, models and cached tables for one GPU, one kind of input data and one state of L2."""

    def __init__(self, context: Context, gpu: GPU, conditions: Conditions) -> None:
        self.gpu, self.conditions = gpu, conditions
        self.stack, self.models, self._triton = context.stack, context.models, context.triton
        self._tables: dict[tuple[str, str, str, str], StaticTable] = {}
        self._of_op: dict[Kind, tuple[StaticTable, ...]] = {}
        self._spaces: dict[tuple[StaticTable, ...], Space] = {}
        """Config spaces, keyed by static tables. Spaces contain no measurements, so many problems share a space."""

    def evidence(self, problem: Problem, kernels: Sequence[str]) -> Evidence:
        """Return measurements and failures of the named kernels on a problem and on equivalent problems.

        All measurements used random inputs and a cold L2. For other conditions, return only failures.
        """
        if self.stack.empty:
            return NO_EVIDENCE
        first, *others = equivalents(problem)
        evidence = self.stack.evidence(self.gpu.name, first.op, kernels, first.key)
        for form in others:
            evidence += self.stack.evidence(self.gpu.name, form.op, kernels, form.key)
        return evidence if self.conditions == MEASURED_CONDITIONS else Evidence(failed=evidence.failed)

    def space(self, problem: Problem, kernel: Kernel | None = None, whole: bool = False) -> Space:
        """Return the configs and database rows of one kernel, or of all library kernels for a problem.

        If `whole` is true, every config is estimated instead of only the most promising ones.
        """
        tables = self.tables(problem) if kernel is None else (self.kernel_table(kernel, problem),)
        if self.stack.empty and kernel is None and not (whole or self.models.reported):
            if (cached := self._spaces.get(tables)) is None:
                cached = self._spaces[tables] = Space(tables, self.models)
            return cached
        return Space(tables, self.models, self.evidence(problem, [table.kernel.name for table in tables]), whole)

    def tables(self, problem: Problem) -> tuple[StaticTable, ...]:
        """Return the `StaticTable` of each library kernel that implements a problem.

        Raise `KernrecError` if there is none.
        """
        key, gpu = kind_of(problem), self.gpu
        if (joint := self._of_op.get(key)) is None:
            analyzed = []
            for form in equivalents(problem) if self._triton else ():
                kernels = triton_kernels(form.op, form.dtype, form.layout, gpu.sm)
                analyzed += [self.kernel_table(each, form) for each in kernels if self.find_profiles(each, form)]
            triton = [table for table in analyzed if table.unprofiled < len(table.space.variants.keys)]
            try:
                kernels = kernels_of(problem, gpu.sm)
            except UsageError:
                if not triton:
                    raise
                kernels = ()
            if kernels and not gpu.multiplies(math_dtype(problem.dtype)):
                raise NoSuchKernelError(f"{gpu.title} has no {problem.dtype} arithmetic")
            tables = [self.kernel_table(kernel, problem) for kernel in kernels]
            joint = self._of_op[key] = (*tables, *triton)
        return joint

    def kernel_table(self, kernel: Kernel, problem: Problem) -> StaticTable:
        """Return the static table of a kernel. Raise `KernrecError` if the kernel has no profiles for this GPU."""
        problem = kernel.form(problem)
        key = kernel.name, kernel.hash, problem.dtype, problem.layout
        if (cached := self._tables.get(key)) is not None:
            return cached
        profiles = self.find_profiles(kernel, problem)
        if not profiles and kernel.name not in kernel_names():
            raise self._not_analyzed(kernel, problem)
        calibration = self.models.calibration(self.gpu)
        table = StaticTable.of(kernel, problem, self.gpu, profiles, calibration, self.conditions)
        # Do not cache sampled profiles, because each profile is valid for one problem only.
        if not kernel.sampled:
            self._tables[key] = table
        return table

    def find_profiles(self, kernel: Kernel, problem: Problem) -> dict[int, ProfileTable]:
        """Return the profiles of a kernel for a problem, keyed by the index of the launch. There may be none."""
        profiles = self.stack.profiles(kernel.name, kernel.hash, self.gpu.sm)
        if not kernel.sampled or not profiles:
            return profiles
        keys = set(ConfigSpace.of(kernel, problem, self.gpu).configs_on(problem).keys)
        of_problem = {index: _restricted(table, keys) for index, table in profiles.items()}
        return of_problem if any(table.variant_keys for table in of_problem.values()) else {}

    def _not_analyzed(self, kernel: Kernel, problem: Problem) -> KernrecError:
        again = f"`kernrec analyze {kernel.source_name} --spec ... --gpu {self.gpu.name}"
        if not self.stack.profiles(kernel.name, kernel.hash, self.gpu.sm):
            return KernrecError(f"kernel {kernel.name} was not analyzed for {self.gpu.arch}: run {again}`")
        dims = ",".join(f"{name}={value}" for name, value in problem.dims)
        return KernrecError(
            f"kernel {kernel.name} was not analyzed on {problem.key} for {self.gpu.arch}: run {again} --shape {dims}`"
        )


def _restricted(table: ProfileTable, keys: set[str]) -> ProfileTable:
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


@dataclass(frozen=True)
class _StoredKernel:
    name: str
    spec: str
    source: str
    owner: str | None
    """Person who shared the kernel, or None if it is the user's own kernel."""

    @property
    def file(self) -> str:
        data = json.loads(self.spec)
        return str((data.get("triton") or {}).get("module") or data.get("source", ""))

    def kernel(self) -> Kernel:
        return replace(kernel_from(json.loads(self.spec), self.name, self.source), owner=self.owner)


def _of_name(stored: Sequence[_StoredKernel], name: str) -> list[_StoredKernel]:
    named = [kernel for kernel in stored if kernel.name == name]
    return [kernel for kernel in named if kernel.owner is None] or named


def _named(stored: Sequence[_StoredKernel], name: str) -> list[_StoredKernel]:
    """Return the stored kernels with a name. Raise `UsageError` if they come from several files."""
    file, _, bare = name.rpartition(":")
    if file:
        return _of_name([kernel for kernel in stored if kernel.file == file], bare)
    named = _of_name(stored, bare)
    if len(files := dict.fromkeys(kernel.file for kernel in named)) > 1:
        choices = ", ".join(f"{each}:{bare}" for each in files)
        raise UsageError(f"kernel {bare} is in several files that were analyzed; name one of {choices}")
    return named
