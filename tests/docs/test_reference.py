"""Test that docs are short, that their files, links and options exist, and that their reference has every name."""

import ast
import importlib
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer.main
import yaml

import kernrec
from kernrec.cli.app import app, run
from kernrec.kernel import all_kernels, kernels_for
from kernrec.kernel.expression import FUNCTIONS
from kernrec.kernel.spec import Launch
from kernrec.kernel.spec_reader import kernel_from
from kernrec.model.analytical.launch_time import RESOURCES
from kernrec.op import all_ops
from kernrec.ptx.analysis import issue_cost
from kernrec.recommender import Objective
from kernrec.recommender.explain.breakdown import _PARTS
from kernrec.store.schema import migrations
from kernrec.training.evaluate_models import METHODS
from tests.helpers.markdown import blocks, name_of, pages, prose
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
        if "environ" in (text := path.read_text(encoding="utf-8")):
            words = [str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
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
    "block", "best block", "component", "CO2", "database", "reason", "first", "the first", "gpu", "energy",
}  # fmt: skip
"""Column headings that need no glossary entry: data sheet figures and everyday words."""


def _known(term: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", GLOSSARY + VALUES, re.IGNORECASE))


def _heads() -> set[str]:
    """Return column headings, without units, from `Column` calls and (name, "left" or "right") pairs in the CLI."""
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
    sql = "".join(step.sql for step in migrations())
    for allowed in re.findall(r"(?:tier|outcome) IN \(([^)]*)\)", sql):
        yield from re.findall(r"'(\w+)'", allowed)


@pytest.mark.parametrize("values", [
    RESOURCES, CLASSES, list(Objective), METHODS, _PARTS.values(), _outcomes(),
], ids=["bottlenecks", "classes", "objectives", "methods", "energy", "outcomes"])  # fmt: skip
def test_every_value_of_the_output_is_explained(values):
    lacking = [value for value in values if value not in CODE]
    assert not lacking


@pytest.mark.parametrize("term", NOTES)
def test_terms_in_notes_are_explained(term):
    assert term in GLOSSARY or _known(term)


TOP = ("kernrec", "tools", "tests", "docs", "db", "datasets", ".ci")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_paths_in_the_docs_exist(page):
    for code in _CODE.findall(prose(page)):
        for word in code.split():
            if word.split("/")[0] in TOP and "/" in word and not re.search(r"<|NNN", word):
                assert list(ROOT.glob(word.rstrip("/"))), f"{name_of(page)} names `{word}`, which does not exist"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_script_options_in_the_docs_exist(page):
    for code in _CODE.findall(prose(page)):
        words = code.removeprefix("python ").split()
        package = {"tools/evidence": "evidence/experiments", "tools/bench.py": "benchmarks"}.get(words[0])
        if package and len(words) > 1 and words[1] != "NAME":
            path = ROOT / "tools" / package / f"{words[1].replace('-', '_')}.py"
            assert path.is_file(), f"{name_of(page)}: {words[0]} has no command {words[1]}"
            (run,) = (each for each in ast.parse(path.read_text("utf-8")).body if getattr(each, "name", "") == "run")
            assert isinstance(run, ast.FunctionDef)
            named = {"only": "set"}
            options = {f"--{named.get(each.arg, each.arg).replace('_', '-')}" for each in run.args.args}
            options |= {f"--no-{option[2:]}" for option in options}
            for word in words[2:]:
                assert not word.startswith("--") or word in options, f"{name_of(page)}: {words[1]} has no option {word}"
        elif words[0].startswith("tools/") and words[0].endswith(".py"):
            text = (ROOT / words[0]).read_text(encoding="utf-8")
            for word in words[1:]:
                if word.startswith("--"):
                    assert f'"{word}"' in text, f"{name_of(page)}: {words[0]} has no option {word}"


@pytest.mark.parametrize("page", [p for p in pages() if p.parent == ROOT], ids=name_of)
def test_relative_links_exist(page):
    for target in _LINK.findall(prose(page)):  # MkDocs checks links between the site's pages
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_readme_is_short_and_fits_a_terminal():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 125
    shown = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            shown = line.startswith(("```console", "```text"))
        elif shown and not line.startswith(
            ("$ ", "note: ", "Capping the GPU ", "cuBLAS: ")
        ):  # the terminal wraps sentences
            assert len(line) <= 80, f"README.md:{number}: {len(line)} columns"


def test_readme_lists_what_every_operator_supports():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {}
    for names, dtypes in re.findall(r"^\| (`.+`) \| ([a-z0-9, ]+) \|", text, re.MULTILINE):
        listed |= {name: dtypes.split(", ") for name in re.findall(r"`(\w+)`", names)}
    assert listed == {
        op.name: [t for t in op.dtypes if kernels_for(op.name, t)] for op in all_ops() if kernels_for(op.name)
    }
    assert f"{len(list(all_kernels()))} kernels" in text


GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def _words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide_has_at_most_900_words(guide):
    assert _words(guide) <= 900


def test_docs_and_guides_have_at_most_14000_words():
    assert sum(map(_words, [*GUIDES, *(ROOT / "docs").glob("*.md")])) <= 14000


def test_readme_is_short_enough_to_read_in_a_minute():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) < 6000
    assert text.index("```sh") < 2600  # the first screen shows the first command
    proofs = re.findall(r"\]\((docs/accuracy/[\w-]+\.md)\)", text)
    assert len(proofs) >= 3
    assert all((ROOT / page).is_file() for page in proofs)


def test_readme_picture_shows_a_terminal_of_80_columns():
    (path,) = re.findall(r"\]\((docs/images/[\w-]+\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [text.text or "" for text in ET.parse(ROOT / path).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert lines[0].startswith("$ kernrec recommend --workload")
    assert max(map(len, lines)) <= 80
    assert any(" today" in line for line in lines)


EXAMPLES = ROOT / "examples"


def test_slurm_script_parses():
    script = (EXAMPLES / "collect.sbatch").read_text(encoding="utf-8")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_kubernetes_job_uses_existing_options_and_declared_volumes():
    job = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text(encoding="utf-8"))
    assert job["kind"] == "RayJob"
    command, *options = shlex.split(job["spec"]["entrypoint"])
    assert command == "kernrec"
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {
        mount["name"]: mount["mountPath"] for container in pod["containers"] for mount in container["volumeMounts"]
    }
    assert mounts.keys() <= volumes
    assert any(option.startswith(f"{path}/") for option in options for path in mounts.values())
    assert run([*options, "--help"]) == 0
