"""Test that the glossary explains every term in the output, and that the reference page lists every output value."""

import ast
import re
import tomllib
from collections.abc import Iterable

import pytest

from kernrec.measure.campaign.results import EFFORTS
from kernrec.model.prior.launch_time import RESOURCES
from kernrec.ptx.analysis import issue_cost
from kernrec.recommender import Objective
from kernrec.recommender.explain.breakdown import _PARTS
from kernrec.store.schema import migrations
from kernrec.training.evaluate_models import METHODS
from tests.helpers.paths import ROOT, TOOLS

CLASSES = (*issue_cost.CLASSES, *issue_cost.MACHINE_CLASSES)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
VALUES = "\n".join(
    f"`{name}`: {meaning}"
    for table in tomllib.loads((TOOLS / "reference.toml").read_text(encoding="utf-8"))["output"].values()
    for name, meaning in table.items()
)
ENTRIES = re.findall(r"^- \*\*(.+?)\*\*", GLOSSARY, re.MULTILINE)
CODE = set(re.findall(r"`([^`\n]+)`", GLOSSARY + VALUES))

NOTES = (
    "spill", "session", "occupancy heuristic", "static profile", "predicted", "learned", "measured",
    "calibration", "MIG", "drift", "Pareto front", "EDP", "screen", "coarse", "final", "wave", "wavefront", "sector",
    "roofline", "bank conflict", "`1=`", "`~2`", "power limit", "clock", "interval", "replay", "conformal",
    "extrapolated", "sampled",
)  # fmt: skip
"""Terms used in notes, errors and explanations."""

PLAIN = {
    "figure", "value", "change", "config", "against", "name", "title", "sm", "sms", "memory", "memory bandwidth", "l2",
    "tdp w", "boost clock", "aliases", "dimensions", "codes", "dtypes", "layouts", "min sm", "dtype min sm", "hash",
    "tunables", "description", "op", "ops", "kernel", "quantity", "method", "problems", "row", "path", "about", "by",
    "cost", "dtype", "s/s per k", "/million s", "s/s", "s/J", "of a year", "default",
    "configs", "time", "first config", "energy saved", "age", "failed", "last measured", "calls/s", "recorded on",
    "tokens", "file", "layers", "runs", "fits", "ms/", "J/", "best limit", "layers that take most of the time",
    "kernrec vs", "batch", "architecture", "bound by", "device", "left", "measured configs", "unmeasured", "grid",
    "GPUs", "vs", "energy vs", "time vs", "default / best",
    "total", "launches", "mean", "least", "most",
    "block", "best block", "component", "CO2", "database", "reason", "first", "gpu", "energy",
}  # fmt: skip
"""Column headings that need no glossary entry: data sheet figures and everyday words."""


def _known(term: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", GLOSSARY + VALUES, re.IGNORECASE))


def _heads() -> set[str]:
    """Return the column headings, without units, that the CLI's code has as (name, "left" or "right") or `Column`."""
    heads = set()
    for path in (ROOT / "kernrec" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                if len(values) == 2 and values[1] in ("left", "right") and isinstance(values[0], str):
                    heads.add(values[0])
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Column", "quantities") and node.args:
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
                heads.add(re.sub(r" ?\[[^]]*\]?", "", text).strip())
    # The explorer page defines its tables as `["latency (90 % interval)", (row) => ...`.
    for path in (ROOT / "kernrec" / "page" / "static").glob("*.js"):
        heads |= set(re.findall(r'\["([^"]+)", (?:\(|cell\()', path.read_text(encoding="utf-8")))
    return heads


def test_glossary_is_one_sorted_page():
    assert len(GLOSSARY.split()) <= 600
    assert len(ENTRIES) >= 30
    names = [entry.strip("`").casefold() for entry in ENTRIES]
    assert sorted(names) == names


def test_every_column_head_is_explained():
    heads = _heads()
    assert {"rank", "power limit", "bottleneck", "vs default"} <= heads
    for head in heads - PLAIN:
        words = [word.strip() for word in re.split(r" \(|\bvs | x |: |, ", head.rstrip(")")) if word.strip()]
        assert all(_known(word) or word in PLAIN for word in words), f"the glossary lacks the column {head!r}"


def _outcomes() -> Iterable[str]:
    """Yield the values that the database schema allows for tiers and outcomes."""
    sql = "".join(step.sql for step in migrations())
    for allowed in re.findall(r"(?:tier|outcome) IN \(([^)]*)\)", sql):
        yield from re.findall(r"'(\w+)'", allowed)


@pytest.mark.parametrize("values", [
    RESOURCES, (*issue_cost.CLASSES, *issue_cost.MACHINE_CLASSES), list(Objective), METHODS,
    _PARTS.values(), _outcomes(),
], ids=["bottlenecks", "classes", "objectives", "methods", "energy", "outcomes"])  # fmt: skip
def test_every_value_of_the_output_is_explained(values):
    lacking = [value for value in values if value not in CODE]
    assert not lacking


def test_effort_levels_are_explained_with_the_option():
    guides = ROOT / "docs" / "guides"
    assert all(f"`{effort}`" in (guides / "analyze.md").read_text(encoding="utf-8") for effort in EFFORTS)
    assert all(
        f"`{name}`" in (guides / "collect.md").read_text(encoding="utf-8") for name in ("quick", "all", "exhaustive")
    )


@pytest.mark.parametrize("term", NOTES)
def test_terms_in_notes_are_explained(term):
    assert term in GLOSSARY or _known(term)
