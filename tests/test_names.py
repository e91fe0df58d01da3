"""Variables are named for what they hold: words that fit everything and say nothing are no names."""

import ast
import re

import pytest

from tests.helpers.paths import ROOT

VAGUE = frozenset({"asked", "at", "found", "one", "said", "told"})
METHODS = frozenset({"at"})
"""Methods may be called so: `space.at(problem)` reads as NumPy's `add.at` does."""


_MENTIONS = re.compile(
    r"\b(?:{0})\s*(?::?=(?!=)|[-+*/|&]=|,|:|\)|\]|in\b)|\b(?:def|class|as|import)\s+(?:{0})\b".format("|".join(VAGUE))
)
"""What every source that binds such a name contains: most sources need not be parsed."""


def vague_names(source: str) -> list[tuple[int, str]]:
    """Line and name of every variable, parameter, field and function of a source that is called by a vague word."""
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


@pytest.mark.parametrize("folder", ["kernrec", "tests", "tools"])
def test_names_say_what_they_hold(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]
    named = {str(path.relative_to(ROOT)): vague_names(path.read_text("utf-8")) for path in paths}
    assert len(paths) > 20
    assert not {path: names for path, names in named.items() if names}


@pytest.mark.parametrize(
    "source",
    ["found = 1", "for at in (): ...", "lambda one: one", "def told(): ...", "class A:\n    asked: int", "x.said = 1"],
)
def test_a_vague_name_is_seen(source: str) -> None:
    assert len(vague_names(source)) == 1
