"""Test that names and docstrings use specific terms of the field, not vague words."""

import ast
import re

import pytest

from tests.helpers.paths import ROOT

VAGUE = frozenset({"asked", "at", "found", "given", "it", "kept", "known", "of", "one", "said", "told", "where"})
METHODS = frozenset({"at", "of"})
"""Vague words that may name methods: `space.at(problem)` as in NumPy's `add.at`, `Shapes.of(op)` as a constructor."""
FIELDS = {"kernrec/checking/check.py": {"where"}}
"""Vague names of public fields, by file."""


_MENTIONS = re.compile(
    r"\b(?:{0})\s*(?::?=(?!=)|[-+*/|&]=|,|:|\)|\]|in\b)|\b(?:def|class|as|import)\s+(?:{0})\b".format("|".join(VAGUE))
)
"""Matches every source that may bind a vague name, so that most sources need not be parsed."""


def vague_names(source: str) -> list[tuple[int, str]]:
    if not _MENTIONS.search(source):
        return []
    names = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=name):
                names.append((node.lineno, name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name not in METHODS:
                names.append((node.lineno, name))
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=name) | ast.MatchAs(name=name):
                names.append((node.lineno, name))
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.append((node.lineno, name))
    return [(line, name) for line, name in names if name in VAGUE]


def sources(folder: str) -> dict[str, str]:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


@pytest.mark.parametrize("folder", ["kernrec", "tests", "tools", "examples"])
def test_variables_have_specific_names(folder):
    vague = {
        path: [(line, name) for line, name in vague_names(source) if name not in FIELDS.get(path, ())]
        for path, source in sources(folder).items()
    }
    assert vague
    assert not {path: names for path, names in vague.items() if names}


@pytest.mark.parametrize(
    "source",
    ["found = 1", "for at in (): ...", "lambda one: one", "def told(): ...", "class A:\n    asked: int", "x.said = 1"],
)
def test_vague_name_is_detected(source):
    assert len(vague_names(source)) == 1
