"""Audit a deployment: list its tuned files, the missing files, and the gain from each file.

An engine runs the entry of a tuned file with the nearest number of tokens. So kernrec writes an entry for each number
of tokens in the engine's own files. The entry is the engine's default config if tuning gains nothing.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.compile.pool import processors_of
from kernrec.errors import KernrecError, UsageError, file_errors, unknown
from kernrec.interop.model_config import ModelConfig, read_model
from kernrec.interop.moe_configs import write_moe_configs
from kernrec.model.analytical.spread import Source
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.serving.compared import Comparer, Comparison, Verdict
from kernrec.recommender.serving.engine_calls import OWN_KERNELS, own_alone, own_kernel
from kernrec.recommender.serving.engine_defaults import KEYS, Tiles, default_config, kernel_taken
from kernrec.recommender.serving.engines import Deployment, Kind, TunedFile, reads_files, second_file, tuned_files
from kernrec.recommender.serving.tuned_files import FOLDERS, Shipped, numbers, shipped_of
from kernrec.util.files import write_whole
from kernrec.util.light_dataclass import dataclass

TRITONS = (
    "3.1.0", "3.2.0", "3.3.0", "3.3.1", "3.4.0", "3.5.0", "3.5.1", "3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0",
)  # fmt: skip
TOKENS = (1, 16, 128, 1024, 4096)
_MOST_TOKENS = 65536

_OF_ADAPTERS = "not predicted: the work depends on the adapters of a step. Without a file, the engine uses its own rule"
_SECOND = "not predicted separately from the first matmul"
_NOT_INSTALLED = "not predicted without the engine, whose kernel kernrec would analyze"

Progress = Callable[[str], None]
"""Callback that receives a description of each comparison."""


@dataclass(frozen=True)
class AuditedFile(JsonForm):
    """Tuned file that the engine looks for, with the gain expected from it."""

    JSON = (
        "kind=file.kind name=file.name layers=file.layers read_from_folder=file.from_folder shipped of_this_triton"
        " engine_takes=taken verdict kernel why_not_compared=why_none note=file.note tokens=comparisons"
    )

    file: TunedFile
    shipped: str
    """Relative path of the engine's own tuned file. Empty if there is none."""
    of_this_triton: bool
    """Whether the shipped file is for the requested release of Triton."""
    taken: str
    """Kernel that the engine runs instead of the tuned kernel. Empty if it runs the tuned kernel."""
    comparisons: tuple[Comparison, ...] = ()
    why_none: str = ""
    """Reason why configs cannot be compared for this file. Empty if they can."""
    kernel: str = ""
    """Name of the kernel that was analyzed. Empty if there is none."""

    @property
    def missing(self) -> bool:
        return not self.shipped

    @property
    def verdict(self) -> Verdict:
        """Advice on whether to create this tuned file: the most favorable advice for any number of tokens."""
        if not self.missing:
            return Verdict.SHIPPED
        if self.taken:
            return Verdict.NOT_USED
        verdicts = [comparison.verdict for comparison in self.comparisons]
        order = (Verdict.WRITE, Verdict.MEASURE, Verdict.LEAVE)
        return next((verdict for verdict in order if verdict in verdicts), Verdict.UNKNOWN)

    def as_dict(self) -> dict[str, Any]:
        values = {name: None if value == "" else value for name, value in super().as_dict().items()}
        return values | ({"of_this_triton": None} if self.missing else {})


