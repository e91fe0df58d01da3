"""`kernrec serve-audit`: the tuned files that a serving engine looks for, which it lacks, and what each is worth."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli.format import print_line, print_notes
from kernrec.cli.output import AsJson, print_json
from kernrec.cli.table import print_table
from kernrec.errors import UsageError
from kernrec.util.human import counted, human

if TYPE_CHECKING:
    from kernrec.recommender.serving.audit import AuditedFile, ServingAudit
    from kernrec.recommender.serving.compared import Comparison
    from kernrec.recommender.serving.engine_defaults import Tiles


def serve_audit(
    model: Annotated[str, typer.Argument(help="Folder with a config.json, or such a file; a name with --download.")],
    gpu: Annotated[str, typer.Option("--gpu", help="The card that the engine runs on (`kernrec gpus`).")],
    engine: Annotated[str, typer.Option("--engine", help="vllm or sglang.")],
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.")] = 1,
    ep: Annotated[
        int, typer.Option("--ep", help="Expert parallel size: GPUs among which experts are distributed.")
    ] = 1,
    triton: Annotated[
        str | None,
        typer.Option("--triton", help="Triton's release: SGLang has files for each. Default: the installed."),
    ] = None,
    engine_release: Annotated[
        str | None,
        typer.Option("--engine-release", help="The engine's release. Default: the installed, else the newest known."),
    ] = None,
    device_name: Annotated[
        str, typer.Option("--device-name", help="Name that the driver gives the card, if not the catalog's.")
    ] = "",
    lora_rank: Annotated[int | None, typer.Option("--lora-rank", help="List files of LoRA of this rank, too.")] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Numbers of tokens that are compared: 1,16,128,1024,4096.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="List the files only; nothing is compiled or predicted.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Compare files, too, that the engine has or reads with a flag alone.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the files that are worth it to this folder.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="On this machine's GPU, measure the best three and the engine's own.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Take the config.json from the Hugging Face Hub.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The tuned files that vLLM or SGLang looks for to serve a model, which are missing, and what each is worth.

    The engine's own config without a file is compared with the best of some twenty candidates, for some numbers of
    tokens, as predicted: code is compiled and emulated, which takes minutes, and no GPU. Often nothing is gained, and
    then it is said. It needs the extra triton; with --names it does not.
    """
    from kernrec.recommender.serving.audit import TOKENS, AuditRequest
    from kernrec.recommender.serving.audit import serve_audit as run
    from kernrec.recommender.serving.folder import setting, write_folder

    if names and (write is not None or measure):
        other = "--measure" if measure else "--write"
        raise UsageError(f"--names predicts nothing; leave out one of --names and {other}")
    request = AuditRequest(
        model, gpu, engine, tp, ep, triton, engine_release, device_name, lora_rank,
        TOKENS if tokens is None else _numbers(tokens), not names, everything, download,
    )  # fmt: skip
    report = None if as_json else lambda step: print(step, file=sys.stderr)
    audit = run(request, report)
    if measure:
        from kernrec.triton.machine import this_machine
        from kernrec.triton.measure_audit import measure_audit

        if measure_audit(audit, this_machine(gpu, present=True), report):
            audit = run(request, report)
    written = write_folder(audit, write) if write is not None else []
    if as_json:
        print_json({**audit.as_dict(), "written": [str(path) for path in written]})
        return
    short = _ShortNames(audit)
    _print_files(audit, short)
    for audited in audit.files:
        if audited.comparisons:
            _print_comparisons(audited, short)
    notes = [*_details(audit, short), *audit.notes]
    if write is not None and not written:
        notes.append(f"{write} was not written: no file is worth it")
    if written:
        notes.append(f"{counted(len(written), 'file')} in {write}, predicted: measure before you trust them")
    print_notes(notes)
    if written and write is not None:
        print_line(setting(audit, write))
        if audit.served.engine == "sglang":
            print_notes(["SGLang then reads none of its own files: copy those that it has to the folder, too"])


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        raise UsageError(f"--tokens is {text!r:.60}; whole numbers such as 1,16,1024 are expected")
    return [int(part) for part in parts]


