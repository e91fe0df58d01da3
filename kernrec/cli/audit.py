"""`kernrec audit`: list the tuned files that a serving engine lacks, or judge existing files."""

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import options
from kernrec.cli.options import NETWORK, argument, option
from kernrec.cli.output import AsJson, print_json, print_line, print_notes, print_table
from kernrec.errors import UsageError
from kernrec.util.human import counted, human

if TYPE_CHECKING:
    from kernrec.recommender.serving.audit import AuditedFile, ServingAudit
    from kernrec.recommender.serving.compared import Comparison
    from kernrec.recommender.serving.engine_defaults import Tiles
    from kernrec.recommender.serving.judgments import JudgedFile


class AuditOptions(options.Options):
    databases_used = options.OWN
    model: Annotated[
        list[str], argument("Model (config.json, its folder or hf:ORG/NAME), or tuned files to judge and to compare.")
    ]
    gpu: options.Gpu = ""
    engine: Annotated[str, option("Engine: vllm or sglang, also with releases: sglang==0.5.3,triton==3.4.0.")] = ""
    tp: options.TensorParallel = 1
    ep: Annotated[int, option("Number of GPUs that share the experts.", panel=NETWORK)] = 1
    names: Annotated[bool, option("Only list the files, without predicted gains.", "--names")] = False
    write: Annotated[Path | None, option("Folder to write worthwhile files to.")] = None
    measure: Annotated[bool, option("Measure the default and the three best configs here.", "--measure")] = False
    as_json: AsJson = False


@options.takes(AuditOptions)
def audit(wanted: AuditOptions) -> None:
    """Report which tuned kernel configs vLLM or SGLang lacks for a model, or judge the entries of tuned files.

    The engine's default config is compared with the best of about twenty candidates. The times of both are predicted.
    If tuning would gain nothing, the report says so. No GPU is needed, but compiling and emulating take minutes.

    Tuned files are those of vLLM, SGLang, Triton (FUNCTION.autotune.json), Inductor and Helion (.best_config), and
    FlashInfer (autotune_configs.json). For them, --engine names the versions that will read them: flashinfer==0.6.13.

    The extra `triton` is needed unless --names is given. `kernrec.serve_audit` in Python has more settings, such as
    LoRA.
    """
    from kernrec.gpu import find_gpu
    from kernrec.recommender.serving.audit import serve_audit as run
    from kernrec.recommender.serving.audit import setting, write_folder
    from kernrec.recommender.serving.engines import Deployment
    from kernrec.recommender.serving.judgments import judge_files, stated_gpu

    paths, pins = [Path(place) for place in wanted.model], _pins(wanted.engine)
    gpu = find_gpu(wanted.gpu or stated_gpu(paths))
    judged = judge_files(paths, gpu, pins)
    if judged:
        _print_entries(judged, wanted.as_json)
        return
    if not wanted.engine:
        raise UsageError("--engine is missing: vllm or sglang")
    write, measure = wanted.write, wanted.measure
    triton, engines = pins.pop("triton", None), list(pins)
    if len(engines) != 1:
        raise UsageError(
            f"--engine {wanted.engine!r:.60}: expected one engine, such as vllm or sglang==0.5.3,triton==3.4.0"
        )
    model = wanted.model[0].removeprefix("hf:")
    if wanted.names and (write is not None or measure):
        other = "--measure" if measure else "--write"
        raise UsageError(f"--names lists the files without the predicted gains that {other} needs; omit --names")
    report = None if wanted.as_json else lambda step: print(step, file=sys.stderr)
    request = partial(
        run, model, Deployment(engines[0], gpu, wanted.tp, wanted.ep, triton or ""),
        release=pins[engines[0]] or None, compare=not wanted.names, download=model != wanted.model[0], progress=report,
    )  # fmt: skip
    audit = request()
    if measure:
        from kernrec.triton.machine import this_machine
        from kernrec.triton.measure_audit import measure_audit

        if measure_audit(audit, this_machine(gpu.name, present=True), report):
            audit = request()
    written = write_folder(audit, write) if write is not None else []
    if wanted.as_json:
        print_json({**audit.as_dict(), "written": [str(path) for path in written]})
        return
    _print_files(audit)
    columns = ("tokens", "default", "best", "default / best", "90 %", "best config")
    for audited in audit.files:
        if audited.comparisons:
            print_table(f"{_short(audited)}: {audited.verdict.value}", columns, map(_row, audited.comparisons))
    notes = [*_details(audit), *audit.notes]
    if write is not None and not written:
        notes.append(f"{write} was not written: no file is worth it")
    if written:
        notes.append(f"{counted(len(written), 'file')} in {write}, predicted: measure before you trust them")
    print_notes(notes)
    if written and write is not None:
        print_line(setting(audit, write))
        if audit.served.engine == "sglang":
            print_notes(["SGLang then ignores the files in its own package: copy them to this folder, too"])


