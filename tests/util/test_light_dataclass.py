"""Test that a light dataclass behaves as a frozen dataclass of the standard library."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from kernrec.util.light_dataclass import _MANY, dataclass


def made_by(decorator: Callable[[type], type], name: str) -> Any:
    class Example:
        name: str
        size: int = 3
        parts: list[int] = field(default_factory=list, hash=False)
        note: str = field(default="", repr=False, compare=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size")

    Example.__name__ = Example.__qualname__ = name
    return decorator(Example)


Light = made_by(dataclass(frozen=True), "Light")
Often = made_by(dataclass(frozen=True), "Often")
Standard = made_by(dataclasses.dataclass(frozen=True), "Standard")

for _ in range(2 * _MANY):
    Often("a")  # many instances make the class generate an `__init__`


BOTH = pytest.mark.parametrize("kind", [Light, Often, Standard])


@BOTH
def test_arguments_are_accepted_by_position_name_and_default(kind):
    assert vars(kind("a")) == {"name": "a", "size": 3, "parts": [], "note": ""}
    assert vars(kind("a", 1, note="n")) == {"name": "a", "size": 1, "parts": [], "note": "n"}
    assert kind("a").parts is not kind("a").parts


@BOTH
@pytest.mark.parametrize(
    ("args", "arguments"),
    [((), {}), (("a", 1, [], "", 5), {}), (("a",), {"name": "b"}), (("a",), {"other": 1}), ((), {"size": 1}),
     ((), {"other": 1, "size": 1, "parts": [], "note": ""})],
)  # fmt: skip
def test_wrong_arguments_are_refused(kind, args, arguments):
    with pytest.raises(TypeError):
        kind(*args, **arguments)


@BOTH
def test_field_cannot_be_assigned(kind):
    with pytest.raises(FrozenInstanceError):
        kind("a").name = "b"
    with pytest.raises(FrozenInstanceError):
        del kind("a").name


@BOTH
def test_equality_and_hash_ignore_fields_without_compare(kind):
    assert kind("a", note="x") == kind("a", note="y") != kind("b")
    assert hash(kind("a", parts=[1])) == hash(kind("a", parts=[2]))
    assert kind("a") != "a"


@BOTH
def test_replace_copy_and_pickle_keep_fields(kind):
    instance = kind("a", 5)
    assert [f.name for f in dataclasses.fields(instance)] == ["name", "size", "parts", "note"]
    assert dataclasses.replace(instance, size=6) == kind("a", 6)
    assert dataclasses.asdict(instance) == {"name": "a", "size": 5, "parts": [], "note": ""}
    assert copy.deepcopy(instance) == instance == pickle.loads(pickle.dumps(instance))


@BOTH
def test_values_are_checked_on_construction(kind):
    with pytest.raises(ValueError, match="size"):
        kind("a", -1)
