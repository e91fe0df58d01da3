"""Convert errors of Typer's parser to one-line messages with suggestions."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.exceptions import TyperException

from kernrec.errors import UsageError, unknown


def removed(file: str = "removed.toml") -> dict[str, str]:
    """Return the table in `file`, which maps removed names to new names, or kernrec's names to names in other tools."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


_WHOLE = {"int": "a whole number", "integer": "a whole number", "float": "a number"}


def sentence(error: TyperException) -> str:
    """Convert an error of Typer's parser to one line."""
    text, context = error.format_message(), getattr(error, "ctx", None)
    plain, parameter = text.replace("\n", " "), getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if option and "requires an argument" in text:
        helps = [_help(each) for each in context.command.params if option in each.opts] if context else []
        return f"{option} has no value" + (f"; expected: {helps[0]}" if helps else "")
    if context is None:
        return plain
    lists = f"{context.command_path} --help"
    if option and "No such option" in text:
        command = context.command_path.partition(" ")[2]
        table = removed()
        if instead := table.get(f"{command} {option}") or table.get(option):
            return f"{option} {_removed(instead)}"
        if instead := _elsewhere(f"{command} {option}", context) or _elsewhere(option, context):
            return f"unknown option {option!r}; use {instead}"
        from kernrec.op.registry import all_ops

        dimensions = {dim.name for op in all_ops() for dim in op.dims}
        if "--shape" in _options(context) and (name := option.lstrip("-").lower()) in dimensions:
            return f"unknown option {option!r}; a dimension is a part of the shape, such as --shape {name}=64"
        return str(unknown("option", option, _options(context), lists))
    if match := re.match(r"No such command '(.*?)'", text, re.DOTALL):
        command = " ".join([*context.command_path.split()[1:], match[1]])
        if instead := removed().get(command):
            return f"`{context.command_path} {match[1]}` {_removed(instead)}"
        if instead := _elsewhere(command, context):
            return f"unknown command {match[1]!r}; use {instead}"
        return str(unknown("command", match[1], getattr(context.command, "commands", {}), lists))
    if match := re.match(r"Got unexpected extra argument\S* \((.*)\)$", text, re.DOTALL):
        argument = match[1].split()[0]
        expected = _place_of(argument, _options(context)) or f"`{lists}` shows what is accepted"
        return f"unexpected argument {argument!r}; {expected}"
    if parameter is None:
        return plain
    if text.startswith("Missing"):
        return f"{_name(parameter)} is missing; expected: {_help(parameter)}"
    if match := re.match(r"'(.*)' is not a valid (\w+)", error.message, re.DOTALL):
        expected = _WHOLE.get(match[2], f"a {match[2]}")
        return f"{_name(parameter)} {match[1]!r} is not {expected}; {_name(parameter)} sets: {_help(parameter)}"
    if match := re.match(r"(\S+) is not in the range x>=(\S+)\.", error.message):
        return f"{_name(parameter)} is {match[1]}; expected at least {match[2]}"
    return plain


def _elsewhere(name: str, context: Any) -> str:
    """Translate an option or command of other tools to kernrec's name, or to an empty string if there is none."""
    instead = next((text for text, names in removed("other_names.toml").items() if name in names.split(", ")), "")
    return instead if not instead.startswith("-") or instead.split()[0] in [*_options(context), "--db"] else ""


def _place_of(argument: str, options: list[str]) -> str:
    """Suggest an option or command for an unexpected argument, or return an empty string."""
    from kernrec.op.workload import workloads

    ending = argument.rpartition(".")[2]
    if "--op" in options and _is_op(argument):
        return f"pass it as --op {argument}"
    if "--workload" in options and (ending in ("json", "onnx") or argument in workloads()):
        return f"pass it as --workload {argument}"
    if "--shape" in options and re.match(r"\w+=\d", argument):
        return "a shape has commas, not spaces, such as --shape m=64,n=64,k=64"
    if ending in ("cu", "ptx"):
        return f"`kernrec analyze {argument}` reads kernels"
    return f"pass it as --db {argument}" if argument == "shipped" or ending == "duckdb" else ""


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