def _print_entries(files: "Sequence[JudgedFile]", as_json: bool) -> None:
    from kernrec.recommender.serving.judgments import config_text

    if as_json:
        print_json(files[0].as_dict() if len(files) == 1 else {"files": [judged.as_dict() for judged in files]})
        return
    for judged in files:
        stated = [f"{name.replace('triton', 'Triton')} {version}" for name, version in judged.versions.items()]
        print_line(", ".join([f"{judged.name} on {judged.gpu.title}", *stated]))
        text, kind = (config_text, "problem") if judged.tool else (_tiles, "tokens")
        rows = [[e.problem, text(e.config), e.judgment.value, e.reason] for e in judged.entries]
        print_table("entries", (kind, "config", "", "reason"), rows)
        counts = Counter(entry.judgment.value for entry in judged.entries)
        if len(judged.entries) > 1:
            print_line(", ".join(f"{count} {judgment}" for judgment, count in counts.most_common()))
    print_notes(list(dict.fromkeys(judged.note for judged in files)))


def _pins(text: str) -> dict[str, str]:
    """Return the versions in the option --engine (`sglang==0.5.3,triton==3.4.0`), keyed by software."""
    return {name: version for part in text.split(",") if part for name, _, version in [part.strip().partition("==")]}


def _print_files(audit: "ServingAudit") -> None:
    from kernrec.recommender.serving.compared import Verdict

    served = audit.served
    split = f"tensor parallel {served.tp}" + (f", expert parallel {served.ep}" if served.ep > 1 else "")
    triton = f", Triton {served.triton}" if served.triton else ""
    engine = f"{served.engine} {audit.shipped.version}"
    print_line(f"{audit.model.title} with {engine} on {served.gpu.title}, {split}{triton}")
    if not audit.files:
        return
    print_line(f"* is {served.device_name}")
    rows = []
    for each in audit.files:
        verdict = "missing" if each.verdict is Verdict.UNKNOWN else each.verdict.value
        rows.append([verdict, each.file.kind.value, _short(each), each.file.layers])
    title = f"tuned files that the engine looks for, according to {audit.shipped.source}"
    print_table(title, ("", "kernel", "file", "layers"), rows)


def _short(audited: "AuditedFile") -> str:
    from kernrec.recommender.serving.tuned_files import divided

    parts = divided(audited.file.name)
    return (parts[1] if parts else audited.file.name).removesuffix(".json")


def _details(audit: "ServingAudit") -> list[str]:
    """Return notes on the tuned files. A note on several files appears once."""
    together: dict[str, list[str]] = {}
    for audited in audit.files:
        texts = [audited.file.note] if audited.file.note else []
        if audited.missing and audited.taken:
            texts.append(f"{audit.served.engine} takes {audited.taken}")
        if audited.why_none and not audited.comparisons:
            texts.append(audited.why_none)
        if audited.shipped and not audited.of_this_triton:
            texts.append(f"the engine uses its file for {audited.shipped.partition('/')[0]} instead")
        for text in texts:
            together.setdefault(text, []).append(f"{audited.file.kind.value} {_short(audited)}")
    kinds = [(text, names[0] if len(names) == 1 else f"{len(names)} files") for text, names in together.items()]
    return [f"{names}: {text}" for text, names in kinds]


def _row(made: "Comparison") -> list[str]:
    from kernrec.recommender.serving.compared import Verdict

    low, high = made.interval
    own = made.own_cost
    best = "its default" if made.best == made.own or made.verdict is Verdict.LEAVE else _tiles(made.best)
    return [
        str(made.tokens),
        "cannot run" if own is None else human(own, "s"),
        human(made.best_cost, "s"),
        "" if own is None else f"{made.ratio:.2f}",
        "" if own is None else f"{low:.2f} to {high:.2f}",
        best,
    ]


def _tiles(config: "Tiles") -> str:
    if "GROUP_SIZE_M" not in config:
        return f"{config['BLOCK_SIZE_M']} rows, {config['num_warps']} warps"
    tile = " x ".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    options = f"{config.get('num_warps', 4)} warps, {config.get('num_stages', 3)} stages"
    return f"{tile}, group {config['GROUP_SIZE_M']}, {options}"
