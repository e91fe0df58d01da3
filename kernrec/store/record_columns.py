"""Records of classes as columns of one table, and back: the fields of a record that are records themselves are its
parts, all others, and those of its parts, are the columns."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any

PARTS: dict[type, Mapping[str, type]] = {}
"""By class: its fields that are records, with their classes. Classes that are not here have none."""


@cache
def names_of(owner: type) -> tuple[str, ...]:
    """The columns of a class, in the order of its fields."""
    parts = PARTS.get(owner, {})
    names: list[str] = []
    for item in fields(owner):
        names += names_of(parts[item.name]) if item.name in parts else [item.name]
    return tuple(names)


def columns_of(record: Any) -> dict[str, Any]:
    """Every column of a record by name."""
    parts = PARTS.get(type(record), {})
    columns: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in parts:
            columns |= columns_of(value)
        else:
            columns[name] = value
    return columns


def build(owner: Any, columns: Mapping[str, Any]) -> Any:
    """A record from its columns; those left out, and parts without any column, have their defaults."""
    parts = PARTS.get(owner, {})
    arguments = {}
    for item in fields(owner):
        if item.name not in parts:
            if item.name in columns:
                arguments[item.name] = columns[item.name]
        elif any(name in columns for name in names_of(parts[item.name])):
            arguments[item.name] = build(parts[item.name], columns)
    return owner(**arguments)


def as_json(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that are not None, as values that JSON can hold."""
    values = {name: value for name, value in columns.items() if value is not None}
    for name in values.keys() & {"config", "event_reasons"}:
        values[name] = dict(values[name])
    if "problem" in values:
        values["problem"] = vars(values["problem"]) | {"dims": dict(values["problem"].dims)}
    if isinstance(values.get("measured_at"), datetime):
        values["measured_at"] = values["measured_at"].isoformat()
    return values
