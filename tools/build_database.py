"""Build the shipped database of static profiles, `db/prebuilt/<kernel>.profile.parquet`, from the kernels' sources.

    python tools/build_database.py [matmul_triton] [--fresh]  # missing and outdated profiles; with `--fresh`, all
    python tools/build_database.py --check 8                  # rebuild 8 profiles per kernel and compare
    python tools/build_database.py --carry main               # keep profiles of code that did not change since `main`

A changed comment changes a kernel's hash, and emulating the kernel again takes over an hour. `--carry REVISION` stores
the profiles of a git revision under the new hash, if the spec and the preprocessed source of each variant are equal.
After an interruption, the next run continues. `--check` accepts small differences, because NVRTC
arranges some code differently in each process. With NVRTC 13.5, up to 19 registers and up to 2 % of the instructions
differed, but never the numbers of arithmetic instructions, global memory accesses and barriers.
"""

import itertools
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from zlib import crc32

import numpy as np
import typer
from front import ROOT, script
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernrec import paths
from kernrec.compile.nvrtc import compiler
from kernrec.errors import UsageError
from kernrec.kernel import Kernel, all_kernels, find_kernel
from kernrec.kernel.spec_reader import load_kernel
from kernrec.profile.profile_library import Variant, VariantFailure, profile_variants, variants_of
from kernrec.store import ProfileRow
from kernrec.store.connection import connect_memory, exchange_folder, one_line, parquet_rows, quoted
from kernrec.store.profiles import COLUMN_OF_FIELD
from kernrec.store.rows import Row, as_dicts, insert
from kernrec.store.schema import migrate
from kernrec.util.files import write_whole

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
TRITON_ARCHITECTURES = (80, 86, 89, 90, 120)
"""Architectures for which profiles of Triton kernels ship. The tool only builds them if they are named."""
_SAVE_S = 120.0
_COMPILE_S = 3600.0  # Generous, because the machine may be busy


def run(
    kernels: Annotated[list[str] | None, typer.Argument(help="kernels by name; all by default")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="build everything anew")] = False,
    check: Annotated[int | None, typer.Option("--check", help="rebuild some profiles of each kernel, compare")] = None,
    seed: Annotated[str, typer.Option("--seed", help="with --check: another text draws other profiles")] = "",
    every: Annotated[int, typer.Option("--every", help="with --check: rebuild those of one kernel in so many")] = 1,
    processes: Annotated[int, typer.Option("--processes")] = 2,
    carry: Annotated[
        str | None, typer.Option("--carry", help="keep profiles of a git revision with equal code")
    ] = None,
) -> int:
    """Build or check profiles. Exit with status 1 if profiling failed for a variant or a row differs."""
    chosen = [find_kernel(name) for name in kernels or ()] or list(all_kernels())
    if carry is not None:
        return carry_from(carry, chosen)
    if check is None:
        return max(build(kernel, fresh, processes) for kernel in chosen)
    turns = enumerate(chosen, crc32(seed.encode()))
    return max(compare(each, check * (turn % every == 0), processes, seed) for turn, each in turns)


def shipped_rows(kernel: Kernel) -> tuple[Path, list[ProfileRow]]:
    """Return the file of a kernel's shipped profiles, and its rows for the kernel's hash."""
    path = paths.shipped("db/prebuilt") / f"{kernel.name}.profile.parquet"
    rows = read_profile_rows(path) if path.is_file() else []
    return path, [row for row in rows if row.kernel_hash == kernel.hash]


