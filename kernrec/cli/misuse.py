"""Convert errors of Typer's parser to one-line messages.

A message names the argument, and the expected value or the most similar valid value.
"""

import re
from collections.abc import Iterable
from typing import Any

from typer.exceptions import TyperException

from kernrec.errors import UsageError, unknown

REMOVED = {
    "gpus": "`kernrec list gpus`",
    "ops": "`kernrec list ops`",
    "kernels": "`kernrec list kernels`",
    "serve-audit": "`kernrec audit`",
    "compare": "`kernrec recommend --gpu a,b`",
    "report": "`kernrec explore --output FILE`",
    "spec": "`kernrec analyze SOURCE --init`",
    "emulate": "`kernrec check`",
    "refine": "`kernrec collect --strategy refine`",
    "search": "`kernrec collect --strategy guide` (or genetic)",
    "db remote": "`kernrec db push PLACE` and `kernrec db pull PLACE`, which name the place itself",
    "db sync": "`kernrec db pull PLACE`, then `kernrec db push PLACE`",
    "db log": "`kernrec db info`, which lists what was pulled by signer",
    "db index": "`kernrec db verify PLACE`",
    "db coverage": "`kernrec db info --coverage`",
    "db key": "`kernrec db trust --own`",
    "db sign": "`kernrec db export --bundle FILE`, which signs the bundle",
    "db retract": "`kernrec db withdraw`",
    "db export --format": "no option: a bundle has Parquet files, which other programs read",
    "--stack": "--backend",
    "--time": "--map",
    "--wide": "--format wide",
    "--markdown": "--format markdown",
    "--fix": "--shape, which gives the open dimensions of an .onnx workload",
    "--ignore-memory": "--tp or a smaller --batch, or `kernrec.recommend_network(ignore_memory=True)` in Python",
    "--layers": "--top, or --format wide for all layers",
    "--clocks": "--clock any",
    "--calls": "--gpus 200, the GPUs that run all year",
    "--energy-price": "--gpus 200 --bill energy=0.25EUR/kWh",
    "--carbon": "--gpus 200 --bill carbon=380g/kWh",
    "--price": "no option: divide the price by the printed tokens/s",
    "--hours": "--gpus, the GPUs that run all year",
    "--utilization": "a smaller number of --gpus",
    "--tokens": "--workload, whose tokens are counted",
    "--images": "--batch, the images of a pass",
    "--no-calibration": "`kernrec.recommender.Recommender(calibrated=False)` in Python",
    "--ptx-isa": "--emit cuda, which an older nvcc compiles to PTX of its own version",
    "--cuda-only": "--emit cuda, which chooses among kernels in CUDA C++",
    "--query-log": "the environment variable KERNREC_QUERY_LOG",
    "--plot": "`kernrec explore`, which draws answers; --json has the figures",
    "--html": "--output FILE.html",
    "--browser": "a terminal: the page opens by itself only there",
    "--no-browser": "a pipe: the page opens by itself only in a terminal",
    "--call": "--spec call.toml",
    "--save-spec": "--init, which writes a spec beside the source",
    "--force": "another name: an existing file is never overwritten",
    "db trust --name": "`kernrec db trust KEY NAME`",
    "db withdraw --session": "--row SESSION",
    "db import --ignore": "--map ignore=COLUMN,COLUMN",
    "db import --by": "--map by=WHO",
    "check --entry": "the name after the file, such as kernel.cu:name",
    "doctor --cluster": "`kernrec doctor` on each node",
    "monitor --pid": "`kernrec monitor -- tail --pid=PID -f /dev/null`",
    "monitor --period": "no option: the GPU is read every 100 ms",
    "train --out": "--db, beside which models are kept",
    "explain --why": "no option: notes are always explained",
    "contribute --measured": "--budget 0m",
    "--all": "--strategy exhaustive (analyze: --effort exhaustive)",
    "--csv": "--format csv",
    "--processes": "`taskset -c 0-3 kernrec ...`",
    "--races": "no option: races are always looked for",
    "--sm": "--gpu, such as a100 for sm_80",
    "--threads": "no option: two threads are used",
    "--show": "`kernrec list gpus NAME`",
    "mcp --memory": "no option: 4 GiB are the limit",
    "explore --layout": "the selection on the page",
    "--per-function": "no option: 50 calls of each function are written",
    "analyze --clocks": "`kernrec recommend --kernel NAME --clock any` afterwards",
    "analyze --inputs": "`kernrec recommend --kernel NAME --inputs zeros` afterwards",
    "analyze --wide": "--json, or `kernrec recommend --kernel NAME --format wide` afterwards",
    "analyze --csv": "--json, or `kernrec recommend --kernel NAME --format csv` afterwards",
    "analyze --markdown": "`kernrec recommend --kernel NAME --format markdown` afterwards",
    "analyze --recorded": "--effort recorded, which profiles the measured configs of --db DATABASE",
    "explain --inputs": "`kernrec recommend --inputs`",
    "explain --top": "--json for all figures; five changes are printed",
    "explore --clocks": "the check box of the page",
    "explore --inputs": "the selection on the page",
    "audit --engine-release": "--engine vllm==0.8.5",
    "audit --triton": "--engine sglang==0.5.3,triton==3.4.0",
    "audit --download": "hf:ORG/NAME as the model",
    "audit --device-name": "`kernrec.serve_audit(device=...)` in Python",
    "audit --lora-rank": "`kernrec.serve_audit(lora_rank=...)` in Python",
    "audit --tokens": "`kernrec.serve_audit(tokens=...)` in Python",
    "audit --all": "`kernrec.serve_audit(everything=True)` in Python",
    "--no-resume": "another --db: rows of the database are skipped",
    "--resume": "no option: rows of the database are always skipped",
    "collect --dry-run": "no option: --budget 1configs measures what would come first",
    "collect --device": "--replay DATABASE, or --replay shipped",
    "contribute --device": "`kernrec collect --strategy plan --replay DATABASE`",
    "contribute --replay": "`kernrec collect --strategy plan --replay DATABASE`",
    "collect --effort": "--strategy quick, all or exhaustive",
    "collect --until": "--budget, such as --budget 30m,2%",
    "collect --seed": "no option: a campaign makes the same random choices each time",
    "contribute --seed": "no option: the plan makes the same random choices each time",
    "contribute --out": "the bundle in contributed/, which you may move",
    "check --budget": "no option: --time limits the blocks of a launch",
    "monitor --replay": "the trace's .csv file with any program for tables",
    "monitor --device": "the environment variable CUDA_VISIBLE_DEVICES",
    "monitor --calls": "no option: divide the printed energy by the number of calls",
    "explore --batch": "`kernrec recommend --batch`, or a config.json with another batch",
    "explore --context": "`kernrec recommend --context`",
    "explore --tp": "`kernrec recommend --tp`",
    "analyze --cluster": "no option: all cores of this machine are used",
    "analyze --layout": "the layout in the spec",
    "train --gpu": "no option: models learn from all GPUs of the database",
    "evaluate --gpu": "--split gpu, which holds out each GPU",
    "db push --op": "--gpu, or a database with only these rows in KERNREC_DB",
    "db push --kernel": "--gpu, or a database with only these rows in KERNREC_DB",
    "db push --since": "no option: a push adds only what the place lacks",
    "db withdraw --op": "--kernel or --row SESSION",
    "db withdraw --since": "--row for each measurement or session that --dry-run lists",
    "db info --shipped": "--db shipped",
    "db info --gpu": "`kernrec collect --strategy refine --gpu GPU`",
    "db import --repeats": "no option: the median of a config's times is used",
    "db import --models": "`kernrec train`, which makes models from the rows",
    "db export --models": "`kernrec train` where the bundle is imported",
    "db export --key": "no option: each bundle is signed with your own key (`kernrec db trust --own`)",
    "db export --dry-run": "no option: an export writes only to this machine",
    "db export --since": "--gpu, --op or --kernel",
    "db export --dtype": "--gpu, --op or --kernel",
    "db export --layout": "--gpu, --op or --kernel",
    "db export --shape": "--gpu, --op or --kernel",
    "db verify --json": "no option: the exit status is 1 if a bundle is refused",
}
"""Replacement of each removed command or option.

If an option was removed from only some commands, the key also names the command, as in `db export --key`.
"""
_WHOLE = {"int": "a whole number", "integer": "a whole number", "float": "a number"}


