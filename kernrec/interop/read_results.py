"""Detect the format of a file that another tool wrote, and read its results or an autotuner's configs.

A file has the first format in `FORMATS` whose pattern, file ending or JSON member matches.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.json_document import CutShort, TextFile, read_text, reading
from kernrec.interop.nsight_compute import NCU_HEADER, read_ncu
from kernrec.interop.results import ForeignResults, ReadOptions
from kernrec.interop.table import is_parquet, read_csv_table, read_parquet_table
from kernrec.interop.triton_results import MEMBER, read_autotune
from kernrec.interop.tuned_caches import (
    TunedCache,
    read_flashinfer,
    read_helion_cache,
    read_inductor_cache,
    read_triton_cache,
)
from kernrec.interop.tuner_results import read_cache, read_clblast, read_ktt, read_t4

NO_TIMES = "which states no times; `kernrec audit` judges its entries"
NOT_READ = "which kernrec does not read; convert its times to a table (examples/results_as_table.py), or give"


@dataclass(frozen=True)
class Format:
    """File format of another tool, with patterns that identify it and functions that read it."""

    title: str
    """Title of the format with an article, for error messages."""
    member: str | None = None
    """Top-level JSON member that identifies the format, or None."""
    pattern: re.Pattern[str] | None = None
    """Regular expression that identifies the format, or None."""
    endings: tuple[str, ...] = ()
    """Endings of the file name that identify the format."""
    results: Callable[[TextFile, ReadOptions], ForeignResults] | None = None
    """Function that reads results, or None. It may raise `ValueError` or `UsageError`."""
    tuned: Callable[[TextFile], TunedCache] | None = None
    """Function that reads an autotuner's configs, or None. It raises the same errors as `results`."""


KERNEL_TUNER = Format("a cache of Kernel Tuner", member="cache", results=read_cache)
EXPERTS = Format(
    "a file of expert configs of vLLM or SGLang", pattern=re.compile(r'\A\s*\{\s*"(?:\d+|triton_version)"')
)
CUT_CACHE = re.compile(r'"cache"\s*:\s*\{')
"""Regular expression for an incomplete Kernel Tuner cache, whose tuner is still running or was killed."""

FORMATS = (
    Format("Nsight Compute's CSV", pattern=NCU_HEADER, results=read_ncu),
    Format("Helion's autotune CSV", pattern=re.compile(r"\A[\w,]*\bgeneration,status,perf_ms,", re.MULTILINE)),
    Format(
        "FlashInfer's file of tactics",
        pattern=re.compile(r'\A\s*\{\s*"(?:_metadata"[^{}]*\{[^{}]*flashinfer|\(\')'),
        tuned=read_flashinfer,
    ),
    Format("a cache of Helion", pattern=re.compile(r'\A\s*\{\s*"config"\s*:\s*"'), tuned=read_helion_cache),
    Format("a best config of Inductor", pattern=re.compile(r'\A\s*\{.*"configs_hash"\s*:'), tuned=read_inductor_cache),
    Format("Inductor's lookup table", pattern=re.compile(r'\A\s*\{\s*"[^"]*torch\.')),
    EXPERTS,
    Format("AutoTVM's log", pattern=re.compile(r'\A\s*\{"(?:i|input)": *\[ *"')),
    Format("a table", endings=(".csv", ".csv.gz"), results=read_csv_table),
    Format("a tuner file of CLBlast", member="kernel_family", results=read_clblast),
    Format("a T4 file", member="results", results=read_t4),
    KERNEL_TUNER,
    Format("an autotune cache of Triton", member=MEMBER, results=read_autotune, tuned=read_triton_cache),
    Format("KTT's JSON", member="Metadata", results=read_ktt),
    Format("nvbench's JSON", member="benchmarks"),
    Format("Inductor's autotune log", pattern=re.compile(r"\bAUTOTUNE \w{1,80}\(\d")),
    Format("the output of benchmark_moe", pattern=re.compile(r"\bBatch size: \d{1,8}, config: \{")),
)


def format_of(file: TextFile) -> Format:
    """Detect the format of a file. Raise `UsageError` if it is unknown or ends before its first result."""
    for each in FORMATS:
        if file.path.name.endswith(each.endings or ("\0",)) or (each.pattern and each.pattern.search(file.text)):
            return each
    try:
        document = file.document()
    except CutShort:
        if CUT_CACHE.search(file.text):
            return KERNEL_TUNER
        raise UsageError(f"{file.path} is cut short before its first result") from None
    except ValueError as error:
        others = "".join(f", nor {each.title}" for each in FORMATS if each.member is None and each.results)
        raise UsageError(f"{file.path} is neither JSON ({error}){others}") from None
    for each in FORMATS:
        if isinstance(document, dict) and each.member in document:
            return each
    titles = ", ".join(each.title for each in FORMATS if each.member)
    raise UsageError(f"{file.path} is JSON of an unknown format; expected {titles}")


def read_results(path: Path, options: ReadOptions | None = None) -> ForeignResults:
    """Read the results in a Parquet file or in a text file of any supported format.

    Args:
        options: Information that the file lacks, such as the tunables of a table.

    Raises:
        UsageError: The format is unknown, or the file is invalid. The message is one line and names the file.
    """
    options = options or ReadOptions()
    try:
        if is_parquet(path):
            results = read_parquet_table(path, options)
        else:
            file = TextFile(path, *read_text(path))
            if (reader := (kind := format_of(file)).results) is None:
                others = ", ".join(each.title for each in FORMATS if each.results)
                judged = kind.tuned is not None or kind is EXPERTS
                raise UsageError(f"{path} is {kind.title}, {NO_TIMES if judged else f'{NOT_READ} {others}'}")
            results = reader(file, options)
    except (ValueError, UsageError) as error:
        text = str(error)
        raise UsageError(text if str(path) in text else f"{path}: {text}") from None
    if not results.results:
        raise UsageError(f"{path} holds no results")
    return results


_LARGEST = 16 << 20
"""Maximum size of a file with configs, in bytes."""


def config_file(path: Path) -> TextFile:
    """Read the text of a file with configs. Raise `UsageError` if it cannot be read or is too large."""
    return TextFile(path, *read_text(path, _LARGEST))


def read_tuned_cache(file: TextFile) -> TunedCache:
    """Read the configs in an autotuner's file.

    Raise `UsageError` if the file is invalid or the autotuner is not supported.
    """
    kind = format_of(file)
    if kind.tuned is None:
        listed = ", ".join(each.title for each in FORMATS if each.tuned)
        raise UsageError(f"{file.path} is {kind.title}; expected {listed}")
    with reading(file.path, kind.title):
        cache = kind.tuned(file)
        if not cache.entries:
            raise ValueError("it has no entries")
        texts = [cache.gpu, *(cache.versions or {}), *(cache.versions or {}).values()]
        for entry in cache.entries:
            texts += [entry.problem, entry.error, *entry.config, *map(str, entry.config.values())]
        if not all(text.isprintable() for text in texts):
            raise ValueError("it has characters that cannot be printed")
    return cache