def build(kernel: Kernel, fresh: bool, processes: int) -> int:
    """Build the missing profiles of one kernel and write its file. Return 1 if profiling failed for a variant."""
    path, rows = shipped_rows(kernel)
    variants = shipped_variants(kernel)
    wanted = {(variant.key, sm) for variant in variants for sm in variant.configs}
    rows = [row for row in rows if not fresh and (row.variant_key, row.sm) in wanted]
    built = {(row.variant_key, row.sm) for row in rows}
    start = saved = time.monotonic()
    failures: list[VariantFailure] = []
    todo = [v for v in variants if any((v.key, sm) not in built for sm in v.configs)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(kernel.name, total=len(todo))
        try:
            for result in profile_variants(kernel, todo, built, processes, _COMPILE_S):
                if isinstance(result, VariantFailure):
                    failures.append(result)
                    progress.console.print(f"failed: {result.message} {dict(result.fixed)} sm_{result.sm}")
                    continue
                rows += result
                progress.advance(task)
                if time.monotonic() - saved > _SAVE_S:
                    write_profiles(path, rows)
                    saved = time.monotonic()
        finally:
            if rows:
                write_profiles(path, rows)
    print(
        f"{kernel.name} {kernel.hash}: {len(variants)} variants, {len(rows)} rows, {len(todo)} built in"
        f" {time.monotonic() - start:.0f} s, {len(failures)} failed, {path.stat().st_size / 1e6:.2f} MB"
    )
    return 1 if failures else 0


def shipped_variants(kernel: Kernel) -> list[Variant]:
    """Return the variants of a kernel for which profiles ship, for all architectures."""
    return list(variants_of(kernel, TRITON_ARCHITECTURES if kernel.triton else ARCHITECTURES))


def carry_from(revision: str, kernels: Sequence[Kernel]) -> int:
    """Keep the profiles of kernels whose hash changed since a git revision. Return 1 if a kernel must be rebuilt."""
    library = "kernrec/kernel/library"
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, library], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        olds = [load_kernel(Path(folder, library, kernel.name, "kernel.toml")) for kernel in kernels]
        pairs = [(old, new) for old, new in zip(olds, kernels, strict=True) if old.hash != new.hash]
        return max([carry(old, new) for old, new in pairs], default=0)


def carry(old: Kernel, new: Kernel) -> int:
    """Store the profiles of a kernel under its new hash. Return 1 if its code or spec changed."""
    if old.spec != new.spec or not same_code(old, new):
        print(f"{new.name}: the code or the specification changed: run tools/build_database.py {new.name}")
        return 1
    path, shipped = shipped_rows(old)
    rows = [replace(row, kernel_hash=new.hash) for row in shipped]
    if rows:
        write_profiles(path, rows)
    print(f"{new.name} {old.hash} -> {new.hash}: {len(rows)} profiles carried over")
    return 0


def same_code(old: Kernel, new: Kernel) -> bool:
    """Return whether the sources of two kernels with the same spec are equal after preprocessing, for all variants."""
    if old.source == new.source or old.triton:
        return old.source == new.source
    macros = {
        (*(f"-D{name}={value}" for name, value in new.defines(configs[0], v.dtype, v.layout).items()),
         f"-D__CUDA_ARCH__={10 * sm}")
        for v in shipped_variants(new) for sm, configs in v.configs.items()
    }  # fmt: skip
    return all(_preprocessed(old.source, each) == _preprocessed(new.source, each) for each in macros)


def _preprocessed(source: str, macros: Sequence[str]) -> list[str]:
    command = ["g++", "-E", "-P", "-w", "-x", "c++", *macros, "-"]
    return subprocess.run(command, input=source, text=True, check=True, capture_output=True).stdout.split()


def compare(kernel: Kernel, count: int, processes: int, seed: str = "") -> int:
    """Rebuild a random sample of a kernel's profiles. Return 1 if a shipped row differs or is missing."""
    path, shipped = shipped_rows(kernel)
    variants = shipped_variants(kernel)
    covered = {(row.variant_key, row.sm) for row in shipped}
    missing = [variant for variant in variants if any((variant.key, sm) not in covered for sm in variant.configs)]
    built_with = {row.compiler for row in shipped}
    if missing:
        about = f"{len(missing)} of {len(variants)} variants are not in {path.name}"
        print(f"{kernel.name}: {about}: run tools/build_database.py")
        return 1
    if built_with != {compiler()}:
        print(f"{kernel.name}: built with {', '.join(sorted(built_with))}, this is {compiler()}: nothing to compare")
        return 1
    sample = _sample(variants, count, kernel.hash + seed)
    by_key = {(row.variant_key, row.sm, row.launch): row for row in shipped}
    equal, close, different = 0, 0, list[ProfileRow]()
    for result in profile_variants(kernel, sample, (), processes):
        if isinstance(result, VariantFailure):
            print(f"{kernel.name}: {result.message}")
            return 1
        for row in result:
            other = by_key[row.variant_key, row.sm, row.launch]
            if row.columns() == other.columns():
                equal += 1
            elif within_compiler_variation(row, other):
                close += 1
            else:
                different.append(row)
    text = f"{len(sample)} profiles rebuilt, {equal} rows equal, {close} within compiler variation"
    if different:
        text += f", {len(different)} DIFFERENT, such as {dict(different[0].variant)} sm_{different[0].sm}"
    print(f"{kernel.name}: {text}")
    return 1 if different else 0