def sentence(error: TyperException) -> str:
    """Return a one-line message for an error of Typer's parser, or the parser's own text if there is no better one."""
    text, context = error.format_message(), getattr(error, "ctx", None)
    plain, parameter = text.replace("\n", " "), getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if option and "requires an argument" in text:
        return f"{option} has no value" + (f"; expected: {_help_of(context, option)}" if context else "")
    if context is None:
        return plain
    lists = f"{context.command_path} --help"
    if option and "No such option" in text:
        command = context.command_path.partition(" ")[2]
        if instead := REMOVED.get(f"{command} {option}") or REMOVED.get(option):
            return f"{option} {_removed(instead)}"
        if "--shape" in _options(context) and (name := option.lstrip("-").lower()) in _dimensions():
            return f"unknown option {option!r}; a dimension is a part of the shape, such as --shape {name}=64"
        return str(unknown("option", option, _options(context), lists))
    if match := re.match(r"No such command '(.*?)'", text, re.DOTALL):
        if instead := REMOVED.get(" ".join([*context.command_path.split()[1:], match[1]])):
            return f"`{context.command_path} {match[1]}` {_removed(instead)}"
        return str(unknown("command", match[1], getattr(context.command, "commands", {}), lists))
    if match := re.match(r"Got unexpected extra argument\S* \((.*)\)$", text, re.DOTALL):
        argument = match[1].split()[0]
        if "--op" in _options(context) and _is_op(argument):
            return f"unexpected argument {argument!r}; an op is named with --op {argument}"
        return f"unexpected argument {argument!r} (`{lists}` shows what is accepted)"
    if parameter is None:
        return plain
    if text.startswith("Missing"):
        return f"{_name(parameter)} is missing; expected: {_help(parameter)}"
    if match := re.match(r"'(.*)' is not a valid (\w+)", error.message, re.DOTALL):
        return f"{_name(parameter)} {match[1]!r}: {_WHOLE.get(match[2], match[2])} is expected"
    if match := re.match(r"(\S+) is not in the range x>=(\S+)\.", error.message):
        return f"{_name(parameter)} is {match[1]}; expected at least {match[2]}"
    return plain


