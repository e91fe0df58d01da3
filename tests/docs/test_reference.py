"""Test that the reference has an entry for everything that the code does not document, and no stale entry."""

import ast
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer.main

import kernrec
from kernrec.cli.app import app
from kernrec.kernel.expression import FUNCTIONS
from kernrec.kernel.spec import Launch
from kernrec.kernel.spec_reader import kernel_from
from tests.helpers.markdown import blocks, pages
from tests.helpers.paths import ROOT, TOOLS


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        return importlib.import_module("build_reference")


def test_every_spec_key_is_documented(reference):
    assert set(reference.KEYS) == set(reference.spec_keys())


def test_every_expression_function_is_documented(reference):
    assert set(reference.FUNCTION_VALUES) == set(FUNCTIONS)


def test_every_kind_of_value_in_the_reference_is_accepted(reference):
    for text in reference.VALUES:
        tensors = {"x": {"shape": ["n"], "values": text}, "y": {"shape": ["n"], "role": "output"}}
        spec = reference.SPECS["own"] | {"problem": {"dims": {"n": 64}, "tensors": tensors}}
        assert kernel_from(spec, "spec", "__global__ void run() {}").initial_values["x"]


def test_documented_argument_forms_are_complete_and_accepted(reference):
    tensors = {"x": {"shape": ["n"]}, "image": {"shape": ["n"], "texture": {}}}
    outputs = {"y": {"shape": ["n"], "role": "output"}}
    [launch] = reference.SPECS["own"]["launch"]
    spec = reference.SPECS["own"] | {
        "problem": {"dims": {"n": 64}, "tensors": tensors | outputs},
        "launch": [launch | {"arguments": [*reference.ARGUMENTS, "x", "texture image", "y"]}],
    }
    [read] = kernel_from(spec, "spec", "__global__ void run() {}").launches
    kinds = {type(argument) for argument in read.arguments[: len(reference.ARGUMENTS)]}
    assert kinds == set(get_args(get_args(get_type_hints(Launch)["arguments"])[0]))
    page = reference.kernel_toml()
    assert "`map x: 64, bx, 1`" in page
    assert all(text in page for text in reference.ARGUMENTS)


def test_every_environment_variable_is_documented(reference):
    named = set()
    earlier = ("KERNREC_", "XDG_", "CUDA_", "OPENBLAS_", "OMP_", "PYTHON")
    for path in (ROOT / "kernrec").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if "environ" in path.read_text(encoding="utf-8"):
            words = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            named |= {word for word in words if re.fullmatch(r"[A-Z_]+", word) and word.startswith(earlier)}
    assert named - reference.SET_BY_KERNREC == set(reference.VARIABLES)


@pytest.mark.slow
def test_every_answer_field_is_documented(reference):
    for command, answer in reference.answers().items():
        names = [name for name, _ in reference.fields(answer)]
        assert not [f"{command}: {name}" for name in names if not reference.meaning_of(command, name)]
        assert not [f"{command}: {name}" for name in reference.FIELDS[command] if name not in names]


def _commands() -> list[str]:
    names = []
    for name, command in getattr(typer.main.get_command(app), "commands").items():  # noqa: B009 - a group has them
        names += [f"{name} {inner}".rstrip() for inner in getattr(command, "commands", {"": None})]
    return names


def test_every_public_function_is_in_the_python_reference(reference):
    public = [
        name
        for name, value in vars(kernrec).items()
        if inspect.isfunction(value) and value.__module__ == "kernrec" and not name.startswith("_")
    ]
    assert len(public) >= 6
    listed = reference.python_api().splitlines()
    assert [name for name in public if f"::: kernrec.{name}" not in listed] == []


def test_every_command_is_in_the_reference(reference):
    page = reference.commands()
    assert not [name for name in _commands() if f"## `kernrec {name}`" not in page]


def test_every_command_has_an_example():
    shown = "".join(block.code for page in pages() for block in blocks(page))
    assert not [name for name in _commands() if f"kernrec {name} " not in shown.replace("\n", " ")]


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="needs the extra docs"
)
def test_site_builds_without_warnings_and_network(tmp_path):
    program = Path(sys.executable).with_name("mkdocs")
    build = [str(program), "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]*\bsrc=\"(https?:[^\"]*)|<link[^>]*href=\"(https?:[^\"]*)", text
        )
        assert not loaded, f"{page.name} loads {loaded}"