def _sample(variants: Sequence[Variant], count: int, seed: str) -> list[Variant]:
    draw = random.Random(seed)
    architectures = sorted({sm for variant in variants for sm in variant.configs})
    draw.shuffle(architectures)
    rest, chosen = draw.sample(list(variants), len(variants)), list[Variant]()
    for sm in itertools.islice(itertools.cycle(architectures), count):
        variant = next((v for v in rest if sm in v.configs), None)
        if variant is not None:
            rest.remove(variant)
            chosen.append(replace(variant, configs={sm: variant.configs[sm]}))
    return chosen


_FIXED = ("global.", "barriers", "issue.fma", "issue.mma", "mma.", "issue.bar", "issue.cp_async", "issue.st_")
_COUNTS_VARY = 0.04  # Maximum difference of a count, as a fraction of all issued instructions
_REGISTERS_VARY = 32


def read_profile_rows(path: Path) -> list[ProfileRow]:
    """Return all rows of a Parquet file of profiles, in the order of the file."""
    with one_line(path), parquet_rows(path) as (connection, source):
        rows = as_dicts(connection.execute(f"FROM {source}"))
    return [_from_columns(row) for row in rows]


def write_profiles(path: Path, rows: Iterable[ProfileRow]) -> None:
    """Replace a Parquet file by sorted rows. Raises `UsageError` if two have the same launch, variant and
    architecture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_line(path), connect_memory() as connection, exchange_folder(connection) as folder:
        migrate(connection, 0)
        insert(connection, "profile", [row.columns() for row in rows])
        duplicate = connection.execute(
            "SELECT kernel, code_key, sm, launch FROM db.profile GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"
        ).fetchone()
        if duplicate:
            raise UsageError("two different profiles of {} variant {} on sm_{}, launch {}".format(*duplicate))
        connection.execute(
            "COPY (SELECT * EXCLUDE profile_id FROM db.profile ORDER BY kernel, kernel_hash, sm, launch, code_key) "
            f"TO {quoted(folder / 'profiles.parquet')} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 19, "
            "ROW_GROUP_SIZE 2048)"
        )
        write_whole(path, (folder / "profiles.parquet").read_bytes(), shared=True)


def _from_columns(row: Row) -> ProfileRow:
    fields = dict(row)
    for field, column in COLUMN_OF_FIELD.items():
        fields[field] = fields.pop(column)
    metrics, terms = str(fields["metrics"]).split(), str(fields["terms"]).split()
    counts = np.array(fields["counts"], dtype=np.float64).reshape(len(metrics), len(terms))
    fields |= {"variant": json.loads(str(fields["variant"])), "metrics": tuple(metrics), "terms": tuple(terms)}
    return ProfileRow(**fields | {"counts": counts})  # type: ignore[arg-type]


def within_compiler_variation(row: ProfileRow, other: ProfileRow) -> bool:
    """Return whether two profiles of a variant differ no more than the results of two runs of the compiler. Counts that
    the algorithm determines (arithmetic, global memory, barriers) must be equal. Other counts may differ slightly."""
    if row.terms != other.terms or abs(row.registers - other.registers) > _REGISTERS_VARY:
        return False
    first, second = (dict(zip(r.metrics, r.counts, strict=True)) for r in (row, other))
    nothing = np.zeros(len(row.terms))
    slack = _COUNTS_VARY * max(first["issue"].sum(), second["issue"].sum())
    for metric in {*first, *second}:
        difference = np.abs(first.get(metric, nothing) - second.get(metric, nothing)).max()
        allowed = slack * (32 if metric == "lanes" else 1)  # One instruction adds up to 32 lanes.
        if difference > (0.0 if metric.startswith(_FIXED) else allowed):
            return False
    return True


if __name__ == "__main__":
    script(run)