def _print_files(audit: "ServingAudit", short: "_ShortNames") -> None:
    """Print the files, with stars for what many names have."""
    served = audit.served
    split = f"tensor parallel {served.tp}" + (f", expert parallel {served.ep}" if served.ep > 1 else "")
    triton = f", Triton {served.triton}" if served.triton else ""
    engine = f"{served.engine} {audit.shipped.version}"
    print_line(f"{audit.model.title} with {engine} on {served.gpu.title}, {split}{triton}")
    if not audit.files:
        return
    print_line(f"* is {served.device_name}")
    for end, stars in short.stars.items():
        print_line(f"{stars} is {end}")
    rows = [
        [_status(audited), audited.file.kind.value, short.of(audited), audited.file.layers] for audited in audit.files
    ]
    columns = [("", "left"), ("kernel", "left"), ("file", "left"), ("layers", "left")]
    print_table(f"tuned files that it looks for, by {audit.shipped.source}", columns, rows)


class _ShortNames:
    """Names of files in a table: `*` is the card's name, `**` and so on are ends that names have after their sizes.

    A driver's name with a data type and blocks of scales takes the whole width of a terminal.
    """

    def __init__(self, audit: "ServingAudit") -> None:
        from kernrec.recommender.serving.shipped_files import divided

        self._parts = {}
        ends: dict[str, None] = {}
        for audited in audit.files:
            parts = divided(audited.file.name)
            name = (parts[1] if parts else audited.file.name).removesuffix(".json")
            sizes, comma, end = name.partition(",device")
            end = f"device{end}" if comma else ""
            self._parts[audited.file.name] = (sizes, end)
            if not end.endswith("=*") and end:
                ends[end] = None
        self.stars = {end: "*" * number for number, end in enumerate(ends, 2)} if len(audit.files) > 1 else {}
        """Stars by the end that they are put for."""

    def of(self, audited: "AuditedFile") -> str:
        """The short name."""
        sizes, end = self._parts[audited.file.name]
        return f"{sizes},{self.stars.get(end, end)}" if end else sizes


def _details(audit: "ServingAudit", short: _ShortNames) -> list[str]:
    """Remarks on single files; those with the same remark are one line."""
    together: dict[str, list[str]] = {}
    for audited in audit.files:
        texts = [audited.file.note] if audited.file.note else []
        if audited.missing and audited.taken:
            texts.append(f"{audit.served.engine} takes {audited.taken}")
        if audited.why_none and not audited.comparisons:
            texts.append(audited.why_none)
        if audited.shipped and not audited.of_this_triton:
            texts.append(f"the file for {audited.shipped.partition('/')[0]} is read")
        for text in texts:
            together.setdefault(text, []).append(f"{audited.file.kind.value} {short.of(audited)}")
    kinds = [(text, names[0] if len(names) == 1 else f"{len(names)} files") for text, names in together.items()]
    return [f"{names}: {text}" for text, names in kinds]


def _status(audited: "AuditedFile") -> str:
    from kernrec.recommender.serving.verdict import Verdict

    if audited.verdict is Verdict.UNKNOWN:
        return "missing"
    return audited.verdict.value


def _print_comparisons(audited: "AuditedFile", short: _ShortNames) -> None:
    columns = [
        ("tokens", "right"), ("default", "right"), ("best", "right"), ("default / best", "right"), ("90 %", "right"),
        ("best config", "left"),
    ]  # fmt: skip
    rows = [_row(made) for made in audited.comparisons]
    print_table(f"{short.of(audited)}: {audited.verdict.value}", columns, rows)


def _row(made: "Comparison") -> list[str]:
    from kernrec.recommender.serving.verdict import Verdict, worth

    low, high = made.interval
    own = made.own_cost
    best = "its default" if worth(made) is Verdict.LEAVE else _tiles(made.best)
    return [
        str(made.tokens),
        "cannot run" if own is None else human(own.latency_s, "s"),
        human(made.best_cost.latency_s, "s"),
        "" if own is None else f"{made.ratio:.2f}",
        "" if own is None else f"{low:.2f} to {high:.2f}",
        best,
    ]


def _tiles(config: "Tiles") -> str:
    """A config in short: tile, group, warps and stages; of state-space layers rows and warps."""
    if "GROUP_SIZE_M" not in config:
        return f"{config['BLOCK_SIZE_M']} rows, {config['num_warps']} warps"
    tile = " x ".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    options = f"{config.get('num_warps', 4)} warps, {config.get('num_stages', 3)} stages"
    return f"{tile}, group {config['GROUP_SIZE_M']}, {options}"