@dataclass(frozen=True)
class ServingAudit(JsonForm):
    """Tuned files that an engine looks for to serve a model on a GPU."""

    JSON = (
        "model=model.title engine=served.engine engine_version=shipped.version names_from=shipped.source"
        " gpu=served.gpu device_name=served.device_name tp=served.tp ep=served.ep triton=served.triton files notes"
    )

    model: ModelConfig
    served: Deployment
    shipped: Shipped
    files: tuple[AuditedFile, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        missing = sum(file.missing for file in self.files)
        return f"<ServingAudit of {self.model.title}, {len(self.files)} files, {missing} missing>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Units are in the keys."""
        return super().as_dict() | {"triton": self.served.triton or None}


def serve_audit(
    model: str,
    served: Deployment,
    *,
    release: str | None = None,
    tokens: Sequence[int] = TOKENS,
    compare: bool = True,
    everything: bool = False,
    download: bool = False,
    progress: Progress | None = None,
) -> ServingAudit:
    """Audit a deployment: find its tuned files and compare configs for the missing files.

    For arguments and errors, see `kernrec.serve_audit`.
    """
    if not tokens or not all(type(t) is int and 1 <= t <= _MOST_TOKENS for t in tokens):
        raise UsageError(f"tokens are {list(tokens)!r:.60}; whole numbers from 1 to {_MOST_TOKENS} are expected")
    of_model = read_model(model, download=download)
    of_model.check()
    shipped = shipped_of(served.engine, release)
    served, notes = _with_triton(served, shipped)
    files = tuned_files(of_model, served)
    notes += _notes_on(of_model, served, files)
    wanted = [_looked_up(file, served, shipped) for file in files]
    seconds = [_looked_up(each, served, shipped) for file in files if (each := second_file(file, served)) is not None]
    wanted += [second for second in seconds if second.shipped]  # SGLang runs without the file.
    due = [f for f in wanted if not f.why_none and (everything or (f.missing and not f.taken))] if compare else []
    if due:
        with processors_of(2) as processors:
            comparing = Comparer(paths.user_database(), processors)
            compared = {f.file.name: _compared(f, served, sorted(set(tokens)), comparing, progress) for f in due}
        wanted = [compared.get(f.file.name, f) for f in wanted]
        notes += _notes_on_kernels(served, compared.values())
    return ServingAudit(of_model, served, shipped, tuple(wanted), tuple(notes))


def _with_triton(served: Deployment, shipped: Shipped) -> tuple[Deployment, list[str]]:
    """Return the deployment with a release of Triton, and notes on the choice."""
    releases = sorted({*TRITONS, *shipped.triton_folders()}, key=numbers)
    if served.triton:
        text = served.triton + ".0" if served.triton.count(".") == 1 else served.triton
        if text not in releases:
            raise unknown("release of Triton", served.triton, releases)
        return replace(served, triton=text), []
    if served.engine == "vllm":
        return served, []  # vLLM's file names do not contain Triton's release.
    try:
        installed = version("triton")
        note = f"files are for the installed Triton {installed}"
    except PackageNotFoundError:
        (installed,) = shipped.triton_folders()[-1:] or [TRITONS[-1]]
        note = f"files are for Triton {installed}, the newest that SGLang has files for"
    return replace(served, triton=installed), [f"{note}; --engine sglang,triton==RELEASE chooses another"]


def _notes_on(model: ModelConfig, served: Deployment, files: Sequence[TunedFile]) -> list[str]:
    notes = []
    if not reads_files(model.quantization, served.engine):
        notes.append(
            f"weights are quantized by {model.quantization.method or 'an unnamed method'}: no tuned files of"
            f" {served.engine} are known for them"
        )
    if not files and not notes:
        notes.append(f"{served.engine} looks for no tuned file: the model has neither experts, nor fp8 blocks")
    if any(file.kind is Kind.BLOCK_GEMM for file in files):
        notes.append(
            f"{served.engine} reads files for block-scaled fp8 matmuls only from its own package, not from a folder"
        )
    if served.engine == "sglang" and model.state_space is not None:
        notes.append("SGLang has no tuned files for state-space layers")
    return notes


def _looked_up(file: TunedFile, served: Deployment, shipped: Shipped) -> AuditedFile:
    name, exact = shipped.place_of(file.kind, file.name, served.triton)
    analyzed = own_kernel(served, file) or not own_alone(file)
    why = "" if analyzed else _NOT_INSTALLED
    if not file.launches:
        why = _OF_ADAPTERS if file.kind is Kind.LORA else _SECOND
    return AuditedFile(file, name, exact, kernel_taken(file, served), why_none=why)


def _compared(
    audited: AuditedFile, served: Deployment, tokens: Sequence[int], comparing: Comparer, progress: Progress | None
) -> AuditedFile:
    """Return the file with a comparison for each number in `tokens`, or with the reason why costs are unknown."""
    made: list[Comparison] = []
    try:
        for count in tokens:
            if progress is not None:
                progress(f"{audited.file.name}: {count} tokens")
            made.append(comparing.compare(audited.file, served, count))
    except KernrecError as error:  # Audit other files even if a kernel fails to import.
        if not made:
            return replace(audited, why_none=str(error))
    kernel = own_kernel(served, audited.file) or f"a stand-in for {OWN_KERNELS[served.engine, audited.file.kind]}"
    if not any(comparison.analyzed for comparison in made):
        kernel = ""
    return replace(audited, comparisons=tuple(made), kernel=kernel)


def _notes_on_kernels(served: Deployment, compared: Iterable[AuditedFile]) -> list[str]:
    files = [file for file in compared if file.comparisons]
    if not files:
        return []
    kernels = {file.kernel for file in files if file.kernel}
    comparisons = [comparison for file in files for comparison in file.comparisons]
    notes = []
    if not all(comparison.analyzed for comparison in comparisons):
        notes.append(
            "experts: a model trained on an A100, H20, H800 and L40 ranked the configs; no kernel was compiled"
        )
    if any(kernel.startswith("a stand-in") for kernel in kernels):
        notes.append(
            f"{served.engine} is not installed, so a kernel of kernrec's with the same tunables was analyzed instead"
        )
    elif kernels:
        notes.append(f"the engine's own kernels were analyzed: {', '.join(sorted(kernels))}")
    if any(file.file.kind is Kind.EXPERTS for file in files):
        notes.append("assumes that tokens choose experts uniformly at random")
    if all(comparison.best_cost.source != Source.MEASURED for comparison in comparisons):
        notes.append("all times are predicted, none measured")
    return notes


VARIABLES = {"vllm": "VLLM_TUNED_CONFIG_FOLDER", "sglang": "SGLANG_MOE_CONFIG_DIR"}
"""Environment variables for the folder with tuned files, keyed by engine."""


def entries_of(audited: AuditedFile, served: Deployment) -> dict[int, Tiles]:
    """Return the entries to write to a tuned file, keyed by `TunedFile.entry`.

    For each entry, the comparison with the nearest number of tokens selects the best config or the default config.
    """
    entries: dict[int, Tiles] = {}
    by_tokens = {made.tokens: made for made in audited.comparisons}
    for key in sorted({*KEYS, *by_tokens}):
        made = by_tokens[min(by_tokens, key=lambda tokens: (abs(math.log(tokens / key)), tokens))]
        own = default_config(served.engine, audited.file, key, served.gpu)
        entries[audited.file.entry(key)] = made.best if made.verdict is Verdict.WRITE else own
    return entries


def relative_place(audited: AuditedFile, served: Deployment) -> str:
    """Return the relative path of a new tuned file. `package/` marks files that belong in the engine's package."""
    file = audited.file
    if not file.from_folder:
        return f"package/{FOLDERS[served.engine][file.kind]}/{file.name}"
    if served.engine == "vllm":
        return file.name
    return f"configs/triton_{served.triton.replace('.', '_')}/{file.name}"


def write_folder(audit: ServingAudit, folder: Path) -> list[Path]:
    """Write the tuned files with a sufficient gain to a folder, and return their paths.

    Raise `UsageError` if the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder")
    written = []
    for audited in audit.files:
        if audited.verdict is Verdict.WRITE:
            path = folder / relative_place(audited, audit.served)
            with file_errors(path, "written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                text = write_moe_configs(entries_of(audited, audit.served))
                write_whole(path, text.encode(), shared=True)
            written.append(path)
    return written


def setting(audit: ServingAudit, folder: Path) -> str:
    """Return the shell command that makes the engine use a folder with tuned files."""
    return f"export {VARIABLES[audit.served.engine]}={shlex.quote(str(folder.absolute()))}"