def _removed(instead: str) -> str:
    reason = instead.removeprefix("no option: ")
    return f"was removed; use {instead}" if reason == instead else f"was removed: {reason}"


def asked_twice(parameters: Iterable[Any]) -> None:
    """Raise `UsageError` if an option that accepts one value is repeated."""
    seen: set[Any] = set()
    for parameter in parameters:
        single = parameter.param_type_name == "option" and not (parameter.multiple or parameter.is_flag)
        if single and parameter in seen:
            raise UsageError(f"{_name(parameter)} is given twice; expected once: {_help(parameter)}")
        seen.add(parameter)


def _dimensions() -> set[str]:
    from kernrec.op.registry import all_ops

    return {dim.name for op in all_ops() for dim in op.dims}


def _is_op(name: str) -> bool:
    from kernrec.op.registry import find_op

    try:
        return bool(find_op(name))
    except UsageError:
        return False


def _options(context: Any) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]


def _name(parameter: Any) -> str:
    options = [name for name in parameter.opts if name.startswith("--")]
    return options[0] if options else str(parameter.name).upper()


def _help(parameter: Any) -> str:
    text = str(getattr(parameter, "help", None) or "a value").rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _help_of(context: Any, option: str) -> str:
    return next((_help(parameter) for parameter in context.command.params if option in parameter.opts), "a value")
