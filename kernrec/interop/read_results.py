"""The formats of other tools' files, in one table, and reading any file of results.

A file is of the first format whose beginning, line or JSON member it has. Formats that state configs without times are
in the table too: `configs` in the call of a Triton function ranks them (config_list.py).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.clblast import read_clblast
from kernrec.interop.helion_log import HELION_HEADER, read_helion
from kernrec.interop.inductor_log import AUTOTUNE, read_inductor
from kernrec.interop.inductor_table import read_table as read_lookup_table
from kernrec.interop.json_document import CutShort, TextFile, decode, members, read_text
from kernrec.interop.kernel_tuner import read_cache
from kernrec.interop.ktt import read_ktt
from kernrec.interop.moe_benchmark import TIMED_BATCH, read_moe_benchmark
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.interop.nsight_compute import NCU_HEADER, read_ncu
from kernrec.interop.nvbench import read_nvbench
from kernrec.interop.results import ForeignResults, ReadOptions
from kernrec.interop.t4 import read_t4
from kernrec.interop.table import is_parquet, read_csv_table, read_parquet_table
from kernrec.interop.triton_autotune import MEMBER, read_autotune, read_autotune_configs


@dataclass(frozen=True)
class Format:
    """A format that another tool writes."""

    title: str
    """With an article."""
    member: str | None = None
    """Of a JSON object, by which it is known."""
    pattern: re.Pattern[str] | None = None
    """That is in the text, by which it is known."""
    endings: tuple[str, ...] = ()
    """Of the file's name, by which it is known."""
    results: Callable[[TextFile, ReadOptions], ForeignResults] | None = None
    """Its reader; None: it states no times. Raises `ValueError`, `UsageError` or `CutShort`, which need not name it."""
    configs: Callable[[TextFile], list[dict[str, int]]] | None = None
    """The reader of its configs alone; None where nothing ranks them. Errors as of `results`, or `UsageError` that
    names the file."""


def _lookup_configs(file: TextFile) -> list[dict[str, int]]:
    return [config for entries in read_lookup_table(file.text, str(file.path)).values() for config in entries]


def _expert_configs(file: TextFile) -> list[dict[str, int]]:
    return list(read_moe_configs(file.text, str(file.path))[0].values())


FORMATS = (
    Format("Nsight Compute's CSV", pattern=NCU_HEADER, results=read_ncu),
    Format("Helion's autotune CSV", pattern=HELION_HEADER, results=read_helion),
    Format("Inductor's lookup table", pattern=re.compile(r'\A\s*\{\s*"[^"]*torch\.'), configs=_lookup_configs),
    Format(
        "a file of expert configs of vLLM or SGLang",
        pattern=re.compile(r'\A\s*\{\s*"(?:\d+|triton_version)"'),
        configs=_expert_configs,
    ),
    Format("AutoTVM's log", pattern=re.compile(r'\A\s*\{"(?:i|input)": *\[ *"')),
    Format(
        "FlashInfer's file of tactics", pattern=re.compile(r'\A\s*\{\s*"(?:_metadata"[^{}]*\{[^{}]*flashinfer|\(\')')
    ),
    Format("a table", endings=(".csv", ".csv.gz"), results=read_csv_table),
    Format("a T4 file", member="results", results=read_t4),
    Format("a cache of Kernel Tuner", member="cache", results=read_cache),
    Format("an autotune cache of Triton", member=MEMBER, results=read_autotune, configs=read_autotune_configs),
    Format("a tuner file of CLBlast", member="kernel_family", results=read_clblast),
    Format("KTT's JSON", member="Metadata", results=read_ktt),
    Format("nvbench's JSON", member="benchmarks", results=read_nvbench),
    Format("Inductor's autotune log", pattern=AUTOTUNE, results=read_inductor),
    Format("the output of benchmark_moe", pattern=TIMED_BATCH, results=read_moe_benchmark),
)


def format_of(file: TextFile) -> Format:
    """The format of a file; raises `UsageError` in one line that names it for one of none of them."""
    for each in FORMATS:
        if file.path.name.endswith(each.endings or ("\0",)) or (each.pattern and each.pattern.search(file.text)):
            return each
    try:
        member = _member(file.text)
    except CutShort:
        raise UsageError(f"{file.path} is cut short before its first result") from None
    except ValueError as error:
        others = ", ".join(each.title for each in FORMATS if each.member is None and each.results)
        raise UsageError(f"{file.path} is not JSON: {error}; nor is it {others}") from None
    for each in FORMATS:
        if member is not None and each.member == member:
            return each
    *some, last = (each.title for each in FORMATS if each.member)
    raise UsageError(f"{file.path} is JSON, but neither {', '.join(some)} nor {last}")


def _member(text: str) -> str | None:
    """The first member of the document that identifies a format; None without any."""
    named = {each.member for each in FORMATS}
    next_member = members(text)
    try:
        name, position = next(next_member)
        while name not in named:
            _, position = decode(text, position)
            name, position = next_member.send(position)
    except StopIteration:
        return None
    return name


def read_results(path: Path, options: ReadOptions | None = None) -> ForeignResults:
    """The results in a file of any format of the table, which may be compressed by gzip, or in a Parquet file.

    Args:
        path: of the file.
        options: how it is read; None: nothing is known of it, and no table can be read.

    Raises:
        UsageError: in one line that names the file, for any other file and for errors in it.
    """
    options = options or ReadOptions()
    try:
        if is_parquet(path):
            results = read_parquet_table(path, options)
        else:
            file = TextFile(path, *read_text(path))
            if (reader := (kind := format_of(file)).results) is None:
                if kind.configs is None:
                    others = ", ".join(each.title for each in FORMATS if each.results)
                    raise UsageError(f"{path} is {kind.title}, which kernrec does not read; it reads {others}")
                raise UsageError(
                    f"{path} is {kind.title}, which states no times: `configs` in a call of `kernrec analyze` ranks it"
                )
            results = reader(file, options)
    except CutShort:
        raise UsageError(f"{path} is cut short; {kind.title} must be complete") from None
    except (ValueError, UsageError) as error:
        text = str(error)
        raise UsageError(text if str(path) in text else f"{path}: {text}") from None
    if not results.results:
        raise UsageError(f"{path} holds no results")
    return results
